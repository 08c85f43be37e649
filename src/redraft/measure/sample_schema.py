"""A schema of ten fields and a vocabulary of made-up words: what the cost of a constraint is timed on."""

from __future__ import annotations

import numpy as np

from redraft.constraints.language import Vocabulary

TEN_FIELDS = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"},
        "name": {"type": "string"},
        "note": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "born": {"type": "string", "format": "date"},
        "active": {"type": "boolean"},
        "colour": {"enum": ["red", "green", "blue"]},
        "score": {"type": "number"},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
    },
    "required": ["id", "name", "age", "active"],
    "additionalProperties": False,
}


def made_up_vocabulary(size: int) -> Vocabulary:
    """So many tokens, at least 258: an end, padding, every byte, and words of several scripts."""
    source = np.random.default_rng(0)
    pieces: dict[bytes, None] = {bytes([byte]): None for byte in range(256)}
    letters = [chr(c) for c in (*range(97, 123), *range(65, 91), *range(0x430, 0x450), *range(0x4E00, 0x5E00))]
    while len(pieces) < size - 2:
        low, high = ((0, 52), (0, 26), (52, 84), (84, len(letters)))[source.integers(4)]
        word = "".join(letters[i] for i in source.integers(low, high, source.integers(1, 9)))
        pieces[(" " * int(source.integers(2)) + word).encode()] = None
    return Vocabulary((None, None, *pieces), frozenset({0}), frozenset({0, 1}))
