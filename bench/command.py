"""What the experiments share: the flags of a run of one model, and where its record goes."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

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
