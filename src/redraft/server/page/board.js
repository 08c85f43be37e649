// A Sudoku board: clues that the reader sets, and the digits that a canvas reads in the other cells.

import { h } from "./dom.js";
import { heat } from "./recording.js";
import { BOXES, clashes } from "./puzzle.js";

/** A grid of cells; arrows walk it, digits set clues, Delete clears them. `changed()` is called with new clues; null for a board that takes none. */
export class Board {
  constructor(changed) {
    this.changed = changed;
    this.element = h("div", { class: "board", role: "grid", "aria-label": "Sudoku" });
    this.element.addEventListener("keydown", (event) => this.press(event));
    this.element.addEventListener("focusin", (event) => this.reach(Number(event.target.dataset.at)));
  }

  /** New clues. */
  set(clues) {
    this.clues = clues.slice();
    this.size = Math.sqrt(clues.length);
    this.at = 0;
    const [high, wide] = BOXES[this.size];
    this.cells = clues.map((_, i) => {
      const cell = h("div", { role: "gridcell", class: "square", tabindex: i ? -1 : 0 });
      cell.dataset.at = i;
      const [row, column] = [Math.floor(i / this.size), i % this.size];
      cell.classList.toggle("low", row % high === high - 1 && row < this.size - 1);
      cell.classList.toggle("right", column % wide === wide - 1 && column < this.size - 1);
      return cell;
    });
    const rows = [];
    for (let i = 0; i < this.size; i += 1)
      rows.push(h("div", { role: "row", class: "line" }, ...this.cells.slice(i * this.size, (i + 1) * this.size)));
    this.element.replaceChildren(...rows);
    this.element.style.setProperty("--size", this.size);
    this.show(null);
  }

  /** Digits and doubts of a frame; null for the clues alone. */
  show(read) {
    const digits = this.clues.map((clue, i) => clue || (read ? read.digits[i] : 0));
    const wrong = clashes(digits.map((digit) => Number(digit) || 0), this.size);
    this.cells.forEach((cell, i) => {
      const clue = this.clues[i] !== 0;
      cell.textContent = digits[i] === 0 ? "" : String(digits[i]);
      cell.classList.toggle("clue", clue);
      cell.classList.toggle("wrong", wrong[i]);
      cell.classList.toggle("changed", Boolean(!clue && read?.changed[i]));
      cell.style.setProperty("--heat", clue || !read ? 0 : heat(read.entropy[i]));
      const what = clue ? "clue" : wrong[i] ? "breaks a rule" : "";
      cell.setAttribute("aria-label", `row ${Math.floor(i / this.size) + 1}, column ${(i % this.size) + 1}: ${digits[i] || "blank"} ${what}`);
    });
    return digits.map(Number);
  }

  press(event) {
    const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.size, ArrowUp: -this.size }[event.key];
    const digit = Number(event.key);
    if (move) this.focus(this.at + move);
    else if (!this.changed) return;
    else if (digit >= 1 && digit <= this.size) this.clue(digit);
    else if (["Delete", "Backspace", "0", "."].includes(event.key)) this.clue(0);
    else return;
    event.preventDefault();
  }

  clue(digit) {
    this.clues[this.at] = digit;
    this.show(null);
    this.changed();
  }

  focus(at) {
    if (at >= 0 && at < this.cells.length) this.cells[at].focus();
  }

  reach(at) {
    this.cells[this.at].setAttribute("tabindex", -1);
    this.at = at;
    this.cells[at].setAttribute("tabindex", 0);
  }
}
