"""RMSNorm on a GPU: rows are read once, and a residual is added before the result is written.

The twin is `model/kernels.py::norm_exact`: float32 throughout, rounded once, and once more if a residual is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import no_type_check

import torch
import triton
import triton.language as tl

from redraft.shapes import Tensor


@triton.jit
@no_type_check
def _norm(
    x, weight, onto, out, size, heads, step, weights, eps,
    WEIGHT: tl.constexpr, ONTO: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row. `heads` rows are contiguous, and the next ones start `step` numbers later. Rows use the `weights` rows
    of weights in turn: one for all rows, or one for each head."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    values = tl.load(x + row // heads * step + row % heads * size + at, mask=inside, other=0.0).to(tl.float32)
    unit = values / tl.sqrt(tl.sum(values * values, axis=0) / size + eps)
    if WEIGHT:
        unit = unit * tl.load(weight + (row % weights) * size + at, mask=inside, other=0.0).to(tl.float32)
    unit = unit.to(out.dtype.element_ty)
    if ONTO:
        unit = unit.to(tl.float32) + tl.load(onto + row * size + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + at, unit.to(out.dtype.element_ty), mask=inside)


def norm_kernel(x: Tensor, weights: Sequence[Tensor | None], eps: float, onto: Tensor | None = None) -> list[Tensor]:
    """The form of `model/kernels.py::Norm` for a GPU."""
    size, block = x.shape[-1], triton.next_power_of_2(x.shape[-1])
    if x.ndim != 3 or x.stride()[1:] != (size, 1):
        x = x.contiguous()
    heads, step = (x.shape[1], x.stride(0)) if x.ndim == 3 else (1, size)
    found = []
    for weight in weights:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        table = x if weight is None else weight.contiguous()
        _norm[(x.numel() // size,)](
            *(x, table, x if onto is None else onto.contiguous(), out),
            *(size, heads, step, table.numel() // size, eps),
            WEIGHT=weight is not None,
            ONTO=onto is not None,
            BLOCK=block,
            num_warps=4 if block > 512 else 1,
        )
        found.append(out)
    return found
