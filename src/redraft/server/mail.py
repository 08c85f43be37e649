"""What other threads tell, for one reader on the event loop.

Nothing is lost but drafts: of these only the newest of each answer waits. A reader who is slower than the canvas sees
fewer of them, and nothing piles up behind it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Generic, TypeVar

from redraft.engine.events import Draft

T = TypeVar("T")


class Mail(Generic[T]):
    """What was told and not yet taken, each with the number of the answer that it is about."""

    def __init__(self) -> None:
        self._here, self._wake, self._lock = asyncio.get_running_loop(), asyncio.Event(), threading.Lock()
        self._told: deque[tuple[int, T | None]] = deque()
        self._drafts: dict[int, T] = {}
        self._called = False
        self.dropped_drafts = 0

    def put(self, i: int, told: T) -> None:
        """From any thread."""
        with self._lock:
            if isinstance(told, Draft):
                waits = i in self._drafts
                self.dropped_drafts += waits
                self._drafts[i] = told
                if waits:
                    return
                self._told.append((i, None))
            else:
                self._told.append((i, told))
        if not self._called:
            self._called = True
            self._here.call_soon_threadsafe(self._wake.set)

    def take(self) -> tuple[int, T] | None:
        """The next, None if there is none now."""
        with self._lock:
            if not self._told:
                return None
            i, told = self._told.popleft()
            return i, self._drafts.pop(i) if told is None else told

    async def wait(self) -> None:
        """Until there may be more."""
        await self._wake.wait()
        self._wake.clear()
        self._called = False

    def wake(self) -> None:
        """Let who waits look again."""
        self._wake.set()
