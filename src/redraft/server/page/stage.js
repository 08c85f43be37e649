// Where an answer settles: its canvas, the timeline under it, and what it took.

import { Canvas } from "./canvas.js";
import { announce, count, h } from "./dom.js";
import { Legend } from "./legend.js";
import { copy, download, TraceWriter } from "./save.js";
import { Recording, nats, textOf } from "./recording.js";
import { Timeline } from "./timeline.js";

const NOISE = 9; // nats: more than any doubt that is distinguished

/** One answer. `shown(frame)` is called for every frame on view, `settled()` when the last one has been seen. `watched` is
 *  what to bring into the window when it begins, if not the stage itself. */
export class Stage {
  constructor({ shown = () => {}, settled = () => {}, watched = null } = {}) {
    this.watched = watched;
    this.canvas = new Canvas();
    this.recording = new Recording();
    this.trace = new TraceWriter();
    this.legend = new Legend();
    this.timeline = new Timeline({
      show: (i) => {
        const frame = this.recording.frames[i];
        this.canvas.render(frame, this.recording.textBefore(frame));
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
    this.recording.frames = [];
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

  /** A step, as the server sent it. */
  add(draft) {
    this.trace.draft(draft);
    this.show(draft);
  }

  /** The same without a line in the trace. */
  show(draft) {
    const first = this.element.dataset.state === "empty";
    this.element.dataset.state = "running";
    this.timeline.add(this.recording.add(draft));
    if (first) (this.watched ?? this.element).scrollIntoView({ block: "nearest" }); // on a phone it begins below the form
  }

  /** What the canvas began as, before its first step. */
  noise({ width, tokens }) {
    const none = new Array(width).fill(0);
    const draft = { block: 0, step: 0, width, tokens, positions: [...none.keys()], accepted: none, entropy: none.map(() => NOISE) };
    this.show(draft);
  }

  /** The answer is whole. `result` is what the server says of it, `said` its text and usage. */
  end(result, said = null) {
    const last = this.recording.frames.at(-1);
    if (!last && !result) return; // it was refused, and the view says why
    this.text = said?.text || (last ? textOf(last) : "");
    this.about = { seed: result?.seed, promptTokens: said?.usage?.prompt_tokens };
    if (result && said?.finish) this.trace.over(0, { finish: result.finish, text: said.text, steps: result.steps, commits: result.commits });
    this.save.hidden = this.trace.empty;
    this.facts.textContent = result ? `${this.text || !last ? "" : "empty answer · "}${facts(result)}` : "Stopped.";
    announce(last ? `${result ? "Settled" : "Stopped"}: ${textOf(last)}` : this.facts.textContent);
    this.timeline.end();
    if (!last) this.timeline.arrived();
  }

  /** Show the last step of a block; returns its frame. */
  showLast(block) {
    const at = this.recording.frames.findLastIndex((frame) => frame.block === block);
    if (this.timeline.at !== at) {
      this.timeline.pause();
      this.timeline.go(at);
    } else this.canvas.render(this.recording.frames[at], this.recording.textBefore(this.recording.frames[at]));
    return this.recording.frames[at];
  }
}

function quiet(label, onclick) {
  return h("button", { type: "button", class: "quiet", onclick }, label);
}

/** What an answer took, in a line. */
export function facts(result) {
  const steps = result.steps.reduce((sum, each) => sum + each, 0);
  const parts = [count(steps, "step")];
  if (result.tokens_per_forward >= 0.05) parts.push(`${result.tokens_per_forward.toFixed(1)} tokens a forward`);
  if (result.mean_entropy !== undefined) parts.push(`doubt ${nats(result.mean_entropy)}`);
  if (result.ms) parts.push(`${Math.round(result.ms)} ms`);
  parts.push(`seed ${result.seed}`);
  if (result.finish === "length") parts.push("cut at its limit");
  if (result.finish === "deadline") parts.push("out of time");
  return parts.join(" · ");
}
