"""Which tokens see which in training: the contexts of its forwards (for inference: `model/rows.py`).

A canvas sees the clean tokens of its sequence before its start, as at inference: on sliding layers the last W-1 of
them, the same for every position. Sequences that share a line do not see each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch.nn import functional as F

from redraft.config import LayerConfig, ModelConfig
from redraft.model.kernels import Attend
from redraft.model.rope import rotation
from redraft.model.rows import IMAGE_ATTENTION, Inserted, Rotation
from redraft.shapes import Bool, Float, Int, Tensor


class _Placed:
    """Rows at given positions, `width` of each line, a cache of their rotations, and of what hides keys from them."""

    inserted: Inserted | None = None

    def __init__(self, positions: Int[Tensor, "batch tokens"]) -> None:
        self._positions, self.width = positions.flatten(), positions.shape[1]
        self._rotations: dict[LayerConfig, Rotation] = {}
        self._biases: dict[int | None, Tensor] = {}

    def rotation(self, layer: LayerConfig) -> Rotation:
        """cos and sin for queries and keys at these positions."""
        if layer not in self._rotations:
            self._rotations[layer] = rotation(layer.rope, layer.head_dim, self._positions, torch.float32)
        return self._rotations[layer]


class CleanContext(_Placed):
    """Context of the causal pass over lines of clean sequences; keeps keys and values, with their gradients."""

    is_canvas = False

    def __init__(
        self,
        config: ModelConfig,
        clean: Int[Tensor, "batch tokens"],
        first: Int[Tensor, "batch tokens"],
        images: Sequence[tuple[int, int, int]] = (),
        image_attention: str = IMAGE_ATTENTION[0],
    ) -> None:
        """`images` are (line, first token, token behind the last)."""
        self.config, self.first = config, first
        self.images, self.windowed = images, image_attention == "gemma4"
        self.batch, self.tokens = clean.shape
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.layers: list[Any] = []  # in a fused forward, what its layers are in this batch (`tune/fused_layer.py`)
        super().__init__(torch.arange(self.tokens, device=first.device) - first)  # every sequence begins at 0

    def attend(self, index: int, q: Tensor, k: Tensor, v: Tensor, kernel: Attend) -> Tensor:
        """Causal within each sequence; an image's tokens see each other (`model/rows.py`). Padding follows the tokens,
        so causality hides it."""
        q, k, v = matrix_format(q, k, v)
        self.keys[index], self.values[index] = _split(k, self.batch), _split(v, self.batch)
        bias = self._bias(self.config.layers[index].window, q)
        return _attend_batch(q, self.keys[index], self.values[index], bias)

    def _bias(self, window: int | None, like: Tensor) -> Float[Tensor, "batch tokens tokens"]:
        if window not in self._biases:
            at = torch.arange(self.tokens, device=self.first.device)
            near = at > at[:, None] - (self.tokens if window is None else window)
            seen = (at <= at[:, None]) & near & (at >= self.first[:, :, None])
            for line, start, stop in self.images if window is not None or not self.windowed else ():
                own = slice(start, stop)
                seen[line, own, own] = near[own, own] if self.windowed else True
            self._biases[window] = _bias(seen, like)
        return self._biases[window]


class CanvasContext(_Placed):
    """Context of a canvas pass: each canvas sees its clean prefix and itself."""

    is_canvas = True

    def __init__(
        self,
        clean: CleanContext,
        owner: Int[Tensor, "canvases"],
        origin: Int[Tensor, "canvases"],
        start: Int[Tensor, "canvases"],
        width: int,
        live: Int[Tensor, "canvases"] | None = None,
        reach: int | None = None,
    ) -> None:
        """`live` are the positions of each canvas that are seen, if not all are. `reach` is a clean token from which on
        no canvas sees any, known without asking a GPU."""
        self.clean, self.owner, self.origin, self.start, self.live = clean, owner, origin, start, live
        self.reach = int(start.max()) if reach is None else reach
        super().__init__((start - origin)[:, None] + torch.arange(width, device=start.device))  # behind its prefix

    def some(self, chosen: Int[Tensor, "some"]) -> CanvasContext:
        """The context of a part of the canvases."""
        live = None if self.live is None else self.live[chosen]
        owner, origin, start = self.owner[chosen], self.origin[chosen], self.start[chosen]
        return CanvasContext(self.clean, owner, origin, start, self.width, live, self.reach)

    @cached_property
    def bounds(self) -> Int[Tensor, "lines_and_one"]:
        """The first canvas of each line, and the number of all: they stand in the order of their lines."""
        return torch.searchsorted(self.owner, torch.arange(self.clean.batch + 1, device=self.owner.device))

    def attend(self, index: int, q: Tensor, k: Tensor, v: Tensor, kernel: Attend) -> Tensor:
        """Prefix keys from the clean pass, then the canvas's own."""
        count = self.start.shape[0]
        q, k, v = matrix_format(q, k, v)
        old_k = self.clean.keys[index][:, :, : self.reach][self.owner]
        old_v = self.clean.values[index][:, :, : self.reach][self.owner]
        k, v = torch.cat([old_k, _split(k, count)], 2), torch.cat([old_v, _split(v, count)], 2)
        return _attend_batch(q, k, v, self._bias(self.clean.config.layers[index].window, q))

    def _bias(self, window: int | None, like: Tensor) -> Float[Tensor, "canvases canvas keys"]:
        if window not in self._biases:
            key, start = torch.arange(self.reach, device=self.start.device), self.start[:, None]
            prefix = (key < start) & (key >= self.origin[:, None])
            if window is not None:
                prefix &= key >= start - window + 1
            own = torch.ones(self.start.shape[0], self.width, dtype=torch.bool, device=self.start.device)
            if self.live is not None:
                own = torch.arange(self.width, device=self.start.device) < self.live[:, None]
            self._biases[window] = _bias(torch.cat([prefix, own], 1)[:, None], like).expand(-1, self.width, -1)
        return self._biases[window]


