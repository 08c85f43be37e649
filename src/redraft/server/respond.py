"""From a checked request to a response: run it, tell it whole or as a stream, count it, stop if nobody listens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from redraft import __version__
from redraft.engine.events import Draft, Finished
from redraft.server.ask import Asked
from redraft.server.body import Body
from redraft.server.frames import Frames
from redraft.server.metrics import Served
from redraft.server.replies import Form, Head, Json, usage
from redraft.server.run import Run
from redraft.server.schema import Sampling
from redraft.server.service import Service
from redraft.server.stream import Chunks, EventStream, unless_gone
from redraft.server.voice import Said, Voice

GONE = 499  # nobody reads it; the log does
Predicted = Callable[[list[Voice]], tuple[int, int]]


@dataclass
class Exchange:
    """One HTTP request whose answers are under way."""

    service: Service
    request: Request
    body: Sampling
    asked: Asked
    form: Form
    predicted: Predicted = lambda _: (0, 0)
    room: ExitStack = field(default_factory=ExitStack)
    run: Run = field(init=False, repr=False)

    def __post_init__(self) -> None:
        engine = self.service.engine
        self.head = Head(self.service.settings.name, fingerprint(), self.form)
        self.voices = [Voice(engine.text, request, self.service.marks) for request in self.asked.requests]

    async def respond(self) -> Response:
        """Answer. Raises Refusal if there is no room."""
        stream = bool(self.body.stream)
        options = self.body.canvas
        drafts = stream and options is not None and bool(options.stream)
        self.room.enter_context(self.service.enter(len(self.voices), key_of(self.request)))
        try:
            self.run = Run(self.service.engine.loop, self.asked.requests, behind=self.asked.behind, drafts=drafts)
        except BaseException:
            self.room.close()
            raise
        if stream:
            stall = self.service.settings.limits.stall_sec
            return EventStream(
                self._chunks(), gone=self.run.abort, over=self._over, stall_sec=stall, headers=headers_of(self.body)
            )
        try:
            await unless_gone(self.request, self._finish(), self.run.abort)
        finally:
            self._over()
        if self.run.gone:
            return Response(status_code=GONE)
        whole = self.head.of(chunk=False)
        whole |= {"choices": [self.form.whole(i, voice) for i, voice in enumerate(self.voices)], "usage": self._usage()}
        return JSONResponse(whole, headers=headers_of(self.body))

    async def _finish(self) -> None:
        while self.run.open:
            told = await self.run.next(self.service.settings.limits.quiet_sec)
            if told is not None:
                self._take(*told)

    def _take(self, i: int, event: object) -> Said:
        said = self.voices[i].take(event)  # type: ignore[arg-type]
        if self.voices[i].stopped and i in self.run.open:
            self.run.stop(i)
        return said

    async def _chunks(self) -> Chunks:
        head, form, options = self.head.of(chunk=True), self.form, self.body.stream_options
        if options is not None and options.include_usage:
            head["usage"] = None
        running = options is not None and bool(options.continuous_usage_stats)
        # What a validator has yet to read is told when it has been read.
        held = any(one.language is not None and one.language.checked for one in self.asked.requests)
        frames = Frames(self.service.engine)
        for i in range(len(self.voices)):
            if first := form.first(i):
                yield head | {"choices": [first]}
        while self.run.open:
            told = await self.run.next(self.service.settings.limits.quiet_sec)
            if told is None:
                if self.run.open:
                    yield None
                continue
            i, event = told
            if isinstance(event, Draft):
                yield head | {"choices": [form.piece(i, self.voices[i], Said())], "canvas": frames.of(i, event)}
                continue
            said = self._take(i, event)
            if held and self.voices[i].finish is None:
                continue
            said.content = self.voices[i].content if held else said.content
            more = {"usage": self._usage()} if running else {}
            if said.content or said.reasoning or said.logprobs:
                yield head | {"choices": [form.piece(i, self.voices[i], said)]} | more
            if isinstance(event, Finished) or self.voices[i].stopped:
                yield head | {"choices": [form.last(i, self.voices[i])]} | more
        if options is not None and options.include_usage and not self.run.gone:
            yield head | {"choices": [], "usage": self._usage()}

    def _usage(self) -> Json:
        return usage(self.voices, self.asked.prompt_tokens, self.predicted(self.voices))

    def _over(self) -> None:
        """Whatever happened: free the rows and the room, and count."""
        self.run.abort() if self.run.open else None
        self.room.close()
        metrics = self.service.metrics
        metrics.prompt_tokens.inc(self.asked.prompt_tokens)
        metrics.dropped.inc(self.run.dropped_drafts)
        for voice in self.voices:
            metrics.served(Served(voice.steps, len(voice.tokens), voice.first_sec))
        notes = self.request.scope["state"].get("log")
        if notes is not None:
            notes["prompt_tokens"] = self.asked.prompt_tokens
            notes["tokens"] = sum(len(voice.tokens) for voice in self.voices)
            notes["steps"] = sum(sum(voice.steps) for voice in self.voices)


def fingerprint() -> str:
    """What answers under one seed depend on beside the model and the machine."""
    return f"redraft-{__version__}"


def key_of(request: Request) -> int | None:
    """The number of the key that came with a request."""
    found = request.scope.get("state", {}).get("key")
    return found if isinstance(found, int) else None


def service_of(request: Request) -> Service:
    """The server that a request came to."""
    found = request.app.state.service
    assert isinstance(found, Service)
    return found


def headers_of(body: Body) -> dict[str, str]:
    """Names of the fields that have no effect."""
    ignored = sorted(set(_ignored(body, "")))
    return {"x-ignored-fields": ", ".join(ignored)} if ignored else {}


def _ignored(value: object, path: str) -> list[str]:
    if isinstance(value, Body):
        found = [path + name for name in value.ignored]
        for name in value.model_fields_set:
            found += _ignored(getattr(value, name), f"{path}{name}.")
        return found
    if isinstance(value, list):
        return [name for one in value for name in _ignored(one, path)]
    return []
