// What changed between two texts, word by word.

import { h } from "./dom.js";

const MOST = 4e6; // cells of the table; beyond it the middle is shown as one change

/** Pairs of a kind (same, out, in) and a text; the texts of same and out make up `before`, same and in `after`. */
export function diff(before, after) {
  const a = words(before);
  const b = words(after);
  let front = 0;
  while (front < a.length && front < b.length && a[front] === b[front]) front += 1;
  let back = 0;
  while (back < a.length - front && back < b.length - front && a.at(-1 - back) === b.at(-1 - back)) back += 1;
  const middle = between(a.slice(front, a.length - back), b.slice(front, b.length - back));
  const parts = [["same", a.slice(0, front)], ...middle, ["same", back ? a.slice(-back) : []]];
  return parts.map(([kind, list]) => [kind, list.join("")]).filter(([, text]) => text !== "");
}

/** The same as an element. */
export function shown(parts) {
  const tag = { same: "span", out: "del", in: "ins" };
  return h("pre", { class: "diff" }, ...parts.map(([kind, text]) => h(tag[kind], {}, text)));
}

function words(text) {
  return text.match(/[\p{L}\p{N}_]+|\s|[^\p{L}\p{N}_\s]/gu) ?? [];
}

/** Longest common subsequence; runs of one kind joined. */
function between(a, b) {
  if (a.length * b.length > MOST) return [["out", a], ["in", b]];
  const wide = b.length + 1;
  const table = new Uint32Array((a.length + 1) * wide);
  for (let i = a.length - 1; i >= 0; i -= 1)
    for (let j = b.length - 1; j >= 0; j -= 1)
      table[i * wide + j] =
        a[i] === b[j] ? table[(i + 1) * wide + j + 1] + 1 : Math.max(table[(i + 1) * wide + j], table[i * wide + j + 1]);
  const found = [];
  const put = (kind, word) => (found.at(-1)?.[0] === kind ? found.at(-1)[1].push(word) : found.push([kind, [word]]));
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) put("same", a[i++], j++);
    else if (i < a.length && (j === b.length || table[(i + 1) * wide + j] >= table[i * wide + j + 1])) put("out", a[i++]);
    else put("in", b[j++]);
  }
  return found;
}
