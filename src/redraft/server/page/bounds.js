// What the models in the package know, in one sentence each.

import { h } from "./dom.js";

const BOUNDS = {
  nano: "nano is a small demonstration model: it reads fields out of short English sentences, changes records and fills templates, and makes mistakes. It knows no conversations.",
  "nano-sudoku": "nano-sudoku knows Sudokus of 4×4 and 6×6, and records of made-up words.",
};

/** The sentence about the server's model, with `more` behind it; null for one that is not in the package. */
export function bounds(server, ...more) {
  return server.name in BOUNDS ? h("small", {}, BOUNDS[server.name], ...more) : null;
}
