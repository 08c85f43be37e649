"""Measures what pins feed back, and what ranking variants is worth, on held-out Sudokus; writes a record.

    python scripts/choosing.py --count 1000 [--model nano] --record benchmarks/choosing-nano.json

Rows are paired: puzzle i has seed i everywhere. Variants of puzzle i have the seeds 100·i, 100·i + 1, and so on.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import get_args

import torch

from redraft.diffusion.denoise import PinFeedback
from redraft.engine.engine import Engine, load
from redraft.engine.request import Options, Request
from redraft.measure.evals import pinned, said, share_of
from redraft.measure.record import new_record, write_record
from redraft.tasks import Example, Task, task

VARIANTS, TEMPERATURE = 8, 2.0


def main() -> None:
    """Both measurements, one record."""
    parser = argparse.ArgumentParser(description="Measure what pins feed back and what ranking variants is worth.")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--task", default="sudoku-4x4")
    parser.add_argument("--count", type=int, default=1000, help="puzzles (default: 1000)")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    engine, one = load(arguments.model), task(arguments.task)
    examples = list(islice(one.examples("held_out", 0), arguments.count))
    shares = {
        label: share_of(sum(right), len(right), "exact")
        for label, right in {**pins(engine, one, examples), **variants(engine, one, examples)}.items()
    }
    name = Path(arguments.model).name
    workload = {"model": name, "task": one.name, "count": len(examples)}
    workload |= {"variants": VARIANTS, "temperature": TEMPERATURE}
    summary = [
        (f"{one.name}, {len(examples)} held-out puzzles exact by {name}, {label}", said(found, "exact"))
        for label, found in shares.items()
    ]
    record = new_record(f"choosing-{name}", workload=workload, figures=shares, summary=summary)
    write_record(record, arguments.record)
    print(record)


def pins(engine: Engine, one: Task, examples: list[Example]) -> dict[str, list[bool]]:
    """Exact or not, by what pinned clues feed back; and without pins."""
    return {
        "nothing pinned": answers(engine, one, examples, None),
        **{
            f"clues pinned, feeding back {kind_told(kind)}": answers(engine, one, examples, kind)
            for kind in get_args(PinFeedback)
        },
    }


def kind_told(kind: str) -> str:
    """The kind in words."""
    return {"token": "their token", "nothing": "nothing", "belief": "the model's belief"}[kind]


def answers(engine: Engine, one: Task, examples: list[Example], kind: PinFeedback | None) -> list[bool]:
    """Exact or not, puzzle by puzzle."""

    def requests() -> Iterator[Request]:
        for i, example in enumerate(examples):
            seed_canvas = None if kind is None else pinned(engine, one, example)
            asked = engine.request(
                example.prompt, chat=True, options=Options(seed=i, preset="reference", seed_canvas=seed_canvas)
            )
            yield asked if kind is None else replace(asked, policy=replace(asked.policy, pins=kind))

    return [one.score(x, done.text).exact for x, done in zip(examples, engine.map(requests()), strict=True)]


def variants(engine: Engine, one: Task, examples: list[Example]) -> dict[str, list[bool]]:
    """Exact or not: the first of some variants, the first of their ranking, and whether any is."""
    found: dict[str, list[bool]] = {"first": [], "ranked": [], "certain": [], "any": []}
    for i, example in enumerate(examples):
        options = Options(seed=100 * i, preset="reference", temperature=TEMPERATURE)
        ranking = engine.ranked(engine.request(example.prompt, chat=True, options=options), VARIANTS)
        exact = {variant.text: one.score(example, variant.text).exact for variant in ranking}
        alone = next(variant for variant in ranking for done in variant.answers if done.seed == 100 * i)
        found["first"].append(exact[alone.text])
        found["ranked"].append(exact[ranking[0].text])
        found["certain"].append(exact[min(ranking, key=lambda variant: variant.entropy).text])
        found["any"].append(any(exact.values()))
    where = f"at temperature {TEMPERATURE:g}"
    return {
        f"one answer {where}": found["first"],
        f"the first ranked of {VARIANTS} {where}": found["ranked"],
        f"the most certain of {VARIANTS} {where}": found["certain"],
        f"any of {VARIANTS} {where}": found["any"],
    }


if __name__ == "__main__":
    main()
