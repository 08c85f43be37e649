"""Answers that a validator has to read before anybody else: mended on threads, told when they are right."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from redraft.engine.events import Block, Finished
from redraft.engine.request import Generation, ResolvedRequest
from redraft.operations.engine import Engine
from redraft.operations.repair import repair
from redraft.server.leash import Leash, on_thread
from redraft.server.run import Run


class Mending(Run):
    """A run of requests whose language has parts that only a validator knows. It tells a block of each, and the end."""

    def __init__(self, engine: Engine, requests: Sequence[ResolvedRequest]) -> None:
        super().__init__(engine, (), behind=())
        self.open = set(range(len(requests)))
        self._leash = Leash(engine)
        self._tasks = [asyncio.create_task(self._mend(engine, i, request)) for i, request in enumerate(requests)]

    def stop(self, i: int) -> None:
        """Nothing to stop: an answer is whole when it is told."""
        self.open.discard(i)

    def abort(self) -> None:
        """End all of them."""
        super().abort()
        self._leash.cut()

    async def _mend(self, engine: Engine, i: int, request: ResolvedRequest) -> None:
        try:
            done = await on_thread(engine, self._leash, lambda held: repair(held, request))
        except Exception as error:  # told to whoever waits
            self.mail.put(i, error)
            return
        self.mail.put(i, _block(done))
        self.mail.put(i, Finished(done.finish, done.commits))


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
