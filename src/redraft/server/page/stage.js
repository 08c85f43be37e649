// Where an answer settles: its canvas, the timeline under it, and what it took.

import { Canvas } from "./canvas.js";
import { announce, count, h } from "./dom.js";
import { Legend } from "./legend.js";
import { copy, download, TraceWriter } from "./save.js";
import { Film, nats, textOf } from "./film.js";
import { Timeline } from "./timeline.js";

const NOISE = 9; // nats: more than any doubt that is told apart

/** One answer. `shown(frame)` is called for every frame on view, `settled()` when the last one has been seen. */
export class Stage {
  constructor({ shown = () => {}, settled = () => {} } = {}) {
    this.canvas = new Canvas();
    this.film = new Film();
    this.trace = new TraceWriter();
    this.legend = new Legend();
    this.timeline = new Timeline({
      show: (i) => {
        const frame = this.film.frames[i];
        this.canvas.render(frame, this.film.textBefore(frame));
        this.legend.see(frame, this.canvas);
        shown(frame);
      },
      arrived: () => {
        this.element.dataset.state = "settled";
        this.facts.hidden = this.tools.hidden = false;
        settled();
      },
    });
    this.facts = h("p", { class: "facts", hidden: true });
    this.copy = quiet("Copy", async () => {
      await copy(this.text);
      this.copy.textContent = "Copied";
      announce("Copied");
      setTimeout(() => (this.copy.textContent = "Copy"), 1500);
    });
    this.save = quiet("Save the trace", () => download(`redraft-${this.about.seed ?? 0}.jsonl`, this.trace.file(this.about)));
    this.tools = h("div", { class: "tools", hidden: true }, this.copy, this.save);
    const parts = [this.canvas.element, this.timeline.element, this.legend.element, this.facts, this.tools];
    this.element = h("section", { class: "stage", "aria-label": "Canvas and steps" }, ...parts);
    this.reset();
  }

  /** Ready for another answer. */
  reset() {
    this.film.frames = [];
    this.blocks = [];
    this.text = "";
    this.about = {};
    this.trace.begin("", {});
    this.legend.reset();
    this.canvas.clear();
    this.timeline.reset();
    this.facts.hidden = this.tools.hidden = true;
    this.element.dataset.state = "empty";
  }

  /** A step, as the server told it. */
  add(told) {
    this.trace.draft(told);
    this.show(told);
  }

  /** The same without a line in the trace. */
  show(told) {
    const first = this.element.dataset.state === "empty";
    this.element.dataset.state = "running";
    this.timeline.add(this.film.add(told));
    if (first) this.element.scrollIntoView({ block: "nearest" }); // on a phone it begins below the form
  }

  /** What the canvas began as, before its first step. */
  noise({ width, tokens }) {
    const none = new Array(width).fill(0);
    const told = { block: 0, step: 0, width, tokens, positions: [...none.keys()], accepted: none, entropy: none.map(() => NOISE) };
    this.show(told);
  }

  /** The answer is whole. `told` is what the server says of it, `said` its text and usage. */
  end(told, said = null) {
    const last = this.film.frames.at(-1);
    if (!last && !told) return; // it was refused, and the view says why
    this.text = said?.text || (last ? textOf(last) : "");
    this.about = { seed: told?.seed, promptTokens: said?.usage?.prompt_tokens };
    if (told && said?.finish) this.trace.over(0, { finish: told.finish, text: said.text, steps: told.steps, commits: told.commits });
    this.save.hidden = this.trace.empty;
    this.facts.textContent = told ? facts(told) : "Stopped.";
    announce(last ? `${told ? "Settled" : "Stopped"}: ${textOf(last)}` : this.facts.textContent);
    this.timeline.end();
    if (!last) this.timeline.arrived();
  }

  /** Show the last step of a block; returns its frame. */
  showLast(block) {
    const at = this.film.frames.findLastIndex((frame) => frame.block === block);
    if (this.timeline.at !== at) {
      this.timeline.pause();
      this.timeline.go(at);
    } else this.canvas.render(this.film.frames[at], this.film.textBefore(this.film.frames[at]));
    return this.film.frames[at];
  }
}

function quiet(label, onclick) {
  return h("button", { type: "button", class: "quiet", onclick }, label);
}

/** What an answer took, in a line. */
export function facts(told) {
  const steps = told.steps.reduce((sum, each) => sum + each, 0);
  const parts = [count(steps, "step")];
  if (told.tokens_per_forward >= 0.05) parts.push(`${told.tokens_per_forward.toFixed(1)} tokens a forward`);
  if (told.mean_entropy !== undefined) parts.push(`doubt ${nats(told.mean_entropy)}`);
  if (told.ms) parts.push(`${Math.round(told.ms)} ms`);
  parts.push(`seed ${told.seed}`);
  if (told.finish === "length") parts.push("cut at its limit");
  if (told.finish === "deadline") parts.push("out of time");
  return parts.join(" · ");
}
