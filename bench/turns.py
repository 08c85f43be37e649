"""Measures further turns: the last question of held-out conversations, asked behind the others and alone.

    python bench/turns.py --count 600 --record bench/records/turns-nano-sudoku.json

The conversations are those of `recipes/turns.py`, two or three questions of the built-in tasks; earlier answers are the
right ones. Both ways take the same seeds and the preset `fast`.
"""

from __future__ import annotations

import argparse
import runpy
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from redraft import load
from redraft.engine.request import Options, Request
from redraft.measure.evals import room, said, share_of
from redraft.measure.record import new_record, write_record
from redraft.tasks import names, task

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("behind", "alone")


def main() -> None:
    """One record."""
    parser = argparse.ArgumentParser(description="Measure the answers to further turns of a conversation.")
    parser.add_argument("--model", default="nano-sudoku", help="a checkpoint (default: nano-sudoku)")
    parser.add_argument("--count", type=int, default=600, help="held-out conversations (default: 600)")
    parser.add_argument("--seed", type=int, default=12000, help="which conversations and which noise (default: 12000)")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = measured(arguments.model, arguments.count, arguments.seed)
    workload = {"model": arguments.model, "conversations": arguments.count, "seed": arguments.seed, "preset": "fast"}
    summary = [(f"{name} of {of['count']} held-out conversations", told(of)) for name, of in figures.items()]
    write_record(
        new_record(arguments.record.stem, workload=workload, figures=figures, summary=summary), arguments.record
    )


def measured(model: str, count: int, seed: int) -> dict[str, Any]:
    """Right answers and forwards by the place of the question, behind others and alone."""
    engine = load(model)
    most = max(room(engine, task(name)) or 0 for name in names("nano-sudoku"))
    rows = runpy.run_path(str(ROOT / "recipes" / "turns.py"))["conversations"]("held_out", seed)
    seen = dict[int, list[dict[str, tuple[bool, int]]]]()
    for i, row in enumerate(islice(rows, count)):
        *asked, answer = row["messages"]
        trial = {}
        for way in WAYS:
            options = Options(preset="fast", seed=seed + i, max_tokens=most, canvas=64)
            done = engine.run(
                engine.resolve(Request(asked if way == "behind" else asked[-1:], chat=True, options=options))
            )
            trial[way] = (done.text == answer["content"], sum(done.steps))
        seen.setdefault(len(row["messages"]) // 2, []).append(trial)
    return {f"question {turn}": {"count": len(trials)} | averages(trials) for turn, trials in sorted(seen.items())}


def averages(trials: list[dict[str, tuple[bool, int]]]) -> dict[str, Any]:
    """The share of right answers and the mean forwards of each way."""
    return {
        way: share_of(sum(trial[way][0] for trial in trials), len(trials), "exact")
        | {"forwards": round(sum(trial[way][1] for trial in trials) / len(trials), 3)}
        for way in WAYS
    }


def told(of: dict[str, Any]) -> str:
    """A line of the summary."""
    return "; ".join(f"{way} {said(of[way], 'exact')} exact, {of[way]['forwards']:.2f} forwards" for way in WAYS)


if __name__ == "__main__":
    main()
