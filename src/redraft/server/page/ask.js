// One request that streams, shown on a stage.

import { stream } from "./api.js";

/** Ask, and show every step. Returns the text, its log-probabilities, why it ended, and what the server reports of it. */
export async function ask(path, body, stage, signal) {
  const said = { text: "", logprobs: [], finish: null, result: null, usage: null };
  const take = path !== "v1/canvas" ? theirs : body.canvas?.causal ? oneByOne : ours;
  stage.reset();
  stage.trace.begin(path, body);
  try {
    for await (const chunk of stream(path, body, signal)) take(chunk, stage, said);
  } finally {
    stage.end(said.result, said);
  }
  return said;
}

/** The stream of /v1/canvas. */
function ours(chunk, stage, said) {
  if (chunk.type === "noise") stage.noise(chunk);
  if (chunk.type === "draft") stage.add(chunk);
  if (chunk.type === "block") {
    stage.blocks.push(chunk);
    stage.trace.block(chunk);
    said.text += chunk.text;
  }
  if (chunk.type === "finished") {
    const { text, canvas, usage } = chunk;
    Object.assign(said, { text, usage, finish: canvas.finish, result: canvas });
  }
}

/** The same of the causal mode: every token is a step, and the text is as wide as it is long. */
function oneByOne(chunk, stage, said) {
  if (chunk.type === "block") {
    stage.blocks.push(chunk);
    const list = (name) => stage.blocks.flatMap((block) => block[name]);
    const [tokens, ids] = [list("pieces"), list("tokens")];
    const places = [...tokens.keys()];
    stage.add({ index: 0, block: 0, step: stage.blocks.length, width: tokens.length, end: null, positions: places, tokens, ids, entropy: list("entropy"), accepted: places.map(() => 1), forced: [] });
  } else ours(chunk, stage, said);
}

/** Chunks of a chat or a text, with the canvas as a key of their own. */
function theirs(chunk, stage, said) {
  if (chunk.canvas) chunk.canvas.step ? stage.add(chunk.canvas) : stage.noise(chunk.canvas);
  if (chunk.usage) said.usage = chunk.usage;
  const choice = chunk.choices[0]; // the chunk with the usage has none
  if (!choice) return;
  said.text += choice.delta?.content ?? choice.text ?? "";
  said.logprobs.push(...(choice.logprobs?.content ?? []));
  if (choice.finish_reason) Object.assign(said, { finish: choice.finish_reason, result: choice.canvas ?? null });
}
