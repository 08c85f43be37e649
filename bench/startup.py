"""Measures how long a stranger waits: for `redraft --help`, for an answer's first step, for `make demo` from nothing.

    python bench/startup.py --record bench/records/startup.json [--runs 10]

Processes are started one after another and timed from outside, medians are reported. `make demo` runs in a fresh clone
of this repository with an empty virtual environment and without pip's cache, so its time holds what the network gives.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from redraft.errors import RedraftError, RunError
from redraft.measure.record import Record, check_place, new_record, write_record

ROOT = Path(__file__).resolve().parent.parent
REDRAFT = [sys.executable, "-m", "redraft"]
PROMPT = "record\nSend 417 melu to Karomi."


def main() -> int:
    """Measure, record, print."""
    parser = argparse.ArgumentParser(description="Measure start-up and set-up times.")
    parser.add_argument("--runs", type=int, default=10, metavar="N", help="processes of each kind (default: 10)")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE", help="write the record to this file")
    arguments = parser.parse_args()
    try:
        check_place(arguments.record)
        found = measure(max(1, arguments.runs))
        write_record(found, arguments.record)
    except RedraftError as error:
        print(f"startup: {error}", file=sys.stderr)
        return error.exit_code
    print(found)
    return 0


def measure(runs: int) -> Record:
    """The record of all three."""
    helped = times("redraft --help", runs, help_sec)
    ready = times("first step", runs, first_step_sec)
    setup, demo = setup_sec()
    return new_record(
        "startup",
        workload={
            "runs": runs,
            "help": "a process from its start to its end",
            "ready": "generate on nano-sudoku, from the start of the process to the first step on the screen",
            "load_average": round(os.getloadavg()[0], 1),
            "setup": "make in a fresh clone: virtual environment and packages, without pip's cache; then make demo",
        },
        figures={
            "help_sec": [round(one, 4) for one in helped],
            "ready_sec": [round(one, 4) for one in ready],
            "setup_sec": round(setup, 1),
            "demo_sec": round(demo, 1),
        },
        summary=[
            ("`redraft --help`", f"{median(helped):.2f} s"),
            (
                "`redraft generate` on nano-sudoku, from the start of the process to its first step",
                f"{median(ready):.1f} s",
            ),
            ("`make demo` from nothing: set-up, then the demo", f"{setup:.0f} s, then {demo:.0f} s"),
        ],
    )


def times(what: str, runs: int, one: Callable[[], float]) -> list[float]:
    """Seconds of each run behind one that is not counted, which fills the file cache."""
    found = []
    for i in range(runs + 1):
        print(f"{what} {i}/{runs}", file=sys.stderr)
        found.append(one())
    return found[1:]


def help_sec() -> float:
    """Seconds that `redraft --help` takes."""
    began = time.perf_counter()
    subprocess.run([*REDRAFT, "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def first_step_sec() -> float:
    """Seconds until the first step of an answer is shown: loading, encoding the prompt and that step among them."""
    began = time.perf_counter()
    with subprocess.Popen(
        [*REDRAFT, "generate", PROMPT, "--model", "nano-sudoku", "--chat", "--watch", "--seed", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        seconds = time.perf_counter() - began
        process.stderr.read()
    if not line.startswith("block 0  step  1"):
        raise RunError(f"redraft generate began with {line!r} and not with its first step")
    return seconds


def setup_sec() -> tuple[float, float]:
    """Seconds of the set-up in a fresh clone, and of the demo behind it."""
    with tempfile.TemporaryDirectory(prefix="redraft-startup-") as folder:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
        return made(folder, ".venv/base.stamp"), made(folder, "demo")


def made(folder: str, target: str) -> float:
    """Seconds that `make TARGET` takes there. Raises RunError if it fails."""
    print(f"make {target}", file=sys.stderr)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    began = time.perf_counter()
    done = subprocess.run(
        ["make", target], cwd=folder, env=environment | {"PIP_NO_CACHE_DIR": "1"}, capture_output=True, text=True
    )
    if done.returncode:
        raise RunError(f"make {target} failed: {(done.stderr.splitlines() or ['without a word'])[-1]}")
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
