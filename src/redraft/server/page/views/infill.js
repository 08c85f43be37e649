// New text between two texts that stay as they are.

import { post } from "../api.js";
import { announce, field, h } from "../dom.js";
import { shown } from "../diff.js";
import { Knobs } from "../knobs.js";
import { Run } from "../run.js";
import { facts } from "../stage.js";

export const id = "infill";
export const title = "Infill";

const PATH = "/v1/fim/completions";
const BEFORE = '{"who":"Karomi","qty":';
const BEHIND = ',"item":"melu"}';

/** Whether the server has what this needs. */
export function fits(server) {
  return server.has(PATH, "prompt", "suffix");
}

/** The view. */
export function build(server) {
  const before = h("textarea", { rows: 6, spellcheck: "false" });
  const behind = h("textarea", { rows: 4, spellcheck: "false" });
  before.value = BEFORE;
  behind.value = BEHIND;
  const knobs = new Knobs(server, { tokens: Math.min(16, server.width), effort: false });
  const result = h("section", { class: "result", "aria-label": "The filled text", hidden: true });
  const run = new Run({
    label: "Fill the gap",
    go: async (signal) => {
      const asked = { prompt: before.value, suffix: behind.value };
      const answer = await post(PATH.slice(1), { ...knobs.values(), ...asked }, signal);
      const [choice] = answer.choices;
      const parts = [["same", asked.prompt], ["in", choice.text], ["same", asked.suffix]];
      result.replaceChildren(shown(parts), h("p", { class: "facts" }, facts(choice.canvas)));
      result.hidden = false;
      announce(`Filled with ${choice.text}`);
    },
  });
  return h(
    "div",
    { class: "view" },
    h("p", { class: "lead" }, "Several lengths are tried side by side; the one with the least doubt is the answer."),
    h(
      "form",
      { class: "composer" },
      field("Before the gap", before),
      field("Behind it", behind),
      h("div", { class: "row" }, run.button),
      run.error,
      knobs.element,
    ),
    result,
  );
}
