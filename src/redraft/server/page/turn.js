// A turn of a conversation: the question, and its answer as often as it is drafted.

import { h } from "./dom.js";
import { isMarkdown, markdown } from "./markdown.js";
import { Marks } from "./marks.js";
import { Stage } from "./stage.js";

/** What was asked, and the answer as it settles, as often as it is drafted. */
export class Turn {
  constructor(asked, images, body, name) {
    Object.assign(this, { asked, body, text: null });
    this.said = h("div", { class: "said" }, h("h2", {}, name));
    const question = h("div", { class: "asked" }, h("h2", {}, "You"), h("div", {}, small(images), h("pre", {}, asked)));
    this.element = h("li", { class: "turn" }, question, this.said);
  }

  /** A stage for the next draft. */
  next(pins, again) {
    this.marks?.offer(false);
    this.busy = true;
    this.before = { marks: this.marks, parts: this.parts };
    const stage = new Stage({ settled: () => this.settled(stage), shown: () => parts.form?.show(stage.timeline.isLast) });
    const answer = h("div", { class: "answer", hidden: true });
    this.marks = new Marks(stage, again);
    for (const { at } of pins) stage.canvas.held.add(at);
    const parts = { stage, answer, whole: false, form: null };
    this.parts = parts;
    this.said.append(h("div", { class: "draft" }, answer, stage.element, this.marks.element));
    return stage;
  }

  /** An answer of which only the text is left. */
  restore(text) {
    this.text = text;
    const answer = h("div", { class: "answer" });
    fill(answer, text, Boolean(this.body.messages));
    this.said.append(h("div", { class: "draft" }, answer));
  }

  /** The answer. */
  answered(said) {
    this.text = said.text;
    this.parts.dressed = fill(this.parts.answer, said.text, Boolean(this.body.messages));
    this.parts.whole = true;
    this.settled(this.parts.stage);
  }

  /** The text is shown, and marks are offered, when the reader has seen it settle. */
  settled(stage) {
    if (!this.parts.whole || stage !== this.parts.stage || stage.element.dataset.state !== "settled") return;
    if (this.parts.dressed) this.parts.form ??= new Form(this.parts);
    this.marks.offer(!this.closed && !this.busy && stage.blocks.length > 0);
  }

  /** A draft that never took a step leaves nothing behind. */
  over(stage) {
    if (stage.recording.frames.length) return;
    stage.element.parentNode.remove();
    Object.assign(this, this.before);
    this.marks?.offer(true);
  }

  /** Nothing is under way any more. A turn without an answer leaves nothing behind. */
  rest() {
    this.busy = false;
    if (this.parts) this.settled(this.parts.stage);
    else this.element.remove();
  }

  close() {
    this.closed = true;
    this.marks?.offer(false);
  }

  /** The conversation up to here. */
  messages() {
    const asked = this.body.messages ?? [];
    return this.text === null ? asked.slice(0, -1) : [...asked, { role: "assistant", content: this.text }];
  }
}

/** Text or canvas: an answer with Markdown reads otherwise than its tokens, and is shown once. */
class Form {
  constructor({ stage, answer }) {
    Object.assign(this, { stage, answer });
    this.button = h("button", { type: "button", class: "quiet", onclick: () => this.show(this.answer.hidden) }, "");
    stage.tools.prepend(this.button);
    this.show(true);
  }

  /** The text, or the canvas that it was. */
  show(text) {
    this.answer.hidden = !text;
    this.stage.element.classList.toggle("folded", text);
    this.button.textContent = text ? "Show the canvas" : "Show the text";
  }
}

/** Show an answer's text; returns whether it has marks of Markdown, which a plain text does not. */
function fill(answer, text, chat) {
  const dressed = chat && isMarkdown(text);
  answer.replaceChildren(...(dressed ? markdown(text) : [h("pre", {}, text)]));
  return dressed;
}

function small(images) {
  return images.length ? h("div", { class: "pictures" }, ...images.map((one) => one.drawn())) : null;
}
