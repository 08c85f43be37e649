// The dial from fast to best, over the curve that was measured on this checkpoint.

import { h, svg } from "./dom.js";

const WIDE = 240;
const HIGH = 64;
const EDGE = 6;

/** A slider, or nothing where no curve was measured. `value` is null while the checkpoint's own rules hold. */
export class Effort {
  constructor(dial) {
    this.notches = dial?.notches ?? [];
    this.value = null;
    this.element = h("div", { class: "field effort", hidden: this.notches.length === 0 });
    if (this.notches.length === 0) return;
    this.own = h("input", { type: "checkbox", checked: true });
    this.range = h("input", { type: "range", min: 0, max: 1, step: 0.01, value: 1, "aria-label": "Effort" });
    this.label = h("output", { class: "reading" });
    this.plot = this.draw();
    this.own.addEventListener("change", () => this.read());
    this.range.addEventListener("input", () => {
      this.own.checked = false;
      this.read();
    });
    this.element.append(
      h("span", { class: "label" }, "Effort"),
      h("small", {}, `measured on ${dial.tasks.join(" and ")}, ${dial.taken}`),
      this.plot,
      this.range,
      this.label,
      h("label", { class: "check" }, this.own, "the checkpoint’s own rules"),
    );
    this.read();
  }

  read() {
    this.value = this.own.checked ? null : Number(this.range.value);
    const at = this.value === null ? -1 : this.place(this.value);
    [...this.plot.querySelectorAll(".notch")].forEach((dot, i) => dot.classList.toggle("on", i === at));
    const notch = this.notches[at];
    this.label.textContent = notch
      ? `${percent(notch.quality)} right (${percent(notch.low)} to ${percent(notch.high)}), ${notch.forwards.toFixed(1)} forwards`
      : "as released";
    this.range.setAttribute("aria-valuetext", this.label.textContent);
  }

  /** The cheapest notch whose effort is no lower, as the server takes it. */
  place(effort) {
    return this.notches.findIndex((notch) => notch.effort >= effort - 1e-9);
  }

  draw() {
    const few = Math.min(...this.notches.map((notch) => notch.forwards));
    const most = Math.max(...this.notches.map((notch) => notch.forwards));
    const least = Math.min(...this.notches.map((notch) => notch.low));
    const x = (forwards) => EDGE + ((forwards - few) / (most - few || 1)) * (WIDE - 2 * EDGE);
    const y = (quality) => HIGH - EDGE - ((quality - least) / (1 - least || 1)) * (HIGH - 2 * EDGE);
    const line = this.notches.map((notch) => `${x(notch.forwards)},${y(notch.quality)}`).join(" ");
    const title = svg("title");
    title.textContent = "Share of right answers over forwards an answer, with 95% intervals";
    const drawn = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "curve", role: "img" }, title);
    for (const { forwards, low, high } of this.notches)
      drawn.append(svg("line", { x1: x(forwards), x2: x(forwards), y1: y(low), y2: y(high), class: "spread" }));
    drawn.append(svg("polyline", { points: line, class: "line" }));
    for (const { forwards, quality } of this.notches)
      drawn.append(svg("circle", { cx: x(forwards), cy: y(quality), r: 3, class: "notch" }));
    return drawn;
  }
}

function percent(share) {
  return `${(share * 100).toFixed(share < 0.995 ? 1 : 0)}%`;
}
