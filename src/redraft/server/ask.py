"""From the fields of a request to what the engine is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from redraft.constraints.compile.tool_calls import OPEN, THOUGHT, ContentLanguage
from redraft.constraints.language import Language, Source
from redraft.constraints.thinking import after_thinking
from redraft.engine.request import Options, Request, ResolvedRequest
from redraft.errors import ConstraintError, RequestError
from redraft.operations.engine import Engine
from redraft.server.refusal import refusal_of, unsupported
from redraft.server.schema import CanvasOptions, Sampling
from redraft.server.settings import Settings

NO_OPTIONS = CanvasOptions()


@dataclass(frozen=True)
class Asked:
    """Requests for one prompt or several; request i shares the prompt of request `behind[i]`."""

    requests: tuple[ResolvedRequest, ...]
    behind: tuple[int | None, ...]

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """The prompts, each once."""
        return [one.prompt for one, behind in zip(self.requests, self.behind, strict=True) if behind is None]

    @cached_property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts."""
        return sum(map(len, self.prompts))


@dataclass(frozen=True)
class Held:
    """What an answer is held to, and the field that asks for it. With `marks` it may stand behind thinking, which the
    first of these tokens begins and the second ends. `content` is what it may be of, if it calls no tool."""

    source: Source
    field: str
    marks: tuple[int, int] | None = None
    content: Source | None = None

    def language(self, engine: Engine) -> Language:
        """Ready for an engine. Raises ConstraintError."""
        plain = engine.language(self.source)
        if self.content is not None and plain.checked:
            call, closing = (engine.text.tokenizer.token_to_id(mark) for mark in (OPEN, THOUGHT))
            return ContentLanguage(plain.source, plain.layout, True, json.loads(self.content.text), call, closing)
        return plain if self.marks is None else after_thinking(plain, self.marks[1], self.marks[0])


def options_of(body: Sampling, engine: Engine, settings: Settings, *, max_tokens: int | None) -> Options:
    """The engine's options. `max_tokens` holds where the body says nothing; None is the checkpoint's own."""
    canvas, limits = body.canvas or NO_OPTIONS, settings.limits
    if canvas.stream and not body.stream:
        raise unsupported(
            "canvas.stream", "canvas.stream tells steps between the texts of a stream; set stream to true"
        )
    if body.stream_options is not None and not body.stream:
        raise unsupported(
            "stream_options", "stream_options says how a stream is told; set stream to true, or leave it out"
        )
    # The dial and the causal mode have rules of their own, with which a preset would be refused.
    others = canvas.causal or body.effort is not None or body.target_ms is not None
    wanted = max_tokens if body.max_tokens is None else body.max_tokens
    wanted = engine.config.generation.max_new_tokens if wanted is None else wanted
    options = Options(
        max_tokens=wanted,
        seed=None if body.seed is None else body.seed % 2**64,
        steps=body.max_steps,
        entropy_bound=body.entropy_bound,
        stop=_stops(body.stop),
        min_tokens=wanted if body.ignore_eos else body.min_tokens or 0,
        deadline_sec=min(limits.request_sec, _or(body.deadline_ms, limits.request_sec * 1e3) / 1e3),
        causal=canvas.causal or False,
        draw=canvas.draw or False,
        canvas=canvas.width,
        end_aware=canvas.end_aware,
        preset=canvas.preset or (None if others else settings.preset),
        accept=tuple(canvas.accept or ()),
        cooling=canvas.cooling,
        effort=body.effort,
        min_effort=_or(canvas.min_effort, 0.0),
        target_ms=body.target_ms,
        temperature=_or(body.temperature, 1.0),
        top_k=None if body.top_k in (None, 0, -1) else body.top_k,
        top_p=_or(body.top_p, 1.0),
        logit_bias=_biases(body.logit_bias or {}),
        bad_words=tuple(tuple(engine.text.encode(word, bos=False)) for word in body.bad_words or ()),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
    )
    if body.ignore_eos and body.min_tokens is not None:
        raise RequestError("ignore_eos is True and min_tokens was given too; leave one out")
    return options


def kept_whole(settings: Settings) -> Settings:
    """Where a canvas begins with a caller's text: a served preset that would slide it or drop a pin gives way."""
    return replace(settings, preset="fast") if settings.preset == "flow" else settings


def asked(
    engine: Engine, prompts: Sequence[Sequence[int]], options: Options, answers: int, held: Held | None = None
) -> Asked:
    """`answers` requests for each prompt, which is read once; their seeds count up. Raises Refusal for a language that
    has no answer for one."""
    requests: list[ResolvedRequest] = []
    behind: list[int | None] = []
    try:
        language = None if held is None else held.language(engine)
        for prompt in prompts:
            first = len(requests)
            request = engine.resolve(Request(list(prompt), options, constraint=language))
            for i in range(answers):
                requests.append(replace(request, seed=(request.seed + i) % 2**64) if i else request)
                behind.append(first if i else None)
    except ConstraintError as error:
        raise refusal_of(error, field=None if held is None else held.field) from None
    return Asked(tuple(requests), tuple(behind))


def _stops(given: str | list[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def _biases(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    for token in given:
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise RequestError(f"logit_bias names {token!r}; its keys are token ids, as /tokenize gives them")
    return tuple((int(token), nats) for token, nats in given.items())


def _or(given: float | None, otherwise: float) -> float:
    return otherwise if given is None else given
