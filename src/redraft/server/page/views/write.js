// A conversation, or a text continued, with the canvas of every answer.

import { ask } from "../ask.js";
import { Beside } from "../beside.js";
import { bounds } from "../bounds.js";
import { h } from "../dom.js";
import { conversations, enter, forgetAll, keep, leave, opened } from "../history.js";
import { Knobs } from "../knobs.js";
import { content, Pictures } from "../pictures.js";
import { Run } from "../run.js";
import { Turn } from "../turn.js";

export const id = "write";
export const title = "Write";

const PUZZLE = ["A Sudoku", "sudoku\n.153..\n..3..4\n......\n.3.245\n6514..\n.4..6."];
const SENTENCES = [
  ["A record", "Extract as JSON: name, age (integer), city\nAlice is 31 years old and lives in Rome."],
  ["A change", 'Edit: Set qty to 520.\n{"who":"Maria","qty":3,"item":"apples"}'],
];
const ASKED = "Extract as JSON: who, item\nSend 3 apples to Maria.";
const CAUSAL = { canvas: { causal: true } };
const LONGEST_NAME = 48;

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
    this.prompt = h("textarea", { rows: 2, spellcheck: "false", "aria-label": "Prompt", placeholder: server.name === "nano" ? ASKED : "Ask something" });
    this.modes = modes(() => this.clear());
    this.knobs = new Knobs(server);
    this.run = new Run({ label: "Send", go: (signal, wish) => this.go(signal, wish) });
    this.pictures = server.images ? new Pictures(this.prompt, (error) => this.run.report(error)) : null;
    this.anew = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.clear() }, "Start over");
    this.turns = h("ol", { class: "turns" });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.run.start();
    });
    const examples = server.name === "nano-sudoku" ? [PUZZLE] : SENTENCES;
    this.element = h("div", { class: "view" }, lead(), bounds(server, ...toSchema(server)), this.begin(examples), this.turns, this.composer());
    this.fresh();
    const before = opened();
    if (before) this.reopen(before);
    else if (server.greets) setTimeout(() => this.greet(examples[0][1]));
  }

  /** What to begin with: examples, and earlier conversations. */
  begin(examples) {
    const chips = examples.map(([name, text]) => h("button", { type: "button", class: "chip", onclick: () => this.example(text) }, name));
    const both = h("button", { type: "button", class: "chip", onclick: () => this.beside(examples[0][1]) }, "Canvas beside causal");
    this.earlier = h("button", { type: "button", class: "chip", "aria-expanded": "false", onclick: () => this.unfold(this.kept.hidden) }, "");
    this.kept = h("div", { class: "kept", hidden: true });
    return h("div", { class: "begin" }, h("div", { class: "chips" }, ...chips, both, this.earlier), this.kept);
  }

  composer() {
    const keys = h("small", { class: "keys" }, "Enter sends, Shift Enter breaks the line, Esc stops");
    const dock = h(
      "form",
      { class: "composer dock" },
      this.run.error,
      this.pictures?.element ?? null,
      h("div", { class: "ask" }, this.prompt, this.run.button),
      h("div", { class: "row" }, this.modes.element, this.anew, keys, this.knobs.element),
    );
    // What is scrolled to, or focused, must not lie behind the composer, however high it has grown.
    new ResizeObserver(() => document.documentElement.style.setProperty("--dock", `${dock.offsetHeight}px`)).observe(dock);
    return dock;
  }

  example(text) {
    this.clear();
    this.modes.chat();
    this.prompt.value = text;
    this.prompt.focus();
  }

  /** The first example, played without being asked for, with the seed of the README. It is no conversation to keep. */
  greet(text) {
    this.prompt.value = text;
    this.run.start({ seed: 1 });
  }

  /** An example as the model drafts it on a canvas, and as it writes it from left to right. */
  async beside(text) {
    await this.run.stop();
    this.clear();
    const both = new Beside(this.server.name, text);
    this.turns.append(both.element);
    this.anew.hidden = false;
    this.run.start({ beside: both });
  }

  clear() {
    this.run.stop();
    this.turns.replaceChildren();
    this.anew.hidden = true;
    this.pictures?.clear();
    this.pictures?.allow(this.modes.value === "chat"); // a text that goes on has no place for them
    leave();
    this.fresh();
  }

  /** A conversation without turns. */
  fresh() {
    this.last = null;
    this.talk = { id: `${Date.now()}-${Math.random()}`, mode: "chat", turns: [] };
    this.list();
  }

  /** A new turn, in a greeting with a seed, or with `again` the last one once more with some of its tokens pinned. */
  async go(signal, wish) {
    if (wish?.beside) return this.pair(wish.beside, signal);
    const again = wish?.turn ? wish : null;
    if (!wish && this.modes.value === "chat" && !this.prompt.value.trim() && !this.pictures?.items.length) return this.prompt.focus();
    const turn = again?.turn ?? this.turn();
    const body = { ...this.knobs.values(), ...turn.body, ...(again && { pins: again.pins }), ...(wish?.seed && { seed: wish.seed }) };
    const stage = turn.next(again?.pins ?? [], (pins) => this.run.start({ turn, pins }));
    try {
      const said = await ask("v1/canvas", body, stage, signal).finally(() => turn.over(stage));
      turn.answered(said);
      if (!said.text) stage.facts.append(...toSchema(this.server));
      this.keep(turn, wish?.seed === undefined);
      if (again) return undefined;
      this.prompt.value = "";
      this.pictures?.clear();
    } catch (error) {
      if (error.name !== "AbortError") this.run.report(error);
    } finally {
      turn.rest();
    }
    return undefined;
  }

  /** Both modes of one request at once. */
  async pair(both, signal) {
    const body = { ...this.knobs.values(), messages: [{ role: "user", content: both.asked }] };
    await Promise.all([ask("v1/canvas", body, both.canvas, signal), ask("v1/canvas", { ...body, ...CAUSAL }, both.causal, signal)]);
  }

  turn() {
    const asked = this.prompt.value;
    const before = this.last?.messages() ?? [];
    const chat = this.modes.value === "chat";
    const images = chat ? this.pictures?.items ?? [] : [];
    const said = { role: "user", content: content(asked, images) };
    return this.append(new Turn(asked, images, chat ? { messages: [...before, said] } : { prompt: asked }, this.server.name));
  }

  append(turn) {
    this.last?.close();
    if (!this.last) this.turns.replaceChildren();
    this.last = turn;
    this.turns.append(turn.element);
    this.anew.hidden = false;
    return turn;
  }

  /** Put what has been answered into the conversation, and that, if it is to `last`, into the history; an answer drafted
   * anew takes the place of the one before. */
  keep(turn, last) {
    const at = this.talk.turns.findIndex(({ of }) => of === turn);
    this.talk.turns.splice(at < 0 ? this.talk.turns.length : at, 1, { of: turn, asked: turn.asked, text: turn.text });
    const turns = this.talk.turns.map(({ asked, text }) => ({ asked, text }));
    if (!last) return;
    keep({ ...this.talk, turns, mode: this.modes.value, when: Date.now() });
    this.list();
  }

  /** A conversation out of the history. Its canvases are gone, its texts go on. */
  reopen({ id: name, mode, turns }) {
    this.clear();
    this.modes.turn(mode);
    for (const { asked, text } of turns) {
      const body = mode === "chat" ? { messages: [...(this.last?.messages() ?? []), { role: "user", content: asked }] } : { prompt: asked };
      const turn = this.append(new Turn(asked, [], body, this.server.name));
      turn.restore(text);
      this.talk.turns.push({ of: turn, asked, text });
    }
    this.talk.id = name;
    enter(name);
    this.unfold(false);
  }

  /** The names of earlier conversations. */
  list() {
    const all = conversations();
    this.earlier.hidden = all.length === 0;
    this.earlier.textContent = `Earlier (${all.length})`;
    const names = all.map((one) => h("li", {}, h("button", { type: "button", class: "quiet", onclick: () => this.reopen(one) }, named(one))));
    const clear = () => {
      forgetAll();
      this.unfold(false);
      this.list();
    };
    const note = h("small", {}, "Kept in this browser, sent nowhere.");
    this.kept.replaceChildren(h("ul", {}, ...names), h("div", { class: "row" }, h("button", { type: "button", class: "chip", onclick: clear }, "Clear the history"), note));
  }

  unfold(open) {
    this.kept.hidden = !open;
    this.earlier.setAttribute("aria-expanded", String(open));
  }
}

