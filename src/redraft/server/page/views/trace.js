// Traces from files: gone through step by step, two of them beside each other.

import { getText } from "../api.js";
import { announce, count, field, h, isStill } from "../dom.js";
import { Stage } from "../stage.js";
import { main, readTrace } from "../trace.js";

export const id = "trace";
export const title = "Trace";

/** It needs nothing of the server. */
export function fits() {
  return true;
}

/** The view. */
export function build() {
  return new Traces().element;
}

class Side {
  constructor(label, place, changed) {
    this.recordings = [];
    this.changed = changed;
    this.file = h("input", { type: "file", accept: ".jsonl,.json,application/jsonl", onchange: () => this.choose(this.file.files[0]) });
    this.choice = h("select", { "aria-label": "Request", hidden: true, onchange: () => this.show(this.recordings[this.choice.value]) });
    this.error = h("p", { class: "error", role: "alert", hidden: true });
    this.about = h("p", { class: "facts" });
    this.stage = new Stage({ shown: () => this.moved?.() });
    this.picker = field(label, this.file);
    this.element = h("section", { class: "side", "aria-label": place }, this.about, this.choice, this.error, this.stage.element);
  }

  /** A file that was picked or dropped; undefined where the reader picked none. */
  async choose(file) {
    if (file) this.open(file.name, await file.text());
  }

  open(name, text) {
    this.error.hidden = true;
    this.clear();
    try {
      const { head, recordings } = readTrace(text);
      Object.assign(this, { name, head, recordings });
      this.choice.replaceChildren(...recordings.map((recording, i) => h("option", { value: i }, named(recording))));
      this.choice.hidden = recordings.length === 1;
      const best = main(recordings);
      this.choice.value = recordings.indexOf(best);
      this.show(best);
    } catch (error) {
      this.about.textContent = "";
      this.choice.hidden = true;
      this.error.textContent = `${name}: ${error.message}`;
      this.error.hidden = false;
    }
  }

  clear() {
    this.recording = null;
    this.stage.reset();
    this.changed();
  }

  show(recording) {
    this.clear();
    const { command, model, taken } = this.head;
    this.about.textContent = `${command} · ${model} · ${taken} · ${this.name}`;
    for (const draft of recording.drafts) this.stage.show(draft);
    this.stage.timeline.pause();
    this.stage.end(recording.finish && { steps: recording.steps, seed: recording.begun.seed, finish: recording.finish });
    this.recording = recording;
    this.changed();
  }

  get frames() {
    return this.stage.recording.frames;
  }
}

class Traces {
  constructor() {
    this.sides = [new Side("A trace", "Left", () => this.pair()), new Side("Another, to compare", "Right", () => this.pair())];
    this.verdict = h("p", { class: "verdict", role: "status" });
    this.both = h("div", { class: "sides" }, ...this.sides.map((side) => side.element));
    const sample = h("button", { type: "button", class: "chip", onclick: () => this.sample() }, "Show a sample");
    this.element = h(
      "div",
      { class: "view" },
      h("p", { class: "lead" }, "Every step of a run, from a file that --trace or “Save the trace” wrote. It is read here and sent nowhere."),
      h("div", { class: "chips" }, sample, h("small", {}, "or drop a file anywhere on this view, two to compare them")),
      h("div", { class: "pickers" }, ...this.sides.map((side) => side.picker)),
      this.verdict,
      this.both,
    );
    this.element.addEventListener("dragover", (event) => event.preventDefault());
    this.element.addEventListener("drop", (event) => this.drop(event));
  }

  /** A 6×6 Sudoku that nano-sudoku solved, from the package. */
  async sample() {
    this.sides[0].open("sample", await getText("page/sample.jsonl"));
    if (!isStill()) this.sides[0].stage.timeline.toggle();
  }

  /** The first file goes where nothing is yet, or to the left; a second beside it. */
  async drop(event) {
    event.preventDefault();
    const files = [...event.dataTransfer.files].slice(0, 2);
    const at = files.length === 1 && this.sides[0].recording && !this.sides[1].recording ? 1 : 0;
    for (const [i, file] of files.entries()) await this.sides[at + i].choose(file);
  }

  /** Something else is on one of the sides: the longer one leads, the other follows, and what differs is marked. */
  pair() {
    const there = this.sides.filter((side) => side.recording);
    for (const side of this.sides) {
      side.moved = null;
      side.stage.canvas.apart = new Set();
      side.stage.timeline.element.hidden = !side.recording;
    }
    this.both.classList.toggle("two", there.length === 2);
    this.verdict.textContent = "";
    if (there.length === 2) {
      const [lead, other] = there[1].frames.length > there[0].frames.length ? [there[1], there[0]] : there;
      other.stage.timeline.element.hidden = true;
      other.stage.timeline.pause();
      lead.moved = () => this.together(lead, other);
      this.verdict.textContent = parting(lead.frames, other.frames);
      announce(this.verdict.textContent);
    }
    if (there.length) there.toSorted((a, b) => b.frames.length - a.frames.length)[0].stage.timeline.go(0);
  }

  together(lead, other) {
    const at = Math.min(lead.stage.timeline.at, other.frames.length - 1);
    const places = apart(lead.frames[lead.stage.timeline.at], other.frames[at]);
    for (const side of [lead, other]) side.stage.canvas.apart = places;
    other.stage.timeline.go(at);
    lead.stage.canvas.render(lead.frames[lead.stage.timeline.at], lead.stage.canvas.before.textContent);
  }
}

/** The places at which two frames read differently. */
function apart(one, other) {
  const wide = Math.max(one.tokens.length, other.tokens.length);
  return new Set([...Array(wide).keys()].filter((at) => one.tokens[at] !== other.tokens[at]));
}

function parting(one, other) {
  const last = (frames, at) => frames[Math.min(at, frames.length - 1)];
  for (let at = 0; at < one.length; at += 1) {
    const places = [...apart(last(one, at), last(other, at))];
    if (places.length) return `First apart at step ${at + 1}, in ${count(places.length, "place")}.`;
  }
  return "They read the same at every step.";
}

function named(recording) {
  const { index, seed, width } = recording.begun;
  return `request ${index}: seed ${seed}, width ${width}, ${count(recording.drafts.length, "step")}, ${recording.finish ?? "cut off"}`;
}
