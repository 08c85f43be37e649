"""The prefix cache across requests: a prompt that begins like an earlier one takes over its KV instead of encoding.

A prompt is cut where its forwards are cut anyway: at multiples of PREFILL_CHUNK, or beside an image that is there. A
chunk's name is a digest of its tokens and pixels and of the name before it, so it implies everything before it. A
chunk holds its own keys and values, on sliding layers at most those of its last W-1 tokens. A hit is copied into the
new request's cache, so nothing is shared while it runs: of a sliding layer the chunks that the next token still sees.
A hit and a miss give bit-equal answers, because the remaining forwards are the same.

Memory is bounded in bytes. Least recently used chunks go first, ends of chains before what they stand on.
"""

from __future__ import annotations

import hashlib
import math
import mmap
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from redraft.cache import Prefix
from redraft.config import LayerConfig
from redraft.errors import RequestError
from redraft.images.prompt import PlacedImage, cached_names, chunk_ends
from redraft.shapes import Float, Tensor

Name = bytes  # of a chunk
ROOT: Name = b""

PREFILL_CHUNK = 256
"""Prompt tokens per forward and request: bounds the mask and the activations of a long prompt."""

LEAST_BYTES = 256 * 2**20
KEPT_CHUNKS = 48
"""The default bound: LEAST_BYTES, or a prompt of this many chunks if that is more: for the 26B model, whose chunk has
55 MiB, it is."""


LEAST_APART = 2**16
"""Bytes of a chunk that has pages of its own: a process has a bound of such areas, too."""


class Chain:
    """The names of a prompt's chunks, each made once, when it is first asked for. `ends` are where its chunks end, the
    empty one's first; what stands behind the last is not kept."""

    def __init__(self, prompt: Sequence[int], images: Sequence[PlacedImage] = ()) -> None:
        runs = [image.run for image in images]
        self.tokens = cached_names(prompt, runs, [image.picture.digest for image in images])
        self.ends = (0, *chunk_ends(len(prompt), PREFILL_CHUNK, runs))
        self._names = [ROOT]

    def name(self, chunk: int) -> Name:
        """Of the chunk that ends at `ends[chunk]`; ROOT is the name of none."""
        while len(self._names) <= chunk:
            start, end = self.ends[len(self._names) - 1 : len(self._names) + 1]
            tokens = ",".join(map(str, self.tokens[start:end]))
            self._names.append(hashlib.blake2b(self._names[-1] + tokens.encode(), digest_size=16).digest())
        return self._names[chunk]


@dataclass
class _Chunk:
    """One link of a chain. `children` counts chunks that continue it: while there are any, it stays. Keys and values of
    all layers are one tensor: small ones, and what C++ keeps of each, would tear holes into a server's heap. So would
    chunks themselves, which come and go at any time: each lies beside it."""

    parent: Name
    rows: int
    numbers: Float[Tensor, "numbers"]
    num_bytes: int
    children: int = 0


