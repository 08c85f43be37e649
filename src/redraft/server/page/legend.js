// What the signs on a canvas mean: a line of those that the canvas has shown.

import { h } from "./dom.js";

const SIGNS = {
  doubt: ["a", "the model doubts it"],
  changed: ["a", "changed by this step"],
  accepted: ["a", "accepted"],
  held: ["a", "pinned"],
  forced: ["a", "chosen by the constraint"],
  apart: ["a", "differs"],
  over: ["·", "behind the end"],
  bar: ["", "a step, as high as its doubt"],
  noise: ["", "the noise it begins as"],
};

export class Legend {
  constructor() {
    this.items = Object.fromEntries(
      Object.entries(SIGNS).map(([name, [letter, text]]) => {
        const sign = h("span", { class: `sign ${name}`, "aria-hidden": "true" }, letter);
        return [name, h("li", { hidden: true }, sign, " ", text)];
      }),
    );
    this.element = h("ul", { class: "legend", "aria-label": "Legend" }, ...Object.values(this.items));
  }

  /** Nothing has been shown yet. */
  reset() {
    for (const item of Object.values(this.items)) item.hidden = true;
  }

  /** A frame is on view. What it shows stays explained, so that the line does not jump. */
  see(frame, canvas) {
    const there = {
      doubt: frame.step > 0 && frame.entropy.slice(0, frame.end).some((nats) => nats > 0.05),
      changed: frame.changed.slice(0, frame.end).some(Boolean),
      accepted: frame.accepted.slice(0, frame.end).some(Boolean),
      held: canvas.held.size > 0,
      forced: frame.forced.size > 0,
      apart: canvas.apart.size > 0,
      over: frame.end < frame.tokens.length,
      bar: frame.step > 0,
      noise: frame.step === 0,
    };
    for (const [name, seen] of Object.entries(there)) if (seen) this.items[name].hidden = false;
  }
}
