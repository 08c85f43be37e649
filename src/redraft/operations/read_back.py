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
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from typing import Any

from redraft.constraints.compile.stated import MOST_CHARACTERS, stated_choice, unstated
from redraft.constraints.language import Source
from redraft.constraints.validation import judged
from redraft.engine.engine import Core
from redraft.engine.fields import field_likelihood, field_values
from redraft.engine.handle import Handle
from redraft.engine.request import Generation, Options, Request, ResolvedRequest
from redraft.errors import DeadlineError, RedraftError, RequestError
from redraft.operations.repair import beside
from redraft.pointers import at_step
from redraft.text import Text

READING = Options(causal=True, read_prompt=True, logprobs=1, max_tokens=0, seed=0)
EVEN = 0.5
"""The probability of a token, read back, below which something else was likelier there."""
SURE = 0.7
"""That of a value's least likely token, below which the value is a guess. The record plain-nano counts how many of the
right and wrong answers have one."""

MOST_PARTS, MOST_DIFFERING = 16, 64
"""Parts of a schema that say what one value may be, and values of two answers that are compared."""

MORE = 16
"""Tokens that a second answer may have beyond twice those of the first."""


@dataclass(frozen=True)
class Opinion:
    """An answer and the log-probability of each of its tokens, read back, in nats. If it was written from left to
    right, `instead_of` is the one that was asked about; `beside` is a likelier one that was not taken. `asked` is the
    prompt's text, and `settled` are the pointers of values that the text left no choice of."""

    done: Generation
    log_p: tuple[float, ...]
    instead_of: Generation | None = None
    asked: str = ""
    beside: Generation | None = None
    settled: frozenset[str] = frozenset()

    def likely(self, text: Text) -> dict[str, float]:
        """Of each plain value of a JSON answer, by its pointer, the probability of its least likely token."""
        return field_likelihood(text, self.done, self.log_p)

    def guesses(self, text: Text) -> list[str]:
        """The pointers of the plain values that are a guess: something else was nearly as likely at one of the tokens,
        the other answer has another value there, or it is a number, date or time that the prompt does not state. None
        that is `settled`."""
        other, values = self.instead_of or self.beside, field_values(self.done.text)
        odd = _differing(values, field_values(other.text)) if other else set[str]()
        odd |= unstated(values, self.asked) if self.asked else set()
        found = [at for at, likely in self.likely(text).items() if likely < SURE or at in odd]
        return [at for at in found if at not in self.settled]


_Steps = Generator[ResolvedRequest, Generation, Opinion]
"""Yields what to run next, is sent what came of it or thrown what went wrong, and returns the opinion."""


def reads_back(engine: Core, given: bool | None) -> bool:
    """Whether an answer is read back: as given, else for a model that is asked by fields."""
    return engine.by_fields if given is None else given


def read_back(engine: Core, request: Request | ResolvedRequest, done: Generation) -> tuple[float, ...]:
    """The log-probability of each token of the answer to a request, in nats, whatever held it.

    `field_likelihood` makes probabilities of fields of them. Raises RequestError for a prompt with images, and for one
    that leaves the answer no room in the context.
    """
    asked = engine.resolve(request)
    return _read(asked, engine.run(_reading(engine, asked, done)))


def second_opinion(engine: Core, request: Request | ResolvedRequest, done: Generation) -> Opinion:
    """The answer to a request, or, where at one of its tokens something else was likelier, the one that the causal mode
    writes under the same constraint, if that is likelier as a whole. It may have twice as many tokens, and a few.

    What is not to be the likeliest (drawn, or by a `logit_bias`), has no constraint or a check is only read. Raises as
    `read_back`; DeadlineError if the answer left nothing of its `deadline_sec`.
    """
    opinions, handles = _Opinions(_opinions(engine, engine.resolve(request), done)), list[Handle]()
    while opinions.result is None:
        try:
            handles.append(engine.submit(opinions.asked, wait=True))
            found = handles[-1].result()
        except RedraftError as error:
            opinions.take(error)
        else:
            opinions.take(found)
    return _reported(opinions.result, handles)


async def second_opinion_async(engine: Core, request: ResolvedRequest, done: Generation) -> Opinion:
    """The same for coroutines; answers are compared on threads."""
    opinions, handles = _Opinions(_opinions(engine, request, done)), list[Handle]()
    while opinions.result is None:
        try:
            handles.append(engine.submit(opinions.asked))
            found = await handles[-1].aresult()
        except RedraftError as error:
            opinions.take(error)
        else:
            await judged(opinions.take, found)
    return _reported(opinions.result, handles)


