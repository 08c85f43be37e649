"""The measurement of infills: which gaps it takes, what counts as right, and what a filled module may do."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

import infills
import redraft
from infills import KINDS, MODES, Gap, gaps, held_out, parses, passes, recorded, score_infills
from redraft.operations.engine import Engine
from redraft.tasks.task import split_of

SOURCE = '''"""Doc."""
import os

def double(number):
    """Twice.

    >>> double(2)
    4
    """
    result = number * 2
    return result

def unseen():
    answer = "no doctest"
    for i in range(3):
        print(answer)
    return answer
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "small.py"
    path.write_text(SOURCE, encoding="utf-8")
    monkeypatch.setattr(infills, "held_out", lambda: (path,))
    return path


def found(kind: str, *, tested: bool = False) -> set[str]:
    drawn = zip(gaps(kind, 0, lambda text: True, tested=tested), range(60), strict=False)
    return {gap.wanted for gap, _ in drawn}


def test_gaps_are_statements_of_functions(module: Path) -> None:
    one = {"result = number * 2", "return result", 'answer = "no doctest"', "print(answer)", "return answer"}
    assert found("line") == one
    assert found("part") == {
        *("number", "number * 2", "result", "answer", "range", "range(3)", "print", "print(answer)"),
    }
    assert found("lines") == {
        "result = number * 2\n    return result",
        'answer = "no doctest"\n    for i in range(3):\n        print(answer)',
        "for i in range(3):\n        print(answer)\n    return answer",
        'answer = "no doctest"\n    for i in range(3):\n        print(answer)\n    return answer',
    }


def test_tested_gaps_are_those_that_a_doctest_notices(module: Path) -> None:
    assert found("line", tested=True) == {"result = number * 2", "return result"}
    assert found("part", tested=True) == {"number * 2", "number", "result"}


def test_only_held_out_modules_are_drawn_from() -> None:
    assert held_out()
    root = Path(sysconfig.get_paths()["stdlib"])
    modules = {path.relative_to(root).parts[0].removesuffix(".py") for path in held_out()}
    assert {split_of(module) for module in modules} == {"held_out"}
    assert "test" not in modules


def test_a_gap_shows_whole_lines_before_it_and_takes_its_filling() -> None:
    at = SOURCE.index("number * 2")
    gap = Gap(Path("small.py"), SOURCE, at, at + len("number * 2"), tested=True)
    assert gap.before.startswith('"""Doc."""')
    assert gap.before.endswith("    result = ")
    assert gap.behind.startswith("\n    return result\n")
    assert gap.behind == SOURCE[gap.end :]
    assert len(Gap(Path("long.py"), SOURCE * 2, at, at + 1, tested=False).behind) == 160
    assert gap.filled("number + 2") == SOURCE.replace("number * 2", "number + 2")


@pytest.mark.parametrize(
    ("filling", "right"),
    [
        ("number * 2", True),
        ("number + number", True),
        ("number + 3", False),
        ("(", False),
        ("open('here', 'wb', 0).write(b'x') and 4", False),
        ("[0] * 10**10 and 4", False),
        ("os._exit(1)", False),
    ],
)
def test_doctests_judge_a_filling_within_limits(filling: str, right: bool, tmp_path: Path) -> None:
    assert passes(tmp_path / "small.py", SOURCE.replace("number * 2", filling)) is right


def test_a_filling_that_never_ends_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infills, "_SECONDS", 1)
    assert not passes(tmp_path / "small.py", SOURCE.replace("number * 2", "[1 for _ in iter(int, 1)]"))


@pytest.mark.parametrize(("source", "right"), [("x = 1", True), ("x =", False), ("x\0", False), ("(" * 5000, False)])
def test_what_parses(source: str, right: bool) -> None:
    assert parses(source) is right


def test_every_mode_is_scored_on_the_same_gaps(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fillings = {MODES[0]: "number * 2", MODES[1]: "number + number", MODES[2]: "("}

    def fill(engine: Engine, gap: Gap, mode: str, *rest: object) -> tuple[str, int, float]:
        right = gap.wanted == "result = number * 2"
        return f"result = {fillings[mode]}" if right else gap.wanted, 3, 0.5

    monkeypatch.setattr(infills, "_fill", fill)
    rows = [row for row in score_infills(redraft.load("nano"), 6, seed=1) if row.kind == "line"]
    assert [row.count for row in rows] == [6] * 3
    assert [row.tested for row in rows] == [2] * 3, "the module has two gaps that its doctest notices"
    assert [row.doctest[0] for row in rows] == [1.0, 1.0, 0.5]
    assert rows[0].exact[0] == 1.0
    assert rows[1].exact[0] < 1.0
    assert rows[1].parses[0] == 1.0
    assert rows[2].parses[0] == rows[2].exact[0] < 1.0
    assert (rows[0].forwards, rows[0].seconds) == (3.0, 0.5)


def test_the_embedded_model_can_be_measured_and_recorded(module: Path) -> None:
    seen: list[tuple[int, int]] = []
    tallies = score_infills(redraft.load("nano"), 1, steps=2, progress=lambda _, *done: seen.append(done))
    assert [(row.kind, row.mode) for row in tallies] == [(kind, mode) for kind in KINDS for mode in MODES]
    assert seen[-1][0] == len(seen)
    taken = recorded(tallies, model="/some/where/nano", seed=0, steps=2)
    assert taken.name == "eval-nano-infill"
    assert "1 held-out gaps of one statement filled by nano (canvas)" in taken.summary[len(MODES)].figure
