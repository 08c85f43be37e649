// Markdown as elements: paragraphs, headings, lists, fenced code, bold, italic, code in a line. Never a string of markup.

import { h } from "./dom.js";

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+-]*)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^ {0,3}(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const INLINE = /(`+)(.+?)\1|\*\*(?=\S)(.+?)\*\*|\*(?=\S)([^*]+?)\*/;

/** Whether a text has any mark that would be shown as something else. */
export function isMarkdown(text) {
  return text.split("\n").some((line) => FENCE.test(line) || HEADING.test(line) || ITEM.test(line) || INLINE.test(line));
}

/** A text's elements. */
export function markdown(text) {
  const lines = text.split("\n");
  const made = [];
  while (lines.length) {
    if (!lines[0].trim()) lines.shift();
    else made.push((FENCE.test(lines[0]) ? fenced : ITEM.test(lines[0]) ? listed : HEADING.test(lines[0]) ? heading : paragraph)(lines));
  }
  return made;
}

/** Code up to its closing fence, or to the end of an answer that was cut. */
function fenced(lines) {
  const [, fence, language] = lines.shift().match(FENCE);
  const close = lines.findIndex((line) => line.trim().startsWith(fence));
  const code = lines.splice(0, close < 0 ? lines.length : close);
  lines.shift();
  return h("pre", { class: "code", tabindex: 0, "aria-label": language ? `Code, ${language}` : "Code" }, h("code", {}, code.join("\n")));
}

function listed(lines) {
  const [, first] = lines[0].match(ITEM);
  const items = [];
  while (lines.length && ITEM.test(lines[0]) && (lines[0].match(ITEM)[1] === undefined) === (first === undefined)) {
    const parts = [lines.shift().match(ITEM)[2]];
    while (lines.length && lines[0].trim() && !starts(lines[0])) parts.push(lines.shift().trim());
    items.push(h("li", {}, ...inline(parts.join(" "))));
    while (lines.length > 1 && !lines[0].trim() && ITEM.test(lines[1])) lines.shift();
  }
  return first === undefined ? h("ul", {}, ...items) : h("ol", { start: first }, ...items);
}

/** The view has its own h1 and h2. */
function heading(lines) {
  const [, marks, text] = lines.shift().match(HEADING);
  return h(`h${Math.min(6, marks.length + 2)}`, {}, ...inline(text));
}

function paragraph(lines) {
  const parts = [lines.shift()];
  while (lines.length && lines[0].trim() && !starts(lines[0])) parts.push(lines.shift());
  return h("p", {}, ...inline(parts.join("\n")));
}

function starts(line) {
  return FENCE.test(line) || HEADING.test(line) || ITEM.test(line);
}

function inline(text) {
  const made = [];
  let rest = text;
  for (let found; (found = rest.match(INLINE)); rest = rest.slice(found.index + found[0].length)) {
    const [, , code, bold, italic] = found;
    made.push(rest.slice(0, found.index));
    made.push(code !== undefined ? h("code", {}, code) : bold !== undefined ? h("strong", {}, ...inline(bold)) : h("em", {}, ...inline(italic)));
  }
  return [...made, rest];
}
