"""How sure the model was of each value of a JSON answer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np

from redraft.constraints.compile.dialect import pointer_of
from redraft.constraints.places import Span, plain_spans, unfenced
from redraft.engine.request import Generation
from redraft.errors import RequestError
from redraft.text import Text


def field_entropy(text: Text, done: Generation) -> dict[str, float]:
    """Of each plain value, by its JSON pointer, the largest entropy of its tokens, in nats; 0 is certainty.

    Empty for a text that is not JSON. Entropies are those of the conditioned distributions at the last step of the
    canvas, so what the language forces is certain; `Generation.log_mass` tells how likely that was to the model.
    """
    return {pointer: max(nats, default=0.0) for pointer, nats in _by_field(text, done, done.entropy).items()}


def field_confidence(text: Text, done: Generation, temperature: float = 1.0) -> dict[str, float]:
    """Of each plain value a number from 0 to 1: exp(-nats / temperature), of the entropies of its tokens in sum.

    With a temperature that was fitted on answers that are known it is near the share of such values that are right;
    nano's is in docs/deciding.md. Raises RequestError for a temperature that is not above 0.
    """
    if not 0 < temperature < math.inf:
        raise RequestError(f"temperature is {temperature}; it must be a number above 0")
    found = _by_field(text, done, done.entropy)
    return {pointer: math.exp(-sum(nats) / temperature) for pointer, nats in found.items()}


def field_likelihood(text: Text, done: Generation, log_p: Sequence[float]) -> dict[str, float]:
    """Of each plain value the probability of its least likely token, from what `read_back` returns.

    The token before a value counts as one of it: it decides between a text, a number and null.
    """
    found = _by_field(text, done, log_p, before=1)
    return {pointer: math.exp(min(nats, default=0.0)) for pointer, nats in found.items()}


def field_values(text: str) -> dict[str, Any]:
    """Each plain value or empty list of a JSON answer, by its JSON pointer; none of a text that is not JSON."""
    try:
        value = json.loads(unfenced(text))
    except ValueError:
        return {}
    return {pointer_of(path): reduce(lambda inner, step: inner[step], path, value) for path in _plain(value, [])}


def _by_field(text: Text, done: Generation, numbers: Sequence[float], before: int = 0) -> dict[str, list[float]]:
    """Of each plain value the numbers of its tokens, and of those that end fewer than `before` characters in front."""
    try:
        json.loads(unfenced(done.text))
    except ValueError:
        return {}
    spans = plain_spans(done.text)
    return dict(zip(map(pointer_of, spans), of_spans(text, done, numbers, [*spans.values()], before), strict=True))


def of_spans(
    text: Text, done: Generation, numbers: Sequence[float], spans: Sequence[Span], before: int = 0
) -> list[list[float]]:
    """Of each span of an answer's text the numbers of its tokens, and of those ending fewer than `before` in front."""
    # The text is the content alone: thinking before it has tokens of its own.
    first, last = np.array(token_spans(text, done.tokens[done.begins :])).reshape(-1, 2).T
    places = (np.flatnonzero((first < end) & (begin - before < last)).tolist() for begin, end in spans)
    return [[numbers[done.begins + at] for at in its] for its in places]


def token_spans(text: Text, tokens: Sequence[int]) -> list[Span]:
    """The characters that each token stands for; every byte of one stands for it, special and unknown ones for none."""
    spans, run, end = [(0, 0)] * len(tokens), list[int](), 0
    for i, token in enumerate((*tokens, None)):
        if token in text.byte_ids:
            run.append(i)
        elif token is not None and (token in text.special_ids or text.tokenizer.id_to_token(token) is None):
            # It stands for nothing, and does not even end a run of bytes.
            spans[i] = end, end
        else:
            shown = text.decode([tokens[at] for at in run])
            for at, character in zip(run, _characters_of(shown, len(run)), strict=True):
                spans[at] = end + character, end + character + 1
            end, run = end + len(shown), []
            if token is not None:
                spans[i] = end, end + len(text.decode([token]))
                end = spans[i][1]
    return spans


def _characters_of(shown: str, count: int) -> Iterator[int]:
    """The character of each of `count` bytes that are shown so: one each, U+FFFD, where they are not UTF-8."""
    for at, character in enumerate(shown):
        yield from [at] * (1 if len(shown) == count else len(character.encode()))


def _plain(value: Any, path: list[str | int]) -> Iterator[list[str | int]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _plain(inner, [*path, key])
    elif isinstance(value, list) and value:
        for i, inner in enumerate(value):
            yield from _plain(inner, [*path, i])
    else:
        yield path
