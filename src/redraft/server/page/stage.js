// Where an answer settles: its canvas, the timeline under it, and what it took.

import { Canvas } from "./canvas.js";
import { announce, count, h } from "./dom.js";
import { Film, nats, textOf } from "./film.js";
import { Timeline } from "./timeline.js";

const NOISE = 9; // nats: more than any doubt that is told apart

/** One answer. `shown(frame)` is called for every frame on view, `settled()` when the last one has been seen. */
export class Stage {
  constructor({ shown = () => {}, settled = () => {} } = {}) {
    this.canvas = new Canvas();
    this.film = new Film();
    this.timeline = new Timeline({
      show: (i) => {
        const frame = this.film.frames[i];
        this.canvas.render(frame, this.film.textBefore(frame));
        shown(frame);
      },
      arrived: () => {
        this.element.dataset.state = "settled";
        this.facts.hidden = false;
        settled();
      },
    });
    this.facts = h("p", { class: "facts", hidden: true });
    this.element = h("section", { class: "stage", "aria-label": "Canvas and steps" }, this.canvas.element, this.timeline.element, this.facts);
    this.reset();
  }

  /** Ready for another answer. */
  reset() {
    this.film.frames = [];
    this.blocks = [];
    this.canvas.clear();
    this.timeline.reset();
    this.facts.hidden = true;
    this.element.dataset.state = "empty";
  }

  /** A step, as the server told it. */
  add(told) {
    this.element.dataset.state = "running";
    this.timeline.add(this.film.add(told));
  }

  /** What the canvas began as, before its first step. */
  noise({ width, tokens }) {
    const none = new Array(width).fill(0);
    const told = { block: 0, step: 0, width, tokens, positions: [...none.keys()], accepted: none, entropy: none.map(() => NOISE) };
    this.add(told);
  }

  /** The answer is whole. `told` is what the server says of it. */
  end(told) {
    const last = this.film.frames.at(-1);
    if (!last && !told) return; // it was refused, and the view says why
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
