"""Measures how far a model's probabilities can be believed: of decisions, and of the fields of JSON answers.

    python bench/belief.py --count 100 [--model nano-sudoku] --record bench/records/belief-nano-sudoku.json --keep

A temperature is fitted on examples of the training split, which training has not seen in this order but may have seen,
and judged on held-out ones; with --keep that of the decisions is written beside the checkpoint, where `redraft decide`
and the server find it. Decisions are the blank cells of Sudokus, all of a puzzle packed in one canvas; beside them the
same questions with a canvas for each, which has other noise in the other cells.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from redraft import load
from redraft.constraints.sources import schema_source
from redraft.engine.fields import field_confidence
from redraft.engine.request import Generation, Options, Request
from redraft.measure.evals import room, said, share_of
from redraft.measure.record import new_record, write_record
from redraft.operations.decide import Belief, Decision, Form, decide_all, write_belief
from redraft.operations.engine import Engine
from redraft.tasks import Example, task
from redraft.weights.fingerprint import fingerprint
from reliability import Guess, calibration_error, fitted, reliability, surprise

PUZZLES = {"sudoku-4x4": 4, "sudoku-6x6": 6}
ANSWERS = {"records": "object", "edit-records": "object", "repair": "object", "lists": "array"}
"""Tasks and the type of their JSON answers."""
SPLITS = {"train": 77, "held_out": 0}  # the seed of each split's examples
STEPS = (1, 32)
"""Answers settled, and answers after one step, many of which are wrong."""


@dataclass(frozen=True)
class Asked:
    """A decision and what it should have been."""

    decision: Decision
    wanted: str

    def guess(self, temperature: float) -> Guess:
        """The likeliest choice as a guess."""
        at = self.decision.at(temperature)
        return Guess(at.shares[at.best], at.best == self.wanted)


def main() -> None:
    """Both measurements, one record."""
    parser = argparse.ArgumentParser(description="Measure how far a model's probabilities can be believed.")
    parser.add_argument("--model", default="nano-sudoku")
    parser.add_argument("--count", type=int, default=100, help="examples of each task and split (default: 100)")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE")
    parser.add_argument("--keep", action="store_true", help="write the decisions' temperature beside the checkpoint")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    engine, count, name = load(arguments.model), arguments.count, Path(arguments.model).name
    figures, summary = {}, []
    for what, found in (("decisions", decisions(engine, count)), ("fields", fields(engine, count))):
        figures[what], told = judged(what, found, name)
        summary += told
    figures["packing"], told = packing(engine, count)
    workload = {"model": name, "count": count, "tasks": [*PUZZLES, *ANSWERS], "steps": list(STEPS), "seeds": SPLITS}
    record = new_record(f"belief-{name}", workload=workload, figures=figures, summary=[*summary, *told])
    write_record(record, arguments.record)
    if arguments.keep and engine.folder is not None:
        write_belief(belief(engine.folder, figures["decisions"], record.taken), engine.folder)
    print(record)


def belief(folder: Path, figures: dict[str, Any], taken: str) -> Belief:
    """What is kept of the decisions."""
    plain, fitted_ = figures["as they are"], figures["at the fitted temperature"]
    return Belief(
        checkpoint=fingerprint(folder),
        taken=taken,
        tasks=tuple(PUZZLES),
        decisions=fitted_["count"],
        temperature=figures["temperature"],
        told=fitted_["told"],
        right=fitted_["right"]["share"],
        error=fitted_["error"],
        error_before=plain["error"],
    )


GuessesAt = Callable[[float], list[Guess]]


def judged(what: str, found: dict[str, GuessesAt], name: str) -> tuple[dict[str, object], list[tuple[str, str]]]:
    """Held-out guesses before and after the temperature that was fitted on those of the training split."""
    temperature = fitted(found["train"])
    figures: dict[str, object] = {"temperature": temperature}
    summary = []
    for label, at in (("as they are", 1.0), ("at the fitted temperature", temperature)):
        guesses = found["held_out"](at)
        error, nats, right = calibration_error(guesses), surprise(guesses), share([one.right for one in guesses])
        told = sum(one.probability for one in guesses) / len(guesses)
        figures[label] = {
            "count": len(guesses),
            "right": right,
            "told": told,
            "error": error,
            "surprise": nats,
            "reliability": [asdict(one) for one in reliability(guesses)],
        }
        summary.append(
            (
                f"{what} of {name} {label} ({at:.2f}), {len(guesses)} held out: told on average, and right",
                f"{told:.1%}, {said(right)}; calibration error {error:.2%}, {nats:.4f} nats",
            )
        )
    return figures, summary


def decisions(engine: Engine, count: int) -> dict[str, GuessesAt]:
    """The blank cells of puzzles, packed, by split."""
    return {split: at(list(cells(engine, split, count))) for split in SPLITS}


def at(asked: list[Asked]) -> GuessesAt:
    """Guesses of some decisions at a temperature."""
    return lambda temperature: [one.guess(temperature) for one in asked]


def cells(engine: Engine, split: str, count: int) -> Iterator[Asked]:
    """All blank cells of each puzzle from one canvas."""
    for name, size in PUZZLES.items():
        for seed, example in enumerate(islice(task(name).examples(split, SPLITS[split]), count)):
            form, wanted = form_of(example, size)
            request = engine.resolve(Request(example.prompt, chat=True, options=Options(seed=seed, preset="reference")))
            yield from map(Asked, decide_all(engine, request, form), wanted)


def form_of(example: Example, size: int) -> tuple[Form, list[str]]:
    """A puzzle's answer with a slot in each blank cell, and what belongs there."""
    form, wanted = list[str | Sequence[str]](), list[str]()
    for clue, cell in zip(example.prompt.partition("\n")[2], example.answer, strict=True):
        if clue == ".":
            form.append([str(digit) for digit in range(1, size + 1)])
            wanted.append(cell)
        elif form and isinstance(form[-1], str):
            form[-1] += cell
        else:
            form.append(cell)
    return form, wanted


