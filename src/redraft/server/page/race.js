// Canvases that compete for one place: a line each while they settle, and the winner's steps to go back through.

import { stream } from "./api.js";
import { announce, count, h } from "./dom.js";
import { Recording, heat, textOf } from "./recording.js";
import { Stage } from "./stage.js";

/** A request with segments, watched. Returns what came of it. */
export async function follow(path, body, race, signal) {
  race.reset();
  race.stage.trace.begin(path, body);
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
  }

  reset() {
    this.lanes.clear();
    this.list.replaceChildren();
    this.list.hidden = false;
    this.stage.reset();
    this.element.hidden = true;
  }

  /** A canvas is begun. Lengths count up for each place of the text, so one that is no longer begins the next place. */
  begin({ index, gap }) {
    if (gap <= ([...this.lanes.values()].at(-1)?.gap ?? 0)) this.list.replaceChildren();
    const code = h("code", {});
    const note = h("small", {});
    const element = h("li", { class: "lane" }, h("small", { class: "wide" }, count(gap, "token")), code, note);
    this.lanes.set(index, { index, gap, drafts: [], recording: new Recording(), finish: null, code, note, element });
    this.list.append(element);
    if (!this.element.hidden) return;
    this.element.hidden = false;
    this.element.scrollIntoView({ block: "nearest" });
  }

  add(draft) {
    const lane = this.lanes.get(draft.index);
    this.stage.trace.draft(draft);
    const own = cropped(draft, lane.gap);
    lane.drafts.push(own);
    const frame = lane.recording.add(own);
    const cells = frame.tokens.map((token, i) => {
      const cell = h("span", { class: "cell" }, token.replaceAll("\n", "⏎"));
      cell.style.setProperty("--heat", heat(frame.entropy[i]));
      return cell;
    });
    lane.code.replaceChildren(...cells);
    lane.note.textContent = `step ${draft.step}`;
  }

  over({ index, finish }) {
    const lane = this.lanes.get(index);
    lane.finish = finish;
    const last = lane.recording.frames.at(-1);
    if (last) this.stage.trace.over(index, { finish, text: textOf(last), steps: [last.step] });
    lane.element.classList.add(finish === "aborted" ? "lost" : "done");
    if (finish === "aborted") lane.note.textContent += ", given up";
  }

  /** The steps of the one that won the last place, to be gone through. `fits` picks it among those that ended; a text
   *  with several places may have had others of that length before, so the last one counts. */
  end(fits, result) {
    const winner = [...this.lanes.values()].findLast((lane) => lane.drafts.length && lane.finish !== "aborted" && fits(lane));
    this.list.hidden = true;
    if (!winner) return;
    this.stage.trace.taken(winner.index);
    for (const each of winner.drafts) this.stage.show(each);
    this.stage.end({ steps: [winner.drafts.at(-1).step], seed: result.seed }, { text: result.text, usage: null });
    announce("Settled");
  }
}

/** A frame without the text behind the gap, which is given. */
function cropped(draft, gap) {
  const inside = draft.positions.map((at) => at < gap);
  return {
    ...draft,
    width: gap,
    end: draft.end !== null && draft.end < gap ? draft.end : null,
    positions: draft.positions.filter((_, i) => inside[i]),
    tokens: draft.tokens.filter((_, i) => inside[i]),
    entropy: draft.entropy.slice(0, gap),
    accepted: draft.accepted.slice(0, gap),
    forced: (draft.forced ?? []).filter((at) => at < gap),
  };
}
