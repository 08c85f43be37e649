// The steps of an answer side by side: a bar each, as high as its doubt; a slider over them; play and pause.

import { h, isStill } from "./dom.js";
import { heat } from "./recording.js";

const PACE_MS = 340;
const MANY = 60; // bars that still have room between them
const BEHIND = 24; // frames; a player further behind than this hurries, the more the further

/** Shows frame after frame. `show(i)` is called for each, `arrived()` when a recording that is over has been seen. */
export class Timeline {
  constructor({ show, arrived = () => {} }) {
    Object.assign(this, { show, arrived, frames: [], at: -1, most: 0.01, named: -1, over: false, paused: false, timer: 0 });
    this.play = h("button", { type: "button", class: "play", onclick: () => this.toggle() });
    this.bars = h("div", { class: "bars", "aria-hidden": "true" });
    this.range = h("input", { type: "range", min: 0, max: 0, step: 1, "aria-label": "Step" });
    this.range.addEventListener("input", () => {
      this.pause();
      this.go(Number(this.range.value));
    });
    this.track = h("div", { class: "track" }, this.bars, this.range);
    this.track.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      this.track.setPointerCapture(event.pointerId);
      this.range.focus();
      this.point(event);
    });
    this.track.addEventListener("pointermove", (event) => this.track.hasPointerCapture(event.pointerId) && this.point(event));
    this.label = h("span", { class: "where" });
    this.element = h("div", { class: "timeline", hidden: true }, this.play, this.track, this.label);
    this.dress();
  }

  /** Whether the last step is on view and no more will come. */
  get isLast() {
    return this.over && this.at === this.frames.length - 1;
  }

  /** Forget the recording. */
  reset() {
    this.pause();
    Object.assign(this, { frames: [], at: -1, most: 0.01, named: -1, over: false, paused: false });
    this.bars.replaceChildren();
    this.element.hidden = true;
  }

  /** A frame came in. It is shown when its turn comes, at once if motion is unwanted. */
  add(frame) {
    this.frames.push(frame);
    const bar = h("i", { class: "bar" });
    bar.classList.toggle("first", this.frames.at(-2)?.block !== frame.block);
    bar.classList.toggle("noise", frame.step === 0);
    this.element.style.setProperty("--count", this.frames.length);
    // The style sheet makes bars as high as their doubt is beside the greatest.
    this.most = Math.max(this.most, heat(frame.mean));
    bar.style.setProperty("--doubt", heat(frame.mean));
    this.bars.style.setProperty("--most", this.most);
    this.bars.append(bar);
    this.bars.classList.toggle("many", this.frames.length > MANY);
    this.range.max = this.frames.length - 1;
    this.element.hidden = false;
    if (this.paused) this.name();
    else if (isStill()) this.go(this.frames.length - 1);
    else if (!this.timer && this.at === this.frames.length - 2) this.run();
    else this.name();
  }

  /** No more will come. */
  end() {
    this.over = true;
    this.name();
    if (this.at === this.frames.length - 1) this.arrived();
  }

  toggle() {
    if (this.timer) return this.pause();
    this.paused = false;
    if (this.at >= this.frames.length - 1) this.go(0);
    return this.run(PACE_MS);
  }

  /** Stay here, whatever comes in. */
  pause() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.paused = true;
    this.dress();
  }

  /** The bar under the pointer. A slider's own places are not where the bars are. */
  point(event) {
    const { left, width } = this.bars.getBoundingClientRect();
    this.pause();
    this.go(Math.floor(((event.clientX - left) / width) * this.frames.length));
  }

  /** Show one frame. */
  go(at) {
    this.at = Math.max(0, Math.min(this.frames.length - 1, at));
    this.range.value = this.at;
    this.show(this.at);
    this.name();
    if (this.over && this.at === this.frames.length - 1) this.arrived();
  }

  run(wait = 0) {
    this.timer = setTimeout(() => {
      this.timer = 0;
      this.go(this.at + 1);
      if (this.at < this.frames.length - 1) this.run(this.pace());
      else if (!this.over) this.runOn();
      this.dress();
    }, wait);
    this.dress();
  }

  /** Keep the pace even where the next frame comes early. */
  runOn() {
    this.timer = setTimeout(() => {
      this.timer = 0;
      if (this.at < this.frames.length - 1) this.run();
      this.dress();
    }, PACE_MS);
  }

  pace() {
    return PACE_MS * Math.min(1, BEHIND / (this.frames.length - this.at));
  }

  dress() {
    const playing = this.timer !== 0;
    this.play.textContent = playing ? "❙❙" : "▶";
    this.play.setAttribute("aria-label", playing ? "Pause" : "Play");
  }

  /** Say where the reader is. */
  name() {
    const frame = this.frames[this.at];
    if (!frame) return;
    for (let i = Math.max(0, Math.min(this.named, this.at)); i <= Math.max(this.named, this.at); i++) {
      this.bars.children[i].classList.toggle("seen", i < this.at);
      this.bars.children[i].classList.toggle("now", i === this.at);
    }
    this.named = this.at;
    this.bars.style.setProperty("--now", (this.at + 0.5) / this.frames.length);
    // A slow reader is not sent every step, so steps are not counted by frames.
    const last = this.frames.findLast((each) => each.block === frame.block);
    const block = this.frames.at(-1).block ? `block ${frame.block + 1}, ` : "";
    this.label.textContent = frame.step ? `${block}step ${frame.step} of ${last.step}${this.over ? "" : "…"}` : "noise";
    this.range.setAttribute("aria-valuetext", this.label.textContent);
  }
}
