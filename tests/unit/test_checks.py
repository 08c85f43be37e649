"""Commands that judge an answer are strangers: however much they say and whatever they leave behind, they end."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest

from redraft.constraints import checks
from redraft.constraints.checks import command_check
from redraft.constraints.validation import Problem
from redraft.errors import RunError

LONG = 120.0
"""Seconds that no test waits for."""


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def comes_to_an_end(pid: int) -> bool:
    """A killed process may take a moment."""
    until = time.monotonic() + 60
    while is_running(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not is_running(pid)


def test_of_a_flood_only_the_head_is_kept() -> None:
    """16 MiB on each stream, and the complaint is at the top of the second."""
    flood = (
        "import sys\nsys.stderr.write('line 2: bad\\n')\n"
        "for _ in range(256): sys.stdout.write('y\\n' * 32768); sys.stderr.write('z\\n' * 32768)\nsys.exit(1)"
    )
    tracemalloc.start()
    problems = command_check([sys.executable, "-c", flood], LONG)("a\nbc")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert problems == [Problem("line 2: bad", (2, 4))]
    assert peak < 16 * checks.MOST_KEPT


@pytest.mark.parametrize(
    "script",
    ["yes", "yes >&2", "trap '' TERM INT HUP; while :; do sleep 1; done", "sleep 1000", "exec >&- 2>&-; sleep 1000"],
)
def test_a_command_that_never_ends_is_ended_with_all_that_it_started(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock jumps once both processes are there, so no machine is too slow for this."""
    reported, looks = tmp_path / "pids", itertools.count()

    def monotonic() -> float:
        return 1e9 if next(looks) and reported.exists() and reported.read_text().endswith("\n") else 0.0

    monkeypatch.setattr(checks, "time", SimpleNamespace(monotonic=monotonic))
    both = f"sleep 1000 & echo $$ $! > {reported}; {script}"
    with pytest.raises(RunError, match="the check 'sh' took over 5 seconds"):
        command_check(["sh", "-c", both], 5.0)("a")
    assert all(comes_to_an_end(int(pid)) for pid in reported.read_text().split())


@pytest.mark.parametrize("mac", [False, True])
def test_a_child_that_holds_the_pipes_is_not_waited_for(
    mac: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python has no os.waitid on macOS before 3.13, and every check there ended in an AttributeError."""
    if mac:
        monkeypatch.delattr(os, "waitid")
    reported = tmp_path / "pid"
    script = f"echo wrong >&2; sleep 1000 & echo $! > {reported}; exit 3"
    assert command_check(["sh", "-c", script], LONG)("a") == [Problem("wrong")]
    assert comes_to_an_end(int(reported.read_text()))
    script = f"yes >&2 & echo $! > {reported}; exit 0"
    assert command_check(["sh", "-c", script], LONG)("a") == []
    assert comes_to_an_end(int(reported.read_text()))


def test_a_check_that_crashes_is_no_complaint_about_the_text() -> None:
    with pytest.raises(RunError, match="the check 'sh' was ended by signal 9; correct it"):
        command_check(["sh", "-c", "kill -9 $$"], LONG)("a")


def test_who_leaves_while_a_command_runs_leaves_nothing_running(tmp_path: Path) -> None:
    """Checks run beside the main thread, which an interrupt ends."""
    reported = tmp_path / "pid"
    leaver = f"""
import pathlib, sys, threading, time
from redraft.constraints.checks import command_check
check = command_check(["sh", "-c", "echo $$ > {reported}; exec sleep 1000"], 1000)
threading.Thread(target=check, args=["a"], daemon=True).start()
while not (pathlib.Path({str(reported)!r}).exists() and pathlib.Path({str(reported)!r}).read_text().endswith("\\n")):
    time.sleep(0.01)
raise KeyboardInterrupt
"""
    done = subprocess.run([sys.executable, "-c", leaver], capture_output=True, timeout=LONG, check=False)
    assert b"KeyboardInterrupt" in done.stderr
    assert comes_to_an_end(int(reported.read_text()))


@pytest.mark.parametrize("said", ["line " + "9" * 5000 + ": no", "/" + "0/" * 3000 + "0: no", "/" * 5000 + ": no"])
def test_places_that_are_nowhere_are_no_places(said: str) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit(sys.stdin.read() and sys.argv[1])", said]
    for text in ("[" * 3000 + "]" * 3000, "[]", "no JSON"):
        assert command_check(command, LONG)(text) == [Problem(said[:300])]
