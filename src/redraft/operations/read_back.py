"""An answer read a second time, from left to right, by the same weights.

A canvas settles all of its tokens together; the causal mode says how likely each is behind those before it. Where the
two disagree the answer is often wrong (record `plain-nano`): a second opinion for the price of one forward. There the
causal mode may write an answer of its own, a token a forward, and the likelier of the two is taken. Not so among the
choices of a schema, nor for a point behind a word: there the canvas, which sees the end of a value as well, is right
more often (docs/log.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from redraft.constraints.language import Source
from redraft.engine.engine import Core
from redraft.engine.fields import field_likelihood, field_values
from redraft.engine.request import Generation, Options, Request, ResolvedRequest
from redraft.errors import RedraftError, RequestError
from redraft.operations.stated import unstated
from redraft.text import Text

READING = Options(causal=True, read_prompt=True, logprobs=1, max_tokens=0, seed=0)
EVEN = 0.5
"""The probability of a token, read back, below which something else was likelier there."""
SURE = 0.7
"""That of a value's least likely token, below which the value is a guess. The record plain-nano counts how many of the
right and wrong answers have one."""

MORE = 16
"""Tokens that a second answer may have beyond twice those of the first."""


@dataclass(frozen=True)
class Opinion:
    """An answer and the log-probability of each of its tokens, read back, in nats. If it was written from left to
    right, `instead_of` is the one that was asked about; `beside` is a likelier one that was not taken. `asked` is the
    prompt's text."""

    done: Generation
    log_p: tuple[float, ...]
    instead_of: Generation | None = None
    asked: str = ""
    beside: Generation | None = None

    def likely(self, text: Text) -> dict[str, float]:
        """Of each plain value of a JSON answer, by its pointer, the probability of its least likely token."""
        return field_likelihood(text, self.done, self.log_p)

    def guesses(self, text: Text) -> list[str]:
        """The pointers of the plain values that are a guess: something else was nearly as likely at one of the tokens,
        the other answer has another value there, or it is a number, date or time that the prompt does not state."""
        other, values = self.instead_of or self.beside, field_values(self.done.text)
        odd = _differing(values, field_values(other.text)) if other else set[str]()
        odd |= unstated(values, self.asked) if self.asked else set()
        return [at for at, likely in self.likely(text).items() if likely < SURE or at in odd]


def reads_back(engine: Core, given: bool | None, options: Options | ResolvedRequest) -> bool:
    """Whether an answer is read back: as given, else for a model asked by fields, if nothing limits its time."""
    return engine.by_fields and options.deadline_sec is None if given is None else given


def read_back(engine: Core, request: Request | ResolvedRequest, done: Generation) -> tuple[float, ...]:
    """The log-probability of each token of the answer to a request, in nats, whatever held it.

    `field_likelihood` makes probabilities of fields of them. Raises RequestError for a prompt with images, and for one
    that leaves the answer no room in the context.
    """
    asked = request if isinstance(request, ResolvedRequest) else engine.resolve(request)
    if asked.images:
        raise RequestError("the prompt has images, behind which nothing can be read back; leave the reading out")
    read = engine.run(engine.resolve(Request([*asked.prompt, *done.tokens], READING)))
    return tuple(row[0][1] for row in read.prompt_logprobs[len(asked.prompt) - 1 :])


def second_opinion(engine: Core, request: Request | ResolvedRequest, done: Generation) -> Opinion:
    """The answer to a request, or, where at one of its tokens something else was likelier, the one that the causal mode
    writes under the same constraint, if that is likelier as a whole. It may have twice as many tokens, and a few.

    What is not to be the likeliest (drawn, or by a `logit_bias`), has no constraint, a check or a deadline is only
    read. Raises as `read_back`.
    """
    asked = request if isinstance(request, ResolvedRequest) else engine.resolve(request)
    prompt = engine.text.decode(asked.prompt)
    first = Opinion(done, read_back(engine, asked, done), asked=prompt)
    doubted = min(first.log_p, default=0.0) < math.log(EVEN)
    likeliest = not (asked.policy.draw or asked.policy.shaping.bias)
    if not doubted or not likeliest or asked.language is None or asked.needs_repair or asked.deadline_sec is not None:
        return first
    most = min(asked.max_tokens, 2 * len(done.tokens) + MORE)
    options = Options(causal=True, temperature=0.0, max_tokens=most, min_tokens=asked.min_tokens, seed=asked.seed)
    try:
        handle = engine.submit(Request([*asked.prompt], options, constraint=asked.language))
        again = handle.result()
        second = Opinion(again, read_back(engine, asked, again), instead_of=done, asked=prompt)
    except RedraftError:  # there is a valid answer, whatever became of another one
        return first
    if again.finish != "stop" or sum(second.log_p) <= sum(first.log_p):
        return first
    if _knows_better(asked.language.source, field_values(done.text), field_values(again.text)):
        return replace(first, beside=again)
    handle.won()
    return second


def _differing(values: Mapping[str, Any], others: Mapping[str, Any]) -> set[str]:
    """The pointers of values that another answer does not have."""
    return {at for at, value in values.items() if others.get(at, values) != value}


def _knows_better(source: Source, values: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Whether the values of a canvas stand against those of the causal mode: one of them is another choice of the
    schema, or the same text without a point."""
    choices = _choices(json.loads(source.text)) if source.kind == "schema" else set()
    pairs = [(values[at], others.get(at)) for at in _differing(values, others)]
    return any(isinstance(one, str) and (one in choices or other == one + ".") for one, other in pairs)


def _choices(schema: Any) -> set[str]:
    """The texts of every enum and const of a schema."""
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    found = set[str]().union(*map(_choices, inner))
    if isinstance(schema, dict):
        enum = schema.get("enum")
        each = [*(enum if isinstance(enum, list) else []), schema.get("const")]
        found |= {one for one in each if isinstance(one, str)}
    return found
