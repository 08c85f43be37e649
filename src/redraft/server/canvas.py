"""`POST /v1/canvas`: what only a canvas can do, in a form of our own.

messages or prompt    one answer, with tokens pinned or given; as a stream, every step of it
segments              a document of texts, holes and at most one revision: the holes are filled, the rest is kept;
                      as a stream, every canvas that competes for it
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

from fastapi import Request, Response
from pydantic import Field

from redraft.engine.events import Block, Draft, Finished
from redraft.engine.resolve import canvas_width
from redraft.images.prompt import Prompt
from redraft.operations.engine import Engine
from redraft.options import SeedCanvas
from redraft.server.document import Segment, complete
from redraft.server.follow import Follower, followed
from redraft.server.http.body import Body, Int, Str
from redraft.server.http.errors import ApiError
from redraft.server.http.routing import answers, router_of_bodies
from redraft.server.http.service import Service, note_prompts, service_of
from redraft.server.http.sse import Chunks, EventStream, begun
from redraft.server.limits import within
from redraft.server.openai.chat import messages_of
from redraft.server.openai.constraint import structured
from redraft.server.openai.exchange import Exchange, Work, aside, noise_of
from redraft.server.openai.fields import Sampling, StructuredOutputs, Turns, Width
from redraft.server.openai.replies import Json, TextForm, canvas_report
from redraft.server.openai.request_builder import RequestBuilder
from redraft.trace.frames import Frames, block_frame

router = router_of_bodies()


class Place(Body):
    """Tokens at a place of the first canvas: a text from there on, or one token id."""

    at: Width = Field(description="position, counted from 0")
    text: Annotated[Str, within("place")] | None = Field(default=None, description="as many positions as it has tokens")
    token: Annotated[Int, within("id")] | None = Field(default=None, description="one token id")

    def pairs(self, engine: Engine, width: int, field: str) -> list[tuple[int, int]]:
        """(position, token id). Raises ApiError unless it is one of the two, on a canvas of this width."""
        if (self.text is None) == (self.token is None):
            raise ApiError(400, f"the place {self.at} has no text, or a token, too; send one of them", param=field)
        tokens = [self.token] if self.token is not None else engine.text.encode(self.text or "", bos=False)
        if self.at + len(tokens) > width:
            said = f"the place {self.at} reaches position {self.at + len(tokens) - 1}; the canvas has {width} positions"
            raise ApiError(400, said, param=field)
        return [(self.at + i, token) for i, token in enumerate(tokens)]


Places = Annotated[list[Place], within("places")]


class CanvasBody(Sampling):
    """`POST /v1/canvas`."""

    messages: Turns | None = Field(default=None, description="a conversation to answer")
    prompt: Str | None = Field(default=None, description="a text to continue")
    pins: Places | None = Field(default=None, description="tokens of the first canvas that stay")
    given: Places | None = Field(default=None, description="tokens that it begins with, free from then on")
    structured_outputs: StructuredOutputs | None = Field(default=None, description="json, regex, choice or grammar")
    segments: Annotated[list[Segment], within("segments")] | None = Field(
        default=None, description="a document: texts, holes, at most one revision"
    )


@router.post("/v1/canvas", response_model=None)
@answers
async def canvas(request: Request, body: CanvasBody) -> Response | Json:
    """Answer with every detail, or complete a document."""
    service = service_of(request)
    given = [name for name in ("messages", "prompt", "segments") if getattr(body, name) is not None]
    if len(given) != 1:
        said = f"{' and '.join(given)} were sent" if given else "there is nothing to work on"
        raise ApiError(400, f"{said}; send one of messages, prompt and segments", param=given[-1] if given else None)
    if body.segments is not None:
        return await _document(service, request, body)
    work = await service.on_thread(request, _prepare, service, body)
    exchange = Exchange(service, work, request)
    return exchange.stream(_frames(exchange)) if body.stream else await exchange.reply(partial(_whole, exchange))


def _prepare(service: Service, body: CanvasBody) -> Work:
    if (body.n or 1) != 1:
        raise ApiError(400, f"n is {body.n}; a canvas is one answer, so leave it out", param="n")
    builder = RequestBuilder(service, body)
    engine, options = builder.engine, builder.options(max_tokens=None, keeps_canvas=bool(body.pins or body.given))
    width = canvas_width(options, engine.config)
    pins, begun = (_pairs(engine, width, body, field) for field in ("pins", "given"))
    if pins or begun:
        options = replace(options, seed_canvas=SeedCanvas(pins, begun))
    if body.messages is not None:
        prompt = engine.chat_prompt(messages_of(service, body.messages))
    else:
        prompt = Prompt(tuple(engine.text.encode(body.prompt or "", bos=True)))
    constraint = structured(body.structured_outputs)
    requests = builder.requests([prompt], options, 1, constraint)
    unused = ["stream_options"] * (body.stream_options is not None)  # the last event has the usage
    form = TextForm(engine.text)
    return Work(body, requests, len(prompt.tokens), form, drafts=bool(body.stream), unused=unused)


def _pairs(
    engine: Engine, width: int, body: CanvasBody, field: Literal["pins", "given"]
) -> tuple[tuple[int, int], ...]:
    """(position, token id) of all places of a field. Raises ApiError for many more than there are positions."""
    found: list[tuple[int, int]] = []
    for place in getattr(body, field) or ():
        found += place.pairs(engine, width, field)
        if len(found) > MOST_TIMES * width:
            said = f"{field} has over {MOST_TIMES * width} tokens, and the canvas {width} positions; send each once"
            raise ApiError(400, said, param=field)
    return tuple(found)


MOST_TIMES = 4
"""How often the places of a canvas may be given each, on average."""


async def _frames(exchange: Exchange) -> Chunks:
    engine = exchange.service.engine
    frames, (asked,) = Frames(engine.text, engine.config.generation.eos_token_ids), exchange.work.requests
    began = asked.causal
    async for _, delta in exchange.answers:
        if isinstance(delta.event, Draft):
            if not began:  # with the first step, so that what goes wrong before it has a status of its own
                began = True
                pieces = [engine.text.decode([token], skip_special=False) for token in noise_of(asked).tokens]
                yield {"type": "noise", "width": len(pieces), "tokens": pieces}
            yield {"type": "draft"} | frames.of(0, delta.event)
        elif isinstance(delta.event, Block):
            yield {"type": "block", "text": delta.content} | block_frame(engine.text, delta.event)
        if isinstance(delta.event, Finished) or exchange.answers.answers[0].stopped:
            yield {"type": "finished"} | _whole(exchange)


def _whole(exchange: Exchange) -> Json:
    (answer,), (done,) = exchange.answers.answers, exchange.done()
    return {
        "object": "canvas",
        "model": exchange.service.settings.name,
        "text": done.text,
        "blocks": [block_frame(exchange.service.engine.text, block) for block in answer.blocks],
        "canvas": canvas_report(done),
        "usage": exchange.usage(),
    }


async def _document(service: Service, request: Request, body: CanvasBody) -> Response | Json:
    for name in ("pins", "given", "structured_outputs", "n", "stop"):
        if getattr(body, name):
            raise ApiError(400, f"{name} was sent with segments; leave it out", param=name)
    options = RequestBuilder(service, body).options(max_tokens=None, keeps_canvas=True)
    segments = body.segments or []
    note_prompts(request, [segment.model_dump(exclude_none=True) for segment in segments])

    def work(engine: Engine) -> Json:
        done = complete(engine, segments, max_tokens=body.max_tokens, options=options)
        return {"object": "canvas", "model": service.settings.name, **done}

    if not body.stream:
        return await aside(request, work)
    engine, follower, room = service.engine, Follower(), service.enter(1, request)
    scope = service.scope(request, follower)
    chunks = followed(request, engine.within(scope), scope, follower, work)
    try:
        chunks = await begun(chunks)
    except BaseException:
        room.close()
        raise
    found = EventStream(chunks, gone=scope.cancel, over=room.close, limits=service.settings.limits)
    found.headers.update({"x-ignored-fields": "stream_options"} if body.stream_options is not None else {})
    return found
