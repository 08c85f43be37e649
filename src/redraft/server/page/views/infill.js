// New text for holes in a text that stays as it is.

import { shown } from "../diff.js";
import { announce, count, field, h } from "../dom.js";
import { Knobs } from "../knobs.js";
import { Race, follow } from "../race.js";
import { Run } from "../run.js";

export const id = "infill";
export const title = "Infill";

const PATH = "/v1/canvas";
const HOLE = "▢";
const SENTENCE = "Extract as JSON: name, age (integer), city\nAlice is 31 years old and lives in Rome.\n";
/** Text, pattern and longest hole, of the kind that the served model was trained on. */
const EXAMPLES = {
  nano: [`${SENTENCE}{"name":"Alice","age":31,"city":"${HOLE}"}`, "Rome|Paris|Lima|Oslo", 6],
  "nano-sudoku": [`sudoku\n1234\n3412\n${HOLE}\n4321`, "[1-4]{4}", 4],
};
const CODE = [`class Point:\n    def __init__(${HOLE}, x):\n        self.x = x\n`, "[a-z]+", 16];

/** Whether the server has what this needs. */
export function fits(server) {
  return server.has(PATH, "segments");
}

/** The view. */
export function build(server) {
  return new Infill(server).element;
}

class Infill {
  constructor(server) {
    this.text = h("textarea", { rows: 5, spellcheck: "false" });
    const [example, pattern, tokens] = EXAMPLES[server.name] ?? CODE;
    this.text.value = example;
    this.form = h("input", { type: "text", spellcheck: "false", class: "code", placeholder: "anything", autocapitalize: "off", value: pattern });
    this.knobs = new Knobs(server, { tokens: Math.min(tokens, server.width), effort: false });
    this.dig = h("button", { type: "button", class: "chip", onclick: () => this.hole() }, `Put a hole ${HOLE} at the cursor`);
    this.run = new Run({ label: "Fill", go: (signal) => this.go(signal) });
    this.text.addEventListener("input", () => this.read());
    this.missing = h("small", { hidden: true }, `There is no hole ${HOLE} in the text: put one where something is missing.`);
    this.race = new Race();
    this.result = h("section", { class: "result", "aria-label": "The filled text", hidden: true });
    this.element = h(
      "div",
      { class: "view" },
      h("p", { class: "lead" }, "A hole is filled from both sides. Several lengths are tried at once; the one with the least doubt wins."),
      h(
        "form",
        { class: "composer" },
        field("Text", this.text),
        h("div", { class: "chips" }, this.dig),
        field("Every hole matches (a regular expression)", this.form),
        h("div", { class: "row" }, this.run.button, this.missing),
        this.run.error,
        this.knobs.element,
      ),
      this.race.element,
      this.result,
    );
  }

  read() {
    const whole = !this.text.value.includes(HOLE);
    this.run.button.disabled = !this.run.running && whole;
    this.missing.hidden = !whole;
  }

  hole() {
    this.text.setRangeText(HOLE, this.text.selectionStart, this.text.selectionEnd, "end");
    this.text.focus();
    this.read();
  }

  async go(signal) {
    const texts = this.text.value.split(HOLE);
    const hole = this.form.value ? { regex: this.form.value } : {};
    const segments = texts.flatMap((text, i) => (i ? [{ hole }, { text }] : [{ text }]));
    this.result.hidden = true;
    const done = await follow(PATH.slice(1), { ...this.knobs.values(), segments }, this.race, signal);
    this.race.end((lane) => lane.gap === done.holes.at(-1).candidates[0].tokens, done);
    this.report(texts, done);
  }

  /** The text with its holes filled; where there was one, the runners-up can be looked at, too. */
  report(texts, done) {
    const paper = h("div", {});
    const show = (fills) => paper.replaceChildren(shown(texts.flatMap((text, i) => (i ? [["in", fills[i - 1]], ["same", text]] : [["same", text]]))));
    show(done.holes.map((hole) => hole.text));
    const tried = done.holes.reduce((sum, hole) => sum + hole.tried, 0);
    const facts = `${count(tried, "length")} tried · ${count(done.forwards, "step")} · seed ${done.seed}`;
    this.result.replaceChildren(paper, h("p", { class: "facts" }, facts));
    if (done.holes.length === 1) this.result.append(runners(done.holes[0].candidates, !this.form.value, (text) => show([text])));
    this.result.hidden = false;
    announce(`Filled with ${done.holes.map((hole) => hole.text).join(", ")}`);
  }
}

/** The lengths that ran to the end. Under a pattern a model has little choice, and its doubt says little. */
function runners(candidates, free, show) {
  const inputs = candidates.map(({ text, tokens, score }, i) => {
    const input = h("input", { type: "radio", name: "candidate", checked: i === 0, onchange: () => show(text) });
    const said = h("code", {}, text.replaceAll("\n", "⏎"));
    const doubt = free ? `, doubt ${score < 0.005 ? "under 0.01" : score.toFixed(2)}` : "";
    return h("label", { class: "runner" }, input, said, h("small", {}, `${count(tokens, "token")}${doubt}`));
  });
  return h("fieldset", { class: "runners" }, h("legend", {}, "Lengths that ran to the end, least doubt first"), ...inputs);
}
