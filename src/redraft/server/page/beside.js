// Another server beside this one: asked the same at the same moment, through this server, and told in a half of its own.

import { announce, h } from "./dom.js";
import { Reply } from "./reply.js";
import { worded } from "./run.js";

const CHAT = "/beside/chat/completions";
const TEXT = "/beside/completions";

/** The other server in a conversation: its turns are its own. */
export class Beside {
  constructor(url) {
    this.url = url;
    this.name = "Theirs"; // until it tells
    this.messages = [];
    this.wanted = h("input", { type: "checkbox", checked: true });
    this.element = h("label", { class: "check" }, this.wanted, h("small", {}, `Ask ${url}, too`));
  }

  /** The one that this server was started beside, null if there is none. */
  static of(server) {
    return server.beside && server.has(CHAT, "messages") && server.has(TEXT, "prompt") ? new Beside(server.beside) : null;
  }

  /** Its half of a turn, null if it is not wanted. */
  half() {
    return this.wanted.checked ? new Half(this) : null;
  }

  clear() {
    this.messages = [];
  }
}

class Half {
  constructor(beside) {
    this.beside = beside;
    this.reply = new Reply();
    this.name = h("h2", {}, beside.name);
    this.error = h("p", { class: "error", role: "alert", hidden: true });
    const where = h("small", {}, beside.url);
    const { took, answer, facts } = this.reply;
    this.element = h("section", { class: "said", "aria-label": beside.url }, this.name, where, took.element, this.error, answer, facts);
  }

  /** Whether it has said anything. */
  get answered() {
    return this.reply.answer.textContent !== "";
  }

  /** Ask what this server is asked. What goes wrong is told here; whether it did is nobody's affair but this half's. */
  async ask({ prompt, messages, effort: _, ...rest }, signal) {
    const asked = messages?.at(-1);
    const body = asked ? { messages: [...this.beside.messages, asked] } : { prompt };
    try {
      const said = await this.reply.ask((asked ? CHAT : TEXT).slice(1), { ...rest, ...body }, signal);
      this.name.textContent = this.beside.name = said.model ?? this.beside.name;
      if (asked) this.beside.messages = [...body.messages, { role: "assistant", content: said.text }];
      announce(`The other server: ${said.text}`);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.error.textContent = worded(error);
      this.error.hidden = false;
    }
  }
}
