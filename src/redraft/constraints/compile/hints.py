"""Short texts that a schema's patterns, formats and multiples ask for: where no automaton knows the way to an end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from operator import ge, gt, le, lt
from typing import Any

from redraft.constraints.compile.automaton import Dfa
from redraft.constraints.compile.dialect import draft_of, reached
from redraft.constraints.compile.ecma import ecma_search
from redraft.constraints.compile.keywords import FORMATS
from redraft.constraints.compile.limits import TimeLimitError
from redraft.constraints.compile.regex import whole_match
from redraft.errors import ConstraintError

MOST_HINTS, MOST_BYTES = 64, 64
_BOUNDS = {"minimum": ge, "maximum": le, "exclusiveMinimum": gt, "exclusiveMaximum": lt}
_PLAIN = b"a0-./:@_ ABCDEFGHIJKLMNOPQRSTUVWXYZbcdefghijklmnopqrstuvwxyz123456789"
"""Bytes that are taken before others."""


def hints_of(schema: Any) -> tuple[str, ...]:
    """Strings, each with its closing quote, and numbers as JSON writes them. Raises TimeLimitError."""
    found = dict[str, None]()
    for node, _ in reached(schema, draft_of(schema)):
        found |= dict.fromkeys(_hints(node))
        if len(found) >= MOST_HINTS:
            break
    return tuple(found)[:MOST_HINTS]


def _hints(node: dict[str, Any]) -> Iterator[str]:
    pattern, form = node.get("pattern"), node.get("format")
    for word, search in ((pattern, ecma_search), (FORMATS.get(str(form)), whole_match)):
        try:
            text = _shortest(search(word)) if isinstance(word, str) else None
        except TimeLimitError:
            raise
        except ConstraintError:
            continue
        if text is not None:
            yield json.dumps(text, ensure_ascii=False)[1:]
    yield from _numbers(node)


def _numbers(node: dict[str, Any]) -> Iterator[str]:
    """Numbers within the bounds of a schema that has some, and multiples of what it wants."""
    given = {word: node[word] for word in _BOUNDS if _is_number(node.get(word))}
    of = node.get("multipleOf")
    step = of if _is_number(of) and isinstance(of, int) and of > 0 else 1
    if not given and step == 1:
        return
    near = [0, *(round(bound / step) for bound in given.values())]
    found: list[float] = [(number + more) * step for number in near for more in (0, 1, -1)]
    found += [] if step > 1 else [sum(given.values()) / len(given), *(bound / 2 for bound in given.values())]
    inside = (one for one in found if all(_BOUNDS[word](one, bound) for word, bound in given.items()))
    yield from dict.fromkeys(json.dumps(one) for one in islice(inside, 3))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53


def _shortest(dfa: Dfa) -> str | None:
    """A shortest text of a language; None if it has none of at most MOST_BYTES."""
    order = [*_PLAIN, *(byte for byte in range(256) if byte not in _PLAIN)]
    state, found, to_end = 0, bytearray(), dfa.to_end()
    if dfa.is_empty or to_end[0] > MOST_BYTES:
        return None
    while not dfa.accepts[state]:
        targets = dfa.table[state, dfa.class_of[order]]
        closer = [i for i, target in enumerate(targets) if target >= 0 and to_end[target] < to_end[state]]
        found.append(order[closer[0]])
        state = int(targets[closer[0]])
    return found.decode()
