// An answer as a trace file (docs/traces.md), written from what the server sent of it.

import { served } from "./server.js";

const VERSION = 1;

/** The chunks of the requests behind one answer. */
export class TraceWriter {
  constructor() {
    this.begin("", {});
  }

  /** Forget the last answer; `path` and `body` are those of the next. */
  begin(path, body) {
    Object.assign(this, { path, body, since: performance.now(), requests: new Map(), sent: 0, last: 0 });
  }

  /** Whether there is no step to write. */
  get empty() {
    return this.sent === 0;
  }

  /** A step as the server sent it. A slow reader is sent fewer steps, so they are numbered as they came. */
  draft(chunk) {
    const one = this.request(chunk.index ?? 0, chunk.width);
    const flows = one.block !== chunk.block && chunk.step > one.step;
    one.number = one.block === chunk.block || flows ? one.number + 1 : 1;
    const { block, width, end, positions, tokens, ids, entropy, accepted, forced } = chunk;
    one.lines.push({ type: "draft", ms: this.ms(), block, step: one.number, width, end, positions, tokens, ids, entropy, accepted, forced });
    Object.assign(one, { block, step: chunk.step });
    this.sent += 1;
  }

  /** A block that has settled. */
  block({ block, tokens, pieces, entropy, settled_at, changes, steps, settled }) {
    this.request(0, 0).lines.push({ type: "block", ms: this.ms(), block, tokens, pieces, entropy, settled_at, changes, steps, settled });
  }

  /** The end of a request. */
  over(index, { finish, text, steps, commits = 0 }) {
    this.request(index, 0).lines.push({ type: "finished", ms: this.ms(), finish, text, steps, commits });
  }

  /** Of several requests the one whose answer was taken. */
  taken(index) {
    this.request(index, 0).lines.push({ type: "taken", ms: this.ms() });
  }

  /** The whole file. `seed` and `promptTokens` are known when the answer is whole. */
  file({ seed = 0, promptTokens = 0 } = {}) {
    const { messages, prompt, segments, ...options } = this.body;
    const head = { trace: VERSION, redraft: served.version, command: `page ${this.path}`, model: served.model, taken: new Date().toISOString(), options };
    const asked = { max_tokens: options.max_tokens ?? 0, ends: [], prompt: spoken(messages, prompt, segments), prompt_tokens: promptTokens };
    const lines = [...this.requests].flatMap(([index, { ms, width, lines: own }]) =>
      [{ type: "request", ms, seed, width, ...asked }, ...own].map((line) => ({ ...line, index })),
    );
    return [head, ...lines].map((line) => `${JSON.stringify(line)}\n`).join("");
  }

  request(index, width) {
    if (!this.requests.has(index)) this.requests.set(index, { ms: this.ms(), width, block: -1, step: 0, number: 0, lines: [] });
    return this.requests.get(index);
  }

  ms() {
    return Math.round(performance.now() - this.since);
  }
}

/** Hand a text to the browser as a file. */
export function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/jsonl" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Put a text on the clipboard. A page that is not from this machine or over https has no clipboard but the old one. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = document.createElement("textarea");
    box.value = text;
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
}

function spoken(messages, prompt, segments) {
  const text = (content) => (typeof content === "string" ? content : content.map((part) => part.text ?? "(image)").join("\n"));
  if (messages) return messages.map(({ role, content }) => `${role}: ${text(content)}`).join("\n");
  return prompt ?? segments?.map((one) => one.text ?? one.revise?.text ?? "▢").join("") ?? "";
}
