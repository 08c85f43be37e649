"""Measures rules for choosing the width of a gap, on held-out gaps in Python; writes a record.

    python scripts/widths.py --count 200 [--model nano] --record benchmarks/widths-nano.json

Every width runs to its end on every gap, so all rules are judged on the same canvases. The rule that `infill` uses is
"mean entropy at step 2 less the bias"; the others are what it could be replaced by.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from redraft.engine.engine import Engine, load
from redraft.engine.events import Block, Draft, Event
from redraft.engine.gap import Around
from redraft.engine.infill import Bias
from redraft.engine.request import Options
from redraft.engine.variants import mean
from redraft.measure.evals import wilson
from redraft.measure.record import new_record, write_record
from redraft.tasks import Example, task

WIDEST = 16


@dataclass(frozen=True)
class Run:
    """One width of one gap: the gap's entropies after steps 1 and 2 and at the end, and its text."""

    width: int
    first: list[float]
    second: list[float]
    last: list[float]
    text: str


Rule = Callable[[Run], float]


def rules(bias: Bias) -> Mapping[str, Rule]:
    """What a width is scored by; the lowest score wins."""
    return {
        "mean entropy at step 2 less the bias": lambda run: mean(run.second) - bias.at(run.width),
        "mean entropy at step 1 less the bias": lambda run: mean(run.first) - bias.at(run.width),
        "mean entropy at step 1": lambda run: mean(run.first),
        "mean entropy at step 2": lambda run: mean(run.second),
        "mean entropy at the end": lambda run: mean(run.last),
        "largest entropy at step 2": lambda run: max(run.second),
        "summed entropy at step 2": lambda run: sum(run.second),
    }


def main() -> None:
    """All rules, and the right width told, on the same gaps."""
    parser = argparse.ArgumentParser(description="Measure rules for choosing the width of a gap.")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--count", type=int, default=200, help="gaps (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="which gaps and which noise (default: 0)")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    engine = load(arguments.model)
    scored = rules(engine.length_bias)
    found: dict[str, list[tuple[bool, bool]]] = {name: [] for name in ("width told", *scored)}
    examples = (one for one in task("infill-python").examples("held_out", arguments.seed) if fits(engine, one))
    for i, example in enumerate(islice(examples, arguments.count)):
        runs, right = every_width(engine, example, arguments.seed + i), len(ids(engine, example.answer))
        chosen = {"width told": runs[right - 1]} | {name: min(runs, key=rule) for name, rule in scored.items()}
        for name, run in chosen.items():
            found[name].append((run.text.strip() == example.answer.strip(), run.width == right))
    name = Path(arguments.model).name
    figures = {rule: {"exact": share(rows, 0), "width": share(rows, 1)} for rule, rows in found.items()}
    summary = [
        (
            f"gap's width by {rule}, {arguments.count} held-out gaps, {name}",
            f"exact {told(rows, 0)}, width {told(rows, 1)}",
        )
        for rule, rows in found.items()
    ]
    workload = {"model": name, "count": arguments.count, "seed": arguments.seed, "widest": WIDEST}
    write_record(new_record(f"widths-{name}", workload=workload, figures=figures, summary=summary), arguments.record)
    for figure, value in summary:
        print(f"{figure}: {value}")


def every_width(engine: Engine, example: Example, seed: int) -> list[Run]:
    """The gap at every width up to WIDEST."""
    around = Around(tuple(engine.text.encode(example.prompt, bos=True)), tuple(ids(engine, example.suffix or "")))
    told: list[list[Event]] = []
    first: int | None = None
    for width in range(1, WIDEST + 1):
        told.append([])
        request = around.request(width, Options(seed=seed), engine)
        number = engine.loop.submit(request, told[-1].append, drafts=True, behind=first)
        first = number if first is None else first
    engine.loop.drain()
    return [run_of(engine, width, events) for width, events in enumerate(told, start=1)]


def run_of(engine: Engine, width: int, events: list[Event]) -> Run:
    """What a finished canvas's events say of its gap."""
    drafts = [event.entropy[:width] for event in events if isinstance(event, Draft)]
    block = next(event for event in events if isinstance(event, Block))
    text = engine.text.decode(block.tokens[:width])
    return Run(width, drafts[0], drafts[1], block.entropy[:width], text)


def fits(engine: Engine, example: Example) -> bool:
    """Whether the right width is among those tried."""
    return 1 <= len(ids(engine, example.answer)) <= WIDEST


def ids(engine: Engine, text: str) -> list[int]:
    """Tokens of a text."""
    return engine.text.encode(text, bos=False)


def share(rows: list[tuple[bool, bool]], column: int) -> dict[str, float]:
    """The share of rows where a column is true, with its interval at 95%."""
    right = sum(row[column] for row in rows)
    low, high = wilson(right, len(rows))
    return {"share": right / len(rows), "low": low, "high": high}


def told(rows: list[tuple[bool, bool]], column: int) -> str:
    """A share in words."""
    found = share(rows, column)
    return f"{found['share']:.1%} ({found['low']:.1%} to {found['high']:.1%})"


if __name__ == "__main__":
    main()
