// A conversation with a server that tells text and no canvas: another one, which this page stands in front of.

import { announce, h } from "../dom.js";
import { Knobs } from "../knobs.js";
import { Reply } from "../reply.js";
import { Run } from "../run.js";

export const id = "write";
export const title = "Write";

const PATH = "/v1/chat/completions";

/** Whether this is all that the server can do. */
export function fits(server) {
  return server.has(PATH, "messages") && !server.has("/v1/canvas");
}

/** The view. */
export function build(server) {
  return new Plain(server).element;
}

class Plain {
  constructor(server) {
    this.server = server;
    this.messages = [];
    this.prompt = h("textarea", { rows: 4, spellcheck: "false", "aria-label": "Prompt", placeholder: "Ask something" });
    this.knobs = new Knobs(server);
    this.run = new Run({ label: "Send", go: (signal) => this.go(signal) });
    this.anew = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.clear() }, "Start over");
    this.turns = h("ol", { class: "turns" });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.run.start();
    });
    const form = h(
      "form",
      { class: "composer" },
      this.prompt,
      h("div", { class: "row" }, this.run.button, this.anew, h("small", {}, "Ctrl Enter sends, Esc stops")),
      this.run.error,
      this.knobs.element,
    );
    const lead = `Answers come from ${server.owner}. It tells text and no canvas, so there are no steps to watch here.`;
    this.element = h("div", { class: "view" }, h("p", { class: "lead" }, lead), this.turns, form);
  }

  clear() {
    this.run.stop();
    this.messages = [];
    this.turns.replaceChildren();
    this.anew.hidden = true;
  }

  async go(signal) {
    const asked = { role: "user", content: this.prompt.value };
    const reply = new Reply();
    const said = h("div", { class: "said" }, h("h2", {}, this.server.name), reply.answer, reply.took.element, reply.facts);
    const turn = h("li", { class: "turn" }, h("div", { class: "asked" }, h("h2", {}, "You"), h("pre", {}, asked.content)), said);
    this.turns.append(turn);
    this.anew.hidden = false;
    try {
      const { text } = await reply.ask(PATH.slice(1), { ...this.knobs.values(), messages: [...this.messages, asked] }, signal);
      this.messages.push(asked, { role: "assistant", content: text });
      this.prompt.value = "";
      announce(text);
    } catch (error) {
      if (!reply.answer.textContent) turn.remove();
      throw error;
    }
  }
}