class _Opinions:
    """A second opinion apart from what runs it: `asked` is to be run next, until there is a `result`."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps
        self.result: Opinion | None = None
        self.asked = next(steps)

    def take(self, found: Generation | RedraftError) -> None:
        """What came of `asked`. Raises what went wrong with reading the answer that there is."""
        try:
            self.asked = self._steps.throw(found) if isinstance(found, RedraftError) else self._steps.send(found)
        except StopIteration as over:
            self.result = over.value


def _reported(opinion: Opinion, handles: Sequence[Handle]) -> Opinion:
    """The opinion; those who observe the requests learn which of the answers was used."""
    if opinion.instead_of is not None:
        handles[1].won()  # between the two readings
    return opinion


def _opinions(engine: Core, asked: ResolvedRequest, done: Generation) -> _Steps:
    prompt, over = engine.text.decode(asked.prompt), time.monotonic() - done.seconds + (asked.deadline_sec or 0.0)

    def left() -> float | None:
        """Seconds of the deadline. Raises DeadlineError."""
        if asked.deadline_sec is not None and over <= time.monotonic():
            raise DeadlineError("no time is left to read the answer back; allow more or leave the reading out")
        return None if asked.deadline_sec is None else over - time.monotonic()

    settled = frozenset() if asked.language is None else _settled(asked.language.source, field_values(done.text))
    first = Opinion(done, _read(asked, (yield _reading(engine, asked, done, left()))), asked=prompt, settled=settled)
    doubted = min(first.log_p, default=0.0) < math.log(EVEN)
    likeliest = not (asked.policy.draw or asked.policy.shaping.bias)
    if not doubted or not likeliest or asked.language is None or asked.needs_repair:
        return first
    most = min(asked.max_tokens, 2 * len(done.tokens) + MORE)
    options = Options(causal=True, temperature=0.0, max_tokens=most, min_tokens=asked.min_tokens, seed=asked.seed)
    try:
        options = replace(options, logprobs=asked.logprobs, deadline_sec=left())
        again = yield engine.resolve(Request([*asked.prompt], options, constraint=asked.language))
        both = beside(done, again)  # whichever is taken, the other has cost something
        first = replace(first, done=replace(done, steps=both.steps, commits=both.commits, seconds=both.seconds))
        read = yield _reading(engine, asked, again, left())
    except RedraftError:  # there is a valid answer, whatever became of another one
        return first
    settled = _settled(asked.language.source, field_values(both.text))
    second = Opinion(both, _read(asked, read), instead_of=done, asked=prompt, settled=settled)
    if again.finish != "stop" or sum(second.log_p) <= sum(first.log_p):
        return first
    if _knows_better(asked.language.source, field_values(done.text), field_values(again.text)):
        return replace(first, beside=again)
    return second


def _reading(engine: Core, asked: ResolvedRequest, done: Generation, left: float | None = None) -> ResolvedRequest:
    """The request that reads, within so many seconds, an answer behind its prompt. Raises RequestError."""
    if asked.images:
        raise RequestError("the prompt has images, behind which nothing can be read back; leave the reading out")
    return engine.resolve(Request([*asked.prompt, *done.tokens], replace(READING, deadline_sec=left)))


def _read(asked: ResolvedRequest, read: Generation) -> tuple[float, ...]:
    """The log-probabilities of an answer's tokens, from what its reading returned."""
    return tuple(row[0][1] for row in read.prompt_logprobs[len(asked.prompt) - 1 :])


def _differing(values: Mapping[str, Any], others: Mapping[str, Any]) -> set[str]:
    """The pointers of values that another answer does not have."""
    return {at for at, value in values.items() if others.get(at, values) != value}


def _knows_better(source: Source, values: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Whether the values of a canvas stand against those of the causal mode: one of them is a choice of the schema, or
    the same text without a point."""
    schema = json.loads(source.text) if source.kind == "schema" else {}
    differs = _differing(values, others)
    differing = ((at, one) for at, one in values.items() if at in differs and isinstance(one, str))
    return any(
        others.get(at) == one + "." or _is_chosen(schema, at, one) for at, one in islice(differing, MOST_DIFFERING)
    )


def _is_chosen(schema: Any, at: str, value: str) -> bool:
    """Whether a text at a pointer of an answer is one of those that its schema lists there."""
    parts = _parts_at(schema, at)
    listed = [part["enum"] if isinstance(part.get("enum"), list) else [part.get("const")] for part in parts]
    return any(value in several for several in listed)


def _settled(source: Source, values: Mapping[str, Any]) -> frozenset[str]:
    """The pointers of choices, outside lists, of which a text that is copied from says one alone; not of several fields
    with the same choices, since it may say it of another."""
    if source.kind != "schema" or not 0 < len(source.verbatim) <= MOST_CHARACTERS:
        return frozenset()
    schema, found = json.loads(source.text), dict[str, tuple[str, list[Any]]]()
    for at, value in islice(values.items(), MOST_PARTS):
        parts = _parts_at(schema, at) if isinstance(value, str) and at.count("/") == 1 else []
        if len(parts) == 1 and isinstance(choices := parts[0].get("enum"), list):  # null is a choice, too
            found[at] = value, choices
    several = Counter(value for value, _ in found.values())
    return frozenset(
        at
        for at, (value, choices) in found.items()
        if several[value] == 1 and len(choices) > 1 and stated_choice(choices, source.verbatim) == [value]
    )


def _parts_at(schema: Any, at: str) -> list[dict[str, Any]]:
    """The parts of a schema that say what may stand at a pointer of an answer."""
    parts = _followed(schema, [schema])
    for step in at.split("/")[1:]:
        named = (at_step(part.get("properties"), step.replace("%", "%25")) for part in parts)
        parts = _followed(schema, [*named, *(part.get("items") for part in parts)])
    return parts


def _followed(schema: Any, todo: list[Any]) -> list[dict[str, Any]]:
    """Parts of a schema, and those that they refer to or have as an alternative, as many as people write."""
    found = list[dict[str, Any]]()
    while todo and len(found) < MOST_PARTS:
        if isinstance(one := todo.pop(), dict):
            found.append(one)
            reference = one.get("$ref")
            if isinstance(reference, str) and reference.startswith("#/"):
                todo.append(reduce(at_step, reference[2:].split("/"), schema))
            alternatives = (one.get("anyOf"), one.get("oneOf"), one.get("allOf"))
            todo += [each for several in alternatives if isinstance(several, list) for each in several]
    return found
