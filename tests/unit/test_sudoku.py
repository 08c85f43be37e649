"""Sudoku puzzles against a solver that knows only the rules, and the scorer on answers marked by hand."""

from __future__ import annotations

from itertools import islice

import pytest
from tests.helpers import completions

from redraft.errors import CallerError
from redraft.tasks import Example, Split, Sudoku, task

PUZZLE = Example("sudoku\n1..4\n..1.\n..42\n4...", "1324\n2413\n3142\n4231")


def test_the_puzzle_marked_by_hand_has_that_one_solution() -> None:
    assert list(completions(cells(PUZZLE.prompt), 4)) == [cells(PUZZLE.answer)]


def cells(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.removeprefix("sudoku\n").replace("\n", "").replace(".", "0")))


@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize("givens", [(4, 4), (5, 10)])
def test_every_puzzle_has_one_solution_and_it_is_the_answer(split: Split, givens: tuple[int, int]) -> None:
    for example in islice(Sudoku(givens=givens).examples(split, seed=3), 150):
        assert list(completions(cells(example.prompt), 4)) == [cells(example.answer)], example


def test_every_one_of_the_288_grids_is_drawn() -> None:
    drawn = {cells(example.answer) for example in islice(Sudoku().examples("train", seed=0), 5000)}
    assert drawn == set(completions((0,) * 16, 4))
    assert len(drawn) == 288


def test_splits_share_no_puzzle_whatever_the_seeds() -> None:
    train = {e.prompt for seed in (0, 1) for e in islice(Sudoku().examples("train", seed), 10_000)}
    held_out = {e.prompt for seed in (0, 2) for e in islice(Sudoku().examples("held_out", seed), 10_000)}
    assert len(train) > 15_000
    assert len(held_out) > 15_000
    assert not train & held_out


@pytest.mark.parametrize(
    ("answer", "exact", "num_cells", "num_clues", "valid"),
    [
        ("1324\n2413\n3142\n4231", True, 10, 6, 1.0),
        ("1324\n2413\n3142\n4231\n", False, 10, 6, 0.0),
        ("1324\n2413\n3142\n4213", False, 8, 6, 0.0),  # the last two cells swapped, both blanks
        ("1234\n3412\n2143\n4321", False, 3, 5, 1.0),  # legal, but of another puzzle
        ("1324", False, 2, 2, 0.0),
        ("", False, 0, 0, 0.0),
        ("١٣٢٤\n2413\n3142\n4231", False, 8, 4, 0.0),  # digits, but not these digits
        ("1324\n1324\n1324\n1324", False, 2, 2, 0.0),  # legal rows only
    ],
)
def test_score_of_an_answer_marked_by_hand(
    answer: str, exact: bool, num_cells: int, num_clues: int, valid: float
) -> None:
    score = Sudoku().score(PUZZLE, answer)
    assert score.exact is exact
    assert score.parts == {"cells": num_cells / 10, "clues_kept": num_clues / 6, "valid": valid}


def test_tasks_are_found_by_name() -> None:
    assert task("sudoku-4x4") == Sudoku()
    with pytest.raises(CallerError, match="task is 'chess'; known: records, sudoku-4x4"):
        task("chess")
