"""`redraft bench`: speed, measured beside something else in the same run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from redraft.cli.common import Commands, command, model_flags, print_json, set_threads

EPILOG = """Timings on a shared machine are noisy: runs are paired and medians are reported.

example:
  redraft bench --against transformers --record benchmarks/against-transformers.json"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "bench", "measure speed beside transformers", run, epilog=EPILOG)
    model_flags(parser)
    parser.add_argument(
        "--against", choices=("transformers",), default="transformers", help="what to compare with (must be installed)"
    )
    parser.add_argument("--runs", type=int, default=30, metavar="N", help="paired runs (default: 30)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write the record to this file")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, record."""
    from redraft.errors import RequestError

    if arguments.runs < 1:
        raise RequestError(f"--runs is {arguments.runs}; it must be at least 1")
    if arguments.device != "cpu":
        raise RequestError(f"--device is {arguments.device!r}; this comparison runs on cpu")

    import msgspec

    from redraft.measure.bench import bench_against
    from redraft.measure.record import write_record
    from redraft.weights.source import locate

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\rpair {done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)

    set_threads(arguments.threads)
    record = bench_against(locate(arguments.model), runs=arguments.runs, dtype=arguments.dtype, progress=progress)
    if arguments.record:
        write_record(record, arguments.record)
    if arguments.json:
        print_json(msgspec.to_builtins(record))
    else:
        for claim in record.summary:
            print(f"{claim.figure}: {claim.value}")
    return 0
