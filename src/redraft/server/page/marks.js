// Pins and holes by clicking: cells of a settled canvas that stay, or that alone are drafted anew.

import { count, h, inView } from "./dom.js";

const KINDS = {
  pin: ["Keep", "Click the cells that should stay; all others are drafted anew."],
  hole: ["Redo", "Click the cells that should be drafted anew; all others stay."],
};

/** Belongs to a stage. `go(pins)` starts the next draft. */
export class Marks {
  constructor(stage, go) {
    this.stage = stage;
    this.kind = "pin";
    this.help = h("small", { role: "status" });
    this.button = h("button", { type: "button", class: "chip", onclick: () => go(this.pins()) }, "Redraft");
    const name = `marks-${Math.random()}`;
    const inputs = Object.entries(KINDS).map(([kind, [label]]) => {
      const input = h("input", { type: "radio", name, checked: kind === this.kind, onchange: () => this.turn(kind) });
      return h("label", {}, input, h("span", {}, label));
    });
    const segments = h("fieldset", { class: "segments", "aria-label": "What a click does" }, ...inputs);
    this.element = h("div", { class: "marking row", hidden: true }, segments, this.button, this.help);
    stage.canvas.mark = (i) => this.mark(i);
    this.read();
  }

  /** Offer it, or not. Cells can be marked while it is on offer. */
  offer(wanted) {
    const fresh = wanted && this.element.hidden;
    this.element.hidden = !wanted;
    if (fresh && inView(this.stage.canvas.element)) this.element.scrollIntoView({ block: "nearest" }); // not behind the composer
    this.stage.canvas.element.classList.toggle("markable", wanted);
  }

  turn(kind) {
    this.kind = kind;
    this.stage.canvas.marks.clear();
    this.stage.showLast(0);
    this.read();
  }

  mark(i) {
    const frame = this.stage.showLast(0);
    if (this.element.hidden || i > frame.end || (this.kind === "hole" && i === frame.end)) return;
    const { marks } = this.stage.canvas;
    if (!marks.delete(i)) marks.set(i, this.kind);
    this.read();
  }

  read() {
    const { size } = this.stage.canvas.marks;
    this.button.disabled = size === 0;
    this.help.textContent = size ? `${count(size, "cell")} to ${this.kind === "pin" ? "keep" : "redo"}` : KINDS[this.kind][1];
  }

  /** As /v1/canvas takes them: token ids where the server sent them, the end as the text that it is. */
  pins() {
    const frame = this.stage.showLast(0);
    const ids = this.stage.blocks[0].tokens;
    const found = [];
    for (let at = 0; at <= Math.min(frame.end, frame.tokens.length - 1); at += 1) {
      if (this.stage.canvas.marks.has(at) !== (this.kind === "pin")) continue;
      found.push(at < ids.length ? { at, token: ids[at] } : { at, text: frame.tokens[at] });
    }
    return found;
  }
}
