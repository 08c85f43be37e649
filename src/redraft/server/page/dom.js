// Elements, made without a line of markup: what a model says is only ever a text node.

/** An element. Attributes as they are written in HTML; true sets an empty one, null leaves it out; on* are listeners. */
export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** The same for a drawing. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

let numbered = 0;

/** A label above its control, tied to it, with a line of help under it. */
export function field(label, control, help = null) {
  const id = control.id || `f${++numbered}`;
  control.id = id;
  if (help) control.setAttribute("aria-describedby", `${id}-help`);
  const line = help ? h("small", { id: `${id}-help` }, help) : null;
  return h("div", { class: "field" }, h("label", { for: id }, label), control, line);
}

/** Words for a screen reader. */
export function announce(text) {
  document.getElementById("said").textContent = text;
}

/** "1 step", "3 steps". */
export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** Whether some of an element is in the window. */
export function inView(element) {
  const { top, bottom } = element.getBoundingClientRect();
  return bottom > 0 && top < innerHeight;
}

/** Whether the reader has asked for less motion. */
export function isStill() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}
