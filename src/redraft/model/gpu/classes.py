"""From tokens to classes and back on a GPU; each direction reads the log-probabilities once.

Tokens are sorted by class, and a class is cut into tiles, so one program adds every sum in one order: no atomics, for
which tokens of one class would wait. Tokens of a large class are close together, so few bytes are read unused. The
twins in `constraints/condition/` are `edge_layout.py::by_class` and `projection.py::Projected.shifted`.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from redraft.model.gpu.automata import Read, Tiles
from redraft.shapes import Float, Int, Tensor

_NONE = -1e30
_WIDE = 2048


@triton.jit
@no_type_check
def _tile(log_p, tokens, begins, ends, largest, sums, likeliest, vocab, NONE: tl.constexpr, WIDE: tl.constexpr):
    """One tile at one position: its largest log-probability, the sum of all relative to it, and its token."""
    tile, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    begin, end = tl.load(begins + tile), tl.load(ends + tile)
    at = begin + tl.arange(0, WIDE)
    token = tl.load(tokens + at, mask=at < end, other=0)
    x = tl.load(log_p + row * vocab + token, mask=at < end, other=NONE).to(largest.dtype.element_ty)
    x = tl.maximum(x, NONE)  # a forbidden token has -inf
    top = tl.max(x, axis=0)
    out = row * tl.num_programs(0) + tile
    tl.store(largest + out, top)
    tl.store(sums + out, tl.sum(tl.where(at < end, tl.exp(x - top), 0.0), axis=0))
    tl.store(likeliest + out, tl.load(tokens + begin + tl.argmax(x, axis=0)))


@triton.jit
@no_type_check
def _shift(log_p, class_of, bias, out, vocab, classes, faintest, nothing, WIDE: tl.constexpr):
    """Some tokens at one position, each with the bias of its class; below `faintest` they become `nothing`."""
    token, row = tl.program_id(0) * WIDE + tl.arange(0, WIDE), tl.program_id(1).to(tl.int64)
    inside = token < vocab
    own = tl.load(class_of + token, mask=inside, other=0)
    x = tl.load(log_p + row * vocab + token, mask=inside, other=0.0)
    x += tl.load(bias + row * classes + own, mask=inside, other=0.0)
    tl.store(out + row * vocab + token, tl.where(x > faintest, x, nothing), mask=inside)


def classes_kernel(log_p: Float[Tensor, "canvas vocab"], tiles: Tiles) -> Read:
    """The form of `automata.py::Reduce` for a GPU."""
    shape, log_p = (len(log_p), len(tiles.begins)), log_p.contiguous()
    largest = torch.empty(shape, dtype=torch.promote_types(log_p.dtype, torch.float32), device=log_p.device)
    sums, likeliest = torch.empty_like(largest), torch.empty(shape, dtype=torch.int32, device=log_p.device)
    _tile[shape[::-1]](
        *(log_p, tiles.tokens, tiles.begins, tiles.ends, largest, sums, likeliest, log_p.shape[1]),
        NONE=_NONE,
        WIDE=tiles.wide,
    )
    return largest, sums, likeliest


def shift_kernel(
    log_p: Float[Tensor, "canvas vocab"],
    class_of: Int[Tensor, "vocab"],
    bias: Float[Tensor, "canvas classes"],
    faintest: float,
    nothing: float,
) -> Float[Tensor, "canvas vocab"]:
    """The form of `automata.py::Shift` for a GPU."""
    (width, vocab), log_p = log_p.shape, log_p.contiguous()
    out = torch.empty_like(log_p)
    _shift[(triton.cdiv(vocab, _WIDE), width)](
        *(log_p, class_of, bias.to(log_p.dtype).contiguous(), out, vocab, bias.shape[1], faintest, nothing),
        WIDE=_WIDE,
    )
    return out