function named({ turns, when }) {
  const [first] = turns;
  const line = first.asked.replace(/\s+/g, " ");
  const short = line.length > LONGEST_NAME ? `${line.slice(0, LONGEST_NAME)}…` : line;
  return `${short || "(an image)"} · ${new Date(when).toLocaleString()}`;
}

/** Where a sentence and the names of fields are enough: nano answers other turns with nothing, or with nonsense. */
function toSchema(server) {
  return server.name === "nano" ? [" For a sentence of your own, name its fields under ", h("a", { href: "#schema" }, "Schema"), "."] : [];
}

function lead() {
  return h("p", { class: "lead" }, "The whole answer is drafted at once and redrafted until it settles. ", h("span", { class: "key" }, "Blue"), " is doubt, ink is certain.");
}

function modes(changed) {
  const made = { value: "chat", turn: (value) => value !== made.value && inputs[value].click(), chat: () => made.turn("chat") };
  const inputs = {};
  const labels = [["chat", "Chat"], ["text", "Plain text"]].map(([value, label]) => {
    const input = h("input", { type: "radio", name: "mode", value, checked: value === made.value });
    inputs[value] = input;
    input.addEventListener("change", () => {
      made.value = value;
      changed();
    });
    return h("label", {}, input, h("span", {}, label));
  });
  made.element = h("fieldset", { class: "segments", "aria-label": "Chat or plain text" }, ...labels);
  return made;
}
