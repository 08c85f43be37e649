// A button that starts something, stops it while it runs, and says what went wrong.

import { ApiError } from "./api.js";
import { h } from "./dom.js";

/** `go(signal, wish)` is awaited; Escape stops it, too. */
export class Run {
  constructor({ label, go }) {
    Object.assign(this, { label, go, abort: null, ended: null });
    this.button = h("button", { type: "submit", class: "main" }, label);
    this.error = h("p", { class: "error", role: "alert", hidden: true });
    this.button.addEventListener("click", (event) => {
      event.preventDefault();
      this.toggle();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.stop();
    });
  }

  /** Whether it runs now. */
  get running() {
    return this.abort !== null;
  }

  toggle() {
    return this.running ? this.stop() : this.start();
  }

  /** Stop what runs; fulfilled when it has ended. */
  async stop() {
    this.abort?.abort();
    await this.ended;
  }

  /** Begin; `wish` is handed on. */
  start(wish) {
    if (!this.running) this.ended = this.work(wish);
    return this.ended;
  }

  async work(wish) {
    this.abort = new AbortController();
    this.error.hidden = true;
    this.button.textContent = "Stop";
    this.button.classList.add("running");
    try {
      await this.go(this.abort.signal, wish);
    } catch (error) {
      if (error.name !== "AbortError") this.report(error);
    } finally {
      this.abort = null;
      this.button.textContent = this.label;
      this.button.classList.remove("running");
    }
  }

  /** Show an error. */
  report(error) {
    this.error.textContent = worded(error);
    this.error.hidden = false;
    if (!(error instanceof ApiError)) throw error;
  }
}

/** An error in words. Only ours are for people; others are shown as what they are. */
export function worded(error) {
  const wait = error.retry ? ` Try again in ${error.retry} s.` : "";
  return error instanceof ApiError ? error.message + wait : `The page failed: ${error.message}`;
}
