"""`--trace FILE`: every step of a command's canvases written to a file, for `redraft watch` and the page."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from redraft import __version__

if TYPE_CHECKING:
    from redraft.engine.engine import Engine

OWN = {"run", "mistaken", "json", "debug", "trace", "model", "watch", "write"}
"""Of a command's arguments those that a trace tells otherwise, or that change no step."""


def trace_flag(parser: argparse.ArgumentParser) -> None:
    """Where to write one."""
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write every step there, for `redraft watch`")


@contextmanager
def traced(engine: Engine, arguments: argparse.Namespace, command: str, *, gaps: bool = False) -> Iterator[Engine]:
    """The engine, through a tap if there is --trace. `gaps` for what measures the model around gaps first."""
    if arguments.trace is None:
        yield engine
        return

    from redraft.engine.recorder import Recorder
    from redraft.engine.tap import Tap, seen_through
    from redraft.trace.file import TraceFile
    from redraft.trace.lines import VERSION, Header

    named = {name: value for name, value in vars(arguments).items() if name not in OWN}
    given = {name: value for name, value in named.items() if value not in (None, [], False)}
    head = Header(
        trace=VERSION,
        redraft=__version__,
        command=command,
        model=arguments.model,
        taken=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        options={name: str(value) if isinstance(value, Path) else value for name, value in given.items()},
    )
    file = TraceFile(arguments.trace, head)
    try:
        yield seen_through(engine, Tap(engine.loop, Recorder(file, engine).opened), gaps=gaps)
    finally:
        file.close()
