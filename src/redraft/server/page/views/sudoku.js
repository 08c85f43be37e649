// A board that settles: clues are given, every other cell is redrafted until all of them agree.

import { getText, post } from "../api.js";
import { ask } from "../ask.js";
import { Board } from "../board.js";
import { announce, h, isStill } from "../dom.js";
import { Knobs } from "../knobs.js";
import { clashes, draw, solutions } from "../puzzle.js";
import { Run, worded } from "../run.js";
import { Stage } from "../stage.js";
import { readTrace } from "../trace.js";

export const id = "sudoku";
export const title = "Sudoku";

const PATH = "/v1/canvas";
const LEAD = "Every cell sees every other, so a later digit can correct an earlier one.";
const FIRST = [..."015300003004000000030245651400040060"].map(Number);

/** Boards that fit on one canvas: a token a cell, one a line end, one for the end. */
function sizes(server) {
  const known = server.embedded ? [4, 6] : [4, 6, 9]; // nano-sudoku was never taught 9×9
  return known.filter((size) => size * (size + 1) <= server.width);
}

/** Whether the server has what this needs. */
export function fits(server) {
  return server.has(PATH, "messages", "pins") && server.has("/tokenize") && sizes(server).length > 0;
}

/** The view. */
export function build(server) {
  return server.name === "nano" ? recorded() : new Sudoku(server).element;
}

/** nano solves no boards: one that the other model of the package solved, from the package. */
function recorded() {
  const board = new Board(null);
  board.set(new Array(36).fill(0));
  const stage = new Stage({ shown: (frame) => board.show(read(frame, board.size)) });
  const play = async () => {
    const { recordings } = readTrace(await getText("page/sample.jsonl"));
    const [{ begun, drafts, finish, steps }] = recordings;
    board.set([...begun.prompt.match(/^[.\d]+$|^[.\d]+(?=<)/gm).join("").replaceAll(".", "0")].map(Number));
    for (const draft of drafts) stage.show(draft);
    stage.timeline.pause();
    stage.end({ steps, seed: begun.seed, finish });
    if (!isStill()) stage.timeline.toggle();
  };
  play().catch((error) => stage.element.before(h("p", { class: "error", role: "alert" }, worded(error))));
  const how = ["This run is recorded: nano, which is served here, reads sentences. For boards of your own stop the server, and start ", h("code", {}, "redraft serve nano-sudoku"), "."];
  return h("div", { class: "view" }, h("p", { class: "lead" }, LEAD), h("p", {}, ...how), board.element, stage.element);
}

class Sudoku {
  constructor(server) {
    this.board = new Board(() => this.changed());
    this.verdict = h("p", { class: "verdict", role: "status" });
    this.stage = new Stage({ shown: (frame) => this.show(frame), settled: () => this.judge(), watched: this.board.element });
    this.knobs = new Knobs(server);
    this.run = new Run({ label: "Solve", go: (signal, wish) => this.go(signal, wish) });
    const choices = sizes(server).map((size) =>
      h("button", { type: "button", class: "chip", onclick: () => this.draw(size) }, `New ${size}×${size}`),
    );
    this.element = h(
      "div",
      { class: "view" },
      h("p", { class: "lead" }, LEAD, " Type to set clues."),
      h(
        "div",
        { class: "beside" },
        this.board.element,
        h(
          "form",
          { class: "composer" },
          h("div", { class: "chips" }, ...choices),
          h("div", { class: "row" }, this.run.button),
          this.run.error,
          this.verdict,
          this.knobs.element,
        ),
      ),
      this.stage.element,
    );
    this.draw(sizes(server)[0]);
    if (server.greets) setTimeout(() => this.greet());
  }

  draw(size) {
    this.begin(draw(size));
  }

  begin(clues) {
    this.run.stop();
    this.board.set(clues);
    this.changed();
  }

  /** The readme's board, played without being asked for. */
  greet() {
    this.begin(FIRST);
    this.run.start({ seed: 3 });
  }

  /** Other clues: what was read before is not about them. */
  changed() {
    this.run.stop();
    this.stage.reset();
    const found = solutions(this.board.clues, this.board.size).length;
    this.verdict.textContent = ["These clues contradict each other.", "", "More than one solution."][found];
  }

  async go(signal, wish = {}) {
    const { clues, size } = this.board;
    const rows = [];
    for (let i = 0; i < clues.length; i += size) rows.push(clues.slice(i, i + size).join("").replaceAll("0", "."));
    this.verdict.textContent = "";
    const content = `sudoku\n${rows.join("\n")}`;
    const pins = await pinned(rows.join("\n"), signal);
    this.stage.canvas.held = new Set(pins.map(({ at }) => at));
    const body = { messages: [{ role: "user", content }], pins, max_tokens: size * (size + 1) };
    await ask(PATH.slice(1), { ...this.knobs.values(), ...wish, ...body }, this.stage, signal);
  }

  show(frame) {
    if (!frame.step) return this.noise(frame);
    this.now = this.board.show(read(frame, this.board.size));
  }

  /** Noise has no lines: a token a cell, as far as it has room there. */
  noise({ tokens, entropy }) {
    const { size } = this.board;
    const places = [...new Array(size * size).keys()].map((at) => at + Math.floor(at / size));
    this.board.show({ digits: places.map((i) => tokens[i]?.slice(0, 2) || "·"), entropy: places.map((i) => entropy[i] ?? 0), changed: [] });
  }

  judge() {
    if (!this.now) return;
    const { clues, size } = this.board;
    const whole = this.now.every((digit) => digit >= 1 && digit <= size);
    const legal = whole && !clashes(this.now, size).some(Boolean);
    const possible = solutions(clues, size, 1).length > 0;
    const wrong = possible ? "a rule is broken. Another seed may do it." : "these clues contradict each other, so there is no solution.";
    this.verdict.textContent = legal ? "Solved: every rule holds." : `Not solved: ${wrong}`;
    announce(this.verdict.textContent);
  }
}

/** The clues as pins, if each character is a token of its own; otherwise their places are not known. */
async function pinned(text, signal) {
  const asked = { prompt: text, add_special_tokens: false, return_token_strs: true };
  const { tokens, token_strs: pieces } = await post("tokenize", asked, signal);
  if (pieces.length !== text.length || pieces.some((piece, i) => piece !== text[i])) return [];
  return tokens.map((token, at) => ({ at, token })).filter(({ at }) => /\d/.test(text[at]));
}

/** Digits of a frame, cell by cell: tokens are read as text, so that it does not matter how they are cut. */
function read(frame, size) {
  const found = { digits: new Array(size * size).fill(0), entropy: new Array(size * size).fill(0), changed: [] };
  let row = 0;
  let column = 0;
  frame.tokens.slice(0, frame.end).forEach((token, i) => {
    for (const character of token) {
      if (character === "\n") [row, column] = [row + 1, 0];
      else if (column < size && row < size) {
        const at = row * size + column;
        found.digits[at] = character;
        found.entropy[at] = frame.entropy[i];
        found.changed[at] = frame.changed[i];
        column += 1;
      }
    }
  });
  return found;
}
