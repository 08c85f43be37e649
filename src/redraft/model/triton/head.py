"""The streamed head on a GPU: library matmuls on a tile of the table, one kernel for everything in between.

A tile of 4,096 rows of the 26B model's table is 23 MB: the second matmul finds it in the cache of an H100, so the
table crosses the memory bus once. The kernel takes each row of a tile's products through cap, temperature, running
largest and sums, and leaves the exponentials for the second matmul. The twin is `model/head.py::pass_tiles`.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from redraft.model.head import STRIPE, TILE, Head, Sums
from redraft.shapes import Float, Tensor


@triton.jit
@no_type_check
def _row(
    products,
    temperature,
    largest,
    second,
    argmax,
    total,
    weighted,
    fed_total,
    shrink,
    mass,
    base,
    fed,
    start,
    width,
    stripes,
    cap,
    ROUND: tl.constexpr,
    BLOCK: tl.constexpr,
    STRIPE: tl.constexpr,
):
    """One row of one tile. The tile's width is at most BLOCK, a multiple of STRIPE."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(products + row * width + at, mask=inside, other=0.0).to(tl.float32)
    z = (2.0 * tl.sigmoid(2.0 * x / cap) - 1.0) * cap / tl.load(temperature + row)
    z = tl.where(inside, z, float("-inf"))
    best = tl.max(z, axis=0)
    where = tl.argmax(z, axis=0)
    next_best = tl.max(tl.where(at == where, float("-inf"), z), axis=0)
    old, old_total = tl.load(largest + row), tl.load(total + row)
    new = tl.maximum(old, best)
    kept = tl.exp(old - new)
    below = tl.where(inside, z - new, 0.0)
    e = tl.where(inside, tl.exp(below), 0.0)
    moved = tl.load(weighted + row) + old_total * tl.where(old_total > 0, old - new, 0.0)
    tl.store(second + row, tl.maximum(tl.minimum(old, best), tl.maximum(tl.load(second + row), next_best)))
    tl.store(argmax + row, tl.where(best > old, where.to(tl.int64) + start, tl.load(argmax + row)))
    tl.store(weighted + row, kept * moved + tl.sum(e * below, axis=0))
    tl.store(total + row, kept * old_total + tl.sum(e, axis=0))
    tl.store(largest + row, new)
    tl.store(shrink + row, kept)
    summed = tl.sum(tl.reshape(e, (BLOCK // STRIPE, STRIPE)), axis=1)
    which = start // STRIPE + tl.arange(0, BLOCK // STRIPE)
    tl.store(mass + row * stripes + which, summed, mask=which < stripes)
    tl.store(base + row * stripes + which, new, mask=which < stripes)
    if ROUND:
        e = tl.where(inside, tl.exp(z.to(tl.bfloat16).to(tl.float32) - new), 0.0)
    tl.store(fed_total + row, kept * tl.load(fed_total + row) + tl.sum(e, axis=0))
    tl.store(fed + row * width + at, e.to(fed.dtype.element_ty), mask=inside)


def pass_fused(
    hidden: Float[Tensor, "rows hidden"], head: Head, temperature: Float[Tensor, "rows 1"], tile: int = TILE
) -> Sums:
    """The pass with everything between the two matmuls in one kernel. `tile` must be a power of two."""
    rows, vocab = hidden.shape[0], head.table.shape[0]
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
            BLOCK=tile,
            STRIPE=STRIPE,
        )
        soft = torch.addcmul(fed @ part, soft, shrink[:, None])
    mass *= (base - largest[:, None]).exp()
    return Sums(largest, second, argmax, total, weighted, mass, (soft / fed_total[:, None]).to(hidden.dtype))
