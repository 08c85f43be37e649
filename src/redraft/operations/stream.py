"""Answers as they come, for coroutines: several requests read as one stream of deltas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Sequence
from contextlib import suppress

from redraft.constraints.validation import judged
from redraft.engine.answer import Answer, Delta
from redraft.engine.engine import Core
from redraft.engine.events import Block, Finished
from redraft.engine.handle import Handle, Inbox
from redraft.engine.request import Generation, Request, ResolvedRequest
from redraft.engine.scope import CancelScope
from redraft.errors import RedraftError
from redraft.operations.read_back import second_opinion_async
from redraft.operations.repair import Repair, repair_async
from redraft.text import Message

ABORTED = -1


class AnswerStream:
    """Requests that were submitted together, and their answers so far.

    Those with one prompt have it encoded once. What needs repair is repaired before anything of it comes, and with
    `read_back` each is read back (`second_opinion`): as one block and the end. Iterating gives (number of the request,
    delta) until all have finished, and raises what goes wrong with one of them. A reader who is slower than the canvas
    misses drafts.
    """

    def __init__(
        self,
        engine: Core,
        requests: Sequence[str | Request | ResolvedRequest],
        *,
        drafts: bool = False,
        read_back: bool = False,
    ) -> None:
        """Submit them on a running event loop. Raises BusyError, and leaves none of them behind."""
        resolved = [engine.resolve(one) for one in requests]
        self._scope = CancelScope(parent=engine.scope)
        self._engine = engine.within(self._scope)
        self._inbox: Inbox[int] = Inbox(newest_drafts=True)
        self._handles: dict[int, Handle] = {}
        self._errors: dict[int, Exception] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.answers = [Answer(engine.text, one) for one in resolved]
        self.open = set(range(len(resolved)))
        self.aborted = False
        first: dict[Hashable, Handle] = {}
        engine.loop.start()
        try:
            for i, one in enumerate(resolved):
                behind = first.get((one.prompt, one.images))
                if one.needs_repair or read_back:
                    repairing = Repair(self._engine, one)
                    handle = self._engine.submit(repairing.asked, behind=behind)
                    self._tasks.append(asyncio.create_task(self._settle(i, repairing, handle, read_back)))
                else:
                    handle = self._engine.submit(one, drafts=drafts, behind=behind, inbox=self._inbox, key=i)
                    self._handles[i] = handle
                first[one.prompt, one.images] = handle
        except BaseException:
            self.abort()
            raise

    def __aiter__(self) -> AsyncIterator[tuple[int, Delta]]:
        return self

    async def __anext__(self) -> tuple[int, Delta]:
        while self.open:
            i, event = await self._inbox.aget()
            if i not in self.open:
                continue
            if i in self._errors:
                raise self._errors[i]
            answer = self.answers[i]
            ends = isinstance(event, Finished)
            validated = ends and answer.request.is_validated  # which may take seconds
            try:
                delta = await judged(answer.take, event) if validated else answer.take(event)
            except asyncio.CancelledError:  # who asks once more shall not wait for another end
                self._inbox.put(i, event)
                raise
            if ends:
                self.open.discard(i)
            elif answer.stopped:
                self.stop(i)
            return i, delta
        raise StopAsyncIteration

    @property
    def dropped_drafts(self) -> int:
        """Drafts that the reader was too slow for."""
        return self._inbox.dropped_drafts

    def stop(self, i: int) -> None:
        """End one answer; its rows are free at the next forward."""
        self.open.discard(i)
        if i in self._handles:
            self._handles[i].abort()

    def abort(self) -> None:
        """End all of them, and the iteration."""
        self.open.clear()
        self.aborted = True
        self._scope.cancel()
        for task in self._tasks:
            task.cancel()
        self._inbox.put(ABORTED, Finished("aborted", 0))  # a reader may be waiting

    async def _settle(self, i: int, repairing: Repair, handle: Handle, read_back: bool) -> None:
        try:
            done = await repair_async(self._engine, repairing, handle)
            with suppress(RedraftError):  # there is an answer all the same
                if read_back and done.finish == "stop":
                    opinion = await second_opinion_async(self._engine, self.answers[i].request, done)
                    done, guesses = opinion.done, await judged(opinion.guesses, self._engine.text)
                    self.answers[i].guesses = tuple(guesses)
        except Exception as error:  # for the reader
            self._errors[i] = error
            self._inbox.put(i, Finished("error", 0, error))
            return
        self._inbox.put(i, _block(done))
        self._inbox.put(i, Finished(done.finish, done.commits))


async def stream(
    engine: Core, prompt: str | Sequence[Message] | Request | ResolvedRequest, *, drafts: bool = False
) -> AsyncGenerator[Delta, None]:
    """What an answer gains with every event, as it happens; `Delta.event` has drafts, too, if they are asked for.

    Leaving it aborts the request. Raises as `generate`.
    """
    request = prompt if isinstance(prompt, Request | ResolvedRequest) else Request(prompt)
    answers = AnswerStream(engine, [request], drafts=drafts)
    try:
        async for _, delta in answers:
            yield delta
    finally:
        answers.abort()


def _block(done: Generation) -> Block:
    """A finished answer as one block."""
    return Block(
        block=0,
        tokens=list(done.tokens),
        entropy=list(done.entropy),
        settled_at=list(done.settled_at),
        changes=list(done.changes),
        steps=sum(done.steps),
        settled=True,
        logprobs=list(done.logprobs),
        log_mass=list(done.log_mass),
        cached=done.cached_tokens,
    )
