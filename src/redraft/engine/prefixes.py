"""Prefixes that outlive their request: a later prompt that begins the same way takes them over instead of encoding.

A prompt is cut at multiples of PREFILL_CHUNK, where its forwards are cut anyway. Each chunk is named by a digest of
its tokens and of the name before it, so a chunk's name implies everything before it, and holds what a cache needs to
stand at its end: on full layers the chunk's own keys and values, on sliding layers the last W-1 tokens'. A hit is
copied into the new request's cache, so nothing is shared while it runs; a hit and a miss give bit-equal answers,
because the remaining forwards are the same ones.

Memory is bounded in bytes. Least recently used chunks go first, ends of chains before what they stand on.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from redraft.cache import Prefix
from redraft.engine.scheduler import PREFILL_CHUNK
from redraft.shapes import Tensor

Name = bytes
ROOT: Name = b""


@dataclass
class _Chunk:
    """One link of a chain. `children` counts chunks that continue it: while there are any, it stays."""

    parent: Name
    layers: list[tuple[Tensor, Tensor]]
    num_bytes: int
    children: int = 0


class Prefixes:
    """The store. `hits` and `misses` count tokens, for measurements."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.num_bytes = max_bytes, 0
        self.hits = self.misses = 0
        self._chunks: OrderedDict[Name, _Chunk] = OrderedDict()

    def load(self, prompt: Sequence[int], prefix: Prefix) -> int:
        """Fill an empty cache with the longest known beginning of `prompt`; returns how many tokens that is.

        At least one token is left to encode, for the first canvas needs a forward to come with.
        """
        length = 0
        for end, name in _names(prompt[: len(prompt) - 1]):
            chunk = self._chunks.get(name)
            if chunk is None:
                break
            self._chunks.move_to_end(name)
            for layer, (keys, values) in zip(prefix.layers, chunk.layers, strict=True):
                layer.restore(end, keys, values)
            length = end
        prefix.length = length
        self.hits += length
        self.misses += len(prompt) - length
        return length

    def keep(self, prompt: Sequence[int], prefix: Prefix) -> None:
        """Remember the prefix that now stands at the end of a chunk of `prompt`. Too large a chunk is not kept."""
        end = prefix.length
        if end % PREFILL_CHUNK or not end:
            return
        above, name = ([ROOT] + [name for _, name in _names(prompt[:end])])[-2:]
        if name in self._chunks:
            return
        layers = [layer.snapshot(end - PREFILL_CHUNK, end) for layer in prefix.layers]
        size = sum(keys.numel() * keys.element_size() * 2 for keys, _ in layers)
        if above != ROOT and above not in self._chunks:
            return  # its beginning has been dropped meanwhile: without it the chunk could not be reached
        if above != ROOT:
            self._chunks[above].children += 1
        self._chunks[name] = _Chunk(above, layers, size)
        self.num_bytes += size
        self._shrink()

    def clear(self) -> None:
        """Forget everything."""
        self._chunks.clear()
        self.num_bytes = 0

    def check(self) -> None:
        """Raise AssertionError if the books contradict themselves."""
        assert self.num_bytes == sum(chunk.num_bytes for chunk in self._chunks.values())
        assert self.num_bytes <= self.max_bytes
        for name, chunk in self._chunks.items():
            followers = sum(other.parent == name for other in self._chunks.values())
            assert chunk.children == followers, "a chunk miscounts what continues it"
            assert chunk.parent == ROOT or chunk.parent in self._chunks, "a chunk lost its beginning"

    def _shrink(self) -> None:
        while self.num_bytes > self.max_bytes:
            name = next(name for name, chunk in self._chunks.items() if not chunk.children)
            dropped = self._chunks.pop(name)
            self.num_bytes -= dropped.num_bytes
            if dropped.parent != ROOT:
                self._chunks[dropped.parent].children -= 1


def _names(tokens: Sequence[int]) -> Iterator[tuple[int, Name]]:
    """(end, name) of every whole chunk of a prompt, from its start."""
    name = ROOT
    for end in range(PREFILL_CHUNK, len(tokens) + 1, PREFILL_CHUNK):
        chunk = ",".join(map(str, tokens[end - PREFILL_CHUNK : end]))
        name = hashlib.blake2b(name + chunk.encode(), digest_size=16).digest()
        yield end, name