class Prefixes:
    """The store for a model of these layers, whose keys and values take `itemsize` bytes a number.

    `hits` and `misses` count tokens, for measurements. `max_bytes` None is the default bound.
    """

    def __init__(self, layers: Sequence[LayerConfig], itemsize: int, max_bytes: int | None = None) -> None:
        self.layers, self.itemsize, self.num_bytes = layers, itemsize, 0
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 0):
            raise RequestError(f"prefix_bytes is {max_bytes!r}; it must be an integer of at least 0 (0 keeps nothing)")
        if max_bytes is None:
            max_bytes = max(LEAST_BYTES, KEPT_CHUNKS * self.chunk_bytes(PREFILL_CHUNK))
        self.max_bytes = self._wanted = max_bytes
        self.hits = self.misses = 0
        self._chunks: OrderedDict[Name, _Chunk] = OrderedDict()

    def chunk_bytes(self, rows: int) -> int:
        """What a chunk of `rows` takes: its keys and values, of a sliding layer the last W-1."""
        return self.itemsize * sum(map(math.prod, self._shapes(rows)))

    def _shapes(self, rows: int) -> list[tuple[int, int, int, int]]:
        """Of each layer's keys and values in a chunk: two, heads, tokens, numbers of a head."""
        held = ((layer, rows if layer.window is None else min(rows, layer.window - 1)) for layer in self.layers)
        return [(2, layer.num_kv_heads, count, layer.head_dim) for layer, count in held]

    def _parts(self, numbers: Float[Tensor, "numbers"], rows: int) -> list[Float[Tensor, "2 kv_heads keys head_dim"]]:
        """Views of a chunk's tensor, a layer each."""
        shapes = self._shapes(rows)
        return [part.view(shape) for part, shape in zip(numbers.split([*map(math.prod, shapes)]), shapes, strict=True)]

    def load(self, chain: Chain, prefix: Prefix) -> int:
        """Fill an empty cache with the longest known beginning of a prompt; returns how many tokens that is.

        At least one token is left to encode, for the first canvas needs a forward to come with.
        """
        found, prompt = list[tuple[int, list[Tensor]]](), len(chain.tokens)
        for number, end in enumerate(chain.ends[1:], start=1):
            chunk = self._chunks.get(name := chain.name(number))
            if chunk is None or end == prompt:
                break
            self._chunks.move_to_end(name)
            found.append((end, self._parts(chunk.numbers, chunk.rows)))
        length = found[-1][0] if found else 0
        for i, layer in enumerate(prefix.layers):
            behind = 0 if layer.window is None else length - layer.window + 1
            seen = [(end, *parts[i]) for end, parts in found if end > behind]
            if not seen:  # of a window of one, too
                layer.origin = length
            for at, part in enumerate(seen):
                layer.restore(*part, follows=at > 0)
        prefix.length = length
        self.hits += length
        self.misses += prompt - length
        return length

    def keep(self, chain: Chain, prefix: Prefix) -> None:
        """Remember the prefix that now stands at the end of a chunk of a prompt. Too large a chunk is not kept."""
        end = prefix.length
        if not end or end not in chain.ends:
            return
        number = chain.ends.index(end)
        start = chain.ends[number - 1]
        size = self.chunk_bytes(end - start)
        above, name = chain.name(number - 1), chain.name(number)
        if name in self._chunks or size > self.max_bytes:
            return
        if above != ROOT and above not in self._chunks:
            return  # its beginning has been dropped meanwhile: without it the chunk could not be reached
        numbers = _apart(prefix.layers[0].keys, size)
        for part, layer in zip(self._parts(numbers, end - start), prefix.layers, strict=True):
            for kept, view in zip(part, layer.snapshot(start, end), strict=True):
                kept.copy_(view)
        if above != ROOT:
            self._chunks[above].children += 1
        self._chunks[name] = _Chunk(above, end - start, numbers, size)
        self.num_bytes += size
        self._shrink()

    def bound(self, most: int) -> None:
        """Keep within this many bytes from now on, and within what was asked for."""
        self.max_bytes = min(most, self._wanted)
        self._shrink()

    def clear(self) -> None:
        """Forget everything."""
        self._chunks.clear()
        self.num_bytes = 0

    def check(self) -> None:
        """Raise AssertionError if the books contradict themselves."""
        assert self.num_bytes == sum(chunk.num_bytes for chunk in self._chunks.values())
        assert self.num_bytes <= self.max_bytes
        for chunk in self._chunks.values():
            held = chunk.numbers.untyped_storage().nbytes()
            assert chunk.num_bytes == held, "a chunk takes other bytes than were counted"
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


def _apart(like: Tensor, num_bytes: int) -> Float[Tensor, "numbers"]:
    """Room for numbers of a tensor's type where it is, in a processor's memory in pages of their own. Raises
    MemoryError."""
    if like.device.type != "cpu" or num_bytes < LEAST_APART:
        return like.new_empty(num_bytes // like.element_size())
    try:
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"out of memory: {error}") from error
    return torch.frombuffer(pages, dtype=like.dtype)
