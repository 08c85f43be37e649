"""The parts of a text: what a value may say that is copied word for word.

    Send 3 apples to Maria.        "Maria", "3 apples", "Send 3 apples to Maria." are parts; "aria" and "3 app" are none

A part begins and ends where a word does. An automaton of all parts has about two states a byte, however many there are.
"""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import numpy as np

from redraft.constraints.compile.automaton import Dfa
from redraft.constraints.compile.builder import Builder
from redraft.constraints.compile.limits import compiling
from redraft.constraints.compile.remembered import remembered

JOINED = ("L", "M", "N", "Pc")
"""Categories of Unicode whose characters make words: letters, marks, digits, the underscore and its like."""
ALONE = "Lo"
"""Letters without case: their scripts have no spaces between words, or write small words onto others."""


@remembered
def parts_of(text: str) -> Dfa:
    """All parts of a text in UTF-8. Raises OutOfReachError for a text that is too long."""
    build = Builder()
    first, last = build.state(), build.state()
    with compiling(f"copying out of a text of {len(text)} characters"):
        chain = build.literal(text.encode())
        assert chain is not None
        at, kinds = chain[0], [unicodedata.category(char) for char in text]
        for i, (char, kind) in enumerate(zip(text, kinds, strict=True)):
            if not char.isspace():
                if not i or _parted(kinds[i - 1], kind):
                    build.link(first, at)
                if i + 1 == len(text) or _parted(kind, kinds[i + 1]):
                    build.link(at + len(char.encode()), last)
            at += len(char.encode())
        found = build.finish((first, last))
    # Nothing leads back to the first state, which holds the leftmost place to begin at; nothing is no part.
    return replace(found, accepts=found.accepts & (np.arange(len(found)) > 0))


def _parted(left: str, right: str) -> bool:
    """Whether a part may begin or end between two characters of these categories; a mark stays with its letter."""
    if right.startswith("M"):
        return False
    return not (left.startswith(JOINED) and right.startswith(JOINED)) or ALONE in (left, right)
