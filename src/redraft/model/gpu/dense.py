"""Rows times one packed matrix on a GPU. The matrix is scaled or unpacked tile by tile, never as a whole.

The experts' kernels have the same tiles; 8-bit floats use the library's matmul. The twin is
`model/linear.py::multiply_packed`.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from redraft.model.gpu.rounding import rounded
from redraft.model.gpu.tiles import Tile, accumulate, constants, inner_of, is_narrow, parts, read, scaled
from redraft.model.linear import float8_matmul, in_float8, multiply_packed
from redraft.model.packed import Packed
from redraft.shapes import Float, Tensor

_PROGRAMS = 128  # about one for each multiprocessor of a large GPU


@triton.jit
@no_type_check
def _dense(
    x, x_scale, codes, scale, top, zero, result, rows,
    INNER: tl.constexpr, OUTER: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr, SUMS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    """One tile of x Wᵀ."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    wanted = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    inside, out = row < rows, tl.where(wanted < OUTER, wanted, 0)
    sums = tl.zeros((BLOCK_OUT, BLOCK_ROWS), dtype=SUMS)
    sums, _ = accumulate(
        sums, sums, x, row, inside, codes, scale, top, zero, out, 0, INNER, GROUP, KIND, False, BLOCK_IN
    )
    found = scaled(sums, x_scale, row, inside, scale, top, out, KIND).to(result.dtype.element_ty)
    tl.store(result + row[None, :] * OUTER + wanted[:, None], found, mask=inside[None, :] & (wanted < OUTER)[:, None])


def multiply_kernel(x: Float[Tensor, "rows inner"], weight: Packed, tile: Tile | None = None) -> Tensor:
    """x Wᵀ of a packed matrix, [rows, outer]; the form of `model/kernels.py::Product` for a GPU."""
    if weight.format.is_float and weight.format.bits == 8:
        if not in_float8(x, weight):
            return multiply_packed(x, weight)
        return float8_matmul(*rounded(x, weight.format), weight)
    (rows, outer), tile = (x.shape[0], weight.shape[0]), tile or dense_tile(weight, x.shape[0])
    result = x.new_empty(rows, outer)
    _dense[(triton.cdiv(rows, tile.rows), triton.cdiv(outer, tile.out))](
        *(*read(x, weight), *parts(weight), result, rows), **constants(x, weight, tile)
    )
    return result


def dense_tile(weight: Packed, rows: int) -> Tile:
    """The largest tile that leaves enough programs to fill a GPU."""
    most, out, outer = 32 if is_narrow(weight) else 128, 128, weight.shape[0]
    block = min(max(triton.next_power_of_2(rows), 16), most)
    while triton.cdiv(rows, block) * triton.cdiv(outer, out) < _PROGRAMS and (block > 32 or out > 64):
        block, out = (block // 2, out) if block > 32 else (block, 64)
    return Tile(block, out, inner_of(weight), warps=8 if block * out >= 8192 else 4)
