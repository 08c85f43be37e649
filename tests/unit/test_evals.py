"""Accuracy and its interval: known values, and averages worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.helpers import Shell

import redraft
from redraft.cli.constraint_flags import read_schema
from redraft.engine.request import Generation, Options
from redraft.measure.evals import Trial, compared, evaluate, pinned, record, summarise, wilson
from redraft.prompts import of_schema
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


@pytest.fixture(scope="module")
def done() -> Generation:
    """Some finished answer, to be changed where it matters."""
    return redraft.load("nano-sudoku").generate("Ka", seed=0, steps=1, max_tokens=1)


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


def test_an_evaluation_can_be_repeated_and_told() -> None:
    engine, seen, how = redraft.load("nano-sudoku"), [], Options(preset="reference", steps=2)
    one, again = (
        evaluate(engine, task("records"), 3, seed=5, options=how, progress=lambda _, *done: seen.append(done))
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
    kept = record([one], model="/some/where/nano", seed=5, options=how)
    assert (kept.name, kept.workload["model"]) == ("eval-nano", "nano")
    assert kept.figures["records"]["count"] == 3
    assert "3 held-out examples" in kept.summary[0].figure


def test_a_long_prompt_leaves_its_answer_less_room() -> None:
    """The tenth of these prompts has 520 tokens of nano's 1,024, and ended the count of what a tuned model forgot."""
    found = evaluate(redraft.load("nano"), task("forms-long"), 10, options=Options(preset="fast", steps=1))
    assert found.count == 10


def test_pinned_clues_stay_and_are_the_puzzles_own() -> None:
    engine, sudoku = redraft.load("nano-sudoku"), task("sudoku-4x4")
    example = next(sudoku.examples("held_out", 3))
    puzzle = example.prompt.partition("\n")[2]
    pins = pinned(engine, sudoku, example).pins
    assert [(at, engine.text.decode([token])) for at, token in pins] == [
        (at, clue) for at, clue in enumerate(puzzle) if clue not in ".\n"
    ]
    found = evaluate(engine, sudoku, 30, seed=3, pin=True)
    assert found.task == "sudoku-4x4, clues pinned"
    assert found.parts["clues_kept"] == 1.0
    kept = record([found], model="nano", seed=3, pin=True)
    assert kept.name == "eval-nano-pinned"
    assert kept.summary[0].value.endswith("clues kept 100.0%")


@pytest.mark.parametrize(
    ("right", "answer", "exact", "parts"),
    [
        ("four", " four\n", True, {}),
        ("four", "five", False, {}),
        ("[1, 2]", "[1,2]", True, {}),
        ('{"a":1,"b":"x"}', '{"b": "x", "a": 1}', True, {"fields": 1.0}),
        ('{"a":1,"b":"x"}', '{"a":1}', False, {"fields": 0.5}),
        ('{"a":1,"b":"x"}', '{"a":1,', False, {"fields": 0.0}),
        ('{"a":1}', '{"a":1,"b":2}', False, {"fields": 1.0}),
        ("null", "nothing", False, {}),
    ],
)
def test_an_answer_is_right_as_text_or_as_json(right: str, answer: str, exact: bool, parts: dict[str, float]) -> None:
    assert compared(right, answer) == Score(exact, parts)


def test_a_file_of_rows_is_scored(tmp_path: Path, shell: Shell) -> None:
    """A conversation is sent whole; whoever has the right answer in the file gets it counted."""
    asked = [{"role": "user", "content": "record\nSend 417 melu to Karomi."}]
    engine = redraft.load("nano-sudoku")
    first = engine.generate(asked, seed=0, max_tokens=engine.config.generation.max_new_tokens).text
    rows = [
        {"prompt": asked[0]["content"], "response": first},
        {"messages": [*asked, {"role": "assistant", "content": "?"}]},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n\n" for row in rows), encoding="utf-8")
    (found,) = json.loads(shell(["eval", "--model", "nano-sudoku", "--file", str(file), "--json"]).out)
    assert (found["task"], found["count"], found["exact"]) == ("rows.jsonl", 2, 0.5)


def test_a_file_of_objects_is_scored_by_field_and_held_to_a_schema(tmp_path: Path, shell: Shell) -> None:
    """nano is right about this sentence; the shares are counted here by hand."""
    prompt = of_schema(read_schema("who, qty int"), "Send 3 apples to Maria.")
    right, wrong = {"who": "Maria", "qty": 3}, {"who": "Maria", "qty": 4}
    wanted = [json.dumps(right), json.dumps(wrong), json.dumps({"other": None}), "no object"]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt, "response": one}) + "\n" for one in wanted), encoding="utf-8")
    how = ["eval", "--file", str(file), "--schema", "who, qty int", "--preset", "fast", "--json"]
    (found,) = json.loads(shell(how).out)
    assert found["exact"] == 0.25
    names = ("fields.who", "fields.qty", "fields.other")
    assert [found["parts"][name] for name in names] == [1.0, 0.5, 0.0]
    (found,) = json.loads(shell([*how[:4], "qty int, who", *how[5:]]).out)
    assert found["count"] == 4, "every answer has the form, whichever it is"
    assert "--schema was given without --file" in shell(["eval", "--schema", "who"], 2).err


def test_a_file_is_scored_by_what_json_answers(tmp_path: Path, shell: Shell) -> None:
    """nano got 5% of the fields of a log's lines here, and 51% by `redraft json`."""
    texts = ["Send 3 apples to Maria.", "Order #88213 is for Ana, 2 lamps", "2024-05-01 12:03:44 ERROR disk full"]
    fields, file = "who?, qty int?, item?", tmp_path / "rows.jsonl"
    answers = [shell(["json", "--schema", fields, "--seed", str(i), text]).out.strip() for i, text in enumerate(texts)]
    rows = ({"prompt": text, "response": answer} for text, answer in zip(texts, answers, strict=True))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (found,) = json.loads(shell(["eval", "--file", str(file), "--schema", fields, "--seed", "0", "--json"]).out)
    assert found["exact"] == 1


@pytest.mark.parametrize("text", ["", "{}", '{"messages": [{"role": "assistant", "content": "alone"}]}', "no json"])
def test_a_file_that_cannot_be_scored_is_refused(text: str, tmp_path: Path, shell: Shell) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(text, encoding="utf-8")
    assert str(file) in shell(["eval", "--file", str(file)], 2).err
