"""The answers to one HTTP request, from the engine's thread to the event loop's.

engine's thread ── event ──► Mail ── Run.next() ──► a route, which makes text of it
"""

from __future__ import annotations

from collections.abc import Sequence

from redraft.engine.events import Draft, Event, Finished
from redraft.engine.handle import Handle
from redraft.engine.request import ResolvedRequest
from redraft.engine.scope import CancelScope, Observer, Submitted
from redraft.operations.engine import Engine
from redraft.server.mail import Mail

Told = tuple[int, Event]


class _Putting(Observer):
    def __init__(self, mail: Mail[Event | Exception], i: int, drafts: bool) -> None:
        self._mail, self._i, self._drafts = mail, i, drafts

    def event(self, handle: Submitted, event: Event) -> None:
        """Put it into the mail."""
        if self._drafts or not isinstance(event, Draft):
            self._mail.put(self._i, event)


class Run:
    """Requests submitted together; `behind[i]` names the one whose prompt request i shares. Raises BusyError."""

    def __init__(
        self, engine: Engine, requests: Sequence[ResolvedRequest], *, behind: Sequence[int | None], drafts: bool = False
    ) -> None:
        self.mail = Mail[Event | Exception]()
        self._handles: list[Handle] = []
        self.open = set(range(len(requests)))
        self.gone = False
        try:
            for i, (request, other) in enumerate(zip(requests, behind, strict=True)):
                first = None if other is None else self._handles[other]
                scope = CancelScope(_Putting(self.mail, i, drafts), parent=engine.scope)
                self._handles.append(engine.submit(request, scope, behind=first))
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
        self._handles[i].abort()

    def abort(self) -> None:
        """End all of them; `next` says so to whoever waits."""
        for handle in self._handles:
            handle.abort()
        self.open.clear()
        self.gone = True
        self.mail.wake()
