"""Short texts that a schema's patterns, formats and multiples ask for: where no automaton knows the way to an end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import ceil, floor
from typing import Any

from redraft.constraints.compile.automaton import Dfa
from redraft.constraints.compile.dialect import draft_of, reached
from redraft.constraints.compile.keywords import FORMATS
from redraft.constraints.compile.limits import TimeLimitError
from redraft.constraints.compile.regex import ecma_search, whole_match
from redraft.errors import ConstraintError

MOST_HINTS, MOST_BYTES = 64, 64
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
    pattern, form, of = (node.get(word) for word in ("pattern", "format", "multipleOf"))
    for word, search in ((pattern, ecma_search), (FORMATS.get(str(form)), whole_match)):
        try:
            text = _shortest(search(word)) if isinstance(word, str) else None
        except TimeLimitError:
            raise
        except ConstraintError:
            continue
        if text is not None:
            yield json.dumps(text, ensure_ascii=False)[1:]
    if isinstance(of, int) and not isinstance(of, bool) and of > 0:
        lows, highs = (("minimum", "exclusiveMinimum"), ceil), (("maximum", "exclusiveMaximum"), floor)
        for bound, near in ((node.get(word), near) for words, near in (lows, highs) for word in words):
            if isinstance(bound, int | float) and not isinstance(bound, bool) and abs(bound) < 2**53:
                yield from (str((near(bound / of) + more) * of) for more in (0, 1, -1))


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
