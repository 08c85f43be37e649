"""The KV cache of one sequence, its prefix: keys and values of committed tokens, layer by layer.

    full layer      one buffer that grows by doubling:   [ 0 .......... length | rows of this forward ]
    sliding layer   a bounded buffer of the last tokens:       [ length-(W-1) . length | rows ... ]

A forward *places* the keys and values of its rows after the prefix and attends over one contiguous view, prefix and own
rows together. A denoising step copies only its own 256 keys, and the next step overwrites them; only `advance`, the
commit, makes them prefix. Full layers keep everything. A sliding layer of window W keeps the tokens that the next
canvas may see, the last W-1 (model spec 2.2), and has room for as many again, so that it moves memory once in W tokens.

This file handles tensors and lengths, but no model, position ids or masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from redraft.config import LayerConfig
from redraft.shapes import Float, Tensor

MIN_ROOM = 256
"""Least rows of a buffer, and rows of a sliding buffer beyond twice its window: enough for a canvas or prompt chunk."""


class LayerPrefix:
    """Keys and values of one layer, [kv_heads, room, head_dim]. Buffer row 0 is token `origin` of the sequence."""

    def __init__(self, layer: LayerConfig, room: int, dtype: torch.dtype, device: torch.device) -> None:
        self.window = layer.window
        self.origin = 0
        if layer.window is not None:
            room = min(room, 2 * layer.window + MIN_ROOM)
        shape = (layer.num_kv_heads, max(room, MIN_ROOM), layer.head_dim)
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)

    def place(
        self, start: int, k: Float[Tensor, "rows kv_heads head_dim"], v: Float[Tensor, "rows kv_heads head_dim"]
    ) -> tuple[Float[Tensor, "kv_heads keys head_dim"], Float[Tensor, "kv_heads keys head_dim"]]:
        """Write rows at sequence index `start`; return views of all rows that they may see, themselves last.

        On a sliding layer the view begins W-1 tokens before `start`. It stays valid until the next `place`.
        """
        seen = self.claim(start, k.shape[0])
        own = slice(seen.stop - k.shape[0], seen.stop)
        self.keys[:, own] = k.transpose(0, 1)
        self.values[:, own] = v.transpose(0, 1)
        return self.keys[:, seen], self.values[:, seen]

    def claim(self, start: int, rows: int) -> slice:
        """Make room for rows at sequence index `start`; returns which buffer rows they may see, themselves last."""
        end = start + rows
        first = 0 if self.window is None else max(0, start - self.window + 1)
        if end - self.origin > self.keys.shape[1]:
            self._make_room(first, start, end)
        return slice(first - self.origin, end - self.origin)

    def snapshot(
        self, start: int, end: int
    ) -> tuple[Float[Tensor, "kv_heads keys head_dim"], Float[Tensor, "kv_heads keys head_dim"]]:
        """Views for `restore`: tokens from `start` to `end`, on a sliding layer of these the last W-1."""
        first = start if self.window is None else max(start, end - self.window + 1)
        rows = slice(first - self.origin, end - self.origin)
        return self.keys[:, rows], self.values[:, rows]

    def restore(
        self,
        end: int,
        keys: Float[Tensor, "kv_heads keys head_dim"],
        values: Float[Tensor, "kv_heads keys head_dim"],
        *,
        follows: bool = False,
    ) -> None:
        """Put a snapshot back so that the layer ends at `end`. Several come in order, from the one with the first token
        that is still seen; each but the first `follows` the one before it."""
        first = end - keys.shape[1]
        if not follows:
            self.origin = first
        if end - self.origin > self.keys.shape[1]:
            self._make_room(self.origin, first, end)
        self.keys[:, first - self.origin : end - self.origin] = keys
        self.values[:, first - self.origin : end - self.origin] = values

    def _make_room(self, first: int, start: int, end: int) -> None:
        """Move the tokens that are still visible to the front; take a larger buffer only if that is not enough."""
        room = self.keys.shape[1]
        if end - first > room:
            room = end - first if self.window is not None else max(2 * room, end)
        self._move(first, start, room)

    def _move(self, first: int, end: int, room: int) -> None:
        """Move tokens `first` to `end` to the front of a buffer of `room` rows: this one, or a new one of that size."""
        kept = slice(first - self.origin, end - self.origin)
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old if room == old.shape[1] else old.new_empty(old.shape[0], room, old.shape[2])
            # Within one buffer source and target may overlap.
            new[:, : end - first] = old[:, kept].clone() if new is old else old[:, kept]
            setattr(self, name, new)
        self.origin = first

    def trim(self, length: int) -> None:
        """Shrink a sliding buffer that a wide forward has grown beyond its bound."""
        if self.window is not None and self.keys.shape[1] > (room := 2 * self.window + MIN_ROOM):
            self._move(max(0, length - self.window + 1), length, room)


class Prefix:
    """The KV cache of one sequence. `length` counts committed tokens; a forward changes it only by `advance`."""

    def __init__(
        self,
        layers: Sequence[LayerConfig],
        *,
        room: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.length = 0
        self.layers = [LayerPrefix(layer, room, dtype, torch.device(device)) for layer in layers]

    def advance(self, rows: int) -> None:
        """The rows placed by the last forward become prefix: the commit."""
        self.length += rows
        for layer in self.layers:
            layer.trim(self.length)

    def take(self, other: Prefix) -> None:
        """Become a copy of another prefix of the same shape."""
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            mine.restore(other.length, *theirs.snapshot(0, other.length))
        self.length = other.length

    def restart(self, room: int) -> bool:
        """Become empty in the same buffers. Returns False, and changes nothing, if they have less than `room` rows."""
        if any(layer.window is None and layer.keys.shape[1] < room for layer in self.layers):
            return False
        self.length = 0
        for layer in self.layers:
            layer.origin = 0
        return True

    @property
    def num_bytes(self) -> int:
        """Bytes in memory now, room for growth included."""
        return sum(2 * layer.keys.numel() * layer.keys.element_size() for layer in self.layers)

    def check(self) -> None:
        """Raise AssertionError if the cache contradicts itself; for tests and self-audits."""
        for i, layer in enumerate(self.layers):
            first = 0 if layer.window is None else max(0, self.length - layer.window + 1)
            assert layer.keys.shape == layer.values.shape, f"layer {i}: keys and values differ in shape"
            assert layer.origin <= first, f"layer {i}: tokens {first}..{layer.origin} were dropped too early"
            assert self.length - layer.origin <= layer.keys.shape[1], f"layer {i}: length beyond its buffer"
            if layer.window is None:
                assert layer.origin == 0, f"layer {i}: a full layer forgot its first {layer.origin} tokens"
