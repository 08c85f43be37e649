// A trace file (docs/traces.md), read in the browser and sent nowhere.

const VERSION = 1;

const int = Number.isInteger;
const number = (value) => typeof value === "number";
const text = (value) => typeof value === "string";
const flag = (value) => typeof value === "boolean";
const list = (of) => (value) => Array.isArray(value) && value.every(of);
const maybe = (of) => (value) => value === null || of(value);
const record = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** What each key of a line must be; docs/traces.md says what it means. Others are passed over. */
const HEAD = { redraft: text, command: text, model: text, taken: text, options: record };
const EVERY = { index: int, ms: number };
const KINDS = {
  request: { seed: int, width: int, max_tokens: int, ends: list(int), prompt: text, prompt_tokens: int },
  draft: {
    block: int,
    step: int,
    width: int,
    end: maybe(int),
    positions: list(int),
    tokens: list(text),
    ids: list(int),
    entropy: list(number),
    accepted: list(int),
    forced: list(int),
  },
  block: {
    block: int,
    tokens: list(int),
    pieces: list(text),
    entropy: list(number),
    settled_at: list(int),
    changes: list(int),
    steps: int,
    settled: flag,
  },
  taken: {},
  finished: { finish: text, text, steps: list(int), commits: int, error: (value) => value === undefined || maybe(text)(value) },
};

/** Its head and its recordings, those that took a step. Throws Error with the line that cannot be used. */
export function readTrace(text) {
  const lines = text.split("\n").filter((line, i, all) => line !== "" || i < all.length - 1);
  const [head, ...rest] = lines.map(parsed);
  if (!record(head) || !int(head.trace)) throw new Error("Line 1 is not the head of a trace.");
  if (head.trace !== VERSION) throw new Error(`This trace is of version ${head.trace}; this page reads version ${VERSION}.`);
  if (misfit(head, HEAD)) throw new Error("Line 1 is not the head of a trace.");
  const recordings = new Map();
  rest.forEach((line, i) => take(recordings, line, i + 2));
  const found = [...recordings.values()].filter((recording) => recording.drafts.length);
  if (found.length === 0) throw new Error("There is no step in this trace; nothing can be shown.");
  return { head, recordings: found };
}

/** The recording to show first: the one that was taken, else of those that ran to their end the longest. */
export function main(recordings) {
  const ended = (recording) => (["aborted", "error"].includes(recording.finish ?? "aborted") ? 0 : 1e6);
  const worth = (recording) => (recording.taken ? 1e9 : 0) + ended(recording) + recording.drafts.length;
  return recordings.reduce((best, recording) => (worth(recording) > worth(best) ? recording : best));
}

function parsed(line, i) {
  try {
    return JSON.parse(line);
  } catch {
    throw new Error(`Line ${i + 1} is not JSON; the file is damaged.`);
  }
}

/** The first key of a line that is not as it must be. */
function misfit(line, keys) {
  return Object.keys(keys).find((key) => !keys[key](line[key]));
}

function take(recordings, line, number) {
  const wrong = (why) => new Error(`Line ${number} cannot be used: ${why}.`);
  if (!record(line) || !Object.hasOwn(KINDS, line.type)) throw wrong(`its type is ${line?.type}`);
  const key = misfit(line, { ...EVERY, ...KINDS[line.type] });
  if (key) throw wrong(`its ${key} is missing or of another kind`);
  const recording = recordings.get(line.index);
  if (recording && line.type === "taken") return void (recording.taken = true);
  if (recording?.finish != null) throw wrong(`request ${line.index} has ended`);
  if (line.type === "request") {
    if (recording) throw wrong(`request ${line.index} begins twice`);
    recordings.set(line.index, { begun: line, drafts: [], finish: null, text: null });
  } else if (!recording) throw wrong(`request ${line.index} has not begun`);
  else if (line.type === "finished") Object.assign(recording, { finish: line.finish, text: line.text, steps: line.steps });
  else if (line.type === "draft") {
    const why = unfit(line, recording.drafts.at(-1));
    if (why) throw wrong(why);
    recording.drafts.push(line);
  }
}

/** Why a step cannot stand behind another, the last one or none. */
function unfit(line, last) {
  const { width, positions } = line;
  if (line.entropy.length !== width || line.accepted.length !== width) return "not one value a position";
  if (positions.length !== line.tokens.length || positions.length !== line.ids.length) return "positions, tokens and ids are not equally many";
  if ([...positions, ...line.forced, line.end ?? 0].some((at) => at < 0 || at >= width)) return "a position is not of the canvas";
  const flows = last && last.block !== line.block && line.step === 1;
  if (line.step !== (last && !flows ? last.step + 1 : 1)) return `step ${line.step} does not follow`;
  const whole = !last || last.block !== line.block || last.width !== width;
  return whole && positions.length !== width ? "a new canvas is not whole" : null;
}
