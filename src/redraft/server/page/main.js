// Start: meet the server, make the tabs, show the view that the address names.

import { key } from "./api.js";
import { field, h } from "./dom.js";
import { meet } from "./server.js";
import { themed } from "./theme.js";
import * as edit from "./views/edit.js";
import * as infill from "./views/infill.js";
import * as schema from "./views/schema.js";
import * as sudoku from "./views/sudoku.js";
import * as trace from "./views/trace.js";
import * as write from "./views/write.js";

const VIEWS = [write, infill, edit, schema, sudoku, trace];
const AGAIN_MS = 1500;

const view = document.getElementById("view");
const tabs = document.getElementById("tabs");
const built = new Map();

themed(document.getElementById("theme"));
begin();

async function begin() {
  try {
    const server = await meet();
    document.getElementById("model").textContent = server.name;
    open(server, VIEWS.filter((each) => each.fits(server)));
  } catch (error) {
    if (error.status === 401) return askKey(key.get() ? error.message : "This server asks for an API key.");
    view.replaceChildren(h("p", { class: "notice", role: "status" }, error.message));
    if (error.status === 503 || error.status === 0) return setTimeout(begin, AGAIN_MS);
    throw error;
  }
}

function open(server, views) {
  const links = views.map(({ id, title }) => h("a", { href: `#${id}` }, title));
  tabs.replaceChildren(...links);
  let wanted = views.find(({ id }) => id === server.home) ?? views[0];
  const show = () => {
    wanted = views.find(({ id }) => `#${id}` === location.hash) ?? wanted; // the skip link's address is no view's
    links.forEach((link) => {
      if (link.getAttribute("href") === `#${wanted.id}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
    if (!built.has(wanted.id)) built.set(wanted.id, wanted.build(server));
    if (view.lastChild === built.get(wanted.id)) return; // moved out and in it would lose the focus
    view.replaceChildren(h("h1", { class: "unseen" }, wanted.title), built.get(wanted.id));
    document.title = `${wanted.title} — redraft`;
  };
  addEventListener("hashchange", () => {
    const before = wanted;
    show();
    if (wanted !== before) view.focus({ preventScroll: true });
  });
  show();
}

function askKey(message) {
  const box = h("input", { type: "password", autocomplete: "off", value: key.get() });
  const form = h(
    "form",
    { class: "keyed" },
    h("p", { role: "alert" }, message),
    field("API key", box, "kept in this tab until you close it"),
    h("button", { type: "submit", class: "main" }, "Use it"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(box.value.trim());
    begin();
  });
  view.replaceChildren(form);
  box.focus();
}
