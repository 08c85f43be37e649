"""The server's log: a line an event, for people on a terminal and as JSON elsewhere.

Of what a client wrote a line has only ids, and prompts if the settings say so.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol, runtime_checkable


@runtime_checkable
class Sink(Protocol):
    """Where lines go."""

    def write(self, text: str, /) -> object:
        """Take a line."""

    def flush(self) -> object:
        """Pass on what was taken."""


class Log:
    """A log that may fail: a full disk loses lines, which are counted, and no request."""

    def __init__(self, sink: Sink | None, clock: Callable[[], float] = time.time) -> None:
        self._sink, self._clock = sink, clock
        self._line = readable if getattr(sink, "isatty", bool)() else json.dumps
        self.lost = 0

    def write(self, event: str, fields: Mapping[str, object]) -> None:
        """One line. Fields that are None or False are left out."""
        if self._sink is None:
            return
        line: dict[str, object] = {"time": round(self._clock(), 3), "event": event}
        line |= {name: value for name, value in fields.items() if value is not None and value is not False}
        if self.lost:
            line["lost"] = self.lost
        try:
            self._sink.write(self._line(line) + "\n")
            self._sink.flush()
            self.lost = 0
        except (OSError, ValueError):
            self.lost += 1
            with suppress(OSError, ValueError):
                self._sink.flush()


class LibraryLines(logging.Handler):
    """What libraries say, as lines of a log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(TypeError, ValueError):  # of a format that does not fit
            self._log.write("library", {"name": record.name, "said": record.getMessage()[:500]})


def readable(line: Mapping[str, object]) -> str:
    """A line for people: `18:30:05  200 POST /v1/chat/completions  34.1 ms  tokens=18 steps=2`."""
    rest = dict(line)
    at = time.strftime("%H:%M:%S", time.localtime(float(str(rest.pop("time")))))
    event = rest.pop("event")
    if event == "request":
        rest.pop("id", None)
        event = f"{rest.pop('status')} {rest.pop('method')} {rest.pop('path')}  {rest.pop('ms')} ms"
    more = " ".join(f"{name}={json.dumps(value)}" for name, value in rest.items())
    return f"{at}  {event}  {more}".rstrip()
