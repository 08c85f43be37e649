"""The one address of a fleet: an ASGI application that passes each request on to a replica and its answer back.

A replica may be lost. A request of which the client has seen nothing is asked again: of another replica, with the same
seed, so with the same answer. A stream that has begun ends with an error event. Nothing is checked here but the sizes
of bodies: every replica is a whole server. Where there are keys, a body of a client without one is not read.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from redraft.errors import RedraftError
from redraft.server.http.errors import ApiError
from redraft.server.http.keys import key_number, sent_key
from redraft.server.http.limits import Bodies, body_too_large
from redraft.server.http.metrics import merged
from redraft.server.http.middleware import HEADERS, answer, cors, headers_of, name_path, request_id
from redraft.server.http.places import blocks_of
from redraft.server.http.service import Phase, caller_of, stopping
from redraft.server.http.settings import Settings
from redraft.server.http.sse import DONE, line_of, until_gone

Ask = Callable[[Mapping[str, Any], bytes, Sequence[bytes]], AsyncGenerator[Sequence[Message], None]]
"""Asks a replica: scope, body and `blocks_of` it; yields the ASGI messages of its answer."""

TRIES = 3
"""Replicas that one request may be asked of: a request that ends every process it comes to must not go on for ever."""

LARGE_BYTES = 2**20
"""Of a body, behind which the garbage of earlier requests is looked for."""

LIVE, PROBES = "/live", ("/health", "/v1/health", "/ready")
PROBE_SEC = 5.0
NAMED = b"x-request-id"
METRICS, EACH = "/metrics", "/metrics/replicas"
FIGURES_SEC = 1.0
"""How old the figures of a fleet may be: those of many replicas take long to add up, under Python's lock."""

LOST = ApiError(502, "the replica that was answering was lost; send the request again", code="replica_lost")
NONE_LEFT = ApiError(502, f"{TRIES} replicas were lost while they answered this request", code="replica_lost")
FAILED = ApiError(502, "the request could not be passed on to a replica; send it again", code="replica_lost")
NONE_YET = ApiError(503, "no replica answers yet; try again soon", code="loading", retry_sec=2)


class Relay:
    """The application. `lost` are the errors of a replica that is gone, `figures` the figures of each by its name."""

    phase: Phase = "ready"
    failure: RedraftError | None = None
    under_way = 0

    def __init__(
        self,
        ask: Ask,
        lost: tuple[type[Exception], ...],
        figures: Callable[[], Awaitable[Mapping[str, bytes]]],
        settings: Settings,
    ) -> None:
        self._ask, self._lost, self._figures = ask, lost, figures
        self.settings, self._limits, self._bodies = settings, settings.limits, Bodies()
        self._pages: dict[str, asyncio.Task[tuple[float, bytes]]] = {}
        self._app = cors(self._relayed, settings)

    def abandon(self) -> None:
        """Nothing is worked on here."""

    def drain(self) -> None:
        """Refuse new requests."""
        self.phase = "draining"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "websocket":  # which the server of a deployment lets in
            await send({"type": "websocket.close"})
        if scope["type"] != "http":
            return
        name_path(scope)
        await self._app(scope, receive, send)

    async def _relayed(self, scope: Scope, receive: Receive, send: Send) -> None:
        keys, headers = self.settings.keys, headers_of(scope)
        number = key_number(keys, sent_key(headers)) if keys else None
        name = (NAMED, request_id(headers).encode())  # the same for each replica that is asked
        scope["headers"] = [*(pair for pair in scope["headers"] if pair[0] != NAMED), name]
        send = _named(send, name)
        if scope["path"] == LIVE and scope["method"] in ("GET", "HEAD"):  # it says nothing of replicas
            await JSONResponse({"status": "ok"})(scope, receive, send)
            return
        scope.setdefault("state", {})["key"] = number
        read, reply = _Read(caller_of(scope)), _Reply(send)
        try:
            is_known = number is not None or not keys  # else a replica refuses it by its head
            body = await self._body(receive, read) if is_known else b""
            if self.phase == "draining":
                raise stopping()
            if body is not None:  # else the client left before it had asked
                await self._pass_on(scope, body, receive, reply)
        except ApiError as refusal:
            await answer(refusal)(scope, receive, send)
        except asyncio.CancelledError:  # the server's end, for which it has waited as long as it may
            await (reply.close() if reply.is_whole else reply.fail(stopping()))
        finally:
            self._bodies.drop(read.caller, read.size)
            if read.size > LARGE_BYTES:
                gc.collect()  # tracebacks hold frames that hold the bodies of requests before this one

    async def _pass_on(self, scope: Scope, body: bytes, receive: Receive, reply: _Reply) -> None:
        """Until it is answered or the client has left."""
        answering = asyncio.create_task(self._answer(scope, body, reply))
        leaving = asyncio.create_task(until_gone(receive))
        self.under_way += 1
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            self.under_way -= 1
            answering.cancel()
            leaving.cancel()

    async def _body(self, receive: Receive, read: _Read) -> bytes | None:
        parts = []
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            read.size += len(parts[-1])
            self._bodies.add(read.caller, len(parts[-1]), read.size)
            limit = max(self._limits.body_bytes, self._limits.image_body_bytes)  # a replica without images has less
            if read.size > limit:
                raise body_too_large(limit)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _answer(self, scope: Scope, body: bytes, reply: _Reply) -> None:
        error, blocks = NONE_LEFT, blocks_of(body) if scope["method"] == "POST" else ()
        for _ in range(TRIES):
            try:
                await self._attempt(scope, body, blocks, reply)
                await reply.close()
                return
            except TimeoutError:
                error = NONE_YET
                break
            except Exception as problem:  # a replica is lost, or what carries the request has failed
                if reply.is_whole:
                    await reply.close()
                    return
                if not isinstance(problem, (_CutShortError, *self._lost)):
                    logging.getLogger(__name__).error("a request could not be passed on: %.500r", problem)
                    error = FAILED
                    break
                if reply.begun:
                    error = LOST
                    break
                reply.again()
        await reply.fail(error)

    async def _attempt(self, scope: Scope, body: bytes, blocks: Sequence[bytes], reply: _Reply) -> None:
        """The answer of one replica."""
        path = scope["path"]
        wanted = bare(scope) | ({"path": METRICS, "raw_path": METRICS.encode()} if path == EACH else {})
        seconds = PROBE_SEC if path in PROBES else self._limits.request_sec + self._limits.drain_sec
        async with asyncio.timeout(seconds) as patience, aclosing(self._ask(wanted, body, blocks)) as answers:
            async for messages in answers:
                patience.reschedule(None)  # it is being answered; the replica keeps its own time
                if path in (METRICS, EACH):
                    messages = [await self._with_figures(message, path) for message in messages]
                if not await reply.take(messages):
                    break
        if not (reply.is_whole or reply.closed):
            raise _CutShortError

    async def _with_figures(self, message: Message, path: str) -> Message:
        """A replica has let the request in: with all replicas' figures in place of its own."""
        if message["type"] == "http.response.start":
            headers = [(name, value) for name, value in message["headers"] if name != b"content-length"]
            return {**message, "headers": headers}
        if not message.get("body", b"").startswith(b"#"):
            return message  # a refusal
        return {**message, "body": await self._added(path)}

    async def _added(self, path: str) -> bytes:
        """The figures of all replicas, asked for and added up once for all who want them."""
        adding = self._pages.get(path)
        if adding is None or _is_over(adding):
            adding = self._pages[path] = asyncio.create_task(self._add(path))
            adding.add_done_callback(_is_over)  # an error for which nobody has waited is no news
        return (await asyncio.shield(adding))[1]

    async def _add(self, path: str) -> tuple[float, bytes]:
        page = await asyncio.to_thread(merged, await self._figures(), apart=path == EACH)
        return time.monotonic(), page


