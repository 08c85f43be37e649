// One request that streams, told to a stage.

import { stream } from "./api.js";

/** Ask, and show every step. Returns the text, its log-probabilities, why it ended, and what the server tells of it. */
export async function ask(path, body, stage, signal) {
  const said = { text: "", logprobs: [], finish: null, told: null, usage: null };
  stage.reset();
  try {
    for await (const chunk of stream(path, body, signal)) {
      if (chunk.type) ours(chunk, stage, said);
      else theirs(chunk, stage, said);
    }
  } finally {
    stage.end(said.told);
  }
  return said;
}

/** The stream of /v1/canvas. */
function ours(chunk, stage, said) {
  if (chunk.type === "draft") stage.add(chunk);
  if (chunk.type === "block") stage.blocks.push(chunk);
  if (chunk.type === "finished") Object.assign(said, { text: chunk.text, finish: chunk.canvas.finish, told: chunk.canvas });
}

/** Chunks of a chat, with the canvas as a key of their own. `stage.heard` is told the text so far, where it listens. */
function theirs(chunk, stage, said) {
  if (chunk.canvas && stage.add) stage.add(chunk.canvas);
  if (chunk.usage) said.usage = chunk.usage;
  const choice = chunk.choices?.[0]; // another server's chunks need not have one
  if (!choice) return;
  said.text += choice.delta?.content ?? "";
  stage.heard?.(said.text);
  said.logprobs.push(...(choice.logprobs?.content ?? []));
  if (choice.finish_reason) Object.assign(said, { finish: choice.finish_reason, told: choice.canvas ?? null });
}
