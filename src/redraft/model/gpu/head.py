"""The streamed head on a GPU: library matmuls on a tile of the table, one kernel for everything in between.

A tile is wide enough that the product of one canvas fills a GPU, and narrower for many rows, whose products would take
too much memory: 8 tiles of the 26B model's table for one canvas, 16 for eight. The kernel applies cap and temperature
to each row of a tile's products, updates the largest logit and the sums, and writes the exponentials for the second
matmul. The twin is `model/head.py::pass_tiles`.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from redraft.model.head import STRIPE, Head, Sums, wide_tile
from redraft.shapes import Float, Tensor

_BLOCK = 4096  # tokens that a program holds at once


@triton.jit
@no_type_check
def _row(
    products, temperature, largest, second, argmax, total, weighted, fed_total, shrink, mass, base, fed,
    start, width, stripes, cap, ROUND: tl.constexpr, BLOCK: tl.constexpr, STRIPE: tl.constexpr,
):  # fmt: skip
    """One row of one tile, BLOCK tokens at a time: first its largest logit and sums, then the exponentials that the
    second matmul reads. BLOCK is a multiple of STRIPE."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    heat = tl.load(temperature + row)
    old, old_total, old_weighted = tl.load(largest + row), tl.load(total + row), tl.load(weighted + row)
    first, runner_up, found = old, tl.load(second + row), tl.load(argmax + row)
    for begin in range(0, width, BLOCK):
        inside = begin + at < width
        x = tl.load(products + row * width + begin + at, mask=inside, other=0.0).to(tl.float32)
        z = tl.where(inside, (2.0 * tl.sigmoid(2.0 * x / cap) - 1.0) * cap / heat, float("-inf"))
        best = tl.max(z, axis=0)
        where = tl.argmax(z, axis=0)
        next_best = tl.max(tl.where(at == where, float("-inf"), z), axis=0)
        runner_up = tl.maximum(tl.minimum(first, best), tl.maximum(runner_up, next_best))
        found = tl.where(best > first, where.to(tl.int64) + start + begin, found)
        first = tl.maximum(first, best)
    kept = tl.exp(old - first)
    moved = kept * (old_weighted + old_total * tl.where(old_total > 0, old - first, 0.0))
    new_total, new_fed = kept * old_total, kept * tl.load(fed_total + row)
    for begin in range(0, width, BLOCK):
        inside = begin + at < width
        x = tl.load(products + row * width + begin + at, mask=inside, other=0.0).to(tl.float32)
        z = (2.0 * tl.sigmoid(2.0 * x / cap) - 1.0) * cap / heat
        below = tl.where(inside, z - first, 0.0)
        e = tl.where(inside, tl.exp(below), 0.0)
        moved += tl.sum(e * below, axis=0)
        new_total += tl.sum(e, axis=0)
        summed = tl.sum(tl.reshape(e, (BLOCK // STRIPE, STRIPE)), axis=1)
        which = (start + begin) // STRIPE + tl.arange(0, BLOCK // STRIPE)
        tl.store(mass + row * stripes + which, summed, mask=which < tl.cdiv(start + width, STRIPE))
        tl.store(base + row * stripes + which, first, mask=which < tl.cdiv(start + width, STRIPE))
        if ROUND:
            e = tl.where(inside, tl.exp(z.to(tl.bfloat16).to(tl.float32) - first), 0.0)
        new_fed += tl.sum(e, axis=0)
        tl.store(fed + row * width + begin + at, e.to(fed.dtype.element_ty), mask=inside)
    tl.store(largest + row, first)
    tl.store(second + row, runner_up)
    tl.store(argmax + row, found)
    tl.store(weighted + row, moved)
    tl.store(total + row, new_total)
    tl.store(fed_total + row, new_fed)
    tl.store(shrink + row, kept)


def pass_fused(
    hidden: Float[Tensor, "rows hidden"], head: Head, temperature: Float[Tensor, "rows 1"], tile: int | None = None
) -> Sums:
    """The pass with everything between the two matmuls in one kernel. `tile` is a multiple of STRIPE."""
    rows, vocab = hidden.shape[0], head.table.shape[0]
    tile = tile or wide_tile(rows, head.table)
    largest = hidden.new_full((rows,), -torch.inf, dtype=torch.float32)
    second, total, weighted, fed_total = largest.clone(), *(torch.zeros_like(largest) for _ in range(3))
    shrink, argmax = torch.empty_like(largest), torch.zeros(rows, dtype=torch.int64, device=hidden.device)
    soft = hidden.new_zeros(hidden.shape, dtype=torch.float32)
    temperature = temperature.float().contiguous()
    mass = hidden.new_empty((rows, -(-vocab // STRIPE)), dtype=torch.float32)
    base = torch.empty_like(mass)
    for start in range(0, vocab, tile):
        part = head.part(slice(start, start + tile), hidden.dtype)
        products = hidden @ part.T
        fed = torch.empty_like(products)
        _row[(rows,)](
            *(products, temperature, largest, second, argmax, total, weighted, fed_total, shrink, mass, base, fed),
            *(start, part.shape[0], mass.shape[1], head.cap),
            ROUND=head.feedback == torch.bfloat16,
            BLOCK=max(STRIPE, min(_BLOCK, triton.next_power_of_2(tile))),
            STRIPE=STRIPE,
            num_warps=8,  # with four a row does not fit into the registers of compute 12.0
        )
        soft = torch.addcmul(fed @ part, soft, shrink[:, None])
    mass *= (base - largest[:, None]).exp()
    return Sums(largest, second, argmax, total, weighted, mass, (soft / fed_total[:, None]).to(hidden.dtype))
