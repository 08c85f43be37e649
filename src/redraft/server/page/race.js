// Canvases that compete for one place: a line each while they settle, and the winner's steps to go back through.

import { stream } from "./api.js";
import { announce, count, h } from "./dom.js";
import { Film, heat } from "./film.js";
import { Stage } from "./stage.js";

/** A request with segments, watched. Returns what came of it. */
export async function follow(path, body, race, signal) {
  race.reset();
  for await (const chunk of stream(path, body, signal)) {
    if (chunk.type === "request") race.begin(chunk);
    else if (chunk.type === "draft") race.add(chunk);
    else if (chunk.type === "over") race.over(chunk);
    else return chunk;
  }
  return null;
}

export class Race {
  constructor() {
    this.stage = new Stage();
    this.list = h("ol", { class: "lanes" });
    this.element = h("section", { class: "race", "aria-label": "Canvases while they settle", hidden: true }, this.list, this.stage.element);
    this.lanes = new Map();
    this.group = 0;
  }

  reset() {
    this.lanes.clear();
    this.group = 0;
    this.list.replaceChildren();
    this.list.hidden = false;
    this.stage.reset();
    this.element.hidden = true;
  }

  /** A canvas is begun. When all before it are over, it is about the next place of the text. */
  begin({ index, gap }) {
    const all = [...this.lanes.values()];
    if (all.length && all.every((lane) => lane.finish)) this.group += 1;
    if (all.every((lane) => lane.group !== this.group)) this.list.replaceChildren();
    const code = h("code", {});
    const note = h("small", {});
    const element = h("li", { class: "lane" }, h("small", { class: "wide" }, count(gap, "token")), code, note);
    this.lanes.set(index, { gap, group: this.group, told: [], film: new Film(), finish: null, code, note, element });
    this.list.append(element);
    this.element.hidden = false;
  }

  add(told) {
    const lane = this.lanes.get(told.index);
    const own = cropped(told, lane.gap);
    lane.told.push(own);
    const frame = lane.film.add(own);
    const cells = frame.tokens.map((token, i) => {
      const cell = h("span", { class: "cell" }, token.replaceAll("\n", "⏎"));
      cell.style.setProperty("--heat", heat(frame.entropy[i]));
      return cell;
    });
    lane.code.replaceChildren(...cells);
    lane.note.textContent = `step ${told.step}`;
  }

  over({ index, finish }) {
    const lane = this.lanes.get(index);
    lane.finish = finish;
    lane.element.classList.add(finish === "aborted" ? "lost" : "done");
    if (finish === "aborted") lane.note.textContent += ", given up";
  }

  /** The steps of the one that won the last place, to be gone through. `fits` picks it among those that ended. */
  end(fits, told) {
    const last = [...this.lanes.values()].filter((lane) => lane.group === this.group && lane.told.length && lane.finish !== "aborted");
    const winner = last.find(fits) ?? last[0];
    this.list.hidden = true;
    if (!winner) return;
    for (const each of winner.told) this.stage.add(each);
    this.stage.end({ steps: [winner.told.at(-1).step], seed: told.seed });
    announce("Settled");
  }
}

/** A frame without the text behind the gap, which is given. */
function cropped(told, gap) {
  const inside = told.positions.map((at) => at < gap);
  return {
    ...told,
    width: gap,
    end: told.end !== null && told.end < gap ? told.end : null,
    positions: told.positions.filter((_, i) => inside[i]),
    tokens: told.tokens.filter((_, i) => inside[i]),
    entropy: told.entropy.slice(0, gap),
    accepted: told.accepted.slice(0, gap),
    forced: (told.forced ?? []).filter((at) => at < gap),
  };
}
