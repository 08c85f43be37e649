"""From a checked request to a response: run it, tell it whole or as a stream, count it, stop if nobody listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from redraft.engine.events import Draft, Event, Finished
from redraft.operations.engine import Engine
from redraft.server.ask import Asked
from redraft.server.leash import Leash, on_thread
from redraft.server.mending import Mending
from redraft.server.replies import Form, Head, Json, usage
from redraft.server.run import Run
from redraft.server.schema import Sampling
from redraft.server.service import Service
from redraft.server.stream import Chunks, EventStream, unless_gone
from redraft.server.voice import Said, Voice
from redraft.trace.frames import Frames

R = TypeVar("R")
GONE = 499  # nobody reads it; the log does


@dataclass(frozen=True)
class Told:
    """One event of answer i."""

    i: int
    event: Event
    said: Said


@dataclass(frozen=True)
class Work:
    """A checked request: what the engine is asked, how its answers are told, and tokens that were predicted of each."""

    body: Sampling
    asked: Asked
    form: Form
    predicted: Sequence[int] = ()


@dataclass
class Exchange:
    """Some work under way, for one HTTP request or for nobody who could leave."""

    service: Service
    work: Work
    request: Request | None = None
    room: ExitStack = field(init=False, repr=False)
    run: Run = field(init=False, repr=False)

    def __post_init__(self) -> None:
        engine = self.service.engine
        self.body, self.asked, self.form = self.work.body, self.work.asked, self.work.form
        self.head = Head(self.service.settings, self.form)
        self.voices = [Voice(engine.text, request, self.service.marks) for request in self.asked.requests]

    async def respond(self) -> Response | Json:
        """Answer as most endpoints do. Raises Refusal if there is no room."""
        options = self.body.canvas
        drafts = bool(self.body.stream and options is not None and options.stream)
        return await self.tell(self._chunks, self.whole, drafts=drafts)

    async def tell(
        self,
        chunks: Callable[[], Chunks],
        whole: Callable[[], Json],
        *,
        drafts: bool,
        named: bool = False,
    ) -> Response | Json:
        """Answer in chunks if a stream was asked for, otherwise whole. Raises Refusal if there is no room."""
        self.open(drafts=drafts)
        if self.body.stream:
            limits = self.service.settings.limits
            return EventStream(chunks(), gone=self.run.abort, over=self.over, limits=limits, named=named)
        return whole() if await self.finish() else Response(status_code=GONE)

    def open(self, *, drafts: bool) -> None:
        """Submit the requests. Raises Refusal if there is no room; `over` has to be called otherwise."""
        self.room = self.service.enter(len(self.voices), key_of(self.request))
        try:
            engine = self.service.engine
            # Nothing may be told before a validator has read it, if the language has one.
            if any(one.language is not None and one.language.checked for one in self.asked.requests):
                self.run = Mending(engine, self.asked.requests)
            else:
                self.run = Run(engine, self.asked.requests, behind=self.asked.behind, drafts=drafts)
        except BaseException:
            self.room.close()
            raise

    async def finish(self) -> bool:
        """Run to the end. False if the client went away meanwhile. Calls `over`."""
        try:
            told = self._finish()
            await (told if self.request is None else unless_gone(self.request, told, self.run.abort))
        finally:
            self.over()
        return not self.run.gone

    async def next(self) -> Told | None:
        """What happens next, and what it adds to an answer; None when all is told."""
        told = await self.run.next()
        if told is None:
            return None
        i, event = told
        return Told(i, event, Said() if isinstance(event, Draft) else self._take(i, event))

    def whole(self) -> Json:
        """The finished answers."""
        return self.head.whole(self.voices, self.usage())

    async def _finish(self) -> None:
        while await self.next() is not None:
            pass

    def _take(self, i: int, event: Event) -> Said:
        said = self.voices[i].take(event)
        if self.voices[i].stopped and i in self.run.open:
            self.run.stop(i)
        return said

    async def _chunks(self) -> Chunks:
        head, form, options = self.head.of(chunk=True), self.form, self.body.stream_options
        with_usage = options is not None and bool(options.include_usage)
        head |= {"usage": None} if with_usage else {}
        running = options is not None and bool(options.continuous_usage_stats)
        engine = self.service.engine
        frames = Frames(engine.text, engine.config.generation.eos_token_ids)
        for i in range(len(self.voices)):
            if first := form.first(i):
                yield head | {"choices": [first]}
        while (told := await self.next()) is not None:
            i, voice, said = told.i, self.voices[told.i], told.said
            if isinstance(told.event, Draft):
                yield head | {"choices": [form.piece(i, voice, Said())], "canvas": frames.of(i, told.event)}
            more = {"usage": self.usage()} if running else {}
            if said.content or said.reasoning or said.logprobs or said.read:
                yield head | {"choices": [form.piece(i, voice, said)]} | more
            if isinstance(told.event, Finished) or voice.stopped:
                yield head | {"choices": [form.last(i, voice)]} | more
        if with_usage and not self.run.gone:
            yield head | {"choices": [], "usage": self.usage()}

    def usage(self) -> Json:
        """Of all answers so far."""
        return usage(self.voices, self.asked.prompt_tokens, self.work.predicted)

    def over(self) -> None:
        """Whatever happened: free the rows and the room, and count."""
        gone = self.run.gone  # before what an error has left open is ended
        self.run.abort() if self.run.open else None
        self.room.close()
        metrics = self.service.metrics
        metrics.prompt_tokens.inc(self.asked.prompt_tokens)
        metrics.dropped.inc(self.run.mail.dropped_drafts)
        for voice in self.voices:
            metrics.served(voice)
        notes = None if self.request is None else self.request.scope["state"].get("log")
        if notes is not None:
            notes["gone"] = gone
            if self.service.settings.log_prompts:
                notes["prompts"] = [self.service.engine.text.decode(one) for one in self.asked.prompts]
            notes["prompt_tokens"] = self.asked.prompt_tokens
            notes["tokens"] = sum(len(voice.tokens) for voice in self.voices)
            notes["steps"] = sum(sum(voice.steps) for voice in self.voices)


async def aside(request: Request, work: Callable[[Engine], R], *, answers: int = 1) -> R:
    """Work with the engine on a thread, given up if the client goes away. Raises Refusal if there is no room."""
    service = service_of(request)
    leash = Leash(service.engine)
    with service.enter(answers, key_of(request)):
        return await unless_gone(request, on_thread(service.engine, leash, work), leash.cut)


def at_once(
    service: Service, body: Sampling, form: Form, voices: Sequence[Voice], prompt_tokens: int
) -> Response | Json:
    """Finished answers, whole or as a stream of one piece each."""
    head, told = Head(service.settings, form), usage(voices, prompt_tokens)
    if not body.stream:
        return head.whole(voices, told)
    wanted = body.stream_options is not None and bool(body.stream_options.include_usage)
    chunks = _pieces(head, voices, told if wanted else None)
    return EventStream(chunks, limits=service.settings.limits)


async def _pieces(head: Head, voices: Sequence[Voice], told: Json | None) -> Chunks:
    common, form = head.of(chunk=True), head.form
    for i, voice in enumerate(voices):
        if first := form.first(i):
            yield common | {"choices": [first]}
        yield common | {"choices": [form.piece(i, voice, Said(content=voice.content))]}
        yield common | {"choices": [form.last(i, voice)]}
    if told is not None:
        yield common | {"choices": [], "usage": told}


def count(request: Request, voices: Sequence[Voice], prompt_tokens: int) -> None:
    """Answers that were made aside, in the figures and in the request's line of the log."""
    metrics = service_of(request).metrics
    metrics.prompt_tokens.inc(prompt_tokens)
    for voice in voices:
        metrics.served(voice)
    told = {"prompt_tokens": prompt_tokens, "tokens": sum(len(voice.tokens) for voice in voices)}
    request.scope["state"]["log"] |= told


def key_of(request: Request | None) -> int | None:
    """The number of the key that came with a request."""
    found = None if request is None else request.scope.get("state", {}).get("key")
    return found if isinstance(found, int) else None


def service_of(request: Request) -> Service:
    """The server that a request came to."""
    service: Service = request.app.state.service
    return service


def note_prompts(request: Request, prompts: Sequence[object]) -> None:
    """For a request's line of the log, if that is to have them."""
    if service_of(request).settings.log_prompts:
        request.scope["state"]["log"]["prompts"] = prompts
