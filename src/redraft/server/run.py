"""The answers to one HTTP request, from the engine's thread to the event loop's.

engine's thread ── event ──► Mail ── Run.next() ──► a route, which makes text of it
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from redraft.engine.events import Event, Finished
from redraft.engine.loop import Loop
from redraft.engine.request import Request
from redraft.server.mail import Mail

Told = tuple[int, Event]


class Run:
    """Requests submitted together; `behind[i]` names the one whose prompt request i shares. Raises BusyError."""

    def __init__(
        self, loop: Loop, requests: Sequence[Request], *, behind: Sequence[int | None], drafts: bool = False
    ) -> None:
        self._loop, self.mail = loop, Mail[Event | Exception]()
        self._numbers: list[int] = []
        self.open = set(range(len(requests)))
        self.gone = False
        try:
            for i, (request, other) in enumerate(zip(requests, behind, strict=True)):
                first = None if other is None else self._numbers[other]
                self._numbers.append(loop.submit(request, partial(self.mail.put, i), drafts=drafts, behind=first))
        except Exception:
            self.abort()
            raise

    async def next(self) -> Told | None:
        """The next event and whose it is; None when all is told. Raises what was told in place of one."""
        while self.open:
            found = self.mail.take()
            if found is None:
                await self.mail.wait()
                continue
            i, event = found
            if i not in self.open:  # it was stopped meanwhile
                continue
            if isinstance(event, Exception):
                raise event
            if isinstance(event, Finished):
                self.open.discard(i)
            return i, event
        return None

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
        self.mail.wake()
