"""`--offload experts` and `--parallel experts`: where a model's experts are."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from redraft.errors import RequestError

CLOCKED = {"deadline": "--deadline", "target_ms": "--target-ms"}
ALONE = {"watch": "--watch", "trace": "--trace", "check": "--check"}


def place_flags(parser: argparse.ArgumentParser, *, parallel: bool = False) -> None:
    """The flags; `parallel` where a command gives every process the same work."""
    parser.add_argument(
        "--offload", choices=("experts",), help="keep experts in the processor's memory, for a GPU with too little"
    )
    if parallel:
        parser.add_argument(
            "--parallel", choices=("experts",), help="share experts among the processes that torchrun has started"
        )


def experts_of(arguments: argparse.Namespace) -> str:
    """What `load` is to be told. Raises RequestError for flags that exclude each other."""
    offload, parallel = getattr(arguments, "offload", None), getattr(arguments, "parallel", None)
    if offload and parallel:
        raise RequestError("--offload and --parallel were given together; experts can be in one place only")
    return "host" if offload else "shared" if parallel else "device"


def check_parallel(arguments: argparse.Namespace) -> None:
    """Refuse what processes that take the same steps cannot do: to go by their own clocks, or to write one file."""
    if arguments.parallel is None:
        return
    for name, flag in CLOCKED.items():
        if getattr(arguments, name, None) is not None:
            raise RequestError(f"{flag} goes by each process's own clock; leave it out with --parallel")
    for name, flag in ALONE.items():
        if getattr(arguments, name, None):
            raise RequestError(f"{flag} is for one process; leave it out with --parallel")
    if arguments.prompt in (None, "-") and arguments.file is None:
        raise RequestError("several processes cannot read one stdin; pass the prompt, or --file, with --parallel")


def agree_on_seed(arguments: argparse.Namespace) -> None:
    """Give all processes of a group one seed, which the first draws, where the caller gives none."""
    if arguments.parallel is None or arguments.seed is not None:
        return
    from torch import distributed

    drawn = [secrets.randbits(32)]
    distributed.broadcast_object_list(drawn, src=0)
    arguments.seed = drawn[0]


@contextmanager
def one_voice(arguments: argparse.Namespace) -> Iterator[None]:
    """Of several processes only the first prints a result; all leave their group at the end."""
    if getattr(arguments, "parallel", None) is None:
        yield
        return
    from torch import distributed

    try:
        if os.environ.get("RANK", "0") == "0":
            yield
        else:
            with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
                yield
    finally:
        sys.stdout.flush()
        if distributed.is_initialized():
            distributed.destroy_process_group()
