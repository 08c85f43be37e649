// A chosen span of a text revised; everything else stays, byte for byte.

import { post } from "../api.js";
import { diff, shown } from "../diff.js";
import { announce, count, field, h } from "../dom.js";
import { Knobs } from "../knobs.js";
import { Run } from "../run.js";
import { facts } from "../stage.js";

export const id = "edit";
export const title = "Edit";

const PATH = "/v1/edit/completions";
const TEXT = '{"who":"Karomi","qty":417,"item":"melu"}';

/** Whether the server has what this needs. */
export function fits(server) {
  return server.has(PATH, "messages", "strength");
}

/** The view. */
export function build(server) {
  return new Edit(server).element;
}

class Edit {
  constructor(server) {
    this.text = h("textarea", { rows: 8, spellcheck: "false" });
    this.text.value = TEXT;
    this.text.setSelectionRange(8, 14);
    this.chosen = h("p", { class: "chosen", "aria-live": "polite" });
    this.strength = h("input", { type: "range", min: 0.05, max: 1, step: 0.05, value: 0.5 });
    this.reading = h("output", { class: "reading" });
    this.wish = h("input", { type: "text", placeholder: "none" });
    this.knobs = new Knobs(server, { effort: false });
    this.result = h("section", { class: "result", "aria-label": "The changed text", hidden: true });
    this.run = new Run({ label: "Revise", go: (signal) => this.go(signal) });
    for (const kind of ["select", "keyup", "pointerup", "input"]) this.text.addEventListener(kind, () => this.read());
    this.strength.addEventListener("input", () => this.read());
    this.element = this.layout();
    this.read();
  }

  layout() {
    return h(
      "div",
      { class: "view" },
      h("p", { class: "lead" }, "Select what should be said differently. Part of it turns to noise and settles anew."),
      h(
        "form",
        { class: "composer" },
        field("Text", this.text),
        this.chosen,
        h(
          "div",
          { class: "row" },
          h("div", { class: "field" }, field("Strength", this.strength), this.reading),
          field("Instruction", this.wish),
        ),
        h("div", { class: "row" }, this.run.button),
        this.run.error,
        this.knobs.element,
      ),
      this.result,
    );
  }

  get span() {
    return [this.text.selectionStart, this.text.selectionEnd];
  }

  read() {
    const [from, to] = this.span;
    const part = this.text.value.slice(from, to);
    this.chosen.replaceChildren(
      ...(part ? [h("mark", {}, part), ` ${count([...part].length, "character")} chosen`] : ["Nothing chosen yet"]),
    );
    this.run.button.disabled = !part && !this.run.running;
    this.reading.textContent = `${Math.round(this.strength.value * 100)}% starts as noise`;
  }

  async go(signal) {
    const [from, to] = this.span;
    const { value } = this.text;
    const [before, part, behind] = [value.slice(0, from), value.slice(from, to), value.slice(to)];
    const content = `${before}<|code_to_edit|>\n${part}\n<|/code_to_edit|>${behind}`;
    const body = { messages: [{ role: "user", content }], strength: Number(this.strength.value), ...this.knobs.values() };
    if (this.wish.value) body.instruction = this.wish.value;
    const [choice] = (await post(PATH.slice(1), body, signal)).choices;
    const now = choice.message.content;
    this.tell([["same", before], ...diff(part, now), ["same", behind]], choice.canvas);
    announce(now === part ? "It stayed as it was" : `Now ${now}`);
    this.keep.addEventListener("click", () => {
      this.text.value = before + now + behind;
      this.text.focus();
      this.text.setSelectionRange(from, from + now.length);
      this.result.hidden = true;
      this.read();
    });
  }

  tell(parts, told) {
    this.keep = h("button", { type: "button", class: "quiet" }, "Keep it");
    const same = parts.every(([kind]) => kind === "same");
    const note = same ? "It stayed as it was. More strength, or another seed, may change it." : facts(told);
    this.result.replaceChildren(shown(parts), h("p", { class: "facts" }, note), this.keep);
    this.keep.hidden = same;
    this.result.hidden = false;
  }
}