class _CutShortError(Exception):
    """A replica's messages ended before its answer did."""


@dataclass
class _Read:
    """How much of a body has come, and whose it is."""

    caller: object
    size: int = 0


class _Reply:
    """One answer on its way to the client, who has seen nothing of it until `begun`.

    Only streams are passed on as they come, and their comments are nothing: a server sends them while it waits.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun, self._headed = False, False
        self.is_whole = False
        """The last event or part was sent: a replica that is lost from here on costs the client nothing."""
        self.closed = False
        self._start: Message = {}
        self._held: list[bytes] = []

    def again(self) -> None:
        """Forget what was held of an answer that was cut off."""
        self._start, self._held = {}, []

    async def take(self, messages: Sequence[Message]) -> bool:
        """Some messages of a replica's; whether more may follow."""
        for message in messages:
            if message["type"] == "http.response.start":
                if self._headed and message["status"] != 200:
                    await self.fail(LOST)
                    return False
                self._start = message
            elif message["type"] == "http.response.body":
                await self._body(message)
        return True

    async def fail(self, error: ApiError) -> None:
        """End with an error: as the answer, or as the last event of a stream."""
        self.closed = True
        if self._headed:
            await self._send({"type": "http.response.body", "body": line_of(error.body) + DONE})
            return
        self._headed = True
        headers = [(name.encode(), value.encode()) for name, value in error.headers.items()]
        headers.append((b"content-type", b"application/json"))
        await self._send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": msgspec.json.encode(error.body)})

    async def close(self) -> None:
        """End a whole answer, if its last part has not done so."""
        if not self.closed:
            await self._send({"type": "http.response.body", "body": b""})

    async def _body(self, message: Message) -> None:
        part, more = message.get("body", b""), message.get("more_body", False)
        if not _streams(self._start):
            self._held.append(part)
            if more:
                return
            part = b"".join(self._held)
        if not self._headed:
            self._headed = True
            await self._send(self._start)
        self.begun = self.begun or not more or (bool(part) and not part.startswith(b":"))
        self.is_whole, self.closed = self.is_whole or not more or part.endswith(DONE), not more
        await self._send({"type": "http.response.body", "body": part, "more_body": more})


def _named(send: Send, name: tuple[bytes, bytes]) -> Send:
    """The relay's own answers get the headers that a replica's have, and the request's name."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start" and NAMED not in dict(message["headers"]):
            message = {**message, "headers": [*message["headers"], *HEADERS, name]}
        await send(message)

    return sending


def _is_over(adding: asyncio.Task[tuple[float, bytes]]) -> bool:
    """Whether figures that were added up are too old, or failed to be."""
    if not adding.done():
        return False
    return adding.cancelled() or adding.exception() is not None or time.monotonic() - adding.result()[0] > FIGURES_SEC


def _streams(start: Message) -> bool:
    kinds = [value for name, value in start["headers"] if name == b"content-type"]
    return any(value.startswith(b"text/event-stream") for value in kinds)


def bare(scope: Scope) -> dict[str, Any]:
    """What of a scope may travel."""
    names = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "client", "server")
    headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    return {name: scope.get(name) for name in names} | {"headers": headers}
