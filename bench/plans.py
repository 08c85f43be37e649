"""Number formats beside each other on one checkpoint: size, error of the logits, accuracy, time of a step.

    python bench/plans.py --count 100 --record bench/records/plans-nano-sudoku.json

All models are in memory at once and take turns, so that a drifting machine hurts all of them. Accuracy is that of the
same examples with the same seeds; the models differ in nothing but their plan.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from command import arguments, finish
from redraft import load
from redraft.cli.common import progress
from redraft.config import ModelConfig
from redraft.engine.request import Options
from redraft.errors import WeightsError
from redraft.measure.device import filled_prefix, random_weights, step_of
from redraft.measure.evals import evaluate
from redraft.measure.record import Progress, Record, new_record, silent
from redraft.measure.scenario import TASKS
from redraft.model.fused import fuse_layers
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import FAST
from redraft.model.packed import INT8
from redraft.operations.engine import Engine
from redraft.shapes import Tensor
from redraft.tasks import task
from redraft.weights.memory import footprint
from redraft.weights.plan import PLANS, formats
from redraft.weights.source import locate

STEPS = 200
REFERENCE = Options(preset="reference")
WIDER = (2, 4)
"""Widths, as multiples of the checkpoint's, at which int8 is timed beside float32 on random numbers."""

_CPU = torch.device("cpu")


def bench_plans(
    folder: Path,
    *,
    count: int,
    dtype: str = "float32",
    plans: Sequence[str] = tuple(PLANS),
    steps: int = STEPS,
    progress: Progress = silent,
) -> Record:
    """Plans that fit the checkpoint beside none, on `count` examples of each task of the embedded model."""
    engines: dict[str, Engine] = {"none": load(folder, device="cpu", dtype=dtype)}
    for name in plans:
        try:
            engines[name] = load(folder, device="cpu", dtype=dtype, plan=name)
        except WeightsError:  # its groups do not divide this model's rows
            continue
    times = _steps({name: engine.model for name, engine in engines.items()}, steps)
    exact = _logits(engines["none"].model)
    figures: dict[str, Any] = {}
    for number, (name, engine) in enumerate(engines.items(), start=1):
        got = _logits(engine.model)
        packed = {} if name == "none" else formats(engine.config.model, PLANS[name])
        figures[name] = {
            "bytes": footprint(engine.config.model, torch.float32, packed).fixed,
            "logit_error": float((got - exact).norm() / exact.norm()),
            "step_ms": 1e3 * median(times[name]),
            "exact": {one: evaluate(engine, task(one), count, options=REFERENCE).exact for one in TASKS},
        }
        progress("plan", number, len(engines))
    summary = [(f"{folder.name} with {_said(name)}", _sentence(figures[name], count)) for name in engines]
    for factor in WIDER:
        found = _wider(engines["none"].config.model, factor, steps)
        figures[f"{factor} times as wide"] = found
        what = f"a step of a model of random numbers, {factor} times as wide as {folder.name}"
        summary.append((what, f"{found['float32']:.2f} ms in float32, {found['int8']:.2f} ms in int8"))
    workload = {"examples": count, "tasks": list(TASKS), "dtype": dtype, "steps_timed": steps}
    return new_record(f"plans-{folder.name}", workload=workload, figures=figures, summary=summary)


def _widened(config: ModelConfig, factor: int) -> ModelConfig:
    """The same shape, so many times as wide."""
    return replace(
        config,
        hidden_size=factor * config.hidden_size,
        intermediate_size=factor * config.intermediate_size,
        moe_intermediate_size=factor * config.moe_intermediate_size,
    )


def _wider(config: ModelConfig, factor: int, steps: int) -> dict[str, float]:
    """Milliseconds of a step of a wider model of random numbers, in float32 and in int8."""
    wide = _widened(config, factor)
    forms = {"float32": None, "int8": INT8}
    models = {
        name: fuse_layers(random_weights(wide, torch.float32, _CPU, {}, FAST), form) for name, form in forms.items()
    }
    return {name: 1e3 * median(found) for name, found in _steps(models, max(1, steps // 4)).items()}


def _steps(models: dict[str, DiffusionGemma], runs: int) -> dict[str, list[float]]:
    """Seconds of denoising steps behind 64 tokens, the models in turns."""
    steps = {name: step_of(model, 1, min(64, model.config.max_positions // 2)) for name, model in models.items()}
    found: dict[str, list[float]] = {name: [] for name in models}
    with torch.inference_mode():
        for number in range(runs + 2):
            for name, step in steps.items():
                start = time.perf_counter()
                step()
                if number >= 2:
                    found[name].append(time.perf_counter() - start)
    return found


def _logits(model: DiffusionGemma) -> Tensor:
    """Of one canvas behind one prefix, the same for every model of a shape."""
    torch.manual_seed(0)
    prefix = filled_prefix(model, 16)
    tokens = torch.arange(model.config.canvas_length) % model.config.vocab_size
    with torch.inference_mode():
        return model.denoise(tokens, None, prefix)


def _said(name: str) -> str:
    return "no plan" if name == "none" else f"plan {name}"


def _sentence(found: dict[str, Any], count: int) -> str:
    exact = ", ".join(f"{one} {share:.1%}" for one, share in found["exact"].items())
    return (
        f"{found['bytes'] / 1e6:.2f} MB, logits off by {found['logit_error']:.1%}, {exact} of {count} exact,"
        f" {found['step_ms']:.2f} ms a step"
    )


def main() -> None:
    """One record."""
    asked = arguments(__doc__ or "", count=100)
    record = bench_plans(locate(asked.model), count=asked.count, progress=progress)
    finish(record, asked.record)


if __name__ == "__main__":
    main()
