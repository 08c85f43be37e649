// What may be set about an answer, out of the way until it is wanted.

import { field, h } from "./dom.js";
import { Effort } from "./effort.js";

/** Seed, length and effort; `values()` are fields of a request, those left alone left out. */
export class Knobs {
  constructor(server, { tokens = null, effort = true } = {}) {
    this.asks = server.asks;
    this.seed = h("input", { type: "number", min: 0, step: 1, inputmode: "numeric", placeholder: "drawn anew" });
    this.tokens = h("input", { type: "number", min: 1, step: 1, inputmode: "numeric", value: tokens, placeholder: "model’s own" });
    this.effort = new Effort(effort ? server.dial : null);
    this.element = h(
      "details",
      { class: "knobs" },
      h("summary", {}, "Settings"),
      h("div", { class: "row" }, field("Seed", this.seed, "the same seed gives the same answer"), field("Most tokens", this.tokens), this.effort.element),
    );
  }

  values() {
    const found = { ...this.asks };
    if (this.seed.value !== "") found.seed = Number(this.seed.value);
    if (this.tokens.value !== "") found.max_tokens = Number(this.tokens.value);
    if (this.effort.value !== null) found.effort = this.effort.value;
    return found;
  }
}
