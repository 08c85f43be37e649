"""Short texts that a schema's patterns, formats and multiples ask for: where no automaton knows the way to an end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from math import ceil, floor
from typing import Any

from redraft.constraints.compile.automaton import Dfa
from redraft.constraints.compile.dialect import draft_of, reached
from redraft.constraints.compile.keywords import FORMATS
from redraft.constraints.compile.regex import ecma_search, whole_match
from redraft.errors import ConstraintError

MOST_HINTS = 64
_PLAIN = b"a0-./:@_ ABCDEFGHIJKLMNOPQRSTUVWXYZbcdefghijklmnopqrstuvwxyz123456789"
"""Bytes that are taken before others."""


def hints_of(schema: Any) -> tuple[str, ...]:
    """Strings, each with its closing quote, and numbers as JSON writes them; the commonest places first."""
    found = dict[str, None]()
    for node, _ in reached(schema, draft_of(schema)):
        found |= dict.fromkeys(_hints(node))
        if len(found) >= MOST_HINTS:
            break
    return tuple(found)[:MOST_HINTS]


def _hints(node: dict[str, Any]) -> Iterator[str]:
    with suppress(ConstraintError):
        if isinstance(node.get("pattern"), str):
            yield json.dumps(_shortest(ecma_search(node["pattern"])), ensure_ascii=False)[1:]
    with suppress(ConstraintError):
        if isinstance(node.get("format"), str) and node["format"] in FORMATS:
            yield json.dumps(_shortest(whole_match(FORMATS[node["format"]])), ensure_ascii=False)[1:]
    of, low, high = (node.get(word) for word in ("multipleOf", "minimum", "maximum"))
    low, high = node.get("exclusiveMinimum", low), node.get("exclusiveMaximum", high)
    if isinstance(of, int) and of > 0:
        for bound, near in ((low, ceil), (high, floor)):
            if isinstance(bound, int | float) and not isinstance(bound, bool) and abs(bound) < 2**53:
                yield from (str((near(bound / of) + more) * of) for more in (0, 1, -1))


def _shortest(dfa: Dfa) -> str:
    """A shortest text of a language that has one."""
    order = [*_PLAIN, *(byte for byte in range(256) if byte not in _PLAIN)]
    state, found, to_end = 0, bytearray(), dfa.to_end()
    while not dfa.accepts[state]:
        targets = dfa.table[state, dfa.class_of[order]]
        closer = [i for i, target in enumerate(targets) if target >= 0 and to_end[target] < to_end[state]]
        found.append(order[closer[0]])
        state = int(targets[closer[0]])
    return found.decode()
