// Sudoku: the rules, a puzzle with one solution, and which cells break a rule. 0 is a blank.

export const BOXES = { 4: [2, 2], 6: [2, 3], 9: [3, 3] };
const GIVENS = { 4: [5, 9], 6: [13, 18], 9: [30, 36] };

/** The other cells of a cell's row, column and box. */
export function peers(cell, size) {
  const [high, wide] = BOXES[size];
  const [row, column] = [Math.floor(cell / size), cell % size];
  const found = [];
  for (let other = 0; other < size * size; other += 1) {
    const [r, c] = [Math.floor(other / size), other % size];
    const boxed = Math.floor(r / high) === Math.floor(row / high) && Math.floor(c / wide) === Math.floor(column / wide);
    if (other !== cell && (r === row || c === column || boxed)) found.push(other);
  }
  return found;
}

/** Cells whose digit stands twice in a row, column or box. */
export function clashes(cells, size) {
  return cells.map((digit, i) => digit !== 0 && peers(i, size).some((other) => cells[other] === digit));
}

/** Up to `limit` solutions, the digits tried in `order`. */
export function solutions(cells, size, limit = 2, order = [...Array(size).keys()].map((i) => i + 1)) {
  const found = [];
  const grid = cells.slice();
  const search = () => {
    let best = null;
    for (let i = 0; i < grid.length; i += 1) {
      if (grid[i]) continue;
      const taken = new Set(peers(i, size).map((other) => grid[other]));
      const free = order.filter((digit) => !taken.has(digit));
      if (!best || free.length < best.free.length) best = { i, free };
      if (free.length < 2) break;
    }
    if (!best) return found.push(grid.slice());
    for (const digit of best.free) {
      grid[best.i] = digit;
      search();
      if (found.length >= limit) break;
    }
    grid[best.i] = 0;
    return undefined;
  };
  if (!clashes(cells, size).some(Boolean)) search();
  return found;
}

/** A new puzzle with one solution. */
export function draw(size) {
  const digits = shuffled([...Array(size).keys()].map((i) => i + 1));
  const first = [...digits, ...new Array(size * size - size).fill(0)];
  const [full] = solutions(first, size, 1, shuffled(digits));
  const [low, high] = GIVENS[size];
  const wanted = low + Math.floor(Math.random() * (high - low + 1));
  const cells = full.slice();
  let left = cells.length;
  for (const at of shuffled([...cells.keys()])) {
    if (left <= wanted) break;
    cells[at] = 0;
    if (solutions(cells, size).length === 1) left -= 1;
    else cells[at] = full[at];
  }
  return cells;
}

function shuffled(list) {
  const made = list.slice();
  for (let i = made.length - 1; i > 0; i -= 1) {
    const j = Math.floor(Math.random() * (i + 1));
    [made[i], made[j]] = [made[j], made[i]];
  }
  return made;
}
