"""Groups of requests: ended together, and seen by observers.

A scope may stand in another: a server has one for all it does and one in it for each HTTP request. The engine's
operations submit requests of their own, several where widths compete or an answer is repaired; in a scope all of them
can be drawn, recorded or given up, and no operation has to know.
"""

from __future__ import annotations

import threading
from typing import Protocol, runtime_checkable

from redraft.engine.events import Event
from redraft.engine.request import ResolvedRequest
from redraft.errors import RunError


@runtime_checkable
class Submitted(Protocol):
    """What a scope knows of a request that runs in it (`redraft.engine.handle.Handle`)."""

    @property
    def request(self) -> ResolvedRequest:
        """What was submitted."""

    def abort(self) -> None:
        """End it."""


class Observer:
    """Sees the requests of a scope. Both methods do nothing; a subclass has those that it needs."""

    def event(self, handle: Submitted, event: Event) -> None:
        """One event of a request, drafts included, on the thread that turns the loop.

        An error raised here ends the request, and is the error that its reader receives.
        """

    def won(self, handle: Submitted) -> None:
        """Of several competing requests this one's answer was used; on the thread of the operation."""


class CancelScope:
    """Requests that end together. Leaving it as a context manager ends those that still run. They take turns beside
    others as one caller's: the scope's own, its parent's, or the `caller`'s that is given, who may have several."""

    def __init__(self, *observers: Observer, parent: CancelScope | None = None, caller: object = None) -> None:
        self.parent = parent
        self._caller: object = parent._caller if caller is None and parent is not None else caller
        self.observers: tuple[Observer, ...] = (*(() if parent is None else parent.observers), *observers)
        self._lock = threading.Lock()
        self._running: set[Submitted] = set()
        self._cancelled = False

    @property
    def caller(self) -> object:
        """Whose its requests are."""
        return self if self._caller is None else self._caller

    @property
    def cancelled(self) -> bool:
        """Whether it has ended, or the scope around it."""
        return self._cancelled or (self.parent is not None and self.parent.cancelled)

    def add(self, handle: Submitted) -> None:
        """Take in a request that is about to be queued. Raises RunError if the scope has ended."""
        if self.parent is not None:
            self.parent.add(handle)
        with self._lock:
            self._running.add(handle)
        if self.cancelled:
            self.remove(handle)
            raise RunError("the scope of this request was cancelled; submit it in another")

    def remove(self, handle: Submitted) -> None:
        """The request has had its last event."""
        with self._lock:
            self._running.discard(handle)
        if self.parent is not None:
            self.parent.remove(handle)

    def cancel(self) -> None:
        """End every request in it; their rows are free at the next forward. What is submitted later is refused."""
        with self._lock:
            self._cancelled = True
            running = list(self._running)
        for handle in running:
            handle.abort()

    def won(self, handle: Submitted) -> None:
        """Report to the observers that a request's answer was used."""
        for observer in self.observers:
            observer.won(handle)

    def __enter__(self) -> CancelScope:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
