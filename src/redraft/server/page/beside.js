// One request on a canvas and from left to right, side by side.

import { h } from "./dom.js";
import { Stage } from "./stage.js";

export class Beside {
  constructor(name, asked) {
    this.asked = asked;
    this.canvas = new Stage();
    this.causal = new Stage();
    const side = (title, note, stage) => h("section", { class: "side" }, h("h3", {}, title), h("small", {}, note), stage.element);
    const sides = [
      side("Canvas", "every step redrafts the whole answer", this.canvas),
      side("Causal", "the same weights, one token after the other", this.causal),
    ];
    this.element = h(
      "li",
      { class: "turn" },
      h("div", { class: "asked" }, h("h2", {}, "You"), h("div", {}, h("pre", {}, asked))),
      h("div", { class: "said" }, h("h2", {}, name), h("div", { class: "sides two" }, ...sides)),
    );
  }
}
