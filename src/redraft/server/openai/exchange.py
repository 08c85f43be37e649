"""From resolved requests to a response: run them, reply whole or as a stream, count, and stop if the client leaves.

Work ── AnswerStream ──► Delta … ──► form.piece ──► chunks
                         └─ Generation ──► form.whole ──► the reply
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from redraft.constraints.validation import judged
from redraft.diffusion.noise import SeededNoise
from redraft.diffusion.seed import seeded
from redraft.engine.answer import Delta
from redraft.engine.events import Block, Draft, Finished, PromptRead
from redraft.engine.request import Generation, ResolvedRequest
from redraft.operations.engine import Engine
from redraft.operations.stream import AnswerStream
from redraft.server.http.errors import GONE
from redraft.server.http.service import Service, service_of
from redraft.server.http.sse import Chunks, EventStream, unless_gone
from redraft.server.openai.fields import Sampling, StreamOptions
from redraft.server.openai.replies import Counts, Form, Json, ReplyHead, counts_of, usage
from redraft.trace.frames import Frames

T = TypeVar("T")
MOST_HEADER = 2_000
"""Characters of the list of ignored keywords."""


class Reply(JSONResponse):
    """Written by msgspec, ten times faster than json: with log-probabilities a reply may have 20 MB."""

    def render(self, content: Any) -> bytes:
        try:
            return msgspec.json.encode(content)
        except OverflowError:  # an integer of over 64 bits
            return super().render(content)


@dataclass(frozen=True)
class Work:
    """What one body asks for. `predicted` are tokens that the client expects of each answer; with `drafts` a stream has
    every step; otherwise each is read back if `read_back`. `unused` fields have no effect beside the others."""

    body: Sampling
    requests: tuple[ResolvedRequest, ...]
    prompt_tokens: int
    form: Form
    predicted: Sequence[int] = ()
    drafts: bool = False
    unused: Sequence[str] = ()
    read_back: bool = False


class Exchange:
    """Some work under way, for an HTTP request or, without one, for a batch."""

    def __init__(self, service: Service, work: Work, request: Request | None = None) -> None:
        """Submit the requests, on the event loop. Raises ApiError if there is no room; `close` it otherwise."""
        self.service, self.work, self.request = service, work, request
        self.head = ReplyHead(service.settings, work.form)
        canvas = work.body.canvas
        self._steps = bool(work.body.stream and canvas is not None and canvas.stream)
        drafts = work.drafts or self._steps
        self._counts, self._seen = Counts(), [(0, 0)] * len(work.requests)  # of each, its thinking and its commits
        self._room = service.enter(len(work.requests), request)
        service.name_caller(request)
        try:
            engine = service.engine.within(service.scope(request))
            self.answers = AnswerStream(engine, work.requests, drafts=drafts, read_back=work.read_back and not drafts)
        except BaseException:
            self._room.close()
            raise

    async def respond(self) -> Response:
        """The answers of most endpoints."""
        return self.stream(self._chunks()) if self.work.body.stream else await self.reply(self.whole)

    def stream(self, chunks: Chunks, *, named: bool = False, marked: bool = True) -> Response:
        """A response that streams chunks made of the deltas, named or with a mark at the end (`EventStream`)."""
        limits = self.service.settings.limits
        found = EventStream(chunks, gone=self.answers.abort, over=self.close, limits=limits, named=named, marked=marked)
        found.headers.update(self.headers)
        return found

    async def reply(self, whole: Callable[[], Any]) -> Response:
        """A reply made of the finished answers."""
        said = await self.finish(lambda: Reply(whole(), headers=self.headers))
        return Response(status_code=GONE) if said is None else said

    @property
    def headers(self) -> dict[str, str]:
        """How a format is held, and what is ignored: keywords of its schema, stop strings, other formats."""
        language = self.work.requests[0].language
        found, unused = {}, [*self.work.unused]
        if language is not None:
            ignored = quote(", ".join(language.ignored), safe="/~ ,()?$")[:MOST_HEADER]
            found = {"x-constraint": language.held} | ({"x-ignored-keywords": ignored} if ignored else {})
            unused += ["stop"] if self.work.body.stop else []
        if self._steps and any(one.needs_repair for one in self.work.requests):  # nothing is shown before it is right
            unused.append("canvas.stream")
        return found | ({"x-ignored-fields": ",".join(unused)} if unused else {})

    async def finish(self, made: Callable[[], T]) -> T | None:
        """Run all answers to their end, and make something of them; or until the client leaves. Then close."""
        try:
            if self.request is None:
                await self._run()
            else:
                await unless_gone(self.request, self._run(), self.answers.abort)
            return None if self.answers.aborted else await self.judged(made)
        finally:
            self.close()

    def done(self) -> list[Generation]:
        """The answers as far as they are."""
        return [answer.generation() for answer in self.answers.answers]

    async def judged(self, made: Callable[[], T]) -> T:
        """What is made of finished answers: on a thread where calls are judged by the schemas of their tools, or each
        token has a list of others."""
        long = getattr(self.work.body, "tools", None) or any(one.logprobs is not None for one in self.work.requests)
        return await judged(made) if long else made()

    def whole(self) -> Json:
        """The finished answers in the endpoint's form."""
        return self.head.whole(self.done(), self.usage())

    def usage(self, counts: Counts | None = None) -> Json:
        """Of all answers so far, or of these counts. A prompt counts once, for its first answer."""
        answers, predicted = self.answers.answers, self.work.predicted
        cached = sum(one.blocks[0].cached for one in answers[:: self.work.body.n or 1] if one.blocks)
        counts = counts_of(self.done(), predicted) if counts is None else counts
        return usage(counts, self.work.prompt_tokens, len(predicted) * len(answers), cached=cached)

    def _count(self, i: int, delta: Delta) -> None:
        """Add what a delta brought. To count all answers anew at each would take the square of their length."""
        answer, block = self.answers.answers[i], delta.event
        (thinking, commits), self._seen[i] = self._seen[i], (answer.reasoning_tokens, answer.commits)
        self._counts += Counts(reasoning=answer.reasoning_tokens - thinking, commits=answer.commits - commits)
        if isinstance(block, Block):
            begins = len(answer.tokens) - len(block.tokens)
            right = zip(self.work.predicted[begins : len(answer.tokens)], block.tokens, strict=False)
            self._counts += Counts(len(block.tokens), accepted=sum(a == b for a, b in right), steps=block.steps)

    def close(self) -> None:
        """End what still runs, free the room, and count."""
        gone, done = self.answers.aborted, self.done()
        if self.answers.open:
            self.answers.abort()
        self._room.close()
        self.service.metrics.dropped.inc(self.answers.dropped_drafts)
        count(self.service, self.request, done, self.work.prompt_tokens)
        if self.request is not None:
            notes = self.request.scope["state"]["log"]
            notes |= {"gone": gone, "steps": sum(sum(one.steps) for one in done)}
            if self.service.settings.log_prompts:
                prompts = dict.fromkeys(tuple(one.shown_prompt) for one in self.work.requests)
                notes["prompts"] = [self.service.engine.text.decode(prompt) for prompt in prompts]

    async def _run(self) -> None:
        async for _ in self.answers:
            pass

    async def _chunks(self) -> Chunks:
        head, form = self.head.of(chunk=True), self.work.form
        wanted = self.work.body.stream_options or StreamOptions()
        head |= {"usage": None} if wanted.include_usage else {}
        running = wanted.include_usage and wanted.continuous_usage_stats
        engine = self.service.engine
        frames = Frames(engine.text, engine.config.generation.eos_token_ids)
        begun = False
        async for i, delta in self.answers:
            for each in () if begun else range(len(self.work.requests)):
                if first := form.first(each):  # not before there is more to say: a relay may ask elsewhere until then
                    yield head | {"choices": [first]}
            begun = True
            answer = self.answers.answers[i]
            if isinstance(delta.event, Draft):
                asked = self.work.requests[i]
                if (delta.event.block, delta.event.step, asked.causal) == (0, 1, False):
                    noise = Frames(engine.text, asked.eos).of(i, noise_of(asked))
                    yield head | {"choices": [form.piece(i, Delta(delta.event))], "canvas": noise}
                yield head | {"choices": [form.piece(i, delta)], "canvas": frames.of(i, delta.event)}
            if running:
                self._count(i, delta)
            more = {"usage": self.usage(self._counts)} if running else {}
            if delta.content or delta.reasoning or delta.logprobs or isinstance(delta.event, PromptRead):
                yield head | {"choices": [form.piece(i, delta)]} | more
            if isinstance(delta.event, Finished) or answer.stopped:
                last = await self.judged(partial(form.last, i, answer.generation()))
                yield head | {"choices": [last]} | more
        if wanted.include_usage and not self.answers.aborted:
            yield head | {"choices": [], "usage": self.usage()}