def packing(engine: Engine, count: int) -> tuple[dict[str, object], list[tuple[str, str]]]:
    """Held-out cells packed, beside a canvas for each, whose noise is its own."""
    figures: dict[str, object] = {}
    summary = []
    for name, size in PUZZLES.items():
        same, packed, single, forwards = list[bool](), list[bool](), list[bool](), 0
        for seed, example in enumerate(islice(task(name).examples("held_out", SPLITS["held_out"]), count // 2)):
            form, wanted = form_of(example, size)
            request = engine.resolve(Request(example.prompt, chat=True, options=Options(seed=seed, preset="reference")))
            together = [one.best for one in decide_all(engine, request, form)]
            forwards += 1
            alone = [
                decide_all(engine, replace(request, seed=10**6 * (i + 1) + seed), form)[i].best
                for i in range(len(wanted))
            ]
            same += [a == b for a, b in zip(together, alone, strict=True)]
            packed += [a == b for a, b in zip(together, wanted, strict=True)]
            single += [a == b for a, b in zip(alone, wanted, strict=True)]
        figures[name] = {
            "questions": len(same),
            "same": share(same),
            "packed": share(packed) | {"forwards": forwards},
            "single": share(single) | {"forwards": len(same)},
        }
        summary.append(
            (
                f"{len(same)} cells of {name} decided in {forwards} canvases, and in one canvas each",
                f"right {said(share(packed))} packed, {said(share(single))} alone; the same answer {said(share(same))}",
            )
        )
    return figures, summary


def fields(engine: Engine, count: int) -> dict[str, GuessesAt]:
    """The values of JSON answers, each right or not, by split."""

    def of(answers: list[tuple[Example, Generation]]) -> GuessesAt:
        return lambda temperature: [
            guess for example, done in answers for guess in guesses(engine, example, done, temperature)
        ]

    return {split: of(list(answered(engine, split, count))) for split in SPLITS}


def answered(engine: Engine, split: str, count: int) -> Iterator[tuple[Example, Generation]]:
    """Answers held to JSON of their type, settled and after one step."""
    for name, kind in ANSWERS.items():
        one, language = task(name), engine.language(schema_source({"type": kind}))
        examples, max_tokens = list(islice(one.examples(split, SPLITS[split]), count)), room(engine, one)
        for steps in STEPS:
            requests = [
                engine.resolve(
                    Request(
                        example.prompt,
                        chat=True,
                        options=Options(seed=seed, preset="fast", steps=steps, max_tokens=max_tokens),
                        constraint=language,
                    )
                )
                for seed, example in enumerate(examples)
            ]
            yield from zip(examples, engine.map(requests, at_once=16), strict=True)


def guesses(engine: Engine, example: Example, done: Generation, temperature: float) -> Iterator[Guess]:
    """Each value of an answer: how sure the model was, and whether it is what should be there."""
    value, wanted = json.loads(done.text), json.loads(example.answer)
    for pointer, told in field_confidence(engine.text, done, temperature).items():
        yield Guess(told, there(value, pointer) == there(wanted, pointer))


def there(value: object, pointer: str) -> object:
    """What a JSON pointer leads to, with its type; None if nowhere."""
    for step in pointer.split("/")[1:]:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return type(value), value


def share(right: Sequence[bool]) -> dict[str, float]:
    """A share with its interval."""
    return share_of(sum(right), len(right))


if __name__ == "__main__":
    main()
