"""One line of JSON per event, without anything that a client wrote but ids; prompts only if the settings say so."""

from __future__ import annotations

import json
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
        self.lost = 0

    def write(self, event: str, told: Mapping[str, object]) -> None:
        """One line."""
        if self._sink is None:
            return
        line: dict[str, object] = {"time": round(self._clock(), 3), "event": event}
        line |= {name: value for name, value in told.items() if value is not None and value is not False}
        if self.lost:
            line["lost"] = self.lost
        try:
            self._sink.write(json.dumps(line, ensure_ascii=True) + "\n")
            self._sink.flush()
            self.lost = 0
        except (OSError, ValueError):
            self.lost += 1
            with suppress(OSError, ValueError):
                self._sink.flush()
