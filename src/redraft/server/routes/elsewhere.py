"""Another server that speaks OpenAI's interface, behind this one's page, keys and limits.

    --backend openai   page ──► /v1/chat/completions, /v1/completions ──────────► Elsewhere ──► the other server
    --beside URL       page ──► /beside/chat/completions, /beside/completions ──► Elsewhere ──► the other server

A body goes there as it came, but for the model's name, and whatever that server honours or refuses is told on. A field
that our own endpoints do not know is refused by name: a router takes some that say who answers. What needs a canvas, or
a model at hand, is refused with its reason. Where the other server is was said when this one was started; nothing of a
request has a say in it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, aclosing
from typing import Any, ClassVar, Protocol, runtime_checkable

from fastapi import Request, Response
from pydantic import ConfigDict

from redraft.errors import CallerError, RedraftError
from redraft.server.body import Body, Flag, Str
from redraft.server.refusal import Refusal, unknown
from redraft.server.respond import GONE, key_of, note_prompts, service_of
from redraft.server.route import router_of_bodies
from redraft.server.schema import Chat, Completion
from redraft.server.stream import Chunk, Chunks, EventStream, unless_gone

router, beside = router_of_bodies(), router_of_bodies()

OURS = ("responses", "fim/completions", "edit/completions", "apply/completions", "canvas", "decisions")
AT_HAND = ("/infill", "/tokenize", "/detokenize", "/tokenizer_info", *(f"/v1/{name}" for name in OURS))


@runtime_checkable
class Elsewhere(Protocol):
    """The other server. Calls raise RequestError for a body that cannot be sent, RunError for no whole answer."""

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Chunk]:
        """Status and JSON of an answer that is whole."""

    def chunks(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[tuple[int, Chunk], None]:
        """The same of each chunk of a stream, or once of a refusal."""


def names_of(kind: type[Body]) -> frozenset[str]:
    """Every field that an endpoint of ours knows, honoured here or not."""
    return frozenset({*kind.model_fields, *kind.inert, *kind.neutral})


class Anything(Body):
    """A body that another server reads, with the fields that are `known`; those named here are what the page uses."""

    model_config = ConfigDict(extra="allow", frozen=True)
    known: ClassVar[frozenset[str]] = frozenset()

    model: Str | None = None
    stream: Flag | None = None
    max_tokens: Any = None
    seed: Any = None


class Turns(Anything):
    """`POST /v1/chat/completions`."""

    known = names_of(Chat)

    messages: Any
    response_format: Any = None


class Continued(Anything):
    """`POST /v1/completions`."""

    known = names_of(Completion)

    prompt: Any


@router.post("/v1/chat/completions", response_model=None)
@beside.post("/beside/chat/completions", response_model=None)
async def chat(request: Request, body: Turns) -> Response:
    """Answer a conversation, elsewhere."""
    return await _answer(request, "chat/completions", body)


@router.post("/v1/completions", response_model=None)
@beside.post("/beside/completions", response_model=None)
async def completions(request: Request, body: Continued) -> Response:
    """Continue a text, elsewhere."""
    return await _answer(request, "completions", body)


async def at_hand(request: Request) -> Response:
    """What only a model at hand can do."""
    beyond = service_of(request).settings.beyond
    message = f"{request.url.path} needs a model at hand; this server only passes on to {beyond}"
    raise Refusal(501, message, code="needs_a_model")


for path in AT_HAND:
    router.add_api_route(path, at_hand, methods=["GET", "POST"], include_in_schema=False)


async def _answer(request: Request, path: str, body: Anything) -> Response:
    service, there = service_of(request), request.app.state.elsewhere
    assert isinstance(there, Elsewhere)
    if service.settings.beside is not None and body.model is not None:
        raise Refusal(400, "which model answers there is said by --their-model; leave model out", param="model")
    service.check_name(body.model)
    if strange := sorted((body.model_extra or {}).keys() - body.known):
        raise unknown(strange[0])
    asked = body.model_dump(exclude_unset=True, exclude={"model", "stream"})
    note_prompts(request, [asked.get("messages", asked.get("prompt"))])
    with ExitStack() as held:
        held.enter_context(service.enter(1, key_of(request)))
        if body.stream:
            return await _streamed(request, there.chunks(path, asked), held)
        work = asyncio.ensure_future(there.post(path, asked))
        held.callback(work.cancel)
        try:
            told = _good(*await unless_gone(request, work, held.close))
        except asyncio.CancelledError:
            return Response(status_code=GONE)
        except RedraftError as error:
            raise _failure(error) from None
    return Response(_as_it_came(told), media_type="application/json")


async def _streamed(request: Request, chunks: AsyncGenerator[tuple[int, Chunk], None], held: ExitStack) -> Response:
    """A stream, once its first chunk is there: what is refused before that has a status of its own."""
    pump = _Pump(chunks)
    held.callback(pump.stop)
    first = await unless_gone(request, pump.next(), pump.stop)
    return EventStream(
        pump.chunks(first),
        gone=pump.stop,
        over=held.pop_all().close,
        limits=service_of(request).settings.limits,
        line=lambda chunk: b"data: " + _as_it_came(chunk) + b"\n\n",
    )


class _Pump:
    """Chunks from elsewhere, read on a task of their own, which ends when nobody waits for them."""

    def __init__(self, chunks: AsyncGenerator[tuple[int, Chunk], None]) -> None:
        self._told: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(chunks))

    def stop(self) -> None:
        """End it; whoever waits is told so."""
        self._task.cancel()
        self._told.put_nowait(None)

    async def next(self) -> Chunk | None:
        """The next chunk, None behind the last. Raises what the other server's answer was instead."""
        told = await self._told.get()
        if isinstance(told, Exception):
            raise told
        return told

    async def chunks(self, told: Chunk | None) -> Chunks:
        """All of them, behind the first."""
        while told is not None:
            yield told
            told = await self.next()

    async def _run(self, chunks: AsyncGenerator[tuple[int, Chunk], None]) -> None:
        try:
            async with aclosing(chunks):
                async for status, chunk in chunks:
                    self._told.put_nowait(_good(status, chunk))
        except Exception as error:  # whatever it is, who waits is told
            self._told.put_nowait(_failure(error) if isinstance(error, RedraftError) else error)
        self._told.put_nowait(None)


def _good(status: int, told: Chunk) -> Chunk:
    """What the other server said. Raises Refusal for its own; that it does not know our key, or fails, is no fault of
    who asks here."""
    if status == 200:
        return told
    passes = 400 <= status < 500 and status not in (401, 403)
    retry_sec = 1 if status == 429 else 0
    message = str(told["error"]["message"])
    raise Refusal(status if passes else 502, message, code="elsewhere", retry_sec=retry_sec)


def _failure(error: RedraftError) -> Refusal:
    """Why it said nothing."""
    return Refusal(400 if isinstance(error, CallerError) else 502, str(error), code="elsewhere")


def _as_it_came(told: Chunk) -> bytes:
    """JSON with whatever its writers put there: numbers that are none, halves of characters in two chunks."""
    return json.dumps(told).encode()
