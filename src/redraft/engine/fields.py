"""How sure the model was of each value of a JSON answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from redraft.constrain.problem import Span, span_of
from redraft.engine.request import Generation
from redraft.text import Text


def field_entropy(text: Text, done: Generation) -> dict[str, float]:
    """Of each plain value, by its JSON pointer, the largest entropy of its tokens, in nats; 0 is certainty.

    Nothing for a text that is not JSON. Entropies are those of the conditioned distributions at the last step of the
    canvas, so what the language forces is certain; `Generation.log_mass` tells what the model made of that.
    """
    try:
        value = json.loads(done.text)
    except ValueError:
        return {}
    places = token_spans(text, done.tokens)
    found = {}
    for path in _plain(value, []):
        begin, end = span_of(done.text, path)
        inside = [nats for nats, (a, b) in zip(done.entropy, places, strict=True) if a < end and begin < b]
        pointer = "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
        found[pointer] = max(inside, default=0.0)
    return found


def token_spans(text: Text, tokens: Sequence[int]) -> list[Span]:
    """The characters that each token adds to the text."""
    ends = [len(text.decode(tokens[: i + 1])) for i in range(len(tokens))]
    return list(zip([0, *ends], ends, strict=False))


def _plain(value: Any, path: list[str | int]) -> Iterator[list[str | int]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _plain(inner, [*path, key])
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _plain(inner, [*path, i])
    else:
        yield path
