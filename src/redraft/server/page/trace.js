// A trace file (docs/traces.md), read in the browser and sent nowhere.

const VERSION = 1;
const LISTS = ["positions", "tokens", "entropy", "accepted"];

/** Its head and its films, those that took a step. Throws Error with the line that cannot be used. */
export function readTrace(text) {
  const lines = text.split("\n").filter((line, i, all) => line !== "" || i < all.length - 1);
  const [head, ...rest] = lines.map(parsed);
  if (!head || typeof head.trace !== "number") throw new Error("Line 1 is not the head of a trace.");
  if (head.trace !== VERSION) throw new Error(`This trace is of version ${head.trace}; this page reads version ${VERSION}.`);
  const films = new Map();
  rest.forEach((line, i) => take(films, line, i + 2));
  const found = [...films.values()].filter((film) => film.told.length);
  if (found.length === 0) throw new Error("There is no step in this trace; nothing can be shown.");
  return { head, films: found };
}

/** The film to show first: of several that competed one that was told to its end, the longest. */
export function main(films) {
  const worth = (film) => (["aborted", "error"].includes(film.finish ?? "aborted") ? 0 : 1e6) + film.told.length;
  return films.reduce((best, film) => (worth(film) > worth(best) ? film : best));
}

function parsed(line, i) {
  try {
    return JSON.parse(line);
  } catch {
    throw new Error(`Line ${i + 1} is not JSON; the file is damaged.`);
  }
}

function take(films, line, number) {
  const wrong = (why) => new Error(`Line ${number} cannot be used: ${why}.`);
  const film = films.get(line?.index);
  if (line?.type === "request") films.set(line.index, { begun: line, told: [], finish: null, text: null });
  else if (!film) throw wrong(`request ${line?.index} has not begun`);
  else if (line.type === "finished") Object.assign(film, { finish: line.finish, text: line.text, steps: line.steps });
  else if (line.type === "draft") {
    if (!LISTS.every((name) => Array.isArray(line[name]))) throw wrong("a list is missing");
    const last = film.told.at(-1);
    const whole = !last || last.block !== line.block || last.width !== line.width;
    if (line.entropy.length !== line.width || line.accepted.length !== line.width) throw wrong("not one value a position");
    if (line.positions.length !== line.tokens.length) throw wrong("positions and tokens are not equally many");
    if (whole && line.positions.length !== line.width) throw wrong("a new canvas is not told whole");
    const flows = last && last.block !== line.block && line.step === 1;
    if (line.step !== (last && !flows ? last.step + 1 : 1)) throw wrong(`step ${line.step} does not follow`);
    film.told.push(line);
  } else if (line.type !== "block") throw wrong(`its type is ${line.type}`);
}
