"""Sudoku grids of any size: the rules, a solver that counts solutions and guesses, and random full grids.

Puzzles are size*size cells, row by row, 0 for a blank. The solver follows "only this digit fits here" and "it fits only
here" as far as they lead, and guesses then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}  # grid size -> rows and columns of a box

Grid = NDArray[np.uint8]


@cache
def units(size: int) -> tuple[tuple[int, ...], ...]:
    """The cells of every row, then every column, then every box."""
    high, wide = BOXES[size]
    rows = [tuple(range(r * size, (r + 1) * size)) for r in range(size)]
    columns = [tuple(range(c, size * size, size)) for c in range(size)]
    boxes = [
        tuple((top + r) * size + left + c for r in range(high) for c in range(wide))
        for top in range(0, size, high)
        for left in range(0, size, wide)
    ]
    return (*rows, *columns, *boxes)


@cache
def peers(size: int) -> tuple[tuple[int, ...], ...]:
    """For every cell, the other cells of its row, column and box."""
    found = [sorted({cell for unit in units(size) if at in unit for cell in unit} - {at}) for at in range(size * size)]
    return tuple(map(tuple, found))


@dataclass(frozen=True)
class Solved:
    """What a search found: the solutions, up to the limit, and how many cells had to be guessed on the way."""

    solutions: tuple[tuple[int, ...], ...]
    guesses: int


def solve(puzzle: Sequence[int], size: int, limit: int = 2, order: Sequence[int] | None = None) -> Solved:
    """Search for up to `limit` solutions. Digits are tried in `order`, ascending by default."""
    tries = tuple(range(1, size + 1)) if order is None else tuple(order)
    found: list[tuple[int, ...]] = []
    masks = _start(puzzle, size)
    guesses = _search(masks, size, limit, tries, found) if masks is not None else 0
    return Solved(tuple(found), guesses)


def random_grid(rng: np.random.Generator, size: int) -> Grid:
    """A full legal grid: first row and order of digits drawn, the rest searched, then a random symmetry.

    Grids are not equally likely, and with so few choices not all of 9x9 can come.
    """
    first = rng.permutation(size) + 1
    puzzle = [*first.tolist(), *[0] * (size * size - size)]
    grid = solve(puzzle, size, 1, (rng.permutation(size) + 1).tolist()).solutions[0]
    return np.asarray(shuffled(np.array(grid, dtype=np.uint8)[None], rng, size)[0])


def shuffled(grids: NDArray[np.uint8], rng: np.random.Generator, size: int) -> NDArray[np.uint8]:
    """Each grid or puzzle [many, cells] under its own random symmetry: bands, stacks, their lines, and digits.

    A symmetry keeps the number of solutions. Blanks stay blank.
    """
    high, wide = BOXES[size]
    count = len(grids)
    rows, columns = _lines(rng, count, size, high), _lines(rng, count, size, wide)
    names: NDArray[np.uint8] = np.zeros((count, size + 1), dtype=np.uint8)
    names[:, 1:] = rng.random((count, size)).argsort(1) + 1
    cells = (rows[:, :, None] * size + columns[:, None, :]).reshape(count, -1)
    return np.asarray(np.take_along_axis(names, np.take_along_axis(grids, cells, 1).astype(np.intp), 1))


def _lines(rng: np.random.Generator, count: int, size: int, thick: int) -> NDArray[np.intp]:
    """Orders of lines that keep groups of `thick` neighbours together."""
    groups = rng.random((count, size // thick)).argsort(1)
    inside = rng.random((count, size // thick, thick)).argsort(2)
    return np.asarray((groups[:, :, None] * thick + inside).reshape(count, size))


def _start(puzzle: Sequence[int], size: int) -> list[int] | None:
    """Possible digits of every cell as bits, after placing the givens; None if they contradict each other."""
    masks = [(1 << size) - 1] * (size * size)
    for cell, digit in enumerate(puzzle):
        if digit and not _place(masks, cell, 1 << (int(digit) - 1), size):
            return None
    return masks


def _place(masks: list[int], cell: int, bit: int, size: int) -> bool:
    """Fix a cell and follow what that forces in its peers; False for a contradiction."""
    if not masks[cell] & bit:
        return False
    masks[cell] = bit
    waiting = [cell]
    while waiting:
        at = waiting.pop()
        bit = masks[at]
        for other in peers(size)[at]:
            if masks[other] & bit:
                masks[other] ^= bit
                left = masks[other]
                if not left:
                    return False
                if not left & (left - 1):
                    waiting.append(other)
    return True


def _search(masks: list[int], size: int, limit: int, tries: tuple[int, ...], found: list[tuple[int, ...]]) -> int:
    """Depth first; the cell with the fewest possible digits, or a digit with one place in a unit, comes first."""
    if not _hidden(masks, size):
        return 0
    open_ = [(mask.bit_count(), cell) for cell, mask in enumerate(masks) if mask & (mask - 1)]
    if not open_:
        found.append(tuple(mask.bit_length() for mask in masks))
        return 0
    guesses, cell = 1, min(open_)[1]
    for digit in tries:
        bit = 1 << (digit - 1)
        if masks[cell] & bit:
            branch = masks.copy()
            if _place(branch, cell, bit, size):
                guesses += _search(branch, size, limit, tries, found)
            if len(found) >= limit:
                break
    return guesses


def _hidden(masks: list[int], size: int) -> bool:
    """Place every digit that has one possible cell left in some unit, until there is none; False if one has none."""
    full, again = (1 << size) - 1, True
    while again:
        again = False
        for unit in units(size):
            once = twice = 0
            for cell in unit:
                twice |= once & masks[cell]
                once |= masks[cell]
            if once != full:
                return False
            once &= ~twice
            if not once:
                continue
            for cell in unit:
                bit = masks[cell] & once
                if bit and masks[cell] != bit:
                    if bit & (bit - 1) or not _place(masks, cell, bit, size):
                        return False
                    again = True
            if again:
                break
    return True
