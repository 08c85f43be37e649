// Where each value of a JSON text stands, and how sure the tokens are that it is made of.

const STRING = /"(?:[^"\\]|\\.)*"/y;
const PLAIN = /[-+.\w]+/y;
const IMPOSSIBLE = -30; // nats: what a constraint forbids is left with less
const MARK = /[\s,:]*/y;

/** Each value of a JSON text that holds no other: its path, the same as a JSON pointer, its text, and the bytes of UTF-8
 *  that it takes. */
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
  const value = (path, pointer) => {
    take(MARK);
    const from = at;
    if (text[at] === "{") inside(path, pointer, "}", key);
    else if (text[at] === "[") inside(path, pointer, "]", (i) => [`[${i}]`, i]);
    else take(text[at] === '"' ? STRING : PLAIN);
    const said = text.slice(from, at);
    if (!/^[[{]/.test(said) || /^.\s*.$/.test(said)) found.push({ path: path.replace(/^\./, "") || "value", pointer, value: said, from: bytes(from), to: bytes(at) });
  };
  const key = () => {
    const name = JSON.parse(take(STRING));
    return [`.${name}`, name.replaceAll("~", "~0").replaceAll("/", "~1")];
  };
  const inside = (path, pointer, close, step) => {
    at += 1;
    for (let i = 0; take(MARK), text[at] !== close; i += 1) {
      const [shown, named] = step(i);
      value(path + shown, `${pointer}/${named}`);
    }
    at += 1;
  };
  value("", "");
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
