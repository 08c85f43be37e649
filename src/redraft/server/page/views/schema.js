// An answer that is of a JSON Schema by construction, and how sure each field is.

import { ask } from "../ask.js";
import { field, h } from "../dom.js";
import { leaves, sureness } from "../fields.js";
import { Knobs } from "../knobs.js";
import { Run } from "../run.js";
import { ApiError, post } from "../api.js";
import { Stage } from "../stage.js";
import { bounds } from "../bounds.js";

export const id = "schema";
export const title = "Schema";

const PATH = "/v1/chat/completions";
const TEXT = "Send 3 apples to Maria.";
const FIELDS = "who, qty int, item";
const REWRITTEN = "Read a second time, another answer was likelier. It was written from left to right, and is this one";

/** Whether the server has what this needs. */
export function fits(server) {
  return server.has(PATH, "structured_outputs", "canvas", "logprobs");
}

/** The view. */
export function build(server) {
  const prompt = h("textarea", { rows: 3, spellcheck: "false" });
  const schema = h("textarea", { rows: 3, spellcheck: "false", class: "code" });
  prompt.value = TEXT;
  schema.value = FIELDS;
  const knobs = new Knobs(server);
  const table = h("tbody");
  const caption = h("caption");
  const result = h(
    "table",
    { class: "fields", hidden: true },
    caption,
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Field"), h("th", { scope: "col" }, "Value"), h("th", { scope: "col" }, "Sure"))),
    table,
  );
  const stage = new Stage({ settled: () => (result.hidden = table.children.length === 0) });
  const run = new Run({
    label: "Answer",
    go: async (signal) => {
      table.replaceChildren();
      result.hidden = true;
      const messages = [{ role: "user", content: prompt.value }];
      const wanted = { structured_outputs: { json: parsed(schema.value) } };
      const body = { messages, ...wanted, logprobs: true, top_logprobs: 2, canvas: { stream: true, ask_fields: true } };
      const asked = { ...knobs.values(), ...body };
      const said = await ask(PATH.slice(1), asked, stage, signal);
      caption.textContent = "Fields, and how likely the model holds each value to be";
      table.replaceChildren(...rows(said, stage.recording.frames));
      const back = server.name === "nano" ? await readBack(asked, said, signal) : null;
      if (back !== null) {
        const other = back.text !== said.text;
        if (other) caption.textContent = REWRITTEN;
        table.replaceChildren(...rows({ ...said, ...back }, other ? [] : stage.recording.frames));
      }
      if (stage.element.dataset.state === "settled") result.hidden = table.children.length === 0;
    },
  });
  return h(
    "div",
    { class: "view" },
    h("p", { class: "lead" }, "Name the fields that you want from a text. Every step is held to them, so the answer always fits."),
    h(
      "form",
      { class: "composer" },
      field("Text", prompt),
      field("Fields, or a JSON Schema", schema, "a field is a name and, unless it is text, a type: int, float, bool, date, time, email; A|B is one of these words, [] a list, ? may be null"),
      h("div", { class: "row" }, run.button, bounds(server)),
      run.error,
      knobs.element,
    ),
    stage.element,
    result,
  );
}

/** The same request with its seed and without its steps, whose answer the server reads back. Null for an answer that was
 *  cut, or if the request fails or is stopped: there is an answer all the same. */
async function readBack(asked, said, signal) {
  if (said.finish !== "stop") return null;
  const body = { ...asked, seed: said.result.seed, canvas: { ...asked.canvas, stream: false } };
  try {
    const { choices: [choice] } = await post(PATH.slice(1), body, signal);
    return { text: choice.message.content, logprobs: choice.logprobs.content, guesses: choice.canvas.guesses ?? [] };
  } catch {
    return null;
  }
}

/** A JSON Schema as what it is; anything else goes as it is written, and the server reads it as fields. */
function parsed(text) {
  if (!/^\s*([{["]|(true|false|null)\s*$)/.test(text)) return text;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new ApiError(0, `The schema is not JSON: ${error.message}`);
  }
}

/** A row a value. A bar only where the model had a choice: what the schema forces looks certain. */
function rows(said, frames) {
  if (!said.finish || said.finish === "length") return [];
  const last = frames.at(-1);
  const forced = last && last.block === 0 ? last.forced : new Set();
  return leaves(said.text).map(({ path, pointer, value, from, to }) => {
    const { sure, free, places } = sureness(said.logprobs, from, to);
    const against = places.some((at) => forced.has(at));
    return h("tr", {}, h("th", { scope: "row" }, path), h("td", {}, h("code", {}, value)), h("td", {}, ...verdict(path, sure, free, against), ...doubt(said.guesses ?? [], pointer)));
  });
}

function doubt(guesses, pointer) {
  return guesses.includes(pointer) ? [" ", h("small", {}, "looks like a guess")] : [];
}

function verdict(path, sure, free, against) {
  if (against) return [h("small", {}, "the schema’s choice, not the model’s")];
  if (sure === null) return [h("small", {}, "not reported")];
  if (!free) return [h("small", {}, "the only value the schema allows")];
  const bar = h("meter", { "aria-label": `How sure of ${path}`, min: 0, max: 1, low: 0.5, high: 0.9, optimum: 1, value: sure });
  return [bar, " ", `${(sure * 100).toFixed(sure < 0.9995 ? 1 : 0)}%`];
}
