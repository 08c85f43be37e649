"""Server-sent events, by hand, and how a client that goes away is noticed.

    data: {json}\n\n     every chunk, without event names: clients take the data of any event for a chunk of their own
    : waiting\n\n        a comment, when nothing has been told for a while
    data: [DONE]\n\n     the end

The head of an answer, and what only says that one begins, wait for something to tell: `BEGIN_SEC` at most. A reader
who takes nothing for `stall_sec` is dropped, and the rows of its answers are free at the next forward.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from redraft.errors import RedraftError
from redraft.server.refusal import Refusal, kind_of, refusal_of
from redraft.server.settings import Limits

T = TypeVar("T")
Chunk = Mapping[str, Any]
Chunks = AsyncGenerator[Chunk | list[dict[str, Any]], None]
"""Chunks of a stream, several where they come together."""

Line = Callable[[Mapping[str, Any]], bytes]
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
DONE, WAITING = b"data: [DONE]\n\n", b": waiting\n\n"

BEGIN_SEC = 0.5
"""So long the beginning may wait: a short answer is one write, and who waits for a long one hears that it has begun."""


class First(list[dict[str, Any]]):
    """The first chunks of a stream, if they are a beginning and nothing more."""


class Last(list[dict[str, Any]]):
    """The last chunks of a stream: its end is told in one write with them."""


class EventStream(Response):
    """A response that tells chunks as they come.

    `gone` is called if the client goes away or stops reading, `over` at the end, whatever it was. `begun` is whether
    anything has been told.
    """

    def __init__(
        self,
        chunks: Chunks,
        *,
        gone: Callable[[], None] = lambda: None,
        over: Callable[[], None] = lambda: None,
        limits: Limits,
        line: Line | None = None,
        end: bytes = DONE,
    ) -> None:
        super().__init__()
        self.raw_headers = [*HEADERS]
        self._chunks, self._gone, self._over, self._limits = chunks, gone, over, limits
        self._line, self._end, self._sending = line or line_of, end, 0
        self.begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell them all."""
        self._here = asyncio.get_running_loop()
        self._moved_at, self._held, self._pen = self._here.time(), b"", asyncio.Lock()
        beside = [asyncio.create_task(_until_gone(receive, self._gone))]
        self._beat(beside, send)
        try:
            # One clock for the whole stream, which `_beat` lets run out: one for each write would cost more than it.
            async with asyncio.timeout(None) as self._clock:
                last = await self._tell_chunks(scope, send)
                await self._tell(send, last + self._end, more=False)
        except (OSError, TimeoutError):  # the client went away, or reads no longer
            self._gone()
        finally:
            self._timer.cancel()
            for task in beside:
                task.cancel()
            self._over()

    async def _tell_chunks(self, scope: Scope, send: Send) -> bytes:
        """All but what is to be told with the end."""
        try:
            async with aclosing(self._chunks) as chunks:
                async for told in chunks:
                    body = b"".join(map(self._line, told)) if isinstance(told, list) else self._line(told)
                    if isinstance(told, Last):
                        return body
                    if isinstance(told, First):
                        self._held = body
                        continue
                    await self._tell(send, body)
        except (RedraftError, Refusal) as error:
            refusal = error if isinstance(error, Refusal) else refusal_of(error)
            notes, code = scope["state"]["log"], refusal.code or str(refusal.status)
            if not notes.get("gone"):  # work that was cut short is no failure
                notes["error"] = kind_of(error) if refusal.status == 500 else code
                scope["app"].state.service.metrics.errors.labels(code).inc()
            return line_of(refusal.body)
        return b""

    async def _tell(self, send: Send, body: bytes, *, more: bool = True) -> None:
        if not self._sending:
            self._moved_at = self._here.time()
        self._sending += 1
        try:
            async with self._pen:  # a comment and a text may be due at once, and the head is before both
                body, self._held = self._held + body, b""
                if not self.begun:
                    self.begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": body, "more_body": more})
        finally:
            self._sending -= 1
        self._moved_at = self._here.time()

    def _beat(self, beside: list[asyncio.Task[None]], send: Send) -> None:
        """Drop a reader who has taken nothing for long, tell a comment where nothing has been told, or the beginning,
        and look again when any of these may be due."""
        now, limits = self._here.time(), self._limits
        quiet_sec = limits.quiet_sec if self.begun else min(BEGIN_SEC, limits.quiet_sec)
        due = self._moved_at + (limits.stall_sec if self._sending else quiet_sec)
        if now >= due and self._sending:
            self._clock.reschedule(now)
            return
        if now >= due:
            beside.append(asyncio.create_task(self._comment(send)))
            due = now + limits.quiet_sec
        due = min(due, now + limits.stall_sec)  # before that, what is sent from now on cannot have stalled
        self._timer = self._here.call_at(due, self._beat, beside, send)

    async def _comment(self, send: Send) -> None:
        try:
            await self._tell(send, WAITING if self.begun else b"")
        except OSError:
            self._gone()


def line_of(chunk: Mapping[str, Any]) -> bytes:
    """One event. JSON escapes line ends, so a text cannot end it."""
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def named_line(chunk: Mapping[str, Any]) -> bytes:
    """The same under the name that the chunk has as its `type`, for the one interface whose clients know names."""
    return f"event: {chunk['type']}\n".encode() + line_of(chunk)


async def unless_gone(request: Request, wanted: Awaitable[T], gone: Callable[[], None]) -> T:
    """The result; `gone` is called if the client goes away before there is one."""
    watch = asyncio.create_task(_until_gone(request.receive, gone))
    try:
        return await wanted
    finally:
        watch.cancel()


async def _until_gone(receive: Receive, gone: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    gone()
