"""The tasks beside records and small Sudoku: grids against another search, the others against what they say."""

from __future__ import annotations

import ast
import json
import re
from hashlib import blake2b
from itertools import islice

import numpy as np
import pytest
from tests.helpers import completions

from redraft.errors import RecipeError
from redraft.tasks import EditLists, Edits, Example, InfillPython, Lists, RepairTask, Sudoku, Task
from redraft.tasks import grids as rules
from redraft.tasks.infill import corpus
from redraft.tasks.task import split_of

# -- grids -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "givens"), [(4, (0, 4, 6)), (6, (16, 20))])
def test_the_solver_counts_what_plain_search_counts(size: int, givens: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for count in givens:
        for _ in range(6 if count else 1):
            grid = rules.random_grid(rng, size)
            puzzle = np.where(rng.random(size * size).argsort() < count, grid, 0).tolist()
            assert {*rules.solve(puzzle, size, limit=10**6).solutions} == {*completions(puzzle, size)}


@pytest.mark.parametrize(("size", "low", "high"), [(6, 12, 22), (9, 28, 45)])
def test_larger_puzzles_have_one_solution_and_the_givens_asked_for(size: int, low: int, high: int) -> None:
    for example in islice(Sudoku(size).examples("held_out", 0), 8):
        puzzle = [int(c.replace(".", "0")) for c in example.prompt.partition("\n")[2].replace("\n", "")]
        solution = [int(c) for c in example.answer.replace("\n", "")]
        assert low <= sum(map(bool, puzzle)) <= high
        assert rules.solve(puzzle, size).solutions == (tuple(solution),)
        if size == 6:
            assert len([*completions(puzzle, size)]) == 1
        assert Sudoku(size).score(example, example.answer).exact
        given = [example.answer[start:end] for start, end in example.given]
        assert given == [str(digit) for digit in puzzle if digit]


def test_a_9x9_puzzle_comes_under_symmetries_in_training_and_each_has_its_one_solution() -> None:
    """Dug one by one, a batch of a thousand would take longer than its step."""
    task, seen = Sudoku(9), set()
    for example in islice(task.examples("train", 0), 40):
        puzzle = [int(c.replace(".", "0")) for c in example.prompt.partition("\n")[2].replace("\n", "")]
        assert rules.solve(puzzle, 9).solutions == (tuple(int(c) for c in example.answer.replace("\n", "")),)
        assert split_of(example.prompt.partition("\n")[2]) == "train"
        seen.add(example.prompt)
    assert len(seen) == 40


def test_hard_puzzles_need_their_guesses() -> None:
    task = Sudoku(9, (22, 30), least_guesses=2)
    assert task.name == "sudoku-9x9-hard-2"
    for example in islice(task.examples("train", 0), 5):
        puzzle = [int(c.replace(".", "0")) for c in example.prompt.partition("\n")[2].replace("\n", "")]
        assert rules.solve(puzzle, 9).guesses >= 2


# -- repair ------------------------------------------------------------------------------------------------------------


def test_a_repair_starts_broken_and_ends_valid() -> None:
    task, valid = RepairTask(), 0
    for example in islice(task.examples("train", 0), 300):
        broken = example.prompt.partition("\n")[2]
        assert json.dumps(json.loads(example.answer), separators=(",", ":")) == example.answer
        assert broken != example.answer
        try:
            valid += json.loads(broken) != json.loads(example.answer)
        except ValueError:
            continue
        valid += 1
    assert valid == 0, "a prompt that parses has nothing to repair"


# -- edits -------------------------------------------------------------------------------------------------------------


def test_an_edit_changes_what_it_names_and_nothing_else() -> None:
    for example in islice(Edits().examples("train", 0), 300):
        _, before, *asked = example.prompt.split("\n")
        old, new = json.loads(before), json.loads(example.answer)
        for key in old:
            named = any(key in line for line in asked)
            assert named or (key in new and new[key] == old[key])
        for line in asked:
            if line.startswith(("Remove ", "Drop ")):
                assert line.split()[1].rstrip(".") not in new
            else:
                (key,) = (key for key in old if key in line.replace(str(new[key]), ""))
                assert str(new[key]) in line
        for start, end in example.given:
            assert set(example.answer[start:end]) & set('{}":,')


# -- lists -------------------------------------------------------------------------------------------------------------

SYLLABLE = "[bdfghklmnprstvz][aeiou]"
NAME = re.compile(rf"\b(?=[A-Z])(?i:{SYLLABLE}){{2,3}}\b")
ITEM = re.compile(rf"\b({SYLLABLE}){{2}}\b")
NUMBER = re.compile(r"\b[0-9]+\b")


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def reported(sentence: str) -> dict[str, object]:
    """A record as a reader finds it: the only name, the only number and the only other invented word."""
    who, qty, item = ([*re.finditer(kind, sentence)] for kind in (NAME, NUMBER, ITEM))
    assert len(who) == len(qty) == len(item) == 1, sentence
    return {"who": who[0][0], "qty": int(qty[0][0]), "item": item[0][0]}


def edited(prompt: str) -> list[dict[str, object]]:
    """The records of a prompt as a reader changes them."""
    lines = prompt.split("\n")[1:]
    before = [json.loads(line) for line in lines if line.startswith("{")]
    after = [dict(record) for record in before]
    for line in lines[len(before) :]:
        words = re.findall(r"\w+", line)
        (at,) = (i for i, record in enumerate(before) if record["who"] in words)
        if words[0] in ("Remove", "Drop"):
            del after[at]
            continue
        (key,) = (word for word in words if word in before[at])
        (value,) = {*words} - {key, before[at]["who"], "Set", "Change", "Make", "of", "to", "the"}
        after[at][key] = int(value) if key == "qty" else value
    return after


@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize(("task", "most"), [(Lists(), 4), (Lists(8), 8)], ids=["lists", "lists-8"])
def test_a_list_says_what_its_sentences_say(task: Lists, most: int, split: str) -> None:
    counts = set()
    for example in islice(task.examples(split, 0), 200):
        first, *sentences = example.prompt.split("\n")
        wanted = [reported(sentence) for sentence in sentences]
        assert (first, example.answer) == ("list", compact(wanted))
        assert task.score(example, compact(wanted)).exact
        counts.add(len(wanted))
    assert counts == set(range(2, most + 1))


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_an_edit_of_a_list_changes_what_it_names_and_nothing_else(split: str) -> None:
    changes = set()
    for example in islice(EditLists().examples(split, 0), 300):
        assert example.prompt.startswith("edit\n{")
        wanted, count = edited(example.prompt), example.prompt.count("\n{")
        assert example.answer == "\n".join(map(compact, wanted))
        assert EditLists().score(example, example.answer).parts == {"valid": 1.0, "lines": 1.0}
        assert 2 <= count <= 8
        gone = len(wanted) - count
        changes.add((gone, example.prompt.count("\n") - count))
    assert changes == {(0, 1), (0, 2), (-1, 1)}, "one value, two values, a record that goes"


@pytest.mark.parametrize("task", [Lists(), Lists(8), EditLists()], ids=lambda task: task.name)
def test_every_name_of_a_list_belongs_to_its_split_and_stands_once(task: Task) -> None:
    names: dict[str, set[str]] = {}
    for split in ("train", "held_out"):
        for example in islice(task.examples(split, 0), 150):
            found = [match[0] for match in NAME.finditer(example.answer)]
            assert len(found) == len(set(found))
            names.setdefault(split, set()).update(found, NAME.findall(example.prompt))
            names[split] -= {"Make", "Remove"}  # which say what to do and look like names
    held_out = {who for who in names["train"] | names["held_out"] if _is_tenth(who)}
    assert names["held_out"] == held_out
    assert len(held_out) > 100


def _is_tenth(who: str) -> bool:
    return int.from_bytes(blake2b(who.encode(), digest_size=8).digest(), "big") % 10 == 0


RECORDS = [{"who": "Ka", "qty": 1, "item": "melu"}, {"who": "Ba", "qty": 2, "item": "sola"}]
HOSTILE = [
    "",
    "null",
    "1",
    '"',
    "[" * 100_000,
    "{" * 100_000,
    "\x00",
    "\ud800",
    '{"a":' + "9" * 5000 + "}",
    "[[]]",
    "[1]",
]


@pytest.mark.parametrize(
    ("answer", "exact", "parts"),
    [
        (compact(RECORDS), True, (1.0, 1.0)),
        (json.dumps(RECORDS), False, (1.0, 1.0)),
        (compact([dict(reversed(record.items())) for record in RECORDS]), False, (1.0, 1.0)),
        (compact([*RECORDS, RECORDS[0]]), False, (1.0, 1.0)),
        (compact(RECORDS[:1]), False, (1.0, 0.5)),
        (compact(RECORDS[::-1]), False, (1.0, 0.0)),
        (compact(RECORDS).replace(":1,", ":true,"), False, (1.0, 0.5)),
        (compact(RECORDS).replace(":1,", ":1.0,"), False, (1.0, 0.5)),
        (compact(RECORDS).replace('"Ka"', '"Ka","more":1'), False, (1.0, 0.5)),
        (compact(RECORDS).replace('"Ka"', '"Bo","who":"Ka"'), False, (0.0, 0.0)),
        (compact(RECORDS)[:-1], False, (0.0, 0.0)),
        ("[]", False, (0.0, 0.0)),
        *((text, False, (0.0, 0.0)) for text in HOSTILE),
    ],
)
def test_a_list_is_marked_by_hand(answer: str, exact: bool, parts: tuple[float, float]) -> None:
    score = Lists().score(Example("list", compact(RECORDS)), answer)
    assert (score.exact, score.parts) == (exact, dict(zip(("valid", "records"), parts, strict=True)))


# -- infilling ---------------------------------------------------------------------------------------------------------


def test_gaps_are_cut_out_of_files_of_their_own_split() -> None:
    texts = {split: [s.text for s in corpus() if split_of(s.module) == split] for split in ("train", "held_out")}
    assert texts["train"]
    assert texts["held_out"]
    for split, other in (("train", "held_out"), ("held_out", "train")):
        for example in islice(InfillPython().examples(split, 0), 40):
            whole = example.prompt + example.answer + (example.suffix or "")
            assert any(whole in text for text in texts[split])
            assert 0 < len(example.answer) <= 32
            assert "\n" not in example.answer
            assert example.answer == example.answer.strip()
            assert len(whole) < 60 or not any(whole in text for text in texts[other])


def test_the_corpus_is_code_without_comments() -> None:
    text = next(source.text for source in corpus() if source.module == "textwrap")
    assert ast.get_docstring(ast.parse(text)) is None
    assert not any(line.strip().startswith("#") for line in text.split("\n"))
    assert "\n\n\n" not in text


@pytest.mark.parametrize(
    ("answer", "exact", "parses"),
    [("x + 1", True, 1.0), (" x + 1 ", True, 1.0), ("x +", False, 0.0), ("y", False, 1.0), ("\x00", False, 0.0)],
)
def test_a_gap_is_marked_by_hand(answer: str, exact: bool, parses: float) -> None:
    example = Example("def f(x):\n    return ", "x + 1", suffix="\n\nf(2)\n")
    score = InfillPython().score(example, answer)
    assert (score.exact, score.parts) == (exact, {"parses": parses})


@pytest.mark.parametrize(
    "task",
    [RepairTask(), Edits(), InfillPython(), Sudoku(6), Lists(), Lists(8), EditLists()],
    ids=lambda task: task.name,
)
def test_streams_repeat_differ_by_seed_and_share_no_example(task: Task) -> None:
    def first(split: str, seed: int) -> list[Example]:
        return list(islice(task.examples(split, seed), 10))

    assert first("train", 0) == first("train", 0)
    assert first("train", 0) != first("train", 1)
    assert not set(first("train", 0) + first("train", 1)) & set(first("held_out", 0) + first("held_out", 1))
    with pytest.raises(RecipeError, match="split is 'test'"):
        task.examples("test", 0)
