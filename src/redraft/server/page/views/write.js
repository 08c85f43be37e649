// A conversation, or a text continued, with the canvas of every answer.

import { ask } from "../ask.js";
import { count, h } from "../dom.js";
import { Knobs } from "../knobs.js";
import { Run } from "../run.js";
import { Stage } from "../stage.js";

export const id = "write";
export const title = "Write";

const EXAMPLES = [
  ["A record", "record\nSend 417 melu to Karomi."],
  ["A Sudoku", "sudoku\n....\n2.1.\n....\n.243"],
];

/** Whether the server has what this needs. */
export function fits(server) {
  return server.has("/v1/chat/completions", "canvas") || server.has("/v1/completions", "canvas");
}

/** The view. */
export function build(server) {
  return new Write(server).element;
}

class Write {
  constructor(server) {
    this.server = server;
    this.messages = [];
    this.prompt = h("textarea", { rows: 4, spellcheck: "false", "aria-label": "Prompt", placeholder: "Ask something" });
    this.modes = modes(server, () => this.clear());
    this.knobs = new Knobs(server);
    this.run = new Run({ label: "Send", go: (signal) => this.go(signal) });
    this.anew = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.clear() }, "Start over");
    this.turns = h("ol", { class: "turns" });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.run.start();
    });
    this.element = h("div", { class: "view" }, lead(), this.turns, this.composer());
  }

  composer() {
    const examples = EXAMPLES.map(([name, text]) =>
      h("button", { type: "button", class: "chip", onclick: () => this.example(text) }, name),
    );
    return h(
      "form",
      { class: "composer" },
      this.prompt,
      h("div", { class: "row spread" }, h("div", { class: "chips" }, ...examples), this.modes.element),
      h("div", { class: "row" }, this.run.button, this.anew, h("small", {}, "Ctrl Enter sends, Esc stops")),
      this.run.error,
      this.knobs.element,
    );
  }

  example(text) {
    this.prompt.value = text;
    this.prompt.focus();
  }

  clear() {
    this.run.stop();
    this.messages = [];
    this.turns.replaceChildren();
    this.anew.hidden = true;
  }

  async go(signal) {
    const asked = this.prompt.value;
    const turn = new Turn(asked, this.server.name);
    this.turns.append(turn.element);
    this.anew.hidden = false;
    const chat = this.modes.value === "chat";
    const path = chat ? "v1/chat/completions" : "v1/completions";
    const body = chat ? { messages: [...this.messages, { role: "user", content: asked }] } : { prompt: asked };
    try {
      const said = await ask(path, { ...this.knobs.values(), ...body }, turn.stage, signal);
      turn.tell(said);
      if (chat) this.messages.push({ role: "user", content: asked }, { role: "assistant", content: said.text });
      this.prompt.value = "";
    } catch (error) {
      if (turn.stage.film.frames.length === 0) turn.element.remove();
      throw error;
    }
  }
}

/** What was asked, and the answer as it settles. */
class Turn {
  constructor(asked, name) {
    this.text = h("pre", { class: "answer", hidden: true });
    this.thought = h("details", { class: "thought", hidden: true }, h("summary", {}, "Thinking"));
    this.stage = new Stage({ settled: () => (this.text.hidden = this.text.textContent === "") });
    this.element = h(
      "li",
      { class: "turn" },
      h("div", { class: "asked" }, h("h2", {}, "You"), h("pre", {}, asked)),
      h("div", { class: "said" }, h("h2", {}, name), this.stage.element, this.thought, this.text),
    );
  }

  tell(said) {
    this.text.textContent = said.text;
    if (said.reasoning) {
      this.thought.hidden = false;
      this.thought.append(h("pre", {}, said.reasoning));
    }
    if (this.stage.element.dataset.state === "settled") this.text.hidden = said.text === "";
  }
}

function lead() {
  return h(
    "p",
    { class: "lead" },
    "The whole answer is drafted at once and redrafted until it settles. ",
    h("span", { class: "key" }, "Blue"),
    " is doubt, ink is certain.",
  );
}

function modes(server, changed) {
  const offered = [
    ["chat", "Chat", "/v1/chat/completions"],
    ["text", "Plain text", "/v1/completions"],
  ].filter(([, , path]) => server.has(path, "canvas"));
  const made = { value: offered[0][0] };
  const inputs = offered.map(([value, label]) => {
    const input = h("input", { type: "radio", name: "mode", value, checked: value === made.value });
    input.addEventListener("change", () => {
      made.value = value;
      changed();
    });
    return h("label", {}, input, h("span", {}, label));
  });
  made.element = h("fieldset", { class: "segments", "aria-label": "Kind of prompt" }, ...inputs);
  return made;
}
