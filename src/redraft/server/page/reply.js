// An answer that comes as text alone, from another server; and what any answer took, in figures to be compared.

import { ask } from "./ask.js";
import { h } from "./dom.js";

const ROWS = ["First text", "In all", "Tokens", "Tokens/s", "Forwards"];

/** What an answer took. Times are the reader's own: from the question to what was heard of it here. */
export class Took {
  constructor() {
    this.values = ROWS.map(() => h("dd", {}, "…"));
    const rows = ROWS.map((row, i) => h("div", {}, h("dt", {}, row), this.values[i]));
    this.element = h("dl", { class: "took" }, ...rows);
  }

  /** Of an answer that `ask` returned, or of one that never was. */
  tell(said) {
    const [tokens, forwards] = ["completion_tokens", "forwards"].map((name) => counted(said?.usage?.[name]));
    const speed = tokens && said.ms ? (1000 * tokens) / said.ms : null;
    const told = [time(said?.firstMs), time(said?.ms), tokens, speed?.toFixed(speed < 10 ? 1 : 0), forwards];
    this.values.forEach((value, i) => (value.textContent = told[i] ?? (said ? "not told" : "–")));
  }
}

/** One answer of a server that tells no canvas. */
export class Reply {
  constructor() {
    this.answer = h("pre", { class: "answer" });
    this.took = new Took();
    this.facts = h("p", { class: "facts", hidden: true });
  }

  /** Ask for it, and show it as it comes. Throws as `ask`. */
  async ask(path, body, signal) {
    const silent = { reset() {}, end() {}, heard: (text) => (this.answer.textContent = text) };
    try {
      const said = await ask(path, { ...body, stream_options: { include_usage: true } }, silent, signal);
      this.took.tell(said);
      if (said.finish === "length") this.note("cut at its limit");
      return said;
    } catch (error) {
      this.took.tell(null);
      if (error.name === "AbortError") this.note("Stopped.");
      throw error;
    }
  }

  note(text) {
    this.facts.textContent = text;
    this.facts.hidden = false;
  }
}

/** A number that may be shown: another server's need not be one. */
function counted(value) {
  return Number.isSafeInteger(value) && value >= 0 ? value : null;
}

function time(ms) {
  if (ms === null || ms === undefined) return null;
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}
