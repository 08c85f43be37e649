"""The operations that have a fast form and a plain twin, as values.

`REFERENCE` repeats the reference implementation's order of operations and roundings, so that bfloat16 results can be
bit-equal to it; `FAST` runs by default. A model has one `Kernels`; tests compare the two.

    norm        RMSNorm, with one weight, several or none
    attend      attention of some query rows over some keys
    experts     routed experts (their forms live in `model/moe.py`)
    product     a matmul with a packed matrix
    head        one pass over the vocabulary, if a step's readings are taken as a stream (`model/head.py`)
    layer       a whole layer in few launches, on a GPU (`model/gpu/layer.py`); None: operation by operation
    condition   conditioning on a language next to the logits, on a GPU; None: on the host (`constraints/condition/`)

Forms for a GPU are in `model/gpu/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol, runtime_checkable

import torch
from torch.nn import functional as F

from redraft.model import moe
from redraft.model.gpu.automata import ConditionKernels
from redraft.model.head import Pass, pass_tiles
from redraft.model.linear import emulates, multiply_packed
from redraft.model.packed import Packed
from redraft.shapes import Bool, Float, Tensor

KEYS_AT_ONCE = 2048
"""Keys that are widened to floats at a time, where a processor has no bfloat16."""


@runtime_checkable
class Norm(Protocol):
    def __call__(
        self, x: Tensor, weights: Sequence[Tensor | None], eps: float, onto: Tensor | None = None
    ) -> list[Tensor]:
        """RMSNorm over the last axis, once per weight; all of them share one mean square.

        A weight broadcasts against x and multiplies directly (no 1 + w); None is the weightless norm. The rounded
        result is added to `onto`, a residual.
        """


@dataclass(frozen=True)
class Causal:
    """The causal mask of encoded rows (spec 1.5): they are the last of their keys; each sees those up to its own.

    `window` counts the row itself; None is no limit. Rows of `images` (first and end of each) also see all of their own
    image, or its part within the window if `windowed`. A kernel needs only these numbers; `mask` is for the other forms
    and is made once for all layers of a forward.
    """

    rows: int
    keys: int
    window: int | None
    device: torch.device
    images: tuple[tuple[int, int], ...] = ()
    windowed: bool = False

    @cached_property
    def mask(self) -> Bool[Tensor, "rows keys"]:
        """True where a row sees a key."""
        first = self.keys - self.rows
        key = torch.arange(self.keys, device=self.device)[None]
        place = torch.arange(first, self.keys, device=self.device)[:, None]
        near = None if self.window is None else key > place - self.window
        seen = key <= place if near is None else (key <= place) & near
        for start, end in self.images:
            own = slice(first + start, first + end)
            seen[start:end, own] = near[start:end, own] if self.windowed and near is not None else True
        return seen


@runtime_checkable
class Attend(Protocol):
    def __call__(
        self,
        q: Float[Tensor, "rows heads head_dim"],
        k: Float[Tensor, "kv_heads keys head_dim"],
        v: Float[Tensor, "kv_heads keys head_dim"],
        causal: Causal | None,
    ) -> Float[Tensor, "rows heads head_dim"]:
        """Softmax attention with score scale 1; `causal` None means every row sees every key."""


def norm_exact(x: Tensor, weights: Sequence[Tensor | None], eps: float, onto: Tensor | None = None) -> list[Tensor]:
    """The reference's RMSNorm: float32 throughout, pow(-0.5) rather than rsqrt, one rounding at the end (spec 1.2)."""
    x32 = x.float()
    unit = x32 * torch.pow(x32.square().mean(-1, keepdim=True) + eps, -0.5)
    normed = [(unit if weight is None else unit * weight.float()).to(x.dtype) for weight in weights]
    return normed if onto is None else [onto + one for one in normed]


def norm_fused(x: Tensor, weights: Sequence[Tensor | None], eps: float, onto: Tensor | None = None) -> list[Tensor]:
    """The same in few operations. torch's own rms_norm computes in float64 on a CPU and takes twice as long there."""
    normed = unit(x.float(), eps)
    found = [(normed if weight is None else normed * weight).to(x.dtype) for weight in weights]
    return found if onto is None else [onto + one for one in found]


