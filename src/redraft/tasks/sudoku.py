"""Sudoku: a square grid with blanks in, the only grid that completes it out.

    prompt  sudoku      answer
            1..4                1324
            ..1.                2413
            ..42                3142
            4...                4231

There are only 288 grids of 4x4, so every solution is seen in training and the split is by puzzle: a held-out puzzle is
a set of givens that training never shows, not a grid that it never shows. That 288 is small is also what makes a
puzzle's uniqueness cheap: it is compared with all of them, as one 64-bit word each (16 cells times 4 digits).

Larger puzzles are dug: cells of a random grid are blanked in random order, each only if one solution remains, until
the wanted number of givens is left (`tasks/grids.py` solves them). Their split is by puzzle, too; there are 28 million
grids of 6x6 and more of 9x9 than could be met twice, so held-out grids are new as well.

To dig a puzzle of 9x9 takes milliseconds, one that needs guesses a second, and training wants millions. So in training
each comes under random symmetries, too, which keep its number of solutions and look nothing like it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from redraft.errors import RecipeError
from redraft.tasks import grids
from redraft.tasks.task import Example, Score, share, split_of, stream_seed

_FEWEST_GIVENS = {4: 4, 6: 8, 9: 17}  # below this no puzzle has one solution, and the search would not end
_USUAL_GIVENS = {4: (5, 10), 6: (12, 22), 9: (28, 45)}
_IMAGES = 32  # of each 9x9 puzzle in training; part of what a seed means
_CHUNK = 512  # 4x4 puzzles looked for at once; part of what a seed means


@dataclass(frozen=True)
class Sudoku:
    """Puzzles with one solution; the number of givens is uniform over `givens`, both ends included.

    `givens` None is the usual range of the size. `least_guesses` keeps hard puzzles only: a solver that follows singles
    must guess at least that many cells (none of 4x4 needs one). Raises RecipeError for what is not supported.
    """

    size: int = 4
    givens: tuple[int, int] | None = None
    least_guesses: int = 0

    def __post_init__(self) -> None:
        if self.size not in grids.BOXES:
            raise RecipeError(f"sudoku: size is {self.size!r}; supported: {', '.join(map(str, grids.BOXES))}")
        low, high, fewest = *self.givens_range, _FEWEST_GIVENS[self.size]
        if not fewest <= low <= high < self.size**2:
            raise RecipeError(f"sudoku: givens is {self.givens!r}; low <= high, from {fewest} to {self.size**2 - 1}")
        if self.least_guesses < 0 or (self.size < 9 and self.least_guesses):
            raise RecipeError(f"sudoku: least_guesses is {self.least_guesses}; above 0 only for a size of 9")

    @property
    def name(self) -> str:
        hard = f"-hard-{self.least_guesses}" if self.least_guesses else ""
        return f"sudoku-{self.size}x{self.size}{hard}"

    @property
    def givens_range(self) -> tuple[int, int]:
        """Fewest and most givens of a puzzle."""
        return _USUAL_GIVENS[self.size] if self.givens is None else self.givens

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        """Endless puzzles of one split. Raises RecipeError for an unknown split."""
        rng = np.random.default_rng(stream_seed(self.name, split, seed))
        return self._small(split, rng) if self.size == 4 else self._dug(split, rng)

    def score(self, example: Example, answer: str) -> Score:
        """`exact`: the answer is the solution, character for character.

        Parts: `cells` and `clues_kept`, the shares of blank and of given cells that are right (1.0 of none);
        `valid`, 1.0 for a complete legal grid, whether or not it answers this puzzle.
        """
        wanted = _read(example.answer, self.size)
        clues = _read(example.prompt.partition("\n")[2], self.size)
        right = [got == want for got, want in zip(_read(answer, self.size), wanted, strict=True)]
        parts = {
            "cells": share([ok for ok, clue in zip(right, clues, strict=True) if clue == "."]),
            "clues_kept": share([ok for ok, clue in zip(right, clues, strict=True) if clue != "."]),
            "valid": float(_is_legal(answer, self.size)),
        }
        return Score(exact=answer == example.answer, parts=parts)

    def _small(self, split: str, rng: np.random.Generator) -> Iterator[Example]:
        (every, words), (low, high) = _grids(self.size), self.givens_range
        while True:
            # The number of givens is fixed before the search: drawing it anew after a failure would favour full grids.
            wanted = rng.integers(low, high + 1, _CHUNK)
            found: list[Example | None] = [None] * _CHUNK
            missing = np.arange(_CHUNK)
            while len(missing):
                solutions = every[rng.integers(len(every), size=len(missing))]
                order = rng.random(solutions.shape).argsort(axis=1)
                puzzles = np.where(order < wanted[missing, None], solutions, 0).astype(np.uint8)
                for at in np.flatnonzero(_are_unique(puzzles, words, self.size)):
                    puzzle = _write(puzzles[at], self.size)
                    if split_of(puzzle) == split:
                        found[missing[at]] = _example(puzzles[at], solutions[at], self.size)
                missing = np.array([i for i in missing if found[i] is None], dtype=np.intp)
            yield from (example for example in found if example is not None)

    def _dug(self, split: str, rng: np.random.Generator) -> Iterator[Example]:
        low, high = self.givens_range
        images = _IMAGES if self.size == 9 and split == "train" else 1
        while True:
            wanted = int(rng.integers(low, high + 1))
            found: list[Example] = []
            while not found:
                solution = grids.random_grid(rng, self.size)
                puzzle = dig(solution, wanted, rng, self.size)
                if puzzle is not None and self._is_hard(puzzle):
                    found = [
                        _example(image, answer, self.size)
                        for image, answer in _images(puzzle, solution, images, rng, self.size)
                        if split_of(_write(image, self.size)) == split and self._is_hard(image)
                    ]
            yield from found

    def _is_hard(self, puzzle: grids.Grid) -> bool:
        if not self.least_guesses:
            return True
        return grids.solve(puzzle.tolist(), self.size).guesses >= self.least_guesses


def dig(solution: grids.Grid, givens: int, rng: np.random.Generator, size: int) -> grids.Grid | None:
    """Blank cells of a full grid in random order while one solution remains; None if that stops above `givens`."""
    cells = solution.tolist()
    left = len(cells)
    for at in rng.permutation(left).tolist():
        if left == givens:
            break
        cells[at] = 0
        if len(grids.solve(cells, size).solutions) == 1:
            left -= 1
        else:
            cells[at] = int(solution[at])
    return np.array(cells, dtype=np.uint8) if left == givens else None


def _images(
    puzzle: grids.Grid, solution: grids.Grid, count: int, rng: np.random.Generator, size: int
) -> Iterator[tuple[grids.Grid, grids.Grid]]:
    """A puzzle and its solution, and under other symmetries, so many in all."""
    yield puzzle, solution
    if count > 1:
        seed = int(rng.integers(2**63))  # one for both, so that they meet the same symmetries
        both = (np.tile(grid, (count - 1, 1)) for grid in (puzzle, solution))
        yield from zip(*(grids.shuffled(many, np.random.default_rng(seed), size) for many in both), strict=True)


def _example(puzzle: grids.Grid, solution: grids.Grid, size: int) -> Example:
    text, answer = _write(puzzle, size), _write(solution, size)
    return Example("sudoku\n" + text, answer, given=tuple((i, i + 1) for i, c in enumerate(text) if c not in ".\n"))


@cache
def _grids(size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Every legal grid, one a row of size*size digits, in lexical order; and as words."""
    every = np.array(sorted(grids.solve([0] * size**2, size, limit=1000).solutions), dtype=np.uint8)
    return every, _words(every, size)


def _words(cells: NDArray[np.uint8], size: int) -> NDArray[np.uint64]:
    """One bit a cell and digit, blanks (0) without any: a grid completes a puzzle if it holds all the puzzle's bits."""
    shift = np.arange(size**2, dtype=np.uint64) * np.uint64(size) + cells - np.uint64(1)
    bits = np.where(cells > 0, np.uint64(1) << (shift & np.uint64(63)), np.uint64(0))
    return np.asarray(bits.sum(axis=1, dtype=np.uint64))  # a sum of disjoint bits is their union


def _are_unique(puzzles: NDArray[np.uint8], every: NDArray[np.uint64], size: int) -> NDArray[np.bool_]:
    """Which puzzles exactly one grid completes, of `every` grid's words."""
    words = _words(puzzles, size)[:, None]
    completes = (every & words) == words
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
    digits, lines = set("123456789"[:size]), text.split("\n")
    if len(lines) != size or any(len(line) != size for line in lines):
        return False
    cells = "".join(lines)
    return all({cells[at] for at in unit} == digits for unit in grids.units(size))
