"""Sudoku by number of givens and by denoising steps, beside pinned clues and the causal mode of the same weights.

    python bench/sudoku.py --size 6 --count 300 --model nano-sudoku --record bench/records/sudoku-6x6.json

Every way of answering gets the same held-out puzzles with the same seeds, on the narrowest canvas that holds a grid.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import torch

from redraft import load
from redraft.engine.request import Options
from redraft.measure.evals import Trial, attempt, pinned, said, share_of
from redraft.measure.record import new_record, write_record
from redraft.operations.engine import Engine
from redraft.tasks import Example, Sudoku
from redraft.tasks.grids import BOXES

CAPS = (1, 2, 4, 8, 16, 32)


def main() -> None:
    """Print two tables; write a record."""
    parser = argparse.ArgumentParser(description="Sudoku by givens and by denoising steps.")
    parser.add_argument("--model", default="nano-sudoku")
    parser.add_argument("--size", type=int, default=6, choices=tuple(BOXES))
    parser.add_argument("--count", type=int, default=300, help="puzzles (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="which puzzles and which noise (default: 0)")
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default: 1)")
    parser.add_argument("--record", type=Path, help="also write a benchmark record to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    engine, task = load(arguments.model), Sudoku(arguments.size)
    examples = list(islice(task.examples("held_out", arguments.seed), arguments.count))
    ways = answers(engine, task, examples, arguments.seed)
    by_cap = {label: row([trial for _, trial in pairs]) for label, pairs in ways.items()}
    by_givens = {label: banded(ways[label]) for label in (f"{CAPS[-1]} steps", "pinned", "causal")}
    for title, table in (("steps", by_cap), *((label, bands) for label, bands in by_givens.items())):
        print(f"\n{title}")
        for label, figures in table.items():
            print(f"  {label:12} {told(figures)}")
    if arguments.record:
        name = Path(arguments.model).name
        title = f"{arguments.size}x{arguments.size} Sudoku, {arguments.count} held-out puzzles, {name}"
        record = new_record(
            f"sudoku-{arguments.size}x{arguments.size}",
            workload={"model": name, "size": arguments.size, "count": arguments.count, "seed": arguments.seed},
            figures={"ways": by_cap, "givens": by_givens},
            summary=[(f"{title}: {label}", told(figures)) for label, figures in by_cap.items()]
            + [
                (f"{title}: {label}, {band} givens", told(figures))
                for label, bands in by_givens.items()
                for band, figures in bands.items()
            ],
        )
        write_record(record, arguments.record)


def answers(engine: Engine, task: Sudoku, examples: list[Example], seed: int) -> dict[str, list[tuple[Example, Trial]]]:
    """Every way of answering by its name: step caps, clues pinned, one token after another."""
    width = -(-(task.size * (task.size + 1)) // 16) * 16
    canvas = Options(preset="reference", canvas=width, max_tokens=width)

    def run(options: Options, pin: bool = False) -> list[tuple[Example, Trial]]:
        found = []
        for i, example in enumerate(examples):
            wanted = replace(options, seed_canvas=pinned(engine, task, example)) if pin else options
            found.append((example, attempt(engine, task, example, replace(wanted, seed=seed + i))))
        return found

    found = {f"{cap} steps": run(replace(canvas, steps=cap)) for cap in CAPS}
    found["pinned"] = run(replace(canvas, steps=CAPS[-1]), pin=True)
    found["causal"] = run(Options(causal=True, max_tokens=width))
    return found


def banded(pairs: list[tuple[Example, Trial]]) -> dict[str, dict[str, float]]:
    """The same in thirds of the number of givens."""
    counts = [len(example.given) for example, _ in pairs]
    low, high = min(counts), max(counts)
    edges = [low, low + (high - low + 1) // 3, low + 2 * (high - low + 1) // 3, high + 1]
    bands = {}
    for start, end in pairwise(edges):
        chosen = [trial for (_, trial), count in zip(pairs, counts, strict=True) if start <= count < end]
        bands[f"{start}-{end - 1}"] = row(chosen)
    return bands


def row(trials: list[Trial]) -> dict[str, float]:
    """Exact share with its interval, clues kept, mean forwards."""
    return {
        "count": len(trials),
        **share_of(sum(trial.score.exact for trial in trials), len(trials), "exact"),
        "clues_kept": sum(trial.score.parts["clues_kept"] for trial in trials) / len(trials),
        "forwards": sum(sum(trial.done.steps) for trial in trials) / len(trials),
    }


def told(figures: Mapping[str, float]) -> str:
    """One line."""
    return f"{said(figures, 'exact')}, clues kept {figures['clues_kept']:.1%}, {figures['forwards']:.1f} forwards"


if __name__ == "__main__":
    main()
