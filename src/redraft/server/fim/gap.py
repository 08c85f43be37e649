"""A gap that is filled for an HTTP request, and its answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from starlette.requests import Request

from redraft.engine.request import Generation
from redraft.operations.engine import Engine
from redraft.operations.gap import shared_time
from redraft.options import Options
from redraft.server.http.errors import unsupported
from redraft.server.http.service import Service, note_prompts, service_of
from redraft.server.openai.exchange import aside
from redraft.server.openai.fields import Sampling
from redraft.server.openai.replies import whole_answer
from redraft.server.openai.request_builder import RequestBuilder
from redraft.stops import StopStrings

ENDS_HERE = "<|endoftext|>"
"""What one editor sends for a suffix that is empty."""


@dataclass(frozen=True)
class Gap:
    """A gap as it was asked for. `answers` texts for it, seeds counting up; `cut` shortens each."""

    prefix: str
    suffix: str
    max_tokens: int
    seed: int
    options: Options
    stop: tuple[str, ...] = ()
    answers: int = 1
    cut: Callable[[str], str] = str


def build_gap(service: Service, body: Sampling, prefix: str, suffix: str, *, default: int) -> Gap:
    """Check what can be checked before anything runs. Raises ApiError and RequestError."""
    options = RequestBuilder(service, body).options(max_tokens=default, keeps_canvas=True)
    longest = service.engine.config.model.canvas_length
    if getattr(body, "logprobs", None) is not None:
        raise unsupported("logprobs", "logprobs are not supported for a gap; leave them out")
    if body.canvas is not None and body.canvas.stream:
        raise unsupported("canvas.stream", "the steps of a gap come from /v1/canvas; leave canvas.stream out")
    StopStrings(options.stop)
    return Gap(
        prefix=prefix,
        suffix="" if suffix == ENDS_HERE else suffix,
        max_tokens=min(options.max_tokens or 0, longest),  # no gap is wider than a canvas
        seed=time.monotonic_ns() % 2**32 if options.seed is None else options.seed,
        options=replace(options, max_tokens=None, stop=()),
        stop=options.stop,
        answers=body.n or 1,
    )


async def run_gap(request: Request, gap: Gap) -> tuple[list[Generation], int]:
    """Fill it on a thread, unless the client leaves. Returns the answers, and the number of tokens around them."""
    note_prompts(request, [gap.prefix, gap.suffix])
    done = await aside(request, partial(_fill, gap), answers=gap.answers)
    service = service_of(request)
    read = await service.on_thread(request, count_tokens, service.engine, gap.prefix, gap.suffix, in_turn=False)
    return done, read  # its turn would come late, behind the caller's other requests


def count_tokens(engine: Engine, *texts: str) -> int:
    """Of all of them, each as far as the model's context could reach."""
    return sum(len(engine.text.encode(text[: engine.text.reach], bos=False)) for text in texts)


def _fill(gap: Gap, engine: Engine) -> list[Generation]:
    left = shared_time(gap.options)
    return [_answer(replace(gap, options=left()), engine, (gap.seed + i) % 2**64) for i in range(gap.answers)]


def _answer(gap: Gap, engine: Engine, seed: int) -> Generation:
    """A filled gap as an answer like any other: what stop strings and `cut` leave of it."""
    if gap.max_tokens == 0:  # what editors send to warm a cache
        return whole_answer("", seed=seed, finish="length")
    began = time.monotonic()
    filled = engine.infill(gap.prefix, gap.suffix, max_tokens=gap.max_tokens, options=replace(gap.options, seed=seed))
    stops, seconds = StopStrings(gap.stop), time.monotonic() - began
    text, stopped = stops.push(filled.gap)
    return replace(
        filled.answer,
        text=gap.cut(text if stopped else text + stops.finish()),
        finish=filled.finish,
        seed=seed,
        steps=(filled.forwards,),
        commits=0,
        seconds=seconds,
        first_text_sec=seconds,
    )
