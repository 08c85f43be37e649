"""How long a forward takes by its rows, and from how many rows more do not pay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from timeit import timeit

import torch

from redraft.cache import Prefix
from redraft.measure.record import Progress, Record, new_record, silent
from redraft.model.gemma import DiffusionGemma
from redraft.model.rows import Mode, Span
from redraft.operations.engine import Engine

CANVASES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
BEHIND = 64
"""Prefix tokens of each canvas."""
NEAR = 0.9


def bench_knee(
    folder: Path, *, runs: int, dtype: str = "float32", plan: str | None = None, progress: Progress = silent
) -> Record:
    """Time of a forward by its rows, all sizes in turn `runs` times, and where more rows stop paying."""
    model = Engine.load(folder, device="cpu", dtype=dtype, plan=plan).model  # as an engine runs it
    width = model.config.canvas_length
    forwards = {canvases * width: _forward_of(model, canvases) for canvases in CANVASES}
    times: dict[int, list[float]] = {rows: [] for rows in forwards}
    with torch.inference_mode():
        for i in range(runs + 1):
            progress("round", i, runs)
            for rows, forward in forwards.items():
                times[rows].append(timeit(forward, number=1))
    speed = {rows: rows / median(found[1:]) for rows, found in times.items()}
    at = knee(speed)
    table = [
        {"rows": rows, "ms": round(1e3 * rows / found, 4), "rows_per_sec": round(found, 1)}
        for rows, found in speed.items()
    ]
    claim = f"Rows per forward from which {folder.name} gets {NEAR:.0%} of its best rows per second, CPU"
    return new_record(
        "knee",
        workload={
            "model": folder.name,
            "dtype": dtype,
            "plan": plan,
            "runs": runs,
            "forward": f"canvases of {width} rows, each behind {BEHIND} tokens, with logits, without sampling",
        },
        figures={"by_rows": table, "knee_rows": at, "near": NEAR},
        summary=[(claim, f"{at} rows, {speed[at]:.0f} of {max(speed.values()):.0f} rows per second")],
    )


def knee(speed: dict[int, float]) -> int:
    """The fewest rows whose speed is within a tenth of the best."""
    best = max(speed.values())
    return min(rows for rows, found in speed.items() if found >= NEAR * best)


@torch.inference_mode()
def _forward_of(model: DiffusionGemma, canvases: int) -> Callable[[], object]:
    """A forward over so many canvases, each behind a prefix of its own."""
    width, vocab = model.config.canvas_length, model.config.vocab_size
    draw = torch.Generator().manual_seed(0)
    prefixes = [Prefix(model.config.layers, dtype=model.dtype, device=model.device) for _ in range(canvases)]
    for prefix in prefixes:
        model.encode(torch.randint(vocab, (BEHIND,), generator=draw), prefix)
    rows = model.rows([Span(prefix, width, Mode.DENOISE) for prefix in prefixes])
    tokens = torch.randint(vocab, (canvases * width,), generator=draw)
    soft = torch.randn(canvases * width, model.config.hidden_size, generator=draw).to(model.dtype)
    return lambda: model.logits(model(tokens, soft, rows))
