"""Measures how long a stranger waits: for `redraft --help`, for an answer's first step, for `make demo` from nothing,
and for an answer over HTTP from a wheel.

    python bench/startup.py --record bench/records/startup.json [--runs 10]

Processes are started one after another and timed from outside, medians are reported. `make demo` runs in a fresh clone
of this repository with an empty virtual environment and without pip's cache, so its time holds what the network gives.
The wheel is made from the same clone and installed in an empty folder; fetching what it needs is a step of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from redraft.errors import RedraftError, RunError
from redraft.measure.record import Record, check_place, new_record, write_record

ROOT = Path(__file__).resolve().parent.parent
REDRAFT = [sys.executable, "-m", "redraft"]
FETCHED = "fetch"
"""The step that is the network's."""
ENV = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
ENV["PIP_NO_CACHE_DIR"] = "1"
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
    arrival = arrival_sec()
    own = sum(seconds for step, seconds in arrival.items() if step != FETCHED)
    return new_record(
        "startup",
        workload={
            "runs": runs,
            "help": "a process from its start to its end",
            "ready": "generate on nano-sudoku, from the start of the process to the first step on the screen",
            "load_average": round(os.getloadavg()[0], 1),
            "setup": "make in a fresh clone: virtual environment and packages, without pip's cache; then make demo",
            "arrival": "a wheel of the clone; it and what it needs in an empty environment; demo; serve until ready;"
            " the line of curl that serve prints",
        },
        figures={
            "help_sec": [round(one, 4) for one in helped],
            "ready_sec": [round(one, 4) for one in ready],
            "setup_sec": round(setup, 1),
            "demo_sec": round(demo, 1),
            "arrival_sec": {step: round(seconds, 1) for step, seconds in arrival.items()},
        },
        summary=[
            ("`redraft --help`", f"{median(helped):.2f} s"),
            (
                "`redraft generate` on nano-sudoku, from the start of the process to its first step",
                f"{median(ready):.1f} s",
            ),
            ("`make demo` from nothing: set-up, then the demo", f"{setup:.0f} s, then {demo:.0f} s"),
            (
                "wheel, installation, `redraft demo`, `redraft serve` and an answer by curl, in an empty folder",
                f"{own:.0f} s, and {arrival[FETCHED]:.0f} s to fetch the packages",
            ),
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


def arrival_sec() -> Mapping[str, float]:
    """Seconds of each step from an empty folder to an answer over HTTP."""
    with tempfile.TemporaryDirectory(prefix="redraft-arrival-") as name:
        folder = Path(name)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), folder / "clone"], check=True)
        wheel = command_sec(folder, [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", "wheels", "./clone"])
        (built,) = (folder / "wheels").glob("redraft-*.whl")
        pip = ["env/bin/python", "-m", "pip"]
        made = command_sec(folder, [sys.executable, "-m", "venv", "env"])
        fetched = command_sec(folder, [*pip, "download", "-c", "clone/constraints.txt", "-d", "wheels", str(built)])
        put = command_sec(folder, [*pip, "install", "--no-index", "--find-links", "wheels", str(built)])
        demo = command_sec(folder, ["env/bin/redraft", "demo"])
        ready, answered = served_sec(folder)
        return {"wheel": wheel, FETCHED: fetched, "install": made + put, "demo": demo, "serve": ready, "curl": answered}


def served_sec(folder: Path) -> tuple[float, float]:
    """Seconds until a server of that installation is ready, and those of the line of curl that it prints."""
    began = time.perf_counter()
    command = [str(folder / "env/bin/redraft"), "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV) as server:
        assert server.stderr is not None
        line = next((line[line.index("curl ") :] for line in server.stderr if "curl " in line), "false")
        ready = time.perf_counter() - began
        try:
            answered = command_sec(folder, ["bash", "-c", line.replace("curl ", "curl --fail ", 1)])
        finally:
            server.terminate()
    return ready, answered


def made(folder: str, target: str) -> float:
    """Seconds that `make TARGET` takes there. Raises RunError if it fails."""
    return command_sec(Path(folder), ["make", target])


def command_sec(folder: Path, command: Sequence[str]) -> float:
    """Seconds that a command takes there. Raises RunError if it fails."""
    print(*command[:5], file=sys.stderr)
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=ENV, capture_output=True, text=True)
    if done.returncode:
        raise RunError(f"{command[0]} failed: {(done.stderr.splitlines() or ['without a word'])[-1]}")
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