def noise_of(asked: ResolvedRequest) -> Draft:
    """What a request's first canvas begins as: step 0, where any token is as likely as any other."""
    tokens = seeded(SeededNoise(asked.seed), asked.width, asked.vocab, asked.seed_canvas).tokens.tolist()
    none = [False] * asked.width
    return Draft(0, 0, tokens, none, none, [log(asked.vocab)] * asked.width)


async def aside(request: Request, work: Callable[[Engine], T], *, answers: int = 1) -> T:
    """An operation on a thread, ended if the client leaves. Raises ApiError if there is no room."""
    service = service_of(request)
    scope = service.scope(request)
    with service.enter(answers, request), scope:
        return await service.on_thread(request, work, service.engine.within(scope), in_turn=False, gone=scope.cancel)


def reply_with(
    request: Request,
    body: Sampling,
    form: Form,
    done: Sequence[Generation],
    prompt_tokens: int,
    unused: Sequence[str] = (),
) -> Response:
    """Answers of an operation, whole or as a stream with one piece each; `unused` fields had no effect."""
    service = service_of(request)
    head, counts = ReplyHead(service.settings, form), usage(counts_of(done), prompt_tokens)
    count(service, request, done, prompt_tokens)
    ignored = {"x-ignored-fields": ",".join(unused)} if unused else {}
    if not body.stream:
        return Reply(head.whole(done, counts), headers=ignored)
    pieces = _pieces(head, done, counts, body.stream_options or StreamOptions())
    found = EventStream(pieces, limits=service.settings.limits)
    found.headers.update(ignored)
    return found


async def _pieces(head: ReplyHead, done: Sequence[Generation], counts: Json, wanted: StreamOptions) -> Chunks:
    common, form = head.of(chunk=True), head.form
    more = {"usage": counts} if wanted.include_usage and wanted.continuous_usage_stats else {}
    for i, one in enumerate(done):
        if first := form.first(i):
            yield common | {"choices": [first]}
        yield common | {"choices": [form.piece(i, Delta(Finished(one.finish, 0), one.text))]} | more
        yield common | {"choices": [form.last(i, one)]} | more
    if wanted.include_usage:
        yield common | {"choices": [], "usage": counts}


def count(service: Service, request: Request | None, done: Sequence[Generation], prompt_tokens: int) -> None:
    """Add answers to the figures and to the request's line of the log."""
    service.metrics.prompt_tokens.inc(prompt_tokens)
    for one in done:
        service.metrics.served(one)
    if request is not None:
        tokens = sum(len(one.tokens) for one in done)
        request.scope["state"]["log"] |= {"prompt_tokens": prompt_tokens, "tokens": tokens}