def unit(x: Float[Tensor, "... size"], eps: float) -> Float[Tensor, "... size"]:
    """Weightless RMSNorm of float32 rows."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * torch.rsqrt(torch.addcmul(_constant(eps, x.device), length, length, value=1 / x.shape[-1]))


@lru_cache
def _constant(value: float, device: torch.device) -> Tensor:
    """A number as a tensor: every operation would wrap and cast a Python scalar again."""
    with torch.inference_mode(False):
        return torch.tensor(value, device=device)


def attend_eager(q: Tensor, k: Tensor, v: Tensor, causal: Causal | None) -> Tensor:
    """Scores, float32 softmax, cast, weighted sum; keys repeated for the query heads that share them."""
    group = q.shape[1] // k.shape[0]
    k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    scores = q.transpose(0, 1) @ k.transpose(1, 2)
    if causal is not None:
        scores = scores.masked_fill(~causal.mask, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return (weights @ v).transpose(0, 1)


def attend_fused(q: Tensor, k: Tensor, v: Tensor, causal: Causal | None) -> Tensor:
    """torch's fused attention. Key heads are the batch axis and broadcast over their query heads, without a copy."""
    if emulates(q):
        if k.shape[1] > KEYS_AT_ONCE:
            return attend_by_parts(q.float(), k, v, causal).to(q.dtype)
        return attend_fused(q.float(), k.float(), v.float(), causal).to(q.dtype)
    rows, heads, dim = q.shape
    group = heads // k.shape[0]
    grouped = q.view(rows, -1, group, dim).permute(1, 2, 0, 3)
    k, v = (x.unsqueeze(1).expand(-1, group, -1, -1) for x in (k, v))
    mask = None if causal is None else causal.mask
    out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=1.0)
    return out.permute(2, 0, 1, 3).reshape(rows, heads, dim)


def attend_by_parts(q: Tensor, k: Tensor, v: Tensor, causal: Causal | None) -> Tensor:
    """The same in q's format, KEYS_AT_ONCE keys at a time: what is earlier counts by its share of the sum so far. So a
    long prefix in bfloat16 is never floats as a whole."""
    rows, heads, dim = q.shape
    grouped = q.view(rows, k.shape[0], -1, dim).transpose(0, 1).flatten(1, 2)  # [kv_heads, rows·group, dim]
    least = torch.finfo(q.dtype).min
    largest = grouped.new_full((*grouped.shape[:-1], 1), least)
    total, mixed = torch.zeros_like(largest), torch.zeros_like(grouped)
    for start in range(0, k.shape[1], KEYS_AT_ONCE):
        part = slice(start, start + KEYS_AT_ONCE)
        scores = grouped @ k[:, part].to(q.dtype).transpose(1, 2)
        if causal is not None:
            hidden = ~causal.mask[:, part].repeat_interleave(heads // k.shape[0], 0)
            scores = scores.masked_fill_(hidden, least)
        new = torch.maximum(largest, scores.amax(-1, keepdim=True))
        shrink, weights = (largest - new).exp_(), scores.sub_(new).exp_()
        total = total * shrink + weights.sum(-1, keepdim=True)
        mixed = mixed.mul_(shrink).add_(weights @ v[:, part].to(q.dtype))
        largest = new
    return (mixed / total).view(k.shape[0], rows, -1, dim).transpose(0, 1).reshape(rows, heads, dim)


Product = Callable[[Tensor, Packed], Tensor]
"""Rows times a packed matrix: `model/linear.py::multiply_packed`."""

LayerForm = Callable[[Any, Tensor, Any], Tensor]
"""A layer, its rows and their context (`model/gemma.py::Layer`, `model/rows.py::Rows`, which import this file)."""


@dataclass(frozen=True)
class Kernels:
    """One form of each operation. To run a model with other forms, give it another value."""

    norm: Norm = norm_fused
    attend: Attend = attend_fused
    experts: moe.ExpertsForm = moe.experts_fast
    head: Pass = pass_tiles
    layer: LayerForm | None = None
    product: Product = multiply_packed
    condition: ConditionKernels | None = None


FAST = Kernels()
REFERENCE = Kernels(norm_exact, attend_eager, moe.experts_loop)
