"""Accuracy and its interval: known values, and averages worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import pytest

import redraft
from redraft.engine.request import Generation, Options, ResolvedRequest
from redraft.errors import RequestError
from redraft.measure.evals import Trial, attempt, evaluate, pinned, record, room, summarise, wilson
from redraft.operations.engine import Engine
from redraft.tasks import Example, Score, task


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [  # as R's binom::binom.wilson and Brown, Cai & DasGupta (2001) give them
        (8, 10, 0.490, 0.943),
        (0, 10, 0.0, 0.278),
        (10, 10, 0.722, 1.0),
        (1, 2, 0.095, 0.905),
        (0, 1, 0.0, 0.793),
        (50, 100, 0.404, 0.596),
    ],
)
def test_wilsons_interval_has_the_known_values(right: int, count: int, low: float, high: float) -> None:
    assert wilson(right, count) == pytest.approx((low, high), abs=5e-4)


def test_the_interval_is_the_same_seen_from_the_other_side() -> None:
    for right in range(8):
        low, high = wilson(right, 7)
        assert 0 <= low <= right / 7 <= high <= 1
        assert wilson(7 - right, 7) == pytest.approx((1 - high, 1 - low))


@pytest.fixture(scope="module")
def done() -> Generation:
    """Some finished answer, to be changed where it matters."""
    return redraft.load("nano").generate("Ka", seed=0, steps=1, max_tokens=1)


def trial(
    done: Generation, exact: bool, parts: dict[str, float], tokens: int, steps: tuple[int, ...], seconds: float
) -> Trial:
    done = replace(done, tokens=(7,) * tokens, entropy=(0.5,) * tokens, steps=steps, seconds=seconds)
    return Trial(Example("question", "answer"), done, Score(exact, parts))


def test_averages_are_over_examples_and_rates_over_sums(done: Generation) -> None:
    """A mean of rates would count a short answer as much as a long one."""
    found = summarise(
        "sums",
        [
            trial(done, True, {"who": 1.0, "qty": 1.0}, tokens=10, steps=(4,), seconds=0.5),
            trial(done, False, {"who": 0.5, "qty": 0.0}, tokens=2, steps=(8, 4), seconds=1.0),
            trial(done, False, {"who": 0.0}, tokens=0, steps=(2,), seconds=0.5),
            trial(done, True, {"who": 1.0, "qty": 1.0}, tokens=12, steps=(6,), seconds=2.0),
        ],
    )
    assert (found.task, found.count, found.exact) == ("sums", 4, 0.5)
    assert (found.low, found.high) == pytest.approx((0.150, 0.850), abs=5e-4)
    assert found.parts == {"qty": 0.5, "who": 0.625}
    assert found.mean_steps == 6.0
    assert found.tokens_per_forward == 1.0
    assert (found.tokens_per_sec, found.seconds) == (6.0, 4.0)


def test_nothing_generated_is_no_division_by_zero(done: Generation) -> None:
    found = summarise("empty", [trial(done, False, {}, tokens=0, steps=(), seconds=0.1)])
    assert (found.tokens_per_forward, found.tokens_per_sec, found.mean_steps) == (0.0, 0.0, 0.0)


def test_an_evaluation_can_be_repeated_and_told() -> None:
    engine, seen = redraft.load("nano"), []
    one, again = (
        evaluate(engine, task("records"), 3, seed=5, steps=2, progress=lambda _, *done: seen.append(done))
        for _ in range(2)
    )
    assert seen == [(1, 3), (2, 3), (3, 3)] * 2
    assert (one.exact, one.parts, one.mean_steps, one.tokens_per_forward) == (
        again.exact,
        again.parts,
        again.mean_steps,
        again.tokens_per_forward,
    )
    assert one.mean_steps <= 2
    kept = record([one], model="/some/where/nano", seed=5, steps=2)
    assert (kept.name, kept.workload["model"]) == ("eval-nano", "nano")
    assert kept.figures["records"]["count"] == 3
    assert "3 held-out examples" in kept.summary[0].figure


def test_an_answer_may_be_as_long_as_its_task_needs_unless_the_caller_says_otherwise() -> None:
    """Nano's own limit would cut a list after 64 tokens, and the canvas of `fast` with it."""
    engine, lists = redraft.load("nano"), task("lists")
    seen: list[Options] = []

    def request(self: Engine, prompt: str, *, chat: bool, options: Options) -> ResolvedRequest:
        seen.append(options)
        return asked(self, prompt, chat=chat, options=replace(options, steps=1))

    asked = Engine.request
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "request", request)
        evaluate(engine, lists, 1, options=Options(preset="fast"))
        evaluate(engine, lists, 1, options=Options(preset="fast", max_tokens=96))
    assert [one.max_tokens for one in seen] == [128, 96]


