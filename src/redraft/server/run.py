"""The answers to one HTTP request, from the engine's thread to the event loop's.

    engine's thread ── event ──► Run ── next() ──► a route, which makes text of it

Blocks are never lost. Of drafts only the newest of each answer waits: a reader who is slower than the canvas sees fewer
of them, and nothing piles up behind it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence

from redraft.engine.events import Draft, Event, Finished
from redraft.engine.loop import Listener, Loop
from redraft.engine.request import Request

Told = tuple[int, Event]


class Run:
    """Requests submitted together; `behind[i]` names the one whose prompt request i shares. Raises BusyError."""

    def __init__(
        self, loop: Loop, requests: Sequence[Request], *, behind: Sequence[int | None], drafts: bool = False
    ) -> None:
        self._loop, self._here = loop, asyncio.get_running_loop()
        self._wake, self._lock = asyncio.Event(), threading.Lock()
        self._told: deque[tuple[int, Event | None]] = deque()
        self._drafts: dict[int, Draft] = {}
        self._called = self._hushed = False
        self._numbers: list[int] = []
        self.open = set(range(len(requests)))
        self.dropped_drafts = 0
        self.gone = False
        try:
            for i, (request, other) in enumerate(zip(requests, behind, strict=True)):
                first = None if other is None else self._numbers[other]
                self._numbers.append(loop.submit(request, self._listener(i), drafts=drafts, behind=first))
        except Exception:
            self.abort()
            raise

    async def next(self, quiet_sec: float) -> Told | None:
        """The next event and whose it is; None after that long without one, or when all is told."""
        while self.open:
            with self._lock:
                told = self._told.popleft() if self._told else None
                found = None if told is None else told[1] or self._drafts.pop(told[0])
            if told is not None and found is not None:
                if told[0] not in self.open:  # it was stopped meanwhile
                    continue
                if isinstance(found, Finished):
                    self.open.discard(told[0])
                return told[0], found
            quiet = self._here.call_later(quiet_sec, self._hush)
            try:
                await self._wake.wait()
            finally:
                quiet.cancel()
            self._wake.clear()
            self._called = False
            if self._hushed:
                self._hushed = False
                return None
        return None

    @property
    def ready(self) -> bool:
        """Whether more has been told already."""
        return bool(self._told)

    def stop(self, i: int) -> None:
        """End one answer; its rows are free at the next forward."""
        self.open.discard(i)
        self._loop.abort(self._numbers[i])

    def abort(self) -> None:
        """End all of them; `next` says so to whoever waits."""
        for number in self._numbers:
            self._loop.abort(number)
        self.open.clear()
        self.gone = True
        self._wake.set()

    def _hush(self) -> None:
        self._hushed = True
        self._wake.set()

    def _listener(self, i: int) -> Listener:
        def listen(event: Event) -> None:
            with self._lock:
                if isinstance(event, Draft):
                    waits = i in self._drafts
                    self.dropped_drafts += waits
                    self._drafts[i] = event
                    if waits:
                        return
                    self._told.append((i, None))
                else:
                    self._told.append((i, event))
            # One call for all that is told before the event loop turns: it is the costly part.
            if not self._called:
                self._called = True
                self._here.call_soon_threadsafe(self._wake.set)

        return listen
