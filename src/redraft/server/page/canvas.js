// A canvas as cells in a line of text. Colour is doubt, an underline what a step accepted, a dot what it changed.

import { count, h } from "./dom.js";
import { heat, nats } from "./recording.js";

const HINT = "Point at a cell to read its doubt.";
const BLANKS = { "\n": "⏎", "\t": "⇥", "": "∅" };

/** Shows frames. Cells can be walked with the arrow keys and chosen by click or space. */
export class Canvas {
  constructor() {
    this.mark = null; // called with the place of a cell that was chosen
    this.apart = new Set(); // places that read otherwise on the canvas beside it
    this.held = new Set(); // places of the first block that are pinned
    this.cells = [];
    this.at = 0; // where the arrow keys are
    this.looked = null; // the place that is described below the canvas
    this.marks = new Map();
    this.before = h("span", { class: "before" });
    this.list = h("span", { role: "listbox", "aria-label": "Canvas", "aria-multiselectable": "true" });
    this.detail = h("p", { class: "detail" }, "");
    this.element = h("div", { class: "canvas" }, h("div", { class: "paper" }, this.before, this.list), this.detail);
    this.list.addEventListener("keydown", (event) => this.walk(event));
    this.list.addEventListener("focusin", (event) => this.look(event));
    this.list.addEventListener("pointerover", (event) => this.look(event));
    this.list.addEventListener("click", (event) => this.choose(event.target.closest(".cell")));
  }

  /** Show a frame behind the text of the blocks that are done. */
  render(frame, before = "") {
    this.frame = frame;
    this.before.textContent = before;
    this.resize(frame.tokens.length);
    const walking = document.activeElement === this.cells[this.at];
    this.cells.forEach((cell, i) => this.paint(cell, i, frame));
    this.reach(this.onView(this.at, -1)); // keys would be lost in a cell that nobody sees
    if (walking) this.cells[this.at].focus();
    this.describe();
  }

  /** Nothing to show. */
  clear() {
    this.frame = null;
    this.looked = null;
    this.marks.clear();
    this.before.textContent = "";
    this.detail.textContent = "";
    this.resize(0);
  }

  resize(width) {
    while (this.cells.length > width) this.cells.pop().parentNode.remove();
    while (this.cells.length < width) {
      const cell = h("span", { class: "cell", role: "option", tabindex: this.cells.length === this.at ? 0 : -1 });
      cell.dataset.at = this.cells.length;
      this.cells.push(cell);
      this.list.append(h("span", { class: "slot", role: "presentation" }, cell, h("wbr")));
    }
    if (this.at >= width) this.at = 0;
  }

  paint(cell, i, frame) {
    const token = frame.tokens[i];
    const over = i >= frame.end;
    const shown = over ? "·" : visible(token);
    if (cell.textContent !== shown) cell.textContent = shown;
    cell.style.setProperty("--heat", over ? 0 : heat(frame.entropy[i]));
    cell.classList.toggle("over", over);
    cell.classList.toggle("changed", frame.changed[i] && !over);
    cell.classList.toggle("accepted", frame.accepted[i] && !over);
    cell.classList.toggle("forced", frame.forced.has(i) && !over);
    cell.classList.toggle("apart", this.apart.has(i));
    cell.parentNode.classList.toggle("seam", /[,;:}\]]$/.test(token)); // a line may end behind it
    cell.parentNode.classList.toggle("break", token === "\n" && !over);
    cell.parentNode.classList.toggle("gone", over && i > frame.end + 2 && i < frame.tokens.length - 1);
    const mark = frame.block === 0 ? this.marks.get(i) : undefined;
    cell.classList.toggle("held", frame.block === 0 && this.held.has(i));
    cell.classList.toggle("pin", mark === "pin");
    cell.classList.toggle("hole", mark === "hole");
    cell.setAttribute("aria-selected", mark ? "true" : "false");
    cell.setAttribute("aria-label", `${i + 1}: ${over ? "end" : spoken(token)}${mark ? `, ${mark}` : ""}`);
  }

  walk(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step) this.focus(this.onView(this.at + step, step));
    else if (event.key === "Home") this.focus(0);
    else if (event.key === "End") this.focus(this.cells.length - 1);
    else if (event.key === " " || event.key === "Enter") this.choose(event.target.closest(".cell"));
    else return;
    event.preventDefault();
  }

  focus(at) {
    this.reach(Math.max(0, Math.min(this.cells.length - 1, at)));
    this.cells[this.at].focus();
  }

  /** The one cell that Tab leads to. */
  reach(at) {
    this.cells[this.at]?.setAttribute("tabindex", -1);
    this.at = at;
    this.cells[at]?.setAttribute("tabindex", 0);
  }

  /** The first cell on view from a place on: of many end tokens most are not shown. */
  onView(at, step) {
    let found = at;
    while (this.cells[found]?.parentNode.classList.contains("gone")) found += step;
    return found;
  }

  look(event) {
    const cell = event.target.closest(".cell");
    if (!cell) return;
    this.looked = Number(cell.dataset.at);
    this.describe();
  }

  /** A line about the cell that was last pointed at. */
  describe() {
    const i = this.looked;
    if (i === null && this.frame) this.detail.textContent = HINT;
    if (i === null || !this.frame || i >= this.frame.tokens.length) return;
    const { tokens, entropy, since, changes, end, forced } = this.frame;
    this.detail.textContent =
      i >= end
        ? `${i + 1} is behind the end of the answer`
        : `${i + 1}  ${spoken(tokens[i])}  ${nats(entropy[i])}, reads so since step ${since[i]}, changed ${count(changes[i], "time")}${forced.has(i) ? ", chosen by the constraint" : ""}`;
  }

  choose(cell) {
    if (!cell || !this.mark || !this.frame) return;
    this.mark(Number(cell.dataset.at));
    this.render(this.frame, this.before.textContent);
  }
}

function visible(token) {
  if (Object.hasOwn(BLANKS, token)) return BLANKS[token];
  return token === " " ? "␣" : token.replaceAll("\n", "⏎").replaceAll("\uFFFD", "▯");
}

function spoken(token) {
  return token === "\n" ? "line end" : `“${token}”`;
}
