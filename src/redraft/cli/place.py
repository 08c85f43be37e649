"""`--offload`, `--parallel`, `--graphs`: where a model's experts are, which process does what, and how a GPU steps."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

from redraft.errors import RedraftError, RequestError

if TYPE_CHECKING:
    from redraft.weights.group import Group

GRACE_SEC = 2.0
"""What a command that has lost another process has to tell so itself, to all who wait for its answers."""


def place_flags(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.add_argument(
        "--offload", choices=("experts",), help="keep experts in the processor's memory, for a GPU with too little"
    )
    parser.add_argument(
        "--parallel", choices=("experts",), help="share experts among the processes that torchrun has started"
    )
    parser.add_argument(
        "--graphs", action="store_true", help="on a GPU, repeat the steps of up to eight canvases as one graph"
    )


def experts_of(arguments: argparse.Namespace) -> str | Group:
    """What `load` is to be told."""
    if arguments.offload:
        return "host"
    group: Group | None = getattr(arguments, "group", None)
    return "device" if group is None else group


def run_command(arguments: argparse.Namespace) -> int:
    """A command, which knows nothing of other processes: the first of those that share experts runs it, others help.

    Raises whatever the command does, and RunError where a process was lost, whatever the command has made of that.
    """
    if getattr(arguments, "parallel", None) is None:
        return int(arguments.run(arguments) or 0)
    if arguments.offload:
        raise RequestError("--offload and --parallel were given together; experts can be in one place only")

    from redraft.weights.group import Group

    arguments.group = group = Group()
    if group.rank:
        _help(arguments, group)
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    threading.Thread(target=_watch, args=(group,), daemon=True).start()
    try:
        return int(arguments.run(arguments) or 0)
    finally:
        signal.signal(signal.SIGTERM, before)
        group.close()


def _help(arguments: argparse.Namespace, group: Group) -> NoReturn:
    """Be one of the others until the first ends; who ends them all tells the first, and signals reach every one."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)

    from redraft.cli.common import load_engine

    arguments.helps = True
    try:
        load_engine(arguments)
    except RedraftError as error:
        raise type(error)(f"process {group.rank}: {error}") from error
    raise AssertionError("only the first process is given an engine")


def _watch(group: Group) -> None:
    """End a command that has lost another process and goes on all the same, as a server would."""
    group.broken.wait()
    if not group.closed.wait(GRACE_SEC):
        print(f"redraft: {group.failure}", file=sys.stderr, flush=True)
        os._exit(1)
