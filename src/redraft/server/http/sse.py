"""Server-sent events, and waiting for a result while the client may leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from redraft.server.http.errors import kind_of, refusal_of
from redraft.server.http.limits import ServerLimits

T = TypeVar("T")
Chunk = Mapping[str, Any]
Chunks = AsyncGenerator[Chunk, None]
DONE = b"data: [DONE]\n\n"
_ENDS = {end.encode(): json.dumps(end).strip('"').encode() for end in ("\x85", "\u2028", "\u2029")}
BEGIN_SEC = 1.0
"""How long a stream waits for what it begins with before it opens."""
AppStatus.enable_automatic_graceful_drain = False  # which ends streams without a word; the server's own end says why


class EventStream(EventSourceResponse):
    """A stream of chunks, each one event.

    `gone` is called if the client leaves or stops reading, `over` at the end in any case. With `named`, an event has
    the chunk's `type` as its name. An error that ends the chunks becomes the last event; [DONE] follows if it is
    `marked` and not `named`.
    """

    def __init__(
        self,
        chunks: Chunks,
        *,
        gone: Callable[[], None] = lambda: None,
        over: Callable[[], None] = lambda: None,
        limits: ServerLimits,
        named: bool = False,
        marked: bool = True,
    ) -> None:
        self._chunks, self._gone, self._over, self._named = chunks, gone, over, named
        self._marked, self._ended = marked and not named, False
        super().__init__(
            self._events(),
            headers={"content-type": "text/event-stream; charset=utf-8"},
            ping=limits.quiet_sec,
            ping_message_factory=lambda: ServerSentEvent(comment="waiting", sep="\n"),
            send_timeout=limits.stall_sec,
            client_close_handler_callable=self._left,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them all."""
        self._scope = scope
        try:
            await super().__call__(scope, receive, send)
        except (OSError, TimeoutError):  # the client left, or stopped reading
            self._gone()
        finally:
            self._over()

    async def _left(self, _: Message) -> None:
        if not self._ended:  # else it is only the end of the connection, or of the answer
            self._gone()

    async def _events(self) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._chunks) as chunks:
                async for chunk in chunks:
                    yield (b"event: %s\n" % chunk["type"].encode() if self._named else b"") + line_of(chunk)
                    await asyncio.sleep(0)  # where more waits than is sent, nothing else would have its turn
        except Exception as error:  # any failure must reach the client as an event: the head is sent
            refusal = refusal_of(error)
            notes, code = self._scope["state"]["log"], refusal.code or str(refusal.status)
            if not notes.get("gone"):  # work that was cut short is no failure
                notes["error"] = kind_of(error) if refusal.status == 500 else code
                self._scope["app"].state.service.metrics.errors.labels(code).inc()
            yield line_of(refusal.body)
        self._ended = True
        if self._marked:
            yield DONE


async def begun(chunks: Chunks) -> Chunks:
    """The chunks, once the first is there or BEGIN_SEC are over. Raises what came instead of it: mistakes that are
    found at once have a status of their own."""
    first = asyncio.ensure_future(anext(chunks))
    try:
        await asyncio.wait({first}, timeout=BEGIN_SEC)
        if first.done():
            first.result()
    except BaseException:
        first.cancel()
        raise
    return _behind(first, chunks)


async def _behind(first: asyncio.Future[Chunk], rest: Chunks) -> Chunks:
    try:
        yield await first
        async for chunk in rest:
            yield chunk
    finally:  # where the wait for the first was cut off, it has ended the rest
        first.cancel()
        await asyncio.wait({first})
        await rest.aclose()


def line_of(chunk: Chunk) -> bytes:
    """One event. JSON escapes line ends, so a text cannot end it; the three that Unicode has beside them are escaped,
    too, since a client's reader of lines may end one there."""
    data = msgspec.json.encode(chunk)
    for end, escape in _ENDS.items():
        data = data.replace(end, escape)
    return b"data: " + data + b"\n\n"


async def unless_gone(request: Request, wanted: Awaitable[T], gone: Callable[[], None]) -> T:
    """The result; `gone` is called if the client leaves before there is one."""
    watch = asyncio.create_task(until_gone(request.receive, gone))
    try:
        return await wanted
    finally:
        watch.cancel()


async def until_gone(receive: Receive, gone: Callable[[], None] = lambda: None) -> None:
    """Return when the client has left, once `gone` has been called."""
    while (await receive())["type"] != "http.disconnect":
        pass
    gone()
