"""The engine's own calls (infill, edit) for one HTTP request: on a thread, and ended together when nobody waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from redraft.engine.engine import Engine
from redraft.engine.loop import Listener, Loop
from redraft.engine.request import Request
from redraft.errors import RunError

T = TypeVar("T")


class Leash(Loop):
    """A loop as one HTTP request sees it: what it has submitted can be ended, and it submits nothing afterwards."""

    def __init__(self, loop: Loop) -> None:  # a view, so nothing is made anew
        self._loop, self._own, self._lock, self._cut = loop, set[int](), threading.Lock(), False

    def submit(self, request: Request, listener: Listener, *, drafts: bool = False, behind: int | None = None) -> int:
        """As the loop's. Raises RunError once the leash is cut."""
        with self._lock:
            if self._cut:
                raise RunError("nobody waits for this request any longer")
            number = self._loop.submit(request, listener, drafts=drafts, behind=behind)
            self._own.add(number)
            return number

    def abort(self, number: int) -> None:
        """As the loop's."""
        self._loop.abort(number)

    def turn_until(self, ready: Callable[[], bool]) -> None:
        """As the loop's."""
        self._loop.turn_until(ready)

    def wait_for_room(self) -> None:
        """As the loop's."""
        self._loop.wait_for_room()

    def cut(self) -> None:
        """End what runs; its rows are free at the next forward."""
        with self._lock:
            self._cut = True
            for number in self._own:
                self._loop.abort(number)


def leashed(engine: Engine, loop: Leash) -> Engine:
    """The same engine behind a leash. What it measures of the model once is measured on the engine itself."""
    held = replace(engine, loop=loop)
    held.__dict__["length_bias"] = engine.length_bias
    held.__dict__["vocabulary"] = engine.vocabulary
    return held


async def on_thread(engine: Engine, loop: Leash, work: Callable[[Engine], T]) -> T:
    """Do it beside the event loop, which goes on serving others."""
    return await asyncio.to_thread(lambda: work(leashed(engine, loop)))
