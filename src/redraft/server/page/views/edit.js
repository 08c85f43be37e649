// A chosen span of a text revised; everything else stays, byte for byte.

import { diff, shown } from "../diff.js";
import { announce, count, field, h } from "../dom.js";
import { textOf } from "../recording.js";
import { Knobs } from "../knobs.js";
import { Race, follow } from "../race.js";
import { Run } from "../run.js";

export const id = "edit";
export const title = "Edit";

const PATH = "/v1/canvas";
const TEXT = '{"who":"Maria","qty":317,"item":"apples"}';
const CHOSEN = [21, 24];
const WISH = "Set qty to 520.";

/** Whether the server has what this needs. */
export function fits(server) {
  return server.has(PATH, "segments");
}

/** The view. */
export function build(server) {
  return new Edit(server).element;
}

class Edit {
  constructor(server) {
    this.text = h("textarea", { rows: 5, spellcheck: "false" });
    this.text.value = TEXT;
    this.text.setSelectionRange(...CHOSEN);
    this.chosen = h("p", { class: "chosen", "aria-live": "polite" });
    this.strength = h("input", { type: "range", min: 0.05, max: 1, step: 0.05, value: 1 });
    this.reading = h("output", { class: "reading" });
    this.slack = h("input", { type: "number", min: 0, max: 16, step: 1, inputmode: "numeric" });
    this.wish = h("input", { type: "text", placeholder: "none", value: WISH });
    this.knobs = new Knobs(server, { effort: false });
    this.race = new Race();
    this.result = h("section", { class: "result", "aria-label": "The changed text", hidden: true });
    this.run = new Run({ label: "Revise", go: (signal) => this.go(signal) });
    for (const kind of ["select", "keyup", "pointerup", "input"]) this.text.addEventListener(kind, () => this.read());
    for (const each of [this.strength, this.wish]) each.addEventListener("input", () => this.read());
    this.element = this.layout(server);
    this.read();
  }

  layout(server) {
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
          { class: "row top-aligned" },
          h("div", { class: "field" }, field("Strength", this.strength), this.reading),
          field("Instruction, if any", this.wish),
          field("Tokens it may grow or shrink by", this.slack),
        ),
        h("div", { class: "row" }, this.run.button),
        this.run.error,
        this.knobs.element,
      ),
      this.race.element,
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
      ...(part ? [h("mark", {}, part), ` ${count([...part].length, "character")} chosen`] : ["Nothing chosen yet: select a part of the text."]),
    );
    this.run.button.disabled = !part && !this.run.running;
    this.reading.textContent = `${Math.round(this.strength.value * 100)}% starts as noise`;
    // What an instruction rewrites as a whole has no width of its own.
    this.slack.placeholder = this.wish.value.trim() && Number(this.strength.value) === 1 ? "as it needs" : "0";
  }

  async go(signal) {
    const [from, to] = this.span;
    const { value } = this.text;
    const [before, part, behind] = [value.slice(0, from), value.slice(from, to), value.slice(to)];
    const revise = { text: part, strength: Number(this.strength.value) };
    if (this.slack.value !== "") revise.slack = Number(this.slack.value);
    if (this.wish.value) revise.instruction = this.wish.value;
    const segments = [{ text: before }, { revise }, { text: behind }];
    this.result.hidden = true;
    const done = await follow(PATH.slice(1), { ...this.knobs.values(), segments }, this.race, signal);
    this.race.end((lane) => textOf(lane.recording.frames.at(-1)).startsWith(done.revised), { ...done, text: before + done.revised + behind });
    this.report(before, part, behind, done);
  }

  report(before, part, behind, done) {
    const now = done.revised;
    const keep = h("button", { type: "button", class: "chip", hidden: now === part, onclick: () => this.keep(before, now, behind) }, "Keep it");
    const facts = `${count(done.forwards, "step")} · seed ${done.seed}`;
    const note = now === part ? `It stayed as it was. ${this.strength.value < 1 ? "More strength" : "Another part of the text"}, or another seed, may change it.` : facts;
    this.result.replaceChildren(
      shown([["same", before], ...diff(part, now), ["same", behind]]),
      h("p", { class: "facts" }, note),
      h("div", { class: "chips" }, keep),
    );
    this.result.hidden = false;
    announce(now === part ? note : `Now ${now}`);
  }

  keep(before, now, behind) {
    this.text.value = before + now + behind;
    this.text.focus();
    this.text.setSelectionRange(before.length, before.length + now.length);
    this.result.hidden = true;
    this.read();
  }
}
