"""Which replica a prompt goes to: where the longest beginning of it was sent last, unless that one is busy."""

from __future__ import annotations

import hashlib
import random
from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Sequence
from typing import Any, TypeVar

import msgspec

R = TypeVar("R", bound=Hashable)

BLOCK_BYTES = 512
"""Of a prompt that are hashed together: tokens of prose for half a chunk of the prefix cache, or all of one of code."""

MOST_BLOCKS = 64
NOTHING = (b"", b"null", b'""', b"[]")
"""Fields that are no part of a prompt, as they were sent."""

MOST_KNOWN = 200_000
"""Beginnings that are remembered, of 8 bytes each and as much again for where they are."""

SLACK = 8
"""Requests that the replica of a prefix may have more than twice the lightest of two others, before it is left."""


class Places:
    """Where beginnings of prompts were sent, the least recently used forgotten first."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self._most = most
        self._known: OrderedDict[bytes, Any] = OrderedDict()

    def choose(
        self, blocks: Sequence[bytes], replicas: Sequence[R], alive: Container[R], load: Callable[[R], int]
    ) -> R:
        """The replica for a prompt of these blocks, which is remembered; `alive` has the same replicas, to be asked."""
        found = lightest = min(random.sample(replicas, min(2, len(replicas))), key=load)
        for block in reversed(blocks):
            place: Any = self._known.get(block)  # a name of the caller's, or None, which is none
            if place in alive and load(place) <= 2 * load(lightest) + SLACK:
                found = place
                break
        for block in blocks:
            self._known[block] = found
            self._known.move_to_end(block)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return found


class _Fields(msgspec.Struct):
    """What a prompt is made of, as it was sent: nothing becomes an object, since this is done on the event loop. `body`
    is a row's."""

    tools: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    input_prefix: msgspec.Raw = msgspec.Raw()
    body: msgspec.Raw = msgspec.Raw()


def blocks_of(body: bytes) -> list[bytes]:
    """Digests of the beginnings of a body's prompt, each one block longer; none for a prompt of less than one.

    `body` may also be a row of a batch, which has it in a field.
    """
    try:
        fields = msgspec.json.decode(body, type=_Fields)
        if bytes(memoryview(fields.body)[:1]) == b"{":
            fields = msgspec.json.decode(fields.body, type=_Fields)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return []
    parts = (fields.tools, fields.instructions, fields.messages, fields.prompt, fields.input, fields.input_prefix)
    given = (bytes(memoryview(one)[: BLOCK_BYTES * MOST_BLOCKS]) for one in parts)
    text = b"".join(one for one in given if one not in NOTHING)
    digest, found = hashlib.blake2b(digest_size=8), []
    for end in range(BLOCK_BYTES, min(len(text), BLOCK_BYTES * MOST_BLOCKS) + 1, BLOCK_BYTES):
        digest.update(text[end - BLOCK_BYTES : end])
        found.append(digest.digest())
    return found
