// Start: meet the server, make the tabs, show the view that the address names.

import { key } from "./api.js";
import { field, h } from "./dom.js";
import { meet, served } from "./server.js";
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
let moved = new AbortController(); // ends the listener of the model before

themed(document.getElementById("theme"));
begin();

async function begin() {
  try {
    const servers = await meet();
    document.getElementById("model").replaceChildren(servers.length > 1 ? picker(servers) : servers[0].name);
    use(servers[0]);
  } catch (error) {
    if (error.status === 401) return askKey(key.get() ? error.message : "This server asks for an API key.");
    view.replaceChildren(h("p", { class: "notice", role: "status" }, error.message));
    if (error.status === 503 || error.status === 0) return setTimeout(begin, AGAIN_MS);
    throw error;
  }
}

/** The names that the server has, where there are several. */
function picker(servers) {
  const options = servers.map(({ name }, i) => h("option", { value: i }, name));
  const select = h("select", { "aria-label": "Model", autocomplete: "off" }, ...options);
  select.addEventListener("change", () => use(servers[select.value]));
  return select;
}

/** Begin with a model; what was on the page was about another. */
function use(server) {
  served.model = server.name;
  moved.abort();
  moved = new AbortController();
  built.clear();
  open(server, VIEWS.filter((each) => each.fits(server)));
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
  const move = () => {
    const before = wanted;
    show();
    if (wanted !== before) view.focus({ preventScroll: true });
  };
  addEventListener("hashchange", move, { signal: moved.signal });
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
