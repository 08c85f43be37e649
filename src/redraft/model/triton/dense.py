"""Rows times one 4-bit matrix on a GPU: unpacked tile by tile in registers, never as a whole in memory.

The tiles are those of the experts' kernel; formats of 8 bits go to the library's matmuls. The twin is
`model/linear.py::multiply_unpacked`.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from redraft.model.linear import multiply_packed
from redraft.model.packed import Packed
from redraft.model.triton.experts import INT4_CODES, NVFP4_CODES, _accumulate
from redraft.shapes import Float, Tensor

_FEW_ROWS, _MANY_ROWS, _BLOCK_OUT, _BLOCK_IN = 16, 64, 64, 64
_WARPS = 8


@triton.jit
@no_type_check
def _dense(
    x,
    codes,
    scale,
    top,
    result,
    rows,
    outer,
    inner,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    """One tile of x Wᵀ."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    out = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    rows_inside, out_inside = row < rows, out < outer
    sums = tl.zeros((BLOCK_ROWS, BLOCK_OUT), dtype=tl.float32)
    sums = _accumulate(sums, x, row, rows_inside, codes, scale, top, out, out_inside, inner, GROUP, KIND, BLOCK_IN)
    mask = rows_inside[:, None] & out_inside[None, :]
    tl.store(result + row[:, None] * outer + out[None, :], sums.to(result.dtype.element_ty), mask=mask)


def multiply_kernel(x: Float[Tensor, "rows inner"], weight: Packed) -> Float[Tensor, "rows outer"]:
    """x Wᵀ of a packed matrix; the form of `model/kernels.py::Product` for a GPU."""
    if weight.format.bits != 4:
        return multiply_packed(x, weight)
    rows, outer = x.shape[0], weight.shape[0]
    result = torch.empty(rows, outer, dtype=x.dtype, device=x.device)
    block = _FEW_ROWS if rows <= _FEW_ROWS else _MANY_ROWS
    _dense[(triton.cdiv(rows, block), triton.cdiv(outer, _BLOCK_OUT))](
        *(x.contiguous(), weight.codes.contiguous(), weight.scale.contiguous()),
        *(weight.scale if weight.top is None else weight.top.contiguous(), result, rows, outer, x.shape[1]),
        GROUP=weight.format.group,
        KIND=NVFP4_CODES if weight.format.is_float else INT4_CODES,
        BLOCK_ROWS=block,
        BLOCK_OUT=_BLOCK_OUT,
        BLOCK_IN=_BLOCK_IN,
        num_warps=_WARPS,
    )
    return result
