"""What somebody meets who has just installed this: help, what the small model knows, a canvas slow enough to follow."""

from __future__ import annotations

import io
import re
import runpy
import sys
from itertools import islice
from pathlib import Path

import pytest
from rich.console import Console

import redraft
import redraft.cli.watch
from redraft.__main__ import main
from redraft.cli import bounds
from redraft.cli.tune import Progress
from redraft.cli.watch import LONGEST, PACE, Watch
from redraft.engine.events import Event
from redraft.engine.request import Options, Request, ResolvedRequest
from redraft.operations.engine import Engine
from redraft.tasks import names, task
from redraft.tasks.task import split_of
from redraft.text import Message

ROOT = Path(__file__).resolve().parents[2]
Captured = pytest.CaptureFixture[str]
PUZZLE = "sudoku\n.153..\n..3..4\n......\n.3.245\n6514..\n.4..6."


def test_the_name_alone_is_answered_with_the_help(capsys: Captured) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == "", "a pipe behind it gets nothing"
    assert "redraft demo" in err


# -- what nano was taught ----------------------------------------------------------------------------------------------


def test_what_nano_is_said_to_know_is_what_its_tasks_ask() -> None:
    asked = [next(iter(task(name).examples("held_out", 0))).prompt.split("\n")[0] for name in names()]
    assert list(bounds.TAUGHT) == list(dict.fromkeys(asked))


def test_every_question_of_a_conversation_is_of_its_split() -> None:
    conversations = runpy.run_path(str(ROOT / "recipes" / "turns.py"))["conversations"]
    for split in ("train", "held_out"):
        rows = list(islice(conversations(split, 0), 60))
        assert rows == list(islice(conversations(split, 0), 60)), "a seed is a promise"
        assert {len(row["messages"]) for row in rows} == {4, 6}
        firsts = set()
        for row in rows:
            roles = [message["role"] for message in row["messages"]]
            texts = [message["content"] for message in row["messages"]]
            assert roles == ["user", "assistant"] * (len(roles) // 2)
            for asked, answer in zip(texts[::2], texts[1::2], strict=True):
                first, _, rest = asked.partition("\n")
                firsts.add(first)
                keys = re.findall(r'"who":"(\w+)"', answer) if first in ("record", "list") else []
                keys += [rest] if first == "sudoku" else []
                assert {split_of(key) for key in keys} <= {split}
        assert firsts == set(bounds.TAUGHT)


def test_nano_answers_further_questions_of_a_conversation() -> None:
    """Of questions that it answers nearly always when they are asked alone."""
    engine, right, asked = redraft.load("nano"), 0, 0
    examples = task("records").examples("held_out", 4)
    for seed in range(6):
        messages = list[Message]()
        for example in islice(examples, 3):
            messages.append({"role": "user", "content": example.prompt})
            done = engine.run(engine.resolve(Request(messages, chat=True, options=Options(seed=seed, preset="fast"))))
            right, asked = right + (done.text == example.answer), asked + 1
            messages.append({"role": "assistant", "content": done.text})
    assert right >= asked - 3, f"{right} of {asked}"


ASKED = ["generate", "hello", "--chat", "--steps", "1", "--max-tokens", "2", "--preset", "reference"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (ASKED, True),
        (["generate", "record\nSend 417 melu to Karomi.", "--steps", "1"], True),  # --chat was forgotten
        (["generate", "record\nSend 417 melu to Karomi.", "--chat"], False),
        (["decide", "Is 7 prime?"], True),
        (["json", "Send 417 melu to Karomi.", "--schema", "who"], True),
        (["json", "Send 417 melu to Karomi.", "--schema", "who", "--instruction", "record"], False),
    ],
)
def test_who_asks_nano_for_what_it_cannot_is_told(
    words: list[str], told: bool, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(bounds, "at_a_terminal", lambda: True)
    assert main([*words, "--threads", "1"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert sum("record, sudoku, " in line for line in lines) == told


def test_programs_are_told_of_their_answer_alone(capsys: Captured) -> None:
    assert main([*ASKED, "--threads", "1"]) == 0
    assert capsys.readouterr().err == "redraft: cut at 2 tokens; --max-tokens allows for more\n"


# -- a canvas to follow ------------------------------------------------------------------------------------------------


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("follows", [False, True])
def test_every_step_stays_long_enough_and_none_waits_for_the_screen(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, follows: bool
) -> None:
    drawn, clock = io.StringIO(), Clock()
    screen = Console(file=drawn, force_terminal=True, width=100, _environ={"TERM": "xterm"})
    monkeypatch.setattr(redraft.cli.watch, "Console", lambda **options: screen)
    monkeypatch.setattr(redraft.cli.watch, "time", clock)
    steps: list[int] = []
    request = engine.resolve(Request(PUZZLE, chat=True, options=Options(seed=5, preset="reference")))
    with Watch(engine.text, answer_follows=follows) as watch:

        def show(event: Event, of: ResolvedRequest) -> None:
            steps.append(getattr(event, "step", 0))
            watch.show(event, of)

        done = engine.finish(request, show)
        assert clock.now == 100, "the answer waited for the screen"
    taken = [step for step in steps if step]
    assert len(taken) > 1, "this test needs several steps"
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.getvalue()).replace("\r", "")
    shown = [int(step) for step in re.findall(r"step +(\d+)", plain)]
    assert list(dict.fromkeys(shown)) == taken
    waited = clock.now - 100
    assert min(PACE, LONGEST / len(steps)) * len(taken) <= waited + PACE <= LONGEST + 2 * PACE
    assert plain.rstrip("\n").endswith(done.text) != follows


# -- a training run to follow ------------------------------------------------------------------------------------------

ROW = {"encode": 1.2, "denoise": 0.8, "norm": 1.0, "seconds": 2.0}
ROW |= {f"{shown} {noise}": 1.1 for shown in ("corrupted", "clean") for noise in ("low", "middle", "high")}


class Screen(io.StringIO):
    """A terminal's stderr."""

    def isatty(self) -> bool:
        return True


def test_a_step_of_training_fits_a_narrow_terminal_and_what_follows_has_its_own_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A line that wraps is not rewritten in place: every step would leave rows behind."""
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    shown = Progress()
    for step in (10_000, 10_001):
        shown(step, 12_000, ROW)
    lines = screen.getvalue().split("\r\x1b[K")[1:]
    assert [line.split("/")[0] for line in lines] == ["step 10000", "step 10001"]
    assert max(map(len, lines)) < 80
    assert "\n" not in screen.getvalue()
    shown.close()
    assert screen.getvalue().endswith("left\n")


def test_off_a_terminal_training_tells_its_first_step_its_probes_and_its_last(capsys: Captured) -> None:
    shown = Progress()
    for step, row in ((1, ROW), (2, ROW), (3, ROW | {"orders exact": 0.5}), (4, ROW)):
        shown(step, 4, row)
    shown.close()
    lines = capsys.readouterr().err.split("\n")
    assert [line.split("/")[0] for line in lines[:-1]] == [f"redraft: step {step}" for step in (1, 3, 4)]
    assert "orders exact 0.50" in lines[1]
    assert lines[-1] == ""
    assert "\r" not in "".join(lines)
