"""The training objective of block diffusion (model spec 4), and the context its forwards run in.

One example is a clean sequence (prompt and answer) and one canvas: the answer, filled up with end tokens.

    encode    clean sequence, causal, once                    → next-token loss; keys and values for the canvas
    corrupt   each canvas position is replaced by a uniformly random token with probability t ~ U(ε, 1-ε)
    guess     the canvas without self-conditioning, no gradient, for the examples whose coin says so (half)
    denoise   the canvas, conditioned on the guess or on an exact zero
              → cross-entropy on all canvas positions, corrupted or not, unweighted

The canvas sees the clean tokens before its start, as at inference: the last W-1 of them on sliding layers, the same set
for every position.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from redraft.config import LayerConfig, ModelConfig
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import Attend
from redraft.model.rope import rotation
from redraft.model.rows import Rotation
from redraft.shapes import Bool, Float, Int, Tensor

EPSILON = 1e-4


@dataclass(frozen=True)
class Batch:
    """Examples side by side, `clean` right-padded; `start` is where a canvas begins, `length` where clean ends."""

    clean: Int[Tensor, "batch tokens"]
    length: Int[Tensor, "batch"]
    start: Int[Tensor, "batch"]
    target: Int[Tensor, "batch canvas"]


@dataclass(frozen=True)
class Corruption:
    """The random choices of one training step: what the canvas shows, and which examples condition on a guess."""

    canvas: Int[Tensor, "batch canvas"]
    level: Float[Tensor, "batch"]
    conditioned: Bool[Tensor, "batch"]


@dataclass(frozen=True)
class Losses:
    """Mean nats per token, with the graph. `denoise` is None where the canvas was not run."""

    encode: Float[Tensor, ""]
    denoise: Float[Tensor, ""] | None

    @property
    def total(self) -> Float[Tensor, ""]:
        """What is minimised: both terms with weight one."""
        return self.encode if self.denoise is None else self.encode + self.denoise


def corrupt(target: Int[Tensor, "batch canvas"], vocab: int, generator: torch.Generator) -> Corruption:
    """Uniform corruption at one noise level per example; a random token may equal the one it replaces."""
    size = target.shape
    level = EPSILON + (1 - 2 * EPSILON) * torch.rand(size[0], generator=generator)
    replaced = torch.rand(size, generator=generator) < level[:, None]
    random = torch.randint(vocab, size, generator=generator)
    conditioned = torch.rand(size[0], generator=generator) < 0.5
    return Corruption(torch.where(replaced, random, target), level, conditioned)


def losses(model: DiffusionGemma, batch: Batch, corruption: Corruption | None) -> Losses:
    """Both losses of a batch; without a corruption only the autoregressive one, and the canvas is not run."""
    clean = CleanContext(model.config, batch)
    hidden = model(batch.clean.flatten(), None, clean).view(*batch.clean.shape, -1)
    inside = torch.arange(1, batch.clean.shape[1]) < batch.length[:, None]
    following = batch.clean[:, 1:][inside]
    encode = F.cross_entropy(model.logits(hidden[:, :-1][inside]), following)
    if corruption is None:
        return Losses(encode, None)
    soft = _guess(model, clean, corruption)
    logits = _canvas_logits(model, clean, corruption.canvas, soft, None)
    return Losses(encode, F.cross_entropy(logits.flatten(0, 1), batch.target.flatten()))


def _guess(model: DiffusionGemma, clean: CleanContext, corruption: Corruption) -> Float[Tensor, "batch canvas hidden"]:
    """Soft embedding of a first pass for the examples that condition on one, exactly zero for the others."""
    shape = (*corruption.canvas.shape, model.config.hidden_size)
    soft = torch.zeros(shape, dtype=model.dtype, device=model.device)
    chosen = corruption.conditioned.nonzero().flatten()
    if chosen.numel():
        with torch.no_grad():
            logits = _canvas_logits(model, clean, corruption.canvas[chosen], None, chosen)
            probabilities = torch.softmax(logits, dim=-1).flatten(0, 1)
            soft[chosen] = model.soften(probabilities).view(chosen.shape[0], *shape[1:])
    return soft


def _canvas_logits(
    model: DiffusionGemma, clean: CleanContext, canvas: Tensor, soft: Tensor | None, chosen: Tensor | None
) -> Float[Tensor, "batch canvas vocab"]:
    context = CanvasContext(clean, canvas.shape[1], chosen)
    hidden = model(canvas.flatten(), None if soft is None else soft.flatten(0, 1), context)
    return model.logits(hidden).view(*canvas.shape, -1)


class CleanContext:
    """Context of the causal pass over a batch of clean sequences; remembers keys and values, with their gradients."""

    is_canvas = False

    def __init__(self, config: ModelConfig, batch: Batch) -> None:
        self.config, self.start = config, batch.start
        self.batch, self.tokens = batch.clean.shape
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._rotations: dict[LayerConfig, Rotation] = {}

    def rotation(self, layer: LayerConfig) -> Rotation:
        """Every sequence begins at position 0."""
        if layer not in self._rotations:
            positions = torch.arange(self.tokens).repeat(self.batch)
            self._rotations[layer] = rotation(layer.rope, layer.head_dim, positions, torch.float32)
        return self._rotations[layer]

    def attend(self, index: int, q: Tensor, k: Tensor, v: Tensor, kernel: Attend) -> Tensor:
        """Causal within each sequence. Padding stands behind the tokens, so causality hides it."""
        k, v = _split(k, self.batch), _split(v, self.batch)
        self.keys.append(k)
        self.values.append(v)
        query, key = torch.arange(self.tokens)[:, None], torch.arange(self.tokens)[None]
        window = self.config.layers[index].window
        seen = key <= query if window is None else (key <= query) & (key > query - window)
        return _attend_batch(q, k, v, seen.expand(self.batch, -1, -1))


class CanvasContext:
    """Context of a canvas pass: each canvas sees its clean prefix and itself. `chosen` picks examples of the batch."""

    is_canvas = True

    def __init__(self, clean: CleanContext, width: int, chosen: Int[Tensor, "some"] | None) -> None:
        self.clean, self.width, self.chosen = clean, width, chosen
        self.start = clean.start if chosen is None else clean.start[chosen]
        self._rotations: dict[LayerConfig, Rotation] = {}
        self._seen: dict[int | None, Tensor] = {}

    def rotation(self, layer: LayerConfig) -> Rotation:
        """A canvas stands right behind its prefix."""
        if layer not in self._rotations:
            positions = (self.start[:, None] + torch.arange(self.width)).flatten()
            self._rotations[layer] = rotation(layer.rope, layer.head_dim, positions, torch.float32)
        return self._rotations[layer]

    def attend(self, index: int, q: Tensor, k: Tensor, v: Tensor, kernel: Attend) -> Tensor:
        """Prefix keys from the clean pass, then the canvas's own."""
        old_k, old_v = self.clean.keys[index], self.clean.values[index]
        if self.chosen is not None:
            old_k, old_v = old_k[self.chosen], old_v[self.chosen]
        count = self.start.shape[0]
        k, v = torch.cat([old_k, _split(k, count)], 2), torch.cat([old_v, _split(v, count)], 2)
        return _attend_batch(q, k, v, self._visible(self.clean.config.layers[index].window))

    def _visible(self, window: int | None) -> Bool[Tensor, "batch canvas keys"]:
        if window not in self._seen:
            key, start = torch.arange(self.clean.tokens), self.start[:, None]
            prefix = key < start if window is None else (key < start) & (key >= start - window + 1)
            own = torch.ones(self.start.shape[0], self.width, dtype=torch.bool)
            self._seen[window] = torch.cat([prefix, own], 1)[:, None].expand(-1, self.width, -1)
        return self._seen[window]


def _split(x: Float[Tensor, "rows kv_heads head_dim"], batch: int) -> Float[Tensor, "batch kv_heads keys head_dim"]:
    return x.view(batch, -1, x.shape[1], x.shape[2]).transpose(1, 2)


def _attend_batch(
    q: Float[Tensor, "rows heads head_dim"],
    k: Float[Tensor, "batch kv_heads keys head_dim"],
    v: Float[Tensor, "batch kv_heads keys head_dim"],
    seen: Bool[Tensor, "batch queries keys"],
) -> Float[Tensor, "rows heads head_dim"]:
    """Attention of equal-length sequences at once; query heads that share a key head are folded into its rows."""
    batch, kv_heads, heads, dim = k.shape[0], k.shape[1], q.shape[1], q.shape[2]
    group = heads // kv_heads
    folded = q.view(batch, -1, kv_heads, group, dim).permute(0, 2, 3, 1, 4).reshape(batch, kv_heads, -1, dim)
    mask = seen.repeat(1, group, 1).unsqueeze(1)
    out = F.scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=1.0)
    return out.view(batch, kv_heads, group, -1, dim).permute(0, 3, 1, 2, 4).reshape(q.shape)