def _split(x: Float[Tensor, "rows kv_heads head_dim"], batch: int) -> Float[Tensor, "batch kv_heads keys head_dim"]:
    return x.view(batch, -1, x.shape[1], x.shape[2]).transpose(1, 2)


def _attend_batch(
    q: Float[Tensor, "rows heads head_dim"],
    k: Float[Tensor, "batch kv_heads keys head_dim"],
    v: Float[Tensor, "batch kv_heads keys head_dim"],
    bias: Float[Tensor, "batch queries keys"],
) -> Float[Tensor, "rows heads head_dim"]:
    """Attention of equal-length sequences at once; query heads that share a key head are folded into its rows."""
    batch, kv_heads, keys, dim = k.shape
    group = q.shape[1] // kv_heads
    folded = q.view(batch, -1, kv_heads, group, dim).permute(0, 2, 3, 1, 4).reshape(batch, kv_heads, -1, dim)
    with torch.autocast(q.device.type, enabled=False):  # in the format of q: a softmax rounds once
        if q.is_cuda:
            out = F.scaled_dot_product_attention(
                folded, k, v, attn_mask=bias.repeat(1, group, 1).unsqueeze(1), scale=1.0
            )
        else:  # on a CPU the fused form's backward pass takes three times as long
            scores = (folded @ k.transpose(2, 3)).view(batch, kv_heads, group, -1, keys)
            weights = scores.add_(bias[:, None, None]).softmax(-1)
            out = weights.view(batch, kv_heads, -1, keys) @ v
    return out.view(batch, kv_heads, group, -1, dim).permute(0, 3, 1, 2, 4).reshape(q.shape)


def matrix_format(*parts: Tensor) -> tuple[Tensor, ...]:
    """Values in the format in which their device multiplies: autocast's, if it is on."""
    kind = parts[0].device.type
    return tuple(x.to(torch.get_autocast_dtype(kind)) for x in parts) if torch.is_autocast_enabled(kind) else parts


def _bias(seen: Bool[Tensor, "batch queries keys"], like: Tensor) -> Float[Tensor, "batch queries keys"]:
    """What is added to scores: 0 where a key is seen, elsewhere the least number, of which a softmax makes a 0."""
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(
        ~seen, torch.finfo(like.dtype).min
    )
