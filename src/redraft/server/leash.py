"""The engine's own calls (infill, edit) for one HTTP request: on a thread, and ended together when nobody waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from redraft.engine.loop import Listener, Loop
from redraft.engine.request import ResolvedRequest
from redraft.engine.tap import View, seen_through
from redraft.errors import RunError
from redraft.operations.engine import Engine

T = TypeVar("T")


class Leash(View):
    """A loop as one HTTP request sees it: what it has submitted can be ended, and it submits nothing afterwards."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self._own, self._lock, self._cut = set[int](), threading.Lock(), False

    def submit(
        self, request: ResolvedRequest, listener: Listener, *, drafts: bool = False, behind: int | None = None
    ) -> int:
        """As the loop's. Raises RunError once the leash is cut."""
        with self._lock:
            if self._cut:
                raise RunError("nobody waits for this request any longer")
            number = self._loop.submit(request, listener, drafts=drafts, behind=behind)
            self._own.add(number)
            return number

    def cut(self) -> None:
        """End what runs; its rows are free at the next forward."""
        with self._lock:
            self._cut = True
            for number in self._own:
                self._loop.abort(number)


async def on_thread(engine: Engine, loop: View, work: Callable[[Engine], T]) -> T:
    """Do it beside the event loop, which goes on serving others."""
    return await asyncio.to_thread(lambda: work(seen_through(engine, loop, gaps=True)))
