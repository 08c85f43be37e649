"""README's tables: speed beside transformers and accuracy beside the causal mode, each read out of its records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redraft.measure.record import Record, read_record

SCENARIOS = ("one", "together", "poisson", "variants", "long", "long-4k")
SIDES = {
    "eval-nano": "canvas, the reference's rules",
    "eval-nano-fast": "canvas, preset `fast`",
    "eval-nano-causal": "causal, a token a forward",
}


def speed(root: Path) -> str:
    """A row for each scenario of `redraft bench --scenario`: ours by two presets beside transformers."""
    rows = [
        "| CPU, one thread, float32 | transformers | ours, its rules | ours, `fast` | 95% within, ms | exact, % |",
        "|---|---|---|---|---|---|",
    ]
    records = {name: read_record(root / "benchmarks" / f"throughput-{name}.json") for name in SCENARIOS}
    return "\n".join([*rows, *map(_scenario, records.values()), "", _footing(records["one"])])


def accuracy(root: Path) -> str:
    """A row for each task of `redraft eval`: the reference's rules, `fast`, the causal mode of the same weights."""
    found = [read_record(root / "benchmarks" / f"{name}.json").figures for name in SIDES]
    links = [f"[{what}](benchmarks/{name}.json)" for name, what in SIDES.items()]
    rows = [f"| exact answers (forwards for one) | {' | '.join(links)} |", "|---|---|---|---|"]
    for task in dict.fromkeys(task for side in found for task in side):
        rows.append(f"| {task} | {' | '.join(_share(side.get(task)) for side in found)} |")
    return "\n".join(rows)


def _scenario(record: Record) -> str:
    sides = [record.figures[side] for side in ("transformers", "ours", "ours_fast")]
    unit, ratios = record.figures["ratio_of"], record.figures["ratio_median"]
    speeds = [f"{side[unit]:,.0f}" if side[unit] >= 100 else f"{side[unit]:.3g}" for side in sides]
    within = " / ".join(f"{side['latency_ms']['p95']:.0f}" for side in sides)
    exact = [side["exact"] for side in sides]
    right = " / ".join(f"{one['share'] * 100:.0f}" for one in exact) if all(exact) else "random weights"
    what = {"tokens_per_sec": "tokens/s", "requests_per_sec": "requests/s"}[unit]
    about = f"[{record.workload['scenario']}](benchmarks/{record.name}.json), {what}"
    ours, fast = (f"{speed}, **{ratios[who]:.1f}x**" for speed, who in zip(speeds[1:], ratios, strict=True))
    return f"| {about} | {speeds[0]} | {ours} | {fast} | {within} | {right} |"


def _footing(one: Record) -> str:
    peak = one.figures["peak_mib"]
    return (
        f"Medians of paired runs in one process on the same checkpoint and prompts, {one.machine['processor']}, "
        f"beside transformers {one.workload['transformers']}. Three numbers: transformers, its rules, `fast`. By its "
        "rules both sides denoise 256 rows a step and are bound by the same matmuls; `fast` takes the canvas that the "
        "answer may need and no step to confirm a certain one. Peak memory, one at a time: "
        f"{peak['ours']:.0f} MiB, transformers {peak['transformers']:.0f}."
    )


def _share(found: dict[str, Any] | None) -> str:
    if found is None:
        return "not measured"
    half = (found["high"] - found["low"]) / 2
    return f"{found['exact']:.1%} ± {half * 100:.1f} ({found['mean_steps']:.1f})"
