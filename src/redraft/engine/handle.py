"""A request that was submitted: its events, its answer, and how to end it.

    loop's thread ── event ──► observers of the scope
                         └───► Inbox ──► events() | aevents() ──► Answer ──► deltas ──► result()

Events wait in an inbox for their reader. A reader of several requests gives them one inbox between them.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Hashable
from contextlib import aclosing, closing, suppress
from dataclasses import replace
from functools import partial
from typing import Generic, Protocol, TypeVar, runtime_checkable

from redraft.constraints.validation import judged
from redraft.engine.answer import Answer, Delta
from redraft.engine.events import Draft, Event, Finished
from redraft.engine.request import Generation, ResolvedRequest
from redraft.engine.scope import CancelScope
from redraft.engine.sequence import Sequence
from redraft.errors import RunError
from redraft.forks import ForkLock
from redraft.text import Text

K = TypeVar("K", bound=Hashable)


@runtime_checkable
class Turner(Protocol):
    """What a reader needs of the loop."""

    def turn_until(self, ready: Callable[[], bool]) -> None:
        """Turn until there is something to read; nothing to do where a thread turns."""

    def start(self) -> None:
        """Let a thread turn."""

    def abort(self, sequence: Sequence) -> None:
        """End a sequence before the next forward."""


class Inbox(Generic[K]):
    """Events that wait for one reader, each with the key of its request. Any thread may put some in.

    With `newest_drafts` only the newest draft of each request waits: a reader who is slower than the canvas sees fewer
    of them, `dropped_drafts` counts the others, and nothing piles up.
    """

    def __init__(self, *, newest_drafts: bool = False) -> None:
        self.newest_drafts, self.dropped_drafts = newest_drafts, 0
        self._condition = threading.Condition()
        self._waiting: deque[tuple[K, Event | None]] = deque()  # None stands for the newest draft
        self._drafts: dict[K, Event] = {}
        self._wakes: list[Callable[[], object]] = []

    def __bool__(self) -> bool:
        """Whether there is something to take."""
        return bool(self._waiting)

    def put(self, key: K, event: Event) -> None:
        """From any thread."""
        with self._condition:
            if self.newest_drafts and isinstance(event, Draft):
                if key in self._drafts:
                    self.dropped_drafts += 1
                    self._drafts[key] = event
                    return
                self._drafts[key] = event
                self._waiting.append((key, None))
            else:
                self._waiting.append((key, event))
            self._condition.notify()
            # One call for all that comes before the event loop turns: it is the costly part.
            wakes, self._wakes = self._wakes, []
        for wake in wakes:
            with suppress(RuntimeError):  # the event loop has closed, and nobody will read
                wake()

    def take(self) -> tuple[K, Event] | None:
        """The next event and whose it is; None if there is none now."""
        with self._condition:
            if not self._waiting:
                return None
            key, event = self._waiting.popleft()
            return key, self._drafts.pop(key) if event is None else event

    def get(self, loop: Turner) -> tuple[K, Event]:
        """The next event. Without a thread that turns the loop, the reader turns it."""
        while (found := self.take()) is None:
            loop.turn_until(self.__bool__)
            with self._condition:
                self._condition.wait_for(self.__bool__)
        return found

    async def aget(self) -> tuple[K, Event]:
        """The next event, for a coroutine; a thread has to turn the loop."""
        while (found := self.take()) is None:
            there = asyncio.Event()
            wake = partial(asyncio.get_running_loop().call_soon_threadsafe, there.set)
            with self._condition:
                if self._waiting:
                    continue
                self._wakes.append(wake)
            await there.wait()
        return found


class Handle:
    """One submitted request. Its inbox has one reader: this handle's own methods, or the owner of a shared inbox.

    Several threads may ask for its `result`; its events are for one.
    """

    def __init__(
        self,
        loop: Turner,
        sequence: Sequence,
        *,
        scope: CancelScope | None = None,
        text: Text | None = None,
        drafts: bool = False,
        inbox: Inbox[Hashable] | None = None,
        key: Hashable = None,
    ) -> None:
        self.request: ResolvedRequest = sequence.request
        self.sequence, self.scope = sequence, scope
        self.inbox: Inbox[Hashable] = Inbox() if inbox is None else inbox
        self.key = self if key is None else key
        self._loop = loop
        self._reading = ForkLock(threading.RLock)
        self._answer: Answer | None = None if text is None else Answer(text, self.request)
        self._delta: Delta | None = None
        self._drafts, self._observers = drafts, () if scope is None else scope.observers

    @property
    def number(self) -> int:
        """Counts the requests of a loop, in order of submission."""
        return self.sequence.number

    @property
    def answer(self) -> Answer:
        """What has been read so far. Raises RunError for a loop without a tokenizer, which has events alone."""
        if self._answer is None:
            raise RunError("the loop has no tokenizer to read answers with; make it with one")
        return self._answer

    def deliver(self, event: Event) -> None:
        """One event, on the thread that turns the loop: to the scope's observers, then to the reader."""
        if not isinstance(event, Finished):
            for observer in self._observers:
                observer.event(self, event)  # what it raises makes the loop end the request
            if self._drafts or not isinstance(event, Draft):
                self.inbox.put(self.key, event)
            return
        try:
            for observer in self._observers:
                try:
                    observer.event(self, event)
                except Exception as error:  # an observer is the caller's code
                    event = event if event.error else replace(event, reason="error", error=error)
        finally:  # whatever an observer did, nobody waits for ever
            if self.scope is not None:
                self.scope.remove(self)
            self.inbox.put(self.key, event)

    def events(self) -> Generator[Event, None, None]:
        """Its events as they happen, the last of them Finished; read again, that one alone. Closing the generator
        aborts the request."""
        try:
            while True:
                event = self._left(self.inbox.get(self._loop)[1])
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self.abort()

    async def aevents(self) -> AsyncGenerator[Event, None]:
        """The same for coroutines; the loop turns on a thread, which is started if there is none."""
        self._loop.start()
        try:
            while True:
                event = self._left((await self.inbox.aget())[1])
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self.abort()

    def _left(self, event: Event) -> Event:
        """An event that was read, however: the answer has it. The last one stays, so that nobody who reads once more
        waits for another, and is taken where what it raises belongs."""
        if isinstance(event, Finished):
            self.inbox.put(self.key, event)
        elif self._answer is not None:
            self._delta = self._answer.take(event)
        return event

    def _added(self, event: Event) -> Delta:
        """What an event that has just been read adds. Raises as `Answer.take`."""
        answer, delta = self.answer, self._delta
        return answer.take(event) if isinstance(event, Finished) or delta is None else delta

    def deltas(self) -> Generator[Delta, None, None]:
        """What each event adds to the answer, up to its end or a stop string. Raises as `Answer.take`."""
        with closing(self.events()) as events:
            for event in events:
                yield self._added(event)
                if self.answer.stopped:
                    return

    async def adeltas(self) -> AsyncGenerator[Delta, None]:
        """The same for coroutines."""
        async with aclosing(self.aevents()) as events:
            async for event in events:
                validated = isinstance(event, Finished) and self.request.is_validated  # which may take a while
                yield await judged(self._added, event) if validated else self._added(event)
                if self.answer.stopped:
                    return

    def result(self) -> Generation:
        """The finished answer, once it is there, as often as it is asked for. Raises as `Answer.take`."""
        with self._reading:  # of two threads one reads, and the other finds the end
            for _ in self.deltas():
                pass
            return self.answer.generation()

    async def aresult(self) -> Generation:
        """The same for coroutines. One that is cancelled here ends the request, for all who wait for it."""
        async for _ in self.adeltas():
            pass
        return self.answer.generation()

    def abort(self) -> None:
        """End it before the next forward, if it has not ended."""
        self._loop.abort(self.sequence)

    def won(self) -> None:
        """Report to the scope's observers that of several competing requests this one's answer was used."""
        if self.scope is not None:
            self.scope.won(self)
