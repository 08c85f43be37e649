"""`POST /v1/canvas`: what only a canvas can do, in a form of our own.

messages or prompt    one answer, with tokens pinned or given; as a stream, every step of it
segments              a document of texts, holes and at most one revision: the holes are filled, the rest is kept;
                      as a stream, every canvas that competes for it
"""

from __future__ import annotations

from dataclasses import replace

from fastapi import Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from redraft.diffusion.seed import SeedCanvas
from redraft.engine.events import Block, Draft, Finished
from redraft.operations.engine import Engine
from redraft.server.ask import asked, kept_whole, options_of
from redraft.server.body import Body, Int, Str
from redraft.server.document import Document, Segment, complete
from redraft.server.languages import structured
from redraft.server.leash import Leash
from redraft.server.refusal import Refusal
from redraft.server.relay import Relay, relayed
from redraft.server.replies import Json, TextForm, told
from redraft.server.respond import Exchange, Work, aside, key_of, note_prompts, service_of
from redraft.server.route import router_of_bodies
from redraft.server.schema import Message, Sampling, StructuredOutputs
from redraft.server.service import Service
from redraft.server.stream import Chunks, EventStream
from redraft.trace.frames import Frames, block_frame

router = router_of_bodies()


class Held(Body):
    """Tokens at a place of the first canvas: a text from there on, or one token id."""

    at: Int = Field(ge=0, description="position, counted from 0")
    text: Str | None = Field(default=None, description="as many positions as it has tokens")
    token: Int | None = Field(default=None, description="one token id")

    def pairs(self, engine: Engine) -> list[tuple[int, int]]:
        """(position, token id). Raises Refusal unless it is one of the two."""
        if (self.text is None) == (self.token is None):
            raise Refusal(400, f"the place {self.at} has no text, or a token, too; send one of them", param="pins")
        tokens = [self.token] if self.token is not None else engine.text.encode(self.text or "", bos=False)
        return [(self.at + i, token) for i, token in enumerate(tokens)]


class Canvas(Sampling):
    """`POST /v1/canvas`."""

    messages: list[Message] | None = Field(default=None, description="a conversation to answer")
    prompt: Str | None = Field(default=None, description="a text to continue")
    pins: list[Held] | None = Field(default=None, description="tokens of the first canvas that stay")
    given: list[Held] | None = Field(default=None, description="tokens that it begins with, free from then on")
    structured_outputs: StructuredOutputs | None = Field(default=None, description="json, regex, choice or grammar")
    segments: list[Segment] | None = Field(default=None, description="a document: texts, holes, at most one revision")


@router.post("/v1/canvas", response_model=None)
async def canvas(request: Request, body: Canvas) -> Response | Json:
    """Answer with every detail, or complete a document."""
    service = service_of(request)
    service.check_name(body.model)
    given = [name for name in ("messages", "prompt", "segments") if getattr(body, name) is not None]
    if len(given) != 1:
        said = " and ".join(given) or "nothing to work on"
        raise Refusal(400, f"{said} was sent; send one of messages, prompt and segments", param="segments")
    if body.segments is not None:
        return await _document(service, request, body)
    work = await run_in_threadpool(_prepare, service, body)
    exchange = Exchange(service, work, request)
    return await exchange.tell(lambda: _frames(exchange), lambda: _whole(exchange), drafts=bool(body.stream))


def _prepare(service: Service, body: Canvas) -> Work:
    engine = service.engine
    if (body.n or 1) != 1:
        raise Refusal(400, f"n is {body.n}; a canvas is one answer, so leave it out", param="n")
    settings = kept_whole(service.settings) if body.pins or body.given else service.settings
    options = options_of(body, engine, settings, max_tokens=None)
    pins = tuple(pair for held in body.pins or () for pair in held.pairs(engine))
    begun = tuple(pair for held in body.given or () for pair in held.pairs(engine))
    if pins or begun:
        options = replace(options, seed_canvas=SeedCanvas(pins, begun))
    if body.messages is not None:
        prompt = engine.text.chat([{"role": one.role, "content": one.text} for one in body.messages])
    else:
        prompt = engine.text.encode(body.prompt or "", bos=True)
    limits = service.settings.limits
    wanted = asked(engine, [prompt], options, 1, structured(body.structured_outputs, limits))
    return Work(body, wanted, TextForm(engine.text))


async def _frames(exchange: Exchange) -> Chunks:
    engine = exchange.service.engine
    frames = Frames(engine.text, engine.config.generation.eos_token_ids)
    while (one := await exchange.next()) is not None:
        if isinstance(one.event, Draft):
            yield {"type": "draft"} | frames.of(0, one.event)
        elif isinstance(one.event, Block):
            yield {"type": "block", "text": one.said.content} | block_frame(engine.text, one.event)
        elif isinstance(one.event, Finished):
            yield {"type": "finished"} | _whole(exchange)


def _whole(exchange: Exchange) -> Json:
    (voice,) = exchange.voices
    return {
        "object": "canvas",
        "model": exchange.service.settings.name,
        "text": voice.content,
        "blocks": [block_frame(exchange.service.engine.text, block) for block in voice.blocks],
        "canvas": told(voice),
        "usage": exchange.usage(),
    }


async def _document(service: Service, request: Request, body: Canvas) -> Response | Json:
    for name in ("pins", "given", "structured_outputs", "n", "stop"):
        if getattr(body, name):
            raise Refusal(400, f"{name} was sent with segments; leave it out", param=name)
    options = options_of(body, service.engine, kept_whole(service.settings), max_tokens=None)
    document = Document(tuple(body.segments or ()), body.max_tokens, options)
    note_prompts(request, [segment.model_dump(exclude_none=True) for segment in document.segments])

    def work(engine: Engine) -> Json:
        return {"object": "canvas", "model": service.settings.name, **complete(engine, document)}

    if not body.stream:
        return await aside(request, work)
    relay = Relay(service.engine)
    leash, room = Leash(service.engine, relay), service.enter(1, key_of(request))
    chunks = relayed(service.engine, relay, leash, work)
    return EventStream(chunks, gone=leash.cut, over=room.close, limits=service.settings.limits)
