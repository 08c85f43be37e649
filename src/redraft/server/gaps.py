"""Gaps to be filled for an HTTP request, told in the forms that clients of completions read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response

from redraft.engine.request import Generation, Options
from redraft.engine.request import Request as Asked
from redraft.operations.engine import Engine
from redraft.operations.infill import Infill
from redraft.server.ask import kept_whole, options_of
from redraft.server.refusal import unsupported
from redraft.server.replies import Json, TextForm
from redraft.server.respond import aside, at_once, count, note_prompts
from redraft.server.schema import Sampling
from redraft.server.service import Service
from redraft.server.voice import Voice
from redraft.text import StopStrings

ENDS_HERE = "<|endoftext|>"
"""What one editor sends for a suffix that is empty."""


@dataclass(frozen=True)
class Gap:
    """A gap as it was asked for. `answers` texts for it, seeds counting up; `cut` shortens each."""

    prefix: str
    suffix: str
    max_tokens: int
    options: Options
    stop: tuple[str, ...] = ()
    answers: int = 1
    cut: Callable[[str], str] = str


def gap_of(service: Service, body: Sampling, prefix: str, suffix: str, *, default: int) -> Gap:
    """Check what can be checked before anything runs. Raises Refusal and RequestError."""
    options = options_of(body, service.engine, kept_whole(service.settings), max_tokens=default)
    longest = service.engine.config.model.canvas_length
    wanted = options.max_tokens or 0
    if getattr(body, "logprobs", None) is not None:
        raise unsupported("logprobs", "logprobs are not supported for a gap; leave them out")
    if body.canvas is not None and body.canvas.stream:
        raise unsupported(
            "canvas.stream", "the steps of a gap are told by segments of /v1/canvas; leave canvas.stream out"
        )
    StopStrings(options.stop)
    seed = options.seed if options.seed is not None else time.monotonic_ns() % 2**32
    return Gap(
        prefix=prefix,
        suffix="" if suffix == ENDS_HERE else suffix,
        max_tokens=min(wanted, longest),  # a gap of more than a canvas cannot be; fewer tokens keep the promise
        options=replace(options, max_tokens=None, stop=(), seed=seed),
        stop=options.stop,
        answers=body.n or 1,
    )


async def run_gap(service: Service, request: Request, gap: Gap) -> tuple[list[Voice], int]:
    """Fill it, beside the event loop; given up if the client goes away. The answers, and the tokens around them."""
    note_prompts(request, [gap.prefix, gap.suffix])
    voices = await aside(request, lambda engine: _fill(service, engine, gap), answers=gap.answers)
    prompt_tokens = sum(len(service.engine.text.encode(part, bos=False)) for part in (gap.prefix, gap.suffix))
    count(request, voices, prompt_tokens)
    return voices, prompt_tokens


async def respond_gap(service: Service, request: Request, body: Sampling, gap: Gap, form: TextForm) -> Response | Json:
    """The whole response, or a stream of one piece: a gap is told when it is filled."""
    voices, prompt_tokens = await run_gap(service, request, gap)
    return at_once(service, body, form, voices, prompt_tokens)


def _fill(service: Service, engine: Engine, gap: Gap) -> list[Voice]:
    found = []
    for i in range(gap.answers):
        assert gap.options.seed is not None
        began, seed = time.monotonic(), (gap.options.seed + i) % 2**64
        if gap.max_tokens == 0:  # what editors send to warm a cache
            filled = None
        else:
            options = replace(gap.options, seed=seed)
            filled = engine.infill(gap.prefix, gap.suffix, max_tokens=gap.max_tokens, options=options)
        found.append(_voice(service, gap, filled, seed, time.monotonic() - began))
    return found


def _voice(service: Service, gap: Gap, filled: Infill | None, seed: int, seconds: float) -> Voice:
    """A filled gap as an answer like any other."""
    engine = service.engine
    asked = engine.resolve(Asked([engine.text.bos_token_id], Options(seed=seed, max_tokens=1)))
    voice = Voice(engine.text, asked, service.marks, first_sec=seconds, seconds=seconds, finish="length")
    if filled is None:
        return voice
    stops = StopStrings(gap.stop)
    said, stopped = stops.push(filled.gap)
    voice.content = gap.cut(said if stopped else said + stops.finish())
    done: Generation = filled.answer
    voice.tokens, voice.entropy, voice.steps = list(done.tokens), list(done.entropy), [filled.forwards]
    voice.finish = "deadline" if done.finish == "deadline" else "stop"
    return voice
