"""One of several requests that somebody waits for: queued when there is room, its answer gathered as it is told."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from redraft.engine.answer import Answer
from redraft.engine.events import Event, Finished
from redraft.engine.loop import Listener, Loop
from redraft.engine.request import Generation
from redraft.errors import BusyError, RunError


@dataclass
class Job:
    """A request on its way. It is told its events by whoever turns the loop; `over` is set by the last."""

    loop: Loop
    answer: Answer
    number: int = -1
    error: Exception | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def start(self, listener: Listener, *, drafts: bool = False, behind: int | None = None) -> None:
        """Queue it as soon as there is room; the listener passes every event on to `hear`."""
        while True:
            try:
                self.number = self.loop.submit(self.answer.request, listener, drafts=drafts, behind=behind)
                break
            except BusyError:
                self.loop.wait_for_room()
        if self.is_decided:  # it was told before it knew its number
            self.abort()

    def hear(self, event: Event) -> None:
        """Take in one event. What fails here is for whoever waits for the answer, not for the loop."""
        try:
            self.answer.take(event)
        except Exception as error:  # reading an answer runs decoders and hooks of any kind
            self.error = self.error or error
        if isinstance(event, Finished):
            self.over.set()
        elif self.is_decided:
            self.abort()

    @property
    def is_decided(self) -> bool:
        """Whether nothing that is still to come can matter."""
        return self.answer.stopped or self.error is not None

    def abort(self) -> None:
        """End it, if it has not ended."""
        self.loop.abort(self.number)

    def result(self) -> Generation:
        """The answer, once it is over. Raises RunError for a request that failed."""
        if isinstance(self.error, RunError):
            raise self.error
        if self.error is not None:
            raise RunError(f"an answer could not be read: {self.error}") from self.error
        return self.answer.done()
