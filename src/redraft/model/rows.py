"""The rows of a forward, and which keys each of them sees.

A forward runs over a flat list of rows. A `Span` is a run of rows of one sequence in one mode:

    ENCODE    causal rows; their keys and values can become prefix      (prompt, commit)
    DENOISE   a canvas; every row sees the prefix and the whole canvas, and nothing is kept

Rows of different sequences, lengths and modes share one forward; only attention separates them. Spans of one sequence
follow each other, so a block can be committed and the next canvas take its first step in the same forward: in every
layer, the canvas reads the keys that the block has just placed.

An encoded span may contain whole images: their soft tokens take the place of token embeddings, and they see each other
in both directions. The model's `image_attention` decides how far; no checkpoint file sets it:

    reference   on every layer, whatever the window (transformers' DiffusionGemma)
    gemma4      on sliding layers only, and within the window; full layers stay causal (Gemma 4)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Protocol, runtime_checkable

import torch

from redraft.cache import Prefix
from redraft.config import LayerConfig, ModelConfig, RopeConfig
from redraft.model.kernels import Attend, Causal
from redraft.model.rope import rotation
from redraft.shapes import Bool, Float, Int, Tensor

IMAGE_ATTENTION = ("reference", "gemma4")

Rotation = tuple[Float[Tensor, "rows _ head_dim"], Float[Tensor, "rows _ head_dim"]]  # cos and sin


class Mode(Enum):
    """The two ways the one stack of layers is run."""

    ENCODE = "encode"
    DENOISE = "denoise"


@dataclass(frozen=True, eq=False)
class SoftTokens:
    """One image in a span: the vision tower's `embeddings`, from row `start` of the span on."""

    start: int
    embeddings: Float[Tensor, "tokens hidden"]

    @property
    def end(self) -> int:
        """The row after its last one."""
        return self.start + self.embeddings.shape[0]


@dataclass(frozen=True)
class Span:
    """Rows of one sequence. `position` is the position id of the first row; None means the index in the sequence.

    Encoded rows become prefix with `Rows.commit`. `images` are in order, do not overlap, and are whole: the tokens of a
    cut image would see only a part of it.
    """

    prefix: Prefix
    rows: int
    mode: Mode
    position: int | None = None
    images: tuple[SoftTokens, ...] = ()

    def __post_init__(self) -> None:
        borders = [0, *(border for image in self.images for border in (image.start, image.end)), self.rows]
        assert borders == sorted(borders), f"images at {borders[1:-1]} overlap or leave a span of {self.rows} rows"
        assert self.mode is Mode.ENCODE or not self.images, "a canvas holds no images"


@dataclass(frozen=True, eq=False)
class Inserted:
    """Embeddings in place of the tokens' own, and the rows of the forward that they replace. They are not scaled."""

    rows: Int[Tensor, "soft"]
    embeddings: Float[Tensor, "soft hidden"]


@runtime_checkable
class Context(Protocol):
    """The layers' view of the rows of a forward. `Rows` is for inference, tune/context.py for training."""

    is_canvas: bool | Bool[Tensor, "rows 1"]
    inserted: Inserted | None

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
        """Attention of every row over the keys that it sees in layer `index`."""


@dataclass(frozen=True)
class SpanTables:
    """The spans of a forward as numbers on the device, for kernels that process all spans in one launch.

    `seen` has one table for each window of the layers (`kinds`: layer -> table): the sequence indices of the first key
    that a row sees and of the key after the last. `buffers` has the addresses of a span's keys and values in a layer,
    the stride between two heads, and the sequence index of the buffer's first row.
    """

    spans: Int[Tensor, "spans 2"]  # first row, rows
    rows: Int[Tensor, "rows 2"]  # span, sequence index
    seen: Int[Tensor, "kinds rows 2"]
    buffers: Int[Tensor, "layers spans 4"]
    kinds: tuple[int, ...]
    most_rows: int

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors on the device."""
        return self.spans, self.rows, self.seen, self.buffers


def by_mode(context: Context, encode: Tensor, denoise: Tensor) -> Tensor:
    """One of two values for all rows or, in a mixed forward, for each row."""
    if isinstance(context.is_canvas, bool):
        return denoise if context.is_canvas else encode
    return torch.where(context.is_canvas, denoise, encode)


class Rows:
    """The context of an inference forward over cached prefixes.

    It serves every step of a canvas while its prefix does not grow: rotations and masks are made at first use and kept.
    `starts` is the sequence index of each span's first row.
    """

    def __init__(
        self,
        config: ModelConfig,
        spans: Sequence[Span],
        device: torch.device,
        dtype: torch.dtype,
        image_attention: str = IMAGE_ATTENTION[0],
    ) -> None:
        self.config, self.spans, self.device, self.dtype = config, tuple(spans), device, dtype
        self.image_attention = image_attention
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
        self.inserted = self._insert_images()
        self._rotations: dict[tuple[RopeConfig, int], Rotation] = {}
        self._scaled: dict[int, Rotation] = {}
        self._causal: dict[tuple[int, int | None], Causal] = {}
        self._tables: SpanTables | None = None

    def rotation(self, layer: LayerConfig) -> Rotation:
        """cos and sin of this forward's rows for that kind of layer."""
        key = (layer.rope, layer.head_dim)
        if key not in self._rotations:
            self._rotations[key] = rotation(layer.rope, layer.head_dim, self.positions, self.dtype)
        return self._rotations[key]

    def scaled_rotation(self, index: int, layer: LayerConfig, scale: Float[Tensor, "qk_heads head_dim"]) -> Rotation:
        """`rotation` with a weight per head and dim: it rotates x·scale when applied to x."""
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
        """Place each span's keys after its prefix, then attend; in order, so a later span sees earlier ones."""
        if len(self.spans) == 1:
            return self._attend_span(0, index, q, k, v, kernel)
        sizes = [span.rows for span in self.spans]
        parts = zip(q.split(sizes), k.split(sizes), v.split(sizes), strict=True)
        return torch.cat([self._attend_span(i, index, *part, kernel) for i, part in enumerate(parts)])

    def tables(self, index: int) -> SpanTables:
        """The spans as kernels read them in layer `index`; computed again at the first layer of each forward.

        Makes room in every layer's buffers for the keys and values that the kernels will write.
        """
        if index == 0 or self._tables is None:
            self._tables = span_tables(self, [span.rows for span in self.spans])
        return self._tables

    def commit(self) -> None:
        """The commit: encoded rows become prefix."""
        for span in self.spans:
            if span.mode is Mode.ENCODE:
                span.prefix.advance(span.rows)

    def _attend_span(self, i: int, index: int, q: Tensor, k: Tensor, v: Tensor, kernel: Attend) -> Tensor:
        keys, values = self.spans[i].prefix.layers[index].place(self.starts[i], k, v)
        return kernel(q, keys, values, self._mask_of(i, keys.shape[1], self.config.layers[index].window))

    def _mask_of(self, i: int, keys: int, window: int | None) -> Causal | None:
        """The mask of an encoded span (spec 1.5); None for a canvas, which sees all of its keys (2.2)."""
        if self.spans[i].mode is Mode.DENOISE:
            return None
        if (i, window) not in self._causal:
            windowed = self.image_attention == "gemma4"
            both_ways = () if windowed and window is None else self.spans[i].images
            images = tuple((image.start, image.end) for image in both_ways)
            self._causal[i, window] = Causal(self.spans[i].rows, keys, window, self.device, images, windowed)
        return self._causal[i, window]

    def _insert_images(self) -> Inserted | None:
        places, embeddings, first = [], [], 0
        for span in self.spans:
            places += [torch.arange(first + image.start, first + image.end) for image in span.images]
            embeddings += [image.embeddings.to(self.device, self.dtype) for image in span.images]
            first += span.rows
        return Inserted(torch.cat(places).to(self.device), torch.cat(embeddings)) if places else None

    def _canvas_rows(self) -> Tensor:
        flags = [torch.full((span.rows, 1), span.mode is Mode.DENOISE, device=self.device) for span in self.spans]
        return torch.cat(flags)


