"""The fastest product of matrices on one core of this machine, in float32 and bfloat16.

    python bench/matmul_peak.py --record bench/records/matmul-peak.json

Each product takes about a millisecond and is repeated for seconds; the fastest one is what the core does undisturbed,
whatever runs beside it. A step of a large model takes far longer than that and gets less.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from redraft.measure.record import check_place, new_record, write_record

SHAPES = ((256, 704, 704), (512, 512, 512), (256, 1024, 1024), (256, 2816, 704))
"""Rows, inner and outer; among them widths of the 26B model's experts."""


def main() -> None:
    """Measure, tell, write."""
    parser = argparse.ArgumentParser(description="The fastest product of matrices on one core.")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each shape (default: %(default)s)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write a record")
    arguments = parser.parse_args()
    if arguments.record:
        check_place(arguments.record)
    torch.set_num_threads(1)
    found = {
        name: {"x".join(map(str, shape)): fastest(dtype, *shape, arguments.seconds) / 1e9 for shape in SHAPES}
        for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16))
    }
    summary = [
        (f"one core, the fastest product in {name}", f"{max(of.values()):.0f} GFLOP/s") for name, of in found.items()
    ]
    print("\n".join(f"{figure}: {value}" for figure, value in summary))
    if arguments.record:
        workload = {"shapes": [list(shape) for shape in SHAPES], "seconds": arguments.seconds}
        record = new_record("matmul-peak", workload=workload, figures={"gflops": found}, summary=summary)
        write_record(record, arguments.record)


def fastest(dtype: torch.dtype, rows: int, inner: int, outer: int, seconds: float) -> float:
    """Operations per second of the fastest of many products."""
    x, weight = torch.randn(rows, inner).to(dtype), torch.randn(outer, inner).to(dtype)
    least, end = float("inf"), time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        torch.nn.functional.linear(x, weight)
        least = min(least, time.perf_counter() - began)
    return 2 * rows * inner * outer / least


if __name__ == "__main__":
    main()
