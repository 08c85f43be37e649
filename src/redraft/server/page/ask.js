// One request that streams, told to a stage.

import { stream } from "./api.js";

/** Ask, and show every step. Returns the text, its log-probabilities, why it ended, and what the server reports of it. */
export async function ask(path, body, stage, signal) {
  const said = { text: "", logprobs: [], finish: null, told: null, usage: null };
  const take = path === "v1/canvas" ? ours : theirs;
  stage.reset();
  try {
    for await (const chunk of stream(path, body, signal)) take(chunk, stage, said);
  } finally {
    stage.end(said.told);
  }
  return said;
}

/** The stream of /v1/canvas. */
function ours(chunk, stage, said) {
  if (chunk.type === "noise") stage.noise(chunk);
  if (chunk.type === "draft") stage.add(chunk);
  if (chunk.type === "block") {
    stage.blocks.push(chunk);
    said.text += chunk.text;
  }
  if (chunk.type === "finished") {
    const { text, canvas, usage } = chunk;
    Object.assign(said, { text, usage, finish: canvas.finish, told: canvas });
  }
}

/** Chunks of a chat or a text, with the canvas as a key of their own. */
function theirs(chunk, stage, said) {
  if (chunk.canvas) stage.add(chunk.canvas);
  if (chunk.usage) said.usage = chunk.usage;
  const choice = chunk.choices[0]; // the chunk with the usage has none
  if (!choice) return;
  said.text += choice.delta?.content ?? choice.text ?? "";
  said.logprobs.push(...(choice.logprobs?.content ?? []));
  if (choice.finish_reason) Object.assign(said, { finish: choice.finish_reason, told: choice.canvas ?? null });
}