def span_tables(context: Rows, live: Sequence[int]) -> SpanTables:
    """The tables of a forward, in one copy to the device. Only the first `live` rows of each canvas are seen."""
    spans, layers = context.spans, context.config.layers
    windows = list(dict.fromkeys(layer.window for layer in layers))
    firsts = torch.tensor([0, *(span.rows for span in spans)]).cumsum(0)[:-1].tolist()
    rows, seen = [], []
    for i, (span, start) in enumerate(zip(spans, context.starts, strict=True)):
        own = torch.arange(start, start + span.rows)
        rows.append(torch.stack([torch.full_like(own, i), own], -1))
        seen.append(torch.stack([_seen(context, i, own, live[i], window) for window in windows]))
    parts = [
        torch.tensor([[first, span.rows] for first, span in zip(firsts, spans, strict=True)]),
        torch.cat(rows),
        torch.cat(seen, dim=1),
        torch.tensor(list(_buffers(context))).view(len(layers), len(spans), 4),
    ]
    flat = torch.cat([part.flatten() for part in parts]).to(context.device, non_blocking=True)
    numbers = flat.split([one.numel() for one in parts])
    tables = (part.view(like.shape) for part, like in zip(numbers, parts, strict=True))
    spans_at, rows_at, seen_at, buffers_at = tables
    kinds = tuple(windows.index(layer.window) for layer in layers)
    return SpanTables(spans_at, rows_at, seen_at, buffers_at, kinds, max(span.rows for span in spans))


def _seen(context: Rows, i: int, own: Tensor, live: int, window: int | None) -> Int[Tensor, "rows 2"]:
    """The keys that each row sees. A canvas row sees the prefix of the canvas's first row and all of the canvas; an
    encoded row sees earlier rows and all of its own image. `Rows._mask_of` gives the same as a mask."""
    span, start, windowed = context.spans[i], context.starts[i], context.image_attention == "gemma4"
    is_canvas = span.mode is Mode.DENOISE
    last = torch.full_like(own, start) if is_canvas else own
    first = torch.zeros_like(own) if window is None else (last - window + 1).clamp(min=0)
    behind = torch.full_like(own, start + live) if is_canvas else own + 1
    for image in span.images if window is not None or not windowed else ():
        rows = slice(image.start, image.end)
        behind[rows] = start + image.end
        if not windowed:
            first[rows] = first[rows].clamp(max=start + image.start)
    return torch.stack([first, behind], -1)


def _buffers(context: Rows) -> Iterator[list[tuple[int, int, int, int]]]:
    """Each span's buffers in every layer. Spans of one sequence make room together: a later span must not remove keys
    that an earlier one sees."""
    together = [
        (prefix, [i for i, _ in group])
        for prefix, group in groupby(enumerate(context.spans), key=lambda one: one[1].prefix)
    ]
    for index in range(len(context.config.layers)):
        found = []
        for prefix, group in together:
            layer = prefix.layers[index]
            first, end = context.starts[group[0]], max(context.starts[i] + context.spans[i].rows for i in group)
            layer.claim(first, end - first)
            keys, values = layer.keys, layer.values
            found += [(keys.data_ptr(), values.data_ptr(), keys.stride(0), layer.origin)] * len(group)
        yield found
