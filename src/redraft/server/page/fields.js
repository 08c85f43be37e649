// Where each value of a JSON text stands, and how sure the tokens are that it is made of.

const STRING = /"(?:[^"\\]|\\.)*"/y;
const PLAIN = /[-+.\w]+/y;
const IMPOSSIBLE = -30; // nats: what a constraint forbids is left with less
const MARK = /[\s,:]*/y;

/** Each value of a JSON text that holds no other: its path, its text, and the bytes of UTF-8 that it takes. */
export function leaves(text) {
  try {
    JSON.parse(text);
  } catch {
    return []; // an answer that was cut
  }
  const found = [];
  const bytes = (end) => new TextEncoder().encode(text.slice(0, end)).length;
  let at = 0;
  const take = (pattern) => {
    pattern.lastIndex = at;
    const [whole] = pattern.exec(text);
    at += whole.length;
    return whole;
  };
  // The text is known to be JSON, so between two values there are only marks and space.
  const value = (path) => {
    take(MARK);
    if (text[at] === "{") return inside(path, "}", () => `.${JSON.parse(take(STRING))}`);
    if (text[at] === "[") return inside(path, "]", (i) => `[${i}]`);
    const from = at;
    const said = take(text[at] === '"' ? STRING : PLAIN);
    return found.push({ path: path.replace(/^\./, "") || "value", value: said, from: bytes(from), to: bytes(at) });
  };
  const inside = (path, close, step) => {
    at += 1;
    for (let i = 0; take(MARK), text[at] !== close; i += 1) value(path + step(i));
    at += 1;
  };
  value("");
  return found;
}

/** Product of the probabilities of the tokens that a value is made of, null if they were not reported; whether any of them
 *  had another one beside it that was possible; and their places. */
export function sureness(logprobs, from, to) {
  let at = 0;
  let sum = 0;
  let free = false;
  const places = [];
  logprobs.forEach(({ bytes, logprob, top_logprobs: top = [] }, place) => {
    const start = at;
    at += bytes.length;
    if (at <= from || start >= to) return;
    sum += logprob;
    free ||= top.some((other) => other.logprob > IMPOSSIBLE && other.logprob !== logprob);
    places.push(place);
  });
  return { free, sure: places.length && at >= to ? Math.exp(sum) : null, places };
}
