// A conversation, or a text continued, with the canvas of every answer.

import { ask } from "../ask.js";
import { bounds } from "../bounds.js";
import { h } from "../dom.js";
import { Knobs } from "../knobs.js";
import { Marks } from "../marks.js";
import { content, Pictures } from "../pictures.js";
import { Run } from "../run.js";
import { Stage } from "../stage.js";

export const id = "write";
export const title = "Write";

const PUZZLE = ["A Sudoku", "sudoku\n.153..\n..3..4\n......\n.3.245\n6514..\n.4..6."];
const SENTENCES = [
  ["A record", "Extract as JSON: name, age (integer), city\nAlice is 31 years old and lives in Rome."],
  ["A list", "Extract as JSON list: who, qty (integer), item\nSend 3 apples to Maria.\nTom wants 12 pens."],
];

/** Whether the server has what this needs. */
export function fits(server) {
  return server.has("/v1/canvas", "messages", "prompt", "pins");
}

/** The view. */
export function build(server) {
  return new Write(server).element;
}

class Write {
  constructor(server) {
    this.server = server;
    this.last = null;
    this.prompt = h("textarea", { rows: 4, spellcheck: "false", "aria-label": "Prompt", placeholder: "Ask something" });
    this.modes = modes(() => this.clear());
    this.knobs = new Knobs(server);
    this.run = new Run({ label: "Send", go: (signal, wish) => this.go(signal, wish) });
    this.pictures = server.images ? new Pictures(this.prompt, (error) => this.run.tell(error)) : null;
    this.anew = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.clear() }, "Start over");
    this.turns = h("ol", { class: "turns" });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.run.start();
    });
    this.element = h("div", { class: "view" }, lead(), this.turns, this.composer());
  }

  composer() {
    const known = this.server.name === "nano-sudoku" ? [PUZZLE] : SENTENCES;
    const examples = known.map(([name, text]) =>
      h("button", { type: "button", class: "chip", onclick: () => this.example(text) }, name),
    );
    if (this.server.greets) setTimeout(() => this.greet(known[0][1]));
    return h(
      "form",
      { class: "composer" },
      this.prompt,
      this.pictures?.element ?? null,
      h("div", { class: "row spread" }, h("div", { class: "chips" }, ...examples), this.modes.element),
      bounds(this.server),
      h("div", { class: "row" }, this.run.button, this.anew, h("small", {}, "Enter sends, Shift Enter breaks the line, Esc stops")),
      this.run.error,
      this.knobs.element,
    );
  }

  example(text) {
    this.clear();
    this.modes.chat();
    this.prompt.value = text;
    this.prompt.focus();
  }

  /** The first example, played without being asked for. */
  greet(text) {
    this.prompt.value = text;
    this.run.start();
  }

  clear() {
    this.run.stop();
    this.last = null;
    this.turns.replaceChildren();
    this.anew.hidden = true;
    this.pictures?.clear();
    this.pictures?.allow(this.modes.value === "chat"); // a text that goes on has no place for them
  }

  /** A new turn, or with `again` the last one once more with some of its tokens pinned. */
  async go(signal, again = null) {
    const turn = again?.turn ?? this.turn();
    const body = { ...this.knobs.values(), ...turn.body, ...(again && { pins: again.pins }) };
    const stage = turn.next(again?.pins ?? [], (pins) => this.run.start({ turn, pins }));
    try {
      const said = await ask("v1/canvas", body, stage, signal).finally(() => turn.over(stage));
      turn.tell(said);
      if (again) return;
      this.prompt.value = "";
      this.pictures?.clear();
    } catch (error) {
      if (error.name !== "AbortError") this.run.tell(error);
    } finally {
      turn.rest();
    }
  }

  turn() {
    const asked = this.prompt.value;
    const before = this.last?.messages() ?? [];
    const chat = this.modes.value === "chat";
    const images = chat ? this.pictures?.items ?? [] : [];
    const said = { role: "user", content: content(asked, images) };
    const body = chat ? { messages: [...before, said] } : { prompt: asked };
    this.last?.close();
    this.last = new Turn(asked, images, body, this.server.name);
    this.turns.append(this.last.element);
    this.anew.hidden = false;
    return this.last;
  }
}

/** What was asked, and the answer as it settles, as often as it is drafted. */
class Turn {
  constructor(asked, images, body, name) {
    this.body = body;
    this.text = null;
    this.said = h("div", { class: "said" }, h("h2", {}, name));
    const question = h("div", { class: "asked" }, h("h2", {}, "You"), h("div", {}, small(images), h("pre", {}, asked)));
    this.element = h("li", { class: "turn" }, question, this.said);
  }

  /** A stage for the next draft. */
  next(pins, again) {
    this.marks?.offer(false);
    this.busy = true;
    this.before = { marks: this.marks, parts: this.parts };
    const stage = new Stage({ settled: () => this.settled(stage) });
    const answer = h("pre", { class: "answer", hidden: true });
    this.marks = new Marks(stage, again);
    for (const { at } of pins) stage.canvas.held.add(at);
    this.parts = { stage, answer, whole: false };
    this.said.append(h("div", { class: "draft" }, stage.element, this.marks.element, answer));
    return stage;
  }

  /** The answer. */
  tell(said) {
    this.text = said.text;
    this.parts.answer.textContent = said.text;
    this.parts.whole = true;
    this.settled(this.parts.stage);
  }

  /** The text is shown, and marks are offered, when the reader has seen it settle. */
  settled(stage) {
    if (!this.parts.whole || stage !== this.parts.stage || stage.element.dataset.state !== "settled") return;
    this.parts.answer.hidden = this.text === "";
    this.marks.offer(!this.closed && !this.busy && stage.blocks.length > 0);
  }

  /** A draft that never took a step leaves nothing behind. */
  over(stage) {
    if (stage.film.frames.length) return;
    stage.element.parentNode.remove();
    Object.assign(this, this.before);
    this.marks?.offer(true);
  }

  /** Nothing is under way any more. A turn without an answer leaves nothing behind. */
  rest() {
    this.busy = false;
    if (this.parts) this.settled(this.parts.stage);
    else this.element.remove();
  }

  close() {
    this.closed = true;
    this.marks?.offer(false);
  }

  /** The conversation up to here. */
  messages() {
    const asked = this.body.messages ?? [];
    return this.text === null ? asked.slice(0, -1) : [...asked, { role: "assistant", content: this.text }];
  }
}

function small(images) {
  return images.length ? h("div", { class: "pictures" }, ...images.map((one) => one.drawn())) : null;
}

function lead() {
  return h(
    "p",
    { class: "lead" },
    "The whole answer is drafted at once and redrafted until it settles. ",
    h("span", { class: "key" }, "Blue"),
    " is doubt, ink is certain. A dot marks what a step changed, a line what it accepted.",
  );
}

function modes(changed) {
  const made = { value: "chat", chat: () => inputs[0].querySelector("input").click() };
  const inputs = [["chat", "Chat"], ["text", "Plain text"]].map(([value, label]) => {
    const input = h("input", { type: "radio", name: "mode", value, checked: value === made.value });
    input.addEventListener("change", () => {
      made.value = value;
      changed();
    });
    return h("label", {}, input, h("span", {}, label));
  });
  made.element = h("fieldset", { class: "segments", "aria-label": "Chat or plain text" }, ...inputs);
  return made;
}
