// What a canvas went through: the server sends what changed, a recording has every step whole.

/** The steps of one answer, in order; several blocks follow one another. */
export class Recording {
  constructor() {
    this.frames = [];
  }

  /** Add what the server sent of one step; returns the frame. */
  add(draft) {
    const last = this.frames.at(-1);
    const before = last?.step && last.block === draft.block && last.tokens.length === draft.width ? last : null;
    const tokens = before ? before.tokens.slice() : new Array(draft.width).fill("");
    draft.positions.forEach((at, i) => (tokens[at] = draft.tokens[i]));
    const frame = {
      block: draft.block,
      step: draft.step,
      end: draft.end ?? draft.width,
      tokens,
      entropy: draft.entropy,
      accepted: draft.accepted.map(Boolean),
      forced: new Set(draft.forced),
      changed: tokens.map((token, i) => before !== null && token !== before.tokens[i]),
      since: before ? before.since.slice() : new Array(draft.width).fill(draft.step),
      changes: before ? before.changes.slice() : new Array(draft.width).fill(0),
    };
    frame.changed.forEach((changed, i) => {
      if (!changed) return;
      frame.since[i] = draft.step;
      frame.changes[i] += 1;
    });
    frame.mean = mean(frame.entropy.slice(0, Math.max(1, frame.end)));
    this.frames.push(frame);
    return frame;
  }

  /** The text of the blocks before the one that a frame shows. */
  textBefore(frame) {
    const last = new Map();
    for (const each of this.frames) if (each.block < frame.block) last.set(each.block, each);
    return [...last.values()].map(textOf).join("");
  }
}

/** What a frame reads now. */
export function textOf(frame) {
  return frame.tokens.slice(0, frame.end).join("");
}

/** 0 for what is certain, 1 for what is not at all: entropy in nats, so that small doubts can be seen. */
export function heat(nats) {
  return nats < 0.005 ? 0 : Math.min(1, Math.sqrt(nats / 2.5));
}

/** Nats in words that fit in a line. */
export function nats(value) {
  return `${value < 0.0005 ? "0" : value.toFixed(value < 0.1 ? 3 : 2)} nats`;
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
