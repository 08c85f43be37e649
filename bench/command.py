"""What the experiments share: the flags of a run of one model, where its record goes, and a server to ask."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from redraft.errors import RunError
from redraft.measure.record import Record, check_place, write_record


def arguments(about: str, *, count: int) -> argparse.Namespace:
    """Parse the flags and set the number of threads. Exit code 2 for a count below 1, RecordError where no record can
    be written."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano-sudoku", help="a checkpoint (default: nano-sudoku)")
    parser.add_argument("--count", type=int, default=count, metavar="N", help=f"how many (default: {count})")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="processor threads (default: 1)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write the record to this file")
    found = parser.parse_args()
    if found.count < 1:
        parser.error(f"--count is {found.count}; it must be at least 1")
    if found.record is not None:
        check_place(found.record)
    torch.set_num_threads(found.threads)
    return found


def finish(record: Record, place: Path | None) -> None:
    """Write the record where it was asked for, and print it."""
    if place is not None:
        write_record(record, place)
    print(record)


@contextmanager
def served(*words: str, **environment: str) -> Iterator[tuple[str, int]]:
    """`redraft serve` of this tree in a process of its own: its URL and process id. Raises RunError if it fails."""
    source = str(Path(__file__).resolve().parents[1] / "src")
    command = [sys.executable, "-m", "redraft", "serve", "--port", "0", "--quiet", *words]
    variables = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"} | environment
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdout is not None
        try:
            if not (url := process.stdout.readline().strip()).startswith("http://"):
                raise RunError("the server did not start; run `redraft serve` to see why")
            yield url, process.pid
        finally:
            process.terminate()
