"""A benchmark record: what was run, where, and what came out, as one JSON file. Claims come from nowhere else."""

from __future__ import annotations

import datetime
import math
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from redraft.errors import RecordError, RunError
from redraft.files import read_small, write_whole

Progress = Callable[[str, int, int], None]
"""Receives, while a record is taken, what is counted, how many are done, and of how many."""


def silent(_what: str, _done: int, _total: int) -> None:
    """Nobody watches."""


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line that a page may quote: what was measured, and the value with its unit."""

    figure: str
    value: str


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run. `commit` is the code that ran ("dirty" if it had changes); `summary` is what may be quoted of it."""

    name: str
    taken: str
    commit: str
    machine: dict[str, Any]
    workload: dict[str, Any]
    figures: dict[str, Any]
    summary: list[Claim]

    def __str__(self) -> str:
        """A line for each claim."""
        return "\n".join(f"{claim.figure}: {claim.value}" for claim in self.summary)


def new_record(
    name: str, *, workload: Mapping[str, Any], figures: Mapping[str, Any], summary: Sequence[tuple[str, str]]
) -> Record:
    """A record of a run that has just ended on this machine."""
    return Record(
        name=name,
        taken=datetime.datetime.now(datetime.UTC).date().isoformat(),
        commit=_commit(),
        machine=machine(),
        workload=dict(workload),
        figures=dict(figures),
        summary=[Claim(figure, value) for figure, value in summary],
    )


def write_record(record: Record, path: Path) -> None:
    """Write the JSON. Raises as `check_place`, and RunError if the disk refuses."""
    check_place(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path.resolve(), msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    except OSError as error:
        raise RunError(f"the record could not be written to {path}: {error.strerror}") from None


def check_place(path: Path) -> None:
    """Raise RecordError if no record can be written to `path`; to be asked before a measurement, not behind it."""
    if path.is_dir():
        raise RecordError(f"{path} is a folder; give the name of a file for the record")
    if path.exists() and not path.is_file():
        raise RecordError(f"{path} is a pipe or a device; give the name of a file for the record")
    if path.exists() and path.stat().st_size:
        try:
            read_record(path)
        except RecordError:
            raise RecordError(f"{path} holds something that is no record; give another name, or move it away") from None
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise RecordError(f"{path} cannot be written: {above} is not a folder that you may write to; choose another")


def read_record(path: Path) -> Record:
    """Read one. Raises RecordError if it is absent or is not a record."""
    try:
        return msgspec.json.decode(read_small(path), type=Record)
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{path} is not a benchmark record: {error}") from None


def machine() -> dict[str, Any]:
    """What a reader needs to judge a timing: processor, cores, threads, the GPU and its driver, versions."""
    import torch

    found: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_features": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # a class of its own, which msgspec does not write
    }
    if torch.cuda.is_available():
        found |= {"gpu": torch.cuda.get_device_name(0), "driver": "unknown", "cuda": torch.version.cuda}
        found["compute"] = ".".join(map(str, torch.cuda.get_device_capability(0)))
        with suppress(OSError, subprocess.SubprocessError):
            driver = _said(Path.cwd(), "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
            found["driver"] = driver.partition("\n")[0]
        with suppress(ImportError):
            import triton

            found["triton"] = triton.__version__
    return found


def percentiles_ms(seconds: Sequence[float], *shares: int) -> dict[str, float]:
    """Milliseconds that so many percent of the times do not exceed, as "p95"; NaN if there are no times."""
    found = np.percentile(seconds, shares) if seconds else [math.nan] * len(shares)
    return {f"p{share}": round(1e3 * float(one), 2) for share, one in zip(shares, found, strict=True)}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


# What a record, or a measurement kept beside a checkpoint, has just written is not the code that ran.
_CODE = (":/src", ":/bench", ":(top,exclude)bench/records", ":(top,exclude)*/dial.json", ":(top,exclude)*/belief.json")


def _commit() -> str:
    package = Path(__file__).resolve().parents[1]
    try:
        # Installed below somebody else's repository, as in a .venv, the commit to be had is not of this code.
        if Path(_said(package, "git", "rev-parse", "--show-toplevel")) / "src" / "redraft" != package:
            return "unknown"
        commit = _said(package, "git", "rev-parse", "--short=12", "HEAD")
        changes = _said(package, "git", "status", "--porcelain", "--untracked-files=no", "--", *_CODE)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return f"{commit} dirty" if changes else commit


def _said(folder: Path, *words: str) -> str:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
