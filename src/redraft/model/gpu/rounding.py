"""Rows rounded to 8 bits on a GPU in one pass: a row's largest value, its scale, its codes.

The twin is `model/packed.py::round_rows`. The codes are equal, because division and rounding are the same.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from redraft.model.packed import LARGEST_FP8, LARGEST_INT8, TINY, Format
from redraft.shapes import Float, Tensor


@triton.jit
@no_type_check
def _round(x, codes, scales, size, LARGEST: tl.constexpr, TINY: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    """One row."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    values = tl.load(x + row * size + at, mask=at < size, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.math.div_rn(tl.max(tl.abs(values), axis=0), LARGEST), TINY)
    code = tl.math.div_rn(values, scale)
    # Halves to even: the last bit of a float of that size is 1, or 2**-9. The interpreter's casts round differently.
    if WHOLE:
        code = (code + 12582912.0) - 12582912.0
    else:
        bits = code.to(tl.int32, bitcast=True)
        kept = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000  # three bits after the leading one
        small = (code + 24576.0) - 24576.0  # below e4m3's normal numbers
        code = tl.where(tl.abs(code) < 0.015625, small, kept.to(tl.float32, bitcast=True))
    tl.store(codes + row * size + at, code.to(codes.dtype.element_ty), mask=at < size)
    tl.store(scales + row, scale)


def rounded(x: Float[Tensor, "rows inner"], form: Format) -> tuple[Tensor, Float[Tensor, "rows 1"]]:
    """Rows as codes of an 8-bit format, and the scale of each."""
    rows, size = x.shape
    codes = torch.empty(rows, size, dtype=form.dtype, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    _round[(rows,)](
        *(x.contiguous(), codes, scales, size),
        LARGEST=LARGEST_FP8 if form.is_float else LARGEST_INT8,
        TINY=TINY,
        WHOLE=not form.is_float,
        BLOCK=triton.next_power_of_2(size),
    )
    return codes, scales
