"""Sudoku: a square grid with blanks in, the only grid that completes it out.

    prompt  sudoku      answer
            1..4                1324
            ..1.                2413
            ..42                3142
            4...                4231

There are only 288 grids of 4x4, so every solution is seen in training and the split is by puzzle: a held-out puzzle is
a set of givens that training never shows, not a grid that it never shows. That 288 is small is also what makes a
puzzle's uniqueness cheap: it is compared with all of them, as one 64-bit word each (16 cells times 4 digits).

6x6 and 9x9 need a row in `_BOXES` and another test of uniqueness; reading, writing and scoring already go by `size`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from redraft.errors import RecipeError
from redraft.tasks.task import Example, Score, split_of, stream_seed

_BOXES = {4: (2, 2)}  # grid size -> rows and columns of a box
_FEWEST_GIVENS = {4: 4}  # below this no puzzle has one solution, and the search for one would not end
_CHUNK = 512  # puzzles looked for at once; part of what a seed means


@dataclass(frozen=True)
class Sudoku:
    """Puzzles with one solution; the number of givens is uniform over `givens`, both ends included.

    Raises RecipeError for a size or a range of givens that is not supported.
    """

    size: int = 4
    givens: tuple[int, int] = (5, 10)

    def __post_init__(self) -> None:
        if self.size not in _BOXES:
            raise RecipeError(f"sudoku: size is {self.size!r}; supported: {', '.join(map(str, _BOXES))}")
        low, high, fewest = *self.givens, _FEWEST_GIVENS[self.size]
        if not fewest <= low <= high < self.size**2:
            raise RecipeError(f"sudoku: givens is {self.givens!r}; low <= high, from {fewest} to {self.size**2 - 1}")

    @property
    def name(self) -> str:
        return f"sudoku-{self.size}x{self.size}"

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        """Endless puzzles of one split. Raises RecipeError for an unknown split."""
        return self._stream(split, np.random.default_rng(stream_seed(self.name, split, seed)))

    def score(self, example: Example, answer: str) -> Score:
        """`exact`: the answer is the solution, character for character.

        Parts: `cells` and `clues_kept`, the shares of blank and of given cells that are right (1.0 of none);
        `valid`, 1.0 for a complete legal grid, whether or not it answers this puzzle.
        """
        wanted = _read(example.answer, self.size)
        clues = _read(example.prompt.partition("\n")[2], self.size)
        right = [got == want for got, want in zip(_read(answer, self.size), wanted, strict=True)]
        parts = {
            "cells": _share([ok for ok, clue in zip(right, clues, strict=True) if clue == "."]),
            "clues_kept": _share([ok for ok, clue in zip(right, clues, strict=True) if clue != "."]),
            "valid": float(_is_legal(answer, self.size)),
        }
        return Score(exact=answer == example.answer, parts=parts)

    def _stream(self, split: str, rng: np.random.Generator) -> Iterator[Example]:
        grids = _grids(self.size)
        while True:
            # The number of givens is fixed before the search: drawing it anew after a failure would favour full grids.
            wanted = rng.integers(self.givens[0], self.givens[1] + 1, _CHUNK)
            found: list[Example | None] = [None] * _CHUNK
            missing = np.arange(_CHUNK)
            while len(missing):
                solutions = grids[rng.integers(len(grids), size=len(missing))]
                order = rng.random(solutions.shape).argsort(axis=1)
                puzzles = np.where(order < wanted[missing, None], solutions, 0).astype(np.uint8)
                for at in np.flatnonzero(_are_unique(puzzles, self.size)):
                    puzzle = _write(puzzles[at], self.size)
                    if split_of(puzzle) == split:
                        found[missing[at]] = Example("sudoku\n" + puzzle, _write(solutions[at], self.size))
                missing = np.array([i for i in missing if found[i] is None], dtype=np.intp)
            yield from (example for example in found if example is not None)


@cache
def _grids(size: int) -> NDArray[np.uint8]:
    """Every legal grid, one a row of size*size digits, in lexical order."""
    lines = list(permutations(range(1, size + 1)))
    grids: list[tuple[int, ...]] = [()]
    for _ in range(size):
        grids = [grid + line for grid in grids for line in lines if _fits(grid, line, size)]
    return np.array(grids, dtype=np.uint8)


def _fits(grid: tuple[int, ...], line: tuple[int, ...], size: int) -> bool:
    """Whether a row can follow the rows above it."""
    rows, columns = _BOXES[size]
    row = len(grid) // size
    for column, digit in enumerate(line):
        box_top, box_left = row - row % rows, column - column % columns
        box = [grid[r * size + box_left + c] for r in range(box_top, row) for c in range(columns)]
        if digit in grid[column::size] or digit in box:
            return False
    return True


def _words(grids: NDArray[np.uint8], size: int) -> NDArray[np.uint64]:
    """One bit a cell and digit, blanks (0) without any: a grid completes a puzzle if it holds all the puzzle's bits."""
    shift = np.arange(size**2, dtype=np.uint64) * np.uint64(size) + grids - np.uint64(1)
    bits = np.where(grids > 0, np.uint64(1) << (shift & np.uint64(63)), np.uint64(0))
    return np.asarray(bits.sum(axis=1, dtype=np.uint64))  # a sum of disjoint bits is their union


@cache
def _grid_words(size: int) -> NDArray[np.uint64]:
    return _words(_grids(size), size)


def _are_unique(puzzles: NDArray[np.uint8], size: int) -> NDArray[np.bool_]:
    """Which puzzles exactly one grid completes."""
    words = _words(puzzles, size)[:, None]
    completes = (_grid_words(size) & words) == words
    return np.asarray(completes.sum(axis=1) == 1)


def _write(cells: NDArray[np.uint8], size: int) -> str:
    text = "".join(map(str, cells.tolist())).replace("0", ".")
    return "\n".join(text[start : start + size] for start in range(0, size**2, size))


def _read(text: str, size: int) -> list[str]:
    """size*size one-character cells by row and column; "" where the text has none."""
    lines = (text.split("\n") + [""] * size)[:size]
    return [line[column : column + 1] for line in lines for column in range(size)]


def _is_legal(text: str, size: int) -> bool:
    """Whether the text is nothing but a complete grid that breaks no rule."""
    lines = text.split("\n")
    if len(lines) != size or any(len(line) != size or not set(line) <= set("123456789"[:size]) for line in lines):
        return False
    grid: tuple[int, ...] = ()
    for line in lines:
        row = tuple(map(int, line))
        if len(set(row)) != size or not _fits(grid, row, size):
            return False
        grid += row
    return True


def _share(right: list[bool]) -> float:
    return sum(right) / len(right) if right else 1.0
