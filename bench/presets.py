"""The presets beside each other, on canvases narrower than the answers, where a plan for what follows a canvas counts.

    python bench/presets.py --count 200 --record bench/records/presets-nano-sudoku.json

Each held-out example is answered under every preset and canvas with the same seed, one request at a time, in an order
that turns round, so that a drifting machine hurts all alike. Tasks are those of the dial that the checkpoint knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from command import arguments, finish
from redraft import load
from redraft.cli.common import progress
from redraft.diffusion.presets import PRESETS
from redraft.engine.request import Generation, Options, Request
from redraft.errors import RequestError
from redraft.measure.dial import TaskExamples, candidates, known_tasks
from redraft.measure.evals import share_of
from redraft.measure.record import Progress, Record, new_record, silent
from redraft.operations.engine import Engine
from redraft.weights.source import locate

CANVASES = (None, 16, 32, 64)
"""None is the preset's own choice."""


@dataclass
class PresetResult:
    """What one preset did on one canvas, answer by answer."""

    preset: str
    canvas: int | None
    done: list[Generation] = field(default_factory=list)
    exact: list[bool] = field(default_factory=list)

    def options(self, seed: int, max_tokens: int | None) -> Options:
        """Of one answer."""
        return Options(preset=self.preset, canvas=self.canvas, seed=seed, max_tokens=max_tokens)

    def figures(self, base: Sequence[bool]) -> dict[str, Any]:
        """Averages over answers; `base` is what the reference had right on the same canvas."""
        count = len(self.exact)
        tokens = sum(len(one.tokens) for one in self.done)
        steps = sum(sum(one.steps) for one in self.done)
        commits = sum(one.commits for one in self.done)
        return {
            "preset": self.preset,
            "canvas": self.canvas,
            **share_of(sum(self.exact), count, "exact"),
            "gained": sum(new and not old for new, old in zip(self.exact, base, strict=True)),
            "lost": sum(old and not new for new, old in zip(self.exact, base, strict=True)),
            "tokens": round(tokens / count, 2),
            "blocks": round(sum(len(one.steps) for one in self.done) / count, 3),
            "forwards": round(steps / count, 3),
            "tokens_per_forward": round(tokens / max(1, steps), 3),
            "tokens_per_pass": round(tokens / max(1, steps + commits), 3),
            "first_text_ms": round(1e3 * median([one.first_text_sec for one in self.done]), 3),
            "latency_ms": round(1e3 * median([one.seconds for one in self.done]), 3),
        }


def bench_presets(folder: Path, engine: Engine, *, count: int, progress: Progress = silent) -> Record:
    """Measure every preset with the engine of a folder. Raises RequestError if the model knows none of the tasks."""
    sheets = known_tasks(engine, candidates(engine.config.generation)[0], count)
    if not sheets:
        raise RequestError(f"{folder} answers none of the built-in tasks; there is nothing to compare presets on")
    found = {}
    for sheet in sheets:
        columns = _answer(engine, sheet, progress)
        base = {column.canvas: column.exact for column in columns if column.preset == "reference"}
        found[sheet.task.name] = [column.figures(base[column.canvas]) for column in columns]
    return _record(folder.name, str(engine.model.dtype).removeprefix("torch."), count, found)


def _answer(engine: Engine, sheet: TaskExamples, progress: Progress) -> list[PresetResult]:
    widths = [canvas for canvas in CANVASES if canvas is None or canvas < engine.config.model.canvas_length]
    columns = [PresetResult(preset, canvas) for canvas in widths for preset in PRESETS]
    for seed, example in enumerate(sheet.examples):
        progress(sheet.task.name, seed, len(sheet.examples))
        for column in columns if seed % 2 else reversed(columns):
            options = column.options(seed, sheet.max_tokens)
            done = engine.run(engine.resolve(Request(example.prompt, chat=True, options=options)))
            column.done.append(done)
            column.exact.append(sheet.task.score(example, done.text).exact)
    progress(sheet.task.name, len(sheet.examples), len(sheet.examples))
    return columns


def _record(name: str, dtype: str, count: int, found: dict[str, list[dict[str, Any]]]) -> Record:
    return new_record(
        f"presets-{name}",
        workload={
            "model": name,
            "dtype": dtype,
            "examples_per_task": count,
            "requests": "one at a time, the same examples and seeds for all",
            "canvas": "null is the preset's own choice",
            "gained, lost": "against the preset reference on the same canvas",
        },
        figures=found,
        summary=[
            (
                f"Tokens per pass and time to first text of {name} on {task} in several canvases of {one['canvas']}, "
                f"preset {one['preset']}",
                f"{one['tokens_per_pass']:.2f}, {one['first_text_ms']:.1f} ms, {one['exact']:.1%} exact",
            )
            for task, rows in found.items()
            for one in rows
            if one["canvas"] is not None and one["blocks"] > 1.5
        ],
    )


def main() -> None:
    """One record."""
    asked = arguments(__doc__ or "", count=100)
    record = bench_presets(locate(asked.model), load(asked.model), count=asked.count, progress=progress)
    finish(record, asked.record)


if __name__ == "__main__":
    main()
