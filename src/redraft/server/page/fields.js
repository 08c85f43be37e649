// Where each value of a JSON text stands, and how sure the tokens are that it is made of.

const LITERAL = /-?\d+(\.\d+)?([eE][+-]?\d+)?|true|false|null/y;
const STRING = /"(?:[^"\\]|\\.)*"/y;
const SPACE = /[ \t\r\n]*/y;

/** Each value that holds no other: its path, its text, and the bytes of UTF-8 from and to which it stands. */
export function leaves(text) {
  const found = [];
  let at = 0;
  const bytes = (end) => new TextEncoder().encode(text.slice(0, end)).length;
  const match = (pattern) => {
    pattern.lastIndex = at;
    const [whole] = pattern.exec(text) ?? [""];
    at += whole.length;
    return whole;
  };
  const take = (character) => {
    match(SPACE);
    if (text[at] !== character) return false;
    at += 1;
    return true;
  };
  const value = (path) => {
    match(SPACE);
    if (take("{")) return members(path, "}", () => { match(SPACE); const name = JSON.parse(match(STRING)); take(":"); return name; });
    if (take("[")) return members(path, "]", (i) => i);
    const from = at;
    const said = text[at] === '"' ? match(STRING) : match(LITERAL);
    if (said === "") throw new SyntaxError(`no value at ${at}`);
    found.push({ path: path || "(all)", value: said, from: bytes(from), to: bytes(at) });
    return undefined;
  };
  const members = (path, close, name) => {
    for (let i = 0; !take(close); i += 1) {
      const key = name(i);
      value(typeof key === "number" ? `${path}[${key}]` : path ? `${path}.${key}` : key);
      if (!take(",") && text[at] !== close && match(SPACE) === "" && text[at] !== close) throw new SyntaxError(`at ${at}`);
    }
  };
  try {
    value("");
  } catch {
    return []; // an answer that was cut is not JSON
  }
  return found;
}

/** Product of the probabilities of the tokens that a value is made of; null if they were not told. */
export function sureness(logprobs, from, to) {
  let at = 0;
  let sum = 0;
  let any = false;
  for (const { bytes, logprob } of logprobs ?? []) {
    const end = at + bytes.length;
    if (end > from && at < to) {
      sum += logprob;
      any = true;
    }
    at = end;
  }
  return any && at >= to ? Math.exp(sum) : null;
}
