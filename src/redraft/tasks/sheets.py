"""Sheets of puzzles: several that have nothing to do with each other, which a canvas solves side by side.

    prompt  sudoku      answer
            1..4                1324
            ..1.                2413
            ..42                3142
            4...                4231

            ..3.                1432
            3..4                3214
            .3.1                4321
            2...                2143

One forward works at every puzzle, so a sheet takes about as many as its hardest puzzle, not as many as it has puzzles.
Puzzles and their split are those of the Sudoku task (`tasks/sudoku.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random

from redraft.tasks.sudoku import Sudoku
from redraft.tasks.task import Example, Score, share, stream_seed

FEWEST, MOST = 2, 12  # puzzles; twelve and an end fill 252 of a canvas's 256 positions

BETWEEN = "\n\n"


class Sheets:
    """Two to twelve puzzles of 4x4, with an empty line between them."""

    name = "sheets"

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        """Endless sheets of puzzles of one split. Raises RecipeError for an unknown split."""
        rng = Random(stream_seed(self.name, split, seed))
        return _stream(Sudoku(4).examples(split, rng.getrandbits(32)), rng)

    def score(self, example: Example, answer: str) -> Score:
        """`exact`: the answer is the right text, character for character.

        Part: `puzzles`, the share that came out right and in their place.
        """
        wanted, got = example.answer.split(BETWEEN), answer.split(BETWEEN)
        right = [i < len(got) and got[i] == grid for i, grid in enumerate(wanted)]
        return Score(exact=answer == example.answer, parts={"puzzles": share(right)})


def _stream(puzzles: Iterator[Example], rng: Random) -> Iterator[Example]:
    while True:
        yield _sheet(list(islice(puzzles, rng.randint(FEWEST, MOST))))


def _sheet(puzzles: Sequence[Example]) -> Example:
    header = puzzles[0].prompt.partition("\n")[0]
    grids = BETWEEN.join(puzzle.prompt.partition("\n")[2] for puzzle in puzzles)
    given, start = list[tuple[int, int]](), 0
    for puzzle in puzzles:
        given += [(start + low, start + high) for low, high in puzzle.given]
        start += len(puzzle.answer) + len(BETWEEN)
    return Example(f"{header}\n{grids}", BETWEEN.join(puzzle.answer for puzzle in puzzles), tuple(given))
