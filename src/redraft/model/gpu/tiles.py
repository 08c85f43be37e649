"""Common parts of the products of rows with packed matrices on a GPU: one tile of W xᵀ, and the sizes of tiles.

The matrix is the left factor, so its rows fill the 64 rows of the matrix units even if x has few rows, and 4-bit codes
go from memory through registers into the product. They are read as words of eight codes. A word shifted by a phase has
two codes in its halves, four inputs apart, and a few more bits make bfloat16 numbers of both at once:

    int4     0x4300 | code             is 128 + code
    nvfp4    its bits in the place     is the number times 2**-126, subnormal numbers included
             of sign and exponent

So a word gives four pairs, and x has the same order (`phased`). The twin is `model/packed.py::unpack`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime import driver

from redraft.model.gpu.rounding import rounded
from redraft.model.packed import Packed
from redraft.shapes import Float, Tensor

PLAIN, EIGHT, INT4_CODES, NVFP4_CODES, ZERO_CODES = 0, 1, 2, 3, 4
SPARE = 2048
"""Bytes of shared memory that are left to the compiler, which sometimes needs some for its own."""
HOPPER = 227 * 1024 - SPARE
"""Bytes of shared memory of compute 9.0."""


@dataclass(frozen=True)
class Tile:
    """Rows of x, rows of the matrix, stored elements of its row (4-bit codes in words), warps, and the most stages of
    loading; fewer if memory is short."""

    rows: int
    out: int
    inner: int
    warps: int = 4
    stages: int = 4


@triton.jit
@no_type_check
def phase_of(words, size, zero, PHASE: tl.constexpr, KIND: tl.constexpr, TO: tl.constexpr):
    """Codes `PHASE` and `PHASE + 4` of each word as numbers, side by side, times their scales.

    `zero` is 128 and the code that means 0.
    """
    bits = (words >> (4 * PHASE)) & 0x000F000F
    if KIND != 3:
        bits = bits | 0x43004300
    else:
        bits = bits * 0x1040 & -0x7E3F7E40  # sign to bit 15, the rest to bits 6 to 8, of both halves
    if tl.bfloat16 == TO:
        low = bits.to(tl.int16).to(tl.bfloat16, bitcast=True)
        high = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        low = (bits << 16).to(tl.float32, bitcast=True)
        high = (bits & -0x10000).to(tl.float32, bitcast=True)
    both = tl.reshape(tl.join(low, high), (words.shape[0], 2 * words.shape[1]))
    both = both * 8.507059173023462e37 if KIND == 3 else both - zero
    return (both * size).to(TO)


@triton.jit
@no_type_check
def _sizes(scale, out, start, GROUPS: tl.constexpr, WORDS: tl.constexpr, BLOCK_IN: tl.constexpr, TO: tl.constexpr):
    """The scales or zero points of some words' codes, one for each number of a phase; `WORDS` share one."""
    math: tl.constexpr = TO if tl.bfloat16 == TO else tl.float32
    group = start // WORDS + tl.arange(0, BLOCK_IN // WORDS)
    size = tl.load(scale + out[:, None] * GROUPS + group[None, :], mask=(group < GROUPS)[None, :], other=0.0)
    size = tl.broadcast_to(size.to(math)[:, :, None], (out.shape[0], BLOCK_IN // WORDS, 2 * WORDS))
    return tl.reshape(size, (out.shape[0], 2 * BLOCK_IN))


@triton.jit
@no_type_check
def accumulate(
    first, second, x, rows, rows_inside, codes, scale, top, out, gap,
    INNER: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr, PAIR: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    """first + W[out] x[rows]ᵀ; with PAIR also second + W[out + gap] x[rows]ᵀ, from the same rows."""
    stored: tl.constexpr = INNER // 8 if KIND >= 2 else INNER
    to: tl.constexpr = x.dtype.element_ty
    for start in range(0, stored, BLOCK_IN):
        at = start + tl.arange(0, BLOCK_IN)
        inside = (at < stored)[None, :]
        code = tl.load(codes + out[:, None] * stored + at[None, :], mask=inside, other=0.0)
        if PAIR:
            other = tl.load(codes + (out + gap)[:, None] * stored + at[None, :], mask=inside, other=0.0)
        if KIND >= 2:
            size = _sizes(scale, out, start, INNER // GROUP, GROUP // 8, BLOCK_IN, to)
            zero = 136.0
            if KIND == 4:
                zero = 128.0 + _sizes(top, out, start, INNER // GROUP, GROUP // 8, BLOCK_IN, to)
            if PAIR:
                more = _sizes(scale, out + gap, start, INNER // GROUP, GROUP // 8, BLOCK_IN, to)
                least = 136.0
                if KIND == 4:
                    least = 128.0 + _sizes(top, out + gap, start, INNER // GROUP, GROUP // 8, BLOCK_IN, to)
            place = 2 * start + tl.arange(0, 2 * BLOCK_IN)
            x_mask = rows_inside[:, None] & (place < 2 * stored)[None, :]
            for phase in tl.static_range(4):
                apart = phase * 2 * stored + place
                part = tl.load(x + rows[:, None] * INNER + apart[None, :], mask=x_mask, other=0.0)
                number = phase_of(code, size, zero, phase, KIND, to)
                first = tl.dot(number, tl.trans(part), first, input_precision="ieee")
                if PAIR:
                    number = phase_of(other, more, least, phase, KIND, to)
                    second = tl.dot(number, tl.trans(part), second, input_precision="ieee")
        else:
            part = tl.load(x + rows[:, None] * INNER + at[None, :], mask=rows_inside[:, None] & inside, other=0.0)
            first = tl.dot(code, tl.trans(part), first, out_dtype=first.dtype, input_precision="ieee")
            if PAIR:
                second = tl.dot(other, tl.trans(part), second, out_dtype=second.dtype, input_precision="ieee")
    return first, second


@triton.jit
@no_type_check
def scaled(sums, x_scale, rows, rows_inside, scale, top, out, KIND: tl.constexpr):
    """Sums [out, rows] as numbers: sums of 8-bit codes times both scales, sums of nvfp4 times the tops."""
    found = sums.to(tl.float32)
    if KIND == 1:
        found = found * tl.load(x_scale + rows, mask=rows_inside, other=0.0)[None, :]
        found = found * tl.load(scale + out).to(tl.float32)[:, None]
    if KIND == 3:
        found = found * tl.load(top + out)[:, None]
    return found


def kind_of(weight: Tensor | Packed) -> int:
    """The kind of its codes."""
    if not isinstance(weight, Packed):
        return PLAIN
    if weight.format.bits == 8:
        return EIGHT
    return NVFP4_CODES if weight.format.is_float else ZERO_CODES if weight.format.zeros else INT4_CODES


def read(x: Float[Tensor, "rows inner"], weight: Tensor | Packed) -> tuple[Tensor, Tensor]:
    """Rows in the layout that the product reads, and their scales; a format without scales never reads them."""
    kind = kind_of(weight)
    if isinstance(weight, Packed) and kind == EIGHT:
        return rounded(x, weight.format)
    x = x.contiguous() if kind == PLAIN else phased(x)
    return x, x


def phased(x: Float[Tensor, "rows inner"]) -> Float[Tensor, "rows inner"]:
    """Rows in the order of unpacked codes: the codes of phase 0 of all words, then of phase 1, and so on."""
    rows, inner = x.shape
    return x.reshape(rows, inner // 8, 2, 4).permute(0, 3, 1, 2).reshape(rows, inner)


def parts(weight: Tensor | Packed) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales, and tops or zero points; a format without them never reads them."""
    if not isinstance(weight, Packed):
        return weight.contiguous(), weight, weight
    codes, scale = weight.codes.contiguous(), weight.scale.contiguous()
    codes = codes.view(torch.int32) if weight.format.bits == 4 else codes
    other = weight.zero if weight.top is None else weight.top
    return codes, scale, scale if other is None else other.contiguous()


def constants(x: Tensor, weight: Tensor | Packed, tile: Tile, matrices: int = 1) -> dict[str, Any]:
    """The compile-time constants of a product with rows like x; `weight` has `matrices` matrices, one after another."""
    kind, sums, group = kind_of(weight), tl.float32, 0
    if isinstance(weight, Packed):
        sums = tl.int32 if weight.format.dtype == torch.int8 else tl.float32
        group = weight.format.group
    sizes = {"BLOCK_ROWS": tile.rows, "BLOCK_OUT": tile.out, "BLOCK_IN": tile.inner}
    sizes |= {"INNER": weight.shape[-1], "OUTER": weight.shape[-2] // matrices, "num_warps": tile.warps}
    stages = max(1, min(tile.stages, shared_memory(x.device) // stage_bytes(kind, tile, x.element_size(), matrices)))
    return {"GROUP": group, "KIND": kind, "SUMS": sums, "num_stages": stages, **sizes}


def stage_bytes(kind: int, tile: Tile, size: int, matrices: int) -> int:
    """Shared memory of a stage, for rows of numbers of `size` bytes."""
    # 4 bytes for a word of eight codes and 1 for its share of a scale, but 8 numbers of each row of x.
    a_row, a_column = (5, 8 * size) if kind >= INT4_CODES else (1, 1) if kind == EIGHT else (size, size)
    return tile.inner * (a_row * matrices * tile.out + a_column * tile.rows)


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may plan with on a device; the interpreter has no such limit."""
    if knobs.runtime.interpret:
        return HOPPER
    found: int = driver.active.utils.get_device_properties(device.index or 0)["max_shared_mem"]
    return found - SPARE
