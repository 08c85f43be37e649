"""Which rows go through a forward together, and what each of them sees.

A forward runs over a flat list of rows. A `Span` is a run of rows of one sequence in one mode:

    ENCODE    causal rows; what they write can become prefix      (prompt, commit)
    DENOISE   a canvas; every row sees the prefix and the whole canvas, and nothing is kept

Rows of different sequences, lengths and modes share one forward; only attention knows the borders. Spans of one
sequence follow each other, so a block can be committed and the next canvas take its first step in the same forward:
in every layer, the canvas reads the keys that the block has just placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

import torch

from redraft.cache import Prefix
from redraft.config import LayerConfig, ModelConfig, RopeConfig
from redraft.model.kernels import Attend, Causal
from redraft.model.rope import rotation
from redraft.shapes import Bool, Float, Int, Tensor

Rotation = tuple[Float[Tensor, "rows _ head_dim"], Float[Tensor, "rows _ head_dim"]]  # cos and sin


class Mode(Enum):
    """The two ways the one stack of layers is run."""

    ENCODE = "encode"
    DENOISE = "denoise"


@dataclass(frozen=True)
class Span:
    """Rows of one sequence. `position` is the position id of the first row; None means the index in the sequence.

    Encoded rows become prefix with `Rows.commit`.
    """

    prefix: Prefix
    rows: int
    mode: Mode
    position: int | None = None


@runtime_checkable
class Context(Protocol):
    """What the layers ask about the rows that they carry. `Rows` is for inference, tune/context.py for training."""

    is_canvas: bool | Bool[Tensor, "rows 1"]

    def rotation(self, layer: LayerConfig) -> Rotation:
        """cos and sin of this forward's rows for that kind of layer."""

    def attend(
        self,
        index: int,
        q: Float[Tensor, "rows heads head_dim"],
        k: Float[Tensor, "rows kv_heads head_dim"],
        v: Float[Tensor, "rows kv_heads head_dim"],
        kernel: Attend,
    ) -> Float[Tensor, "rows heads head_dim"]:
        """Attention of every row over what it may see in layer `index`."""


def by_mode(context: Context, encode: Tensor, denoise: Tensor) -> Tensor:
    """One of two values for all rows, or, in a mixed forward, each row its own."""
    if isinstance(context.is_canvas, bool):
        return denoise if context.is_canvas else encode
    return torch.where(context.is_canvas, denoise, encode)


class Rows:
    """The context of an inference forward over cached prefixes.

    Built once and used for every step of a canvas while its prefix does not grow: rotations and masks are made on first
    use and kept. `starts` is the sequence index of each span's first row.
    """

    def __init__(self, config: ModelConfig, spans: Sequence[Span], device: torch.device, dtype: torch.dtype) -> None:
        self.config, self.spans, self.device, self.dtype = config, tuple(spans), device, dtype
        placed: dict[int, int] = {}
        self.starts: list[int] = []
        positions = []
        for span in self.spans:
            start = span.prefix.length + placed.get(id(span.prefix), 0)
            placed[id(span.prefix)] = start - span.prefix.length + span.rows
            first = start if span.position is None else span.position
            self.starts.append(start)
            positions.append(torch.arange(first, first + span.rows, device=device))
        self.positions: Int[Tensor, "rows"] = torch.cat(positions)
        modes = {span.mode for span in self.spans}
        self.is_canvas: bool | Bool[Tensor, "rows 1"] = (
            modes == {Mode.DENOISE} if len(modes) == 1 else self._canvas_rows()
        )
        self._rotations: dict[tuple[RopeConfig, int], Rotation] = {}
        self._scaled: dict[int, Rotation] = {}
        self._causal: dict[tuple[int, int | None], Causal] = {}

    def rotation(self, layer: LayerConfig) -> Rotation:
        """cos and sin of this forward's rows for that kind of layer."""
        key = (layer.rope, layer.head_dim)
        if key not in self._rotations:
            self._rotations[key] = rotation(layer.rope, layer.head_dim, self.positions, self.dtype)
        return self._rotations[key]

    def scaled_rotation(self, index: int, layer: LayerConfig, scale: Float[Tensor, "qk_heads head_dim"]) -> Rotation:
        """The same with a weight per head and dim worked in: what rotates x·scale, applied to x."""
        if index not in self._scaled:
            cos, sin = self.rotation(layer)
            self._scaled[index] = (cos * scale, sin * scale.roll(layer.head_dim // 2, dims=-1))
        return self._scaled[index]

    def attend(
        self,
        index: int,
        q: Float[Tensor, "rows heads head_dim"],
        k: Float[Tensor, "rows kv_heads head_dim"],
        v: Float[Tensor, "rows kv_heads head_dim"],
        kernel: Attend,
    ) -> Float[Tensor, "rows heads head_dim"]:
        """Place each span's keys behind its prefix, then attend; in order, so a later span sees those before it."""
        if len(self.spans) == 1:
            return self._attend_span(0, index, q, k, v, kernel)
        sizes = [span.rows for span in self.spans]
        parts = zip(q.split(sizes), k.split(sizes), v.split(sizes), strict=True)
        return torch.cat([self._attend_span(i, index, *part, kernel) for i, part in enumerate(parts)])

    def commit(self) -> None:
        """The commit: encoded rows become prefix, but for spans that are not kept."""
        for span in self.spans:
            if span.mode is Mode.ENCODE:
                span.prefix.advance(span.rows)

    def _attend_span(self, i: int, index: int, q: Tensor, k: Tensor, v: Tensor, kernel: Attend) -> Tensor:
        keys, values = self.spans[i].prefix.layers[index].place(self.starts[i], k, v)
        return kernel(q, keys, values, self._sight(i, keys.shape[1], self.config.layers[index].window))

    def _sight(self, i: int, keys: int, window: int | None) -> Causal | None:
        """What an encoded span sees of its keys (spec 1.5); None for a canvas, which sees all it is handed (2.2)."""
        if self.spans[i].mode is Mode.DENOISE:
            return None
        if (i, window) not in self._causal:
            self._causal[i, window] = Causal(self.spans[i].rows, keys, window, self.device)
        return self._causal[i, window]

    def _canvas_rows(self) -> Tensor:
        flags = [torch.full((span.rows, 1), span.mode is Mode.DENOISE, device=self.device) for span in self.spans]
        return torch.cat(flags)
