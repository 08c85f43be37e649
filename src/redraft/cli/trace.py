"""`--trace FILE`: every step of a command's canvases written to a file, for `redraft watch` and the page."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from redraft import __version__
from redraft.cli.common import note

if TYPE_CHECKING:
    from redraft.engine.request import Generation, Request, ResolvedRequest
    from redraft.operations.engine import Engine
    from redraft.trace.lines import Header

MOST, MOST_BYTES = 1000, 10**9
"""Most files that a folder of traces keeps, and most bytes of them when a new one begins."""

OWN = {"run", "parser", "root", "model_given", "json", "debug", "trace", "model", "watch", "write"}
"""Arguments that a trace does not list: it has them elsewhere, they change no step, or no user gave them."""


def trace_flag(parser: argparse.ArgumentParser) -> None:
    """Where to write one."""
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write every step there, for `redraft watch`")


def watch_flag(parser: argparse.ArgumentParser) -> None:
    """Whether to show every step, and where to write them."""
    parser.add_argument("--watch", action="store_true", help="show the canvas settling, on stderr")
    trace_flag(parser)


def answered(engine: Engine, request: Request | ResolvedRequest, arguments: argparse.Namespace) -> Generation:
    """The answer to a request, on show with --watch."""
    if not arguments.watch:
        return engine.generate(request)

    from redraft.cli.display import watched

    return watched(engine, request, answer_follows=sys.stdout.isatty() and not arguments.json)


@contextmanager
def traced(engine: Engine, arguments: argparse.Namespace, command: str) -> Iterator[Engine]:
    """The engine, in a scope that a recorder observes if there is --trace."""
    if arguments.trace is None:
        yield engine
        return

    from redraft.engine.scope import CancelScope
    from redraft.trace.file import TraceFile
    from redraft.trace.recorder import Recorder

    with closing(TraceFile(arguments.trace, _head(arguments, command))) as file:
        yield engine.within(CancelScope(Recorder(file, engine)))


def traced_apart(arguments: argparse.Namespace, command: str) -> Callable[[Engine], Engine]:
    """Returns a function that puts an engine into a scope where each request is traced to a file of its own in the
    folder of --trace, if there is one. Raises RequestError for a path that cannot be such a folder."""
    if arguments.trace is None:
        return lambda engine: engine

    from redraft.engine.scope import CancelScope
    from redraft.trace.folder import TraceFolder
    from redraft.trace.recorder import FolderRecorder

    folder = TraceFolder(arguments.trace, _head(arguments, command), MOST, MOST_BYTES, note)

    return lambda engine: engine.within(CancelScope(FolderRecorder(folder, engine)))


def _head(arguments: argparse.Namespace, command: str) -> Header:
    from redraft.trace.lines import VERSION, Header

    named = {name: value for name, value in vars(arguments).items() if name not in OWN}
    given = {name: value for name, value in named.items() if value not in (None, [], False)}
    return Header(
        trace=VERSION,
        redraft=__version__,
        command=command,
        model=arguments.model,
        taken=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        options={name: str(value) if isinstance(value, Path) else value for name, value in given.items()},
    )
