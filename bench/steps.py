"""Times replayed steps of the 26B model on a GPU, and each of their kernels.

    python bench/steps.py --record steps-26b.json [--plans none,fp8,int4,nvfp4] [--canvases 1,8]

Weights are random. So rows go to other experts than a text's would: the share of a layer's experts that they touch is
written beside the time, as a canvas behind 64 tokens had it, and the floor is that of so many. What a kernel takes is
the profiler's; the rest of a step's time lies between kernels.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from redraft.config import read_config
from redraft.measure.device import USUAL, graphed_step_of, random_weights, time_runs, touched_share
from redraft.measure.record import check_place, new_record, write_record
from redraft.measure.roofline import step_work
from redraft.weights.defaults import kernels_of
from redraft.weights.plan import find_plan, formats, packed_matrices

SHAPE = Path(__file__).resolve().parents[1] / "recipes/shapes/26b"
DEVICE = torch.device("cuda")
LONGEST = 100
"""Characters of a kernel's name."""


def main() -> None:
    """Every plan, one record, written as it grows."""
    parser = argparse.ArgumentParser(description="Time replayed steps, and each of their kernels.")
    parser.add_argument("--plans", default="none,fp8,int4,nvfp4", help="none for bfloat16 (default: %(default)s)")
    parser.add_argument("--canvases", default="1,8", help="canvases of a step (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--record", type=Path, required=True, metavar="FILE")
    given = parser.parse_args()
    check_place(given.record)
    counts = [int(one) for one in given.canvases.split(",")]
    workload = {"model": SHAPE.name, "dtype": "bfloat16", "prefix": USUAL, "runs": given.runs, "canvases": counts}
    figures: dict[str, Any] = {}
    for plan in given.plans.split(","):
        figures[plan] = timed(plan, counts, given.runs)
        summary = [claim(name, count, row) for name, found in figures.items() for count, row in found["steps"].items()]
        write_record(new_record("steps-26b", workload=workload, figures=figures, summary=summary), given.record)
        print(*(f"{what}: {value}" for what, value in summary[-len(counts) :]), sep="\n", flush=True)


def timed(name: str, counts: list[int], runs: int) -> dict[str, Any]:
    """A plan's steps, by canvases."""
    plan, config = None if name == "none" else find_plan(name), read_config(SHAPE).model
    model = random_weights(config, torch.bfloat16, DEVICE, formats(config, plan), kernels_of(DEVICE))
    packed = {matrix: held.format for matrix, held in packed_matrices(model).items()}
    touched, steps = touched_share(model), {}
    for count in counts:
        step = graphed_step_of(model, count, USUAL)
        seconds = time_runs(step, DEVICE, runs)
        work = step_work(config, torch.bfloat16, packed, canvases=count, prefix=USUAL, touched=touched)
        steps[str(count)] = {
            "ms": 1e3 * median(seconds),
            "runs_ms": [1e3 * one for one in seconds],
            "bytes": work.num_bytes,
            "flops": work.flops,
            "kernels": by_kernel(step),
        }
        del step
        torch.cuda.empty_cache()
    return {"experts_touched": touched, "steps": steps}


def by_kernel(step: Callable[[], object]) -> list[tuple[str, int, float]]:
    """Name, launches and microseconds of each kernel, the longest first."""
    rows: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    with torch.inference_mode(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    for event in found.events() or []:
        if str(event.device_type).endswith("CUDA"):
            row = rows[event.name[:LONGEST]]
            row[0], row[1] = row[0] + 1, row[1] + event.time_range.elapsed_us()
    kernels = [(name, int(count), round(spent, 1)) for name, (count, spent) in rows.items()]
    return sorted(kernels, key=lambda kernel: -kernel[2])


def claim(plan: str, count: str, row: dict[str, Any]) -> tuple[str, str]:
    """What may be quoted of a step."""
    busy = sum(spent for _, _, spent in row["kernels"]) / 1e3
    what = f"a replayed step of {count} canvas{'es' * (count != '1')} in {plan if plan != 'none' else 'bfloat16'}"
    return what, f"{row['ms']:.1f} ms, {busy:.1f} of them in kernels"


if __name__ == "__main__":
    main()