def test_pinned_clues_stay_and_are_the_puzzles_own() -> None:
    engine, sudoku = redraft.load("nano"), task("sudoku-4x4")
    example = next(sudoku.examples("held_out", 3))
    puzzle = example.prompt.partition("\n")[2]
    pins = pinned(engine, sudoku, example).pins
    assert [(at, engine.text.decode([token])) for at, token in pins] == [
        (at, clue) for at, clue in enumerate(puzzle) if clue not in ".\n"
    ]
    found = evaluate(engine, sudoku, 30, seed=3, pin=True)
    assert found.task == "sudoku-4x4, clues pinned"
    assert found.parts["clues_kept"] == 1.0
    kept = record([found], model="nano", seed=3, steps=None, pin=True)
    assert kept.name == "eval-nano-pinned"
    assert kept.summary[0].value.endswith("clues kept 100.0%")


@pytest.mark.parametrize(
    ("name", "given"), [("records", 64), ("lists", 128), ("lists-8", 256), ("edit-lists", 256), ("sudoku-9x9", 128)]
)
def test_there_is_room_for_every_answer_of_a_task_and_no_example_tells_its_own_length(name: str, given: int) -> None:
    engine, one = redraft.load("nano"), task(name)
    split = "train" if name == "sudoku-9x9" else "held_out"  # puzzles to hold out are looked for one by one
    answers = [engine.text.encode(example.answer, bos=False) for example in islice(one.examples(split, 7), 200)]
    assert room(engine, one) == given
    assert max(map(len, answers)) < given


@dataclass(frozen=True)
class Gaps:
    """A task of one gap."""

    name = "gaps"

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        yield Example("def f(x):\n    return ", "x", suffix=f"\n\nf({seed})  # {split}\n")

    def score(self, example: Example, answer: str) -> Score:
        return Score(answer == example.answer, {})


def test_a_gap_says_its_own_width() -> None:
    engine = redraft.load("nano")
    assert room(engine, Gaps()) is None
    assert evaluate(engine, Gaps(), 1, steps=1).tokens_per_forward == 1


def test_a_model_of_short_canvases_gets_as_many_as_an_answer_needs() -> None:
    engine = redraft.load("nano")
    model = replace(engine.config.model, canvas_length=32)
    narrow = replace(engine, config=replace(engine.config, model=model))
    assert room(narrow, task("lists-8")) == 160, "five canvases of 32 hold 153 tokens and an end"


def test_what_is_not_known_cannot_be_pinned() -> None:
    with pytest.raises(RequestError, match="nothing of an answer to records is known beforehand"):
        pinned(redraft.load("nano"), task("records"), Example("question", "answer"))


def test_a_gap_is_filled_at_its_width_and_not_by_the_causal_mode() -> None:
    engine, one = redraft.load("nano"), task("infill-python")
    example = Example("def area(r):\n    return ", "3 * r", suffix=" ** 2\n")
    trial = attempt(engine, one, example, seed=0)
    assert len(trial.done.tokens) == len(engine.text.encode("3 * r", bos=False))
    assert trial.done.text == engine.text.decode(list(trial.done.tokens))
    assert trial.score == one.score(example, trial.done.text)
    with pytest.raises(RequestError, match="causal was given"):
        attempt(engine, one, example, seed=0, options=Options(causal=True))
