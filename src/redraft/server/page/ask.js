// One request that streams, told to a stage.

import { stream } from "./api.js";

/** Ask, and show every step. Returns the text, why it ended, and what the server tells of it. */
export async function ask(path, body, stage, signal) {
  const said = { text: "", reasoning: "", logprobs: [], finish: null, told: null };
  stage.reset();
  try {
    for await (const chunk of stream(path, { ...body, canvas: { ...body.canvas, stream: true } }, signal)) {
      if (chunk.canvas) stage.add(chunk.canvas);
      const choice = chunk.choices[0];
      if (!choice) continue;
      said.text += choice.delta?.content ?? choice.text ?? "";
      said.logprobs.push(...(choice.logprobs?.content ?? []));
      said.reasoning += choice.delta?.reasoning_content ?? "";
      if (choice.finish_reason) Object.assign(said, { finish: choice.finish_reason, told: choice.canvas });
    }
  } finally {
    stage.end(said.told);
  }
  return said;
}
