// What the server at hand is and can do, asked once.

import { get } from "./api.js";

/** What a trace file says of the server. */
export const served = { model: "", version: "" };

/** A model, the paths there are, and the fields each takes. */
export class Server {
  constructor(model, paths, first) {
    Object.assign(this, { name: model.id, asks: first ? {} : { model: model.id }, width: model.canvas_length, context: model.max_model_len, paths });
    this.dial = model.dial ?? null;
    this.images = (model.input_modalities ?? []).includes("image");
    this.embedded = model.id === "nano" || model.id === "nano-sudoku";
    this.home = model.id === "nano-sudoku" ? "sudoku" : "write";
    this.greets = this.embedded && location.hash === ""; // the first view plays by itself for who has just arrived
  }

  /** Whether it has a path and, if they are named, each of these fields. */
  has(path, ...fields) {
    const known = this.paths.get(path);
    return known !== undefined && fields.every((name) => known.has(name));
  }
}

/** Ask; one for each name in /v1/models, the first being the one that a request without a name gets. Throws ApiError: 401 without a key, 503 while the model loads. */
export async function meet() {
  const [models, document] = await Promise.all([get("v1/models"), get("openapi.json")]);
  const paths = new Map();
  for (const [path, { post }] of Object.entries(document.paths)) {
    if (!post) continue;
    const schema = post.requestBody?.content["application/json"]?.schema ?? {};
    const body = schema.$ref ? document.components.schemas[schema.$ref.split("/").at(-1)] : schema;
    paths.set(path, new Set(Object.keys(body.properties ?? {})));
  }
  served.version = document.info.version;
  return models.data.map((model, i) => new Server(model, paths, i === 0));
}
