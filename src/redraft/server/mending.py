"""Answers that a validator has to read before anybody else: mended on threads, told when they are right.

It stands where a `Run` stands, and tells of each answer one block and the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from redraft.engine.engine import Engine
from redraft.engine.events import Block, Event, Finished
from redraft.engine.mend import mended
from redraft.engine.request import Generation, Request
from redraft.server.leash import Leash, on_thread


class Mending:
    """Requests whose language has parts that only a validator knows. Raises nothing; `next` does."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self._leash = Leash(engine.loop)
        self._told: asyncio.Queue[tuple[int, Event | Exception]] = asyncio.Queue()
        self._tasks = [asyncio.create_task(self._mend(engine, i, request)) for i, request in enumerate(requests)]
        self.open = set(range(len(requests)))
        self.dropped_drafts = 0
        self.gone = False

    async def next(self, quiet_sec: float) -> tuple[int, Event] | None:
        """As `Run.next`. Raises what mending raises."""
        if not self.open:
            return None
        try:
            i, event = await asyncio.wait_for(self._told.get(), quiet_sec)
        except TimeoutError:
            return None
        if isinstance(event, Exception):
            if self.gone:
                return None
            raise event
        if isinstance(event, Finished):
            self.open.discard(i)
        return i, event

    @property
    def ready(self) -> bool:
        """As `Run.ready`."""
        return not self._told.empty()

    def stop(self, i: int) -> None:
        """Nothing to stop: an answer is whole when it is told."""
        self.open.discard(i)

    def abort(self) -> None:
        """End all of them."""
        self.gone = True
        self.open.clear()
        self._leash.cut()
        self._told.put_nowait((-1, Finished("aborted", 0)))

    async def _mend(self, engine: Engine, i: int, request: Request) -> None:
        try:
            done = await on_thread(engine, self._leash, lambda held: mended(held, request, None))
        except Exception as error:  # told to whoever waits
            self._told.put_nowait((i, error))
            return
        self._told.put_nowait((i, _block(done)))
        self._told.put_nowait((i, Finished(done.finish, done.commits)))


def _block(done: Generation) -> Block:
    return Block(
        block=0,
        tokens=list(done.tokens),
        entropy=list(done.entropy),
        settled_at=list(done.settled_at),
        changes=list(done.changes),
        steps=sum(done.steps),
        settled=True,
        logprobs=list(done.logprobs),
    )
