"""Peak memory: of this process, and of a fresh one that makes one call."""

from __future__ import annotations

import multiprocessing
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import torch


def peak_mib(call: Callable[..., object], *arguments: object) -> float:
    """Peak resident memory of a process of its own that makes this call with as many threads as this one has.

    A process of its own, because one in which several things ran cannot tell which of them needed how much.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (call, arguments, torch.get_num_threads()))


def _measured(call: Callable[..., object], arguments: tuple[object, ...], threads: int) -> float:
    torch.set_num_threads(threads)
    call(*arguments)
    return peak_here_mib()


def peak_here_mib() -> float:
    """Peak resident memory of this process.

    On Linux from /proc: getrusage there starts a child at the peak of the process that started it.
    """
    peak = resident_mib("VmHWM")
    if peak is not None:
        return peak
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)


def resident_mib(which: str = "VmRSS", process: int | str = "self") -> float | None:
    """Resident memory of a process now, or its peak, "VmHWM"; None where the system does not say."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{which}:"))
