"""Common parts of the products of rows with packed matrices on a GPU: one tile of W xᵀ, and the sizes of tiles.

The matrix is the left factor, so its rows fill the 64 rows of the matrix units even if x has few rows, and 4-bit codes
go from memory through registers into the product. They are read as words of eight codes. A word shifted by a phase has
two codes in its halves, four inputs apart, and a few more bits make bfloat16 numbers of both at once:

    int4     0x4300 | code             is 128 + code
    nvfp4    its bits in the place     is the number times 2**-126, subnormal numbers included
             of sign and exponent

So a word gives four pairs, and x has the same order (`phased`). Codes of 6 bits add theirs to the halves of a word: its
two upper bits of each code are in half a word at the end of the row. Codes of 8 bits with a scale for some inputs are
scaled as they are read. The twin is `model/packed.py::unpack`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime import driver

from redraft.model.gpu.rounding import rounded
from redraft.model.packed import Packed
from redraft.shapes import Float, Tensor

PLAIN, EIGHT, BYTES, INT4_CODES, NVFP4_CODES, ZERO_CODES, LEAST_CODES, SIX_CODES, SIX_BLOCKS = range(9)
"""Kinds of codes, from INT4_CODES on in words. Kernels have them as numbers.

    2  8 bits, a scale for some inputs      6  4 bits, scales and least values with factors
    5  4 bits with zero points              7  6 bits      8  6 bits, scales with a factor
"""
_BLOCK = 256
"""Inputs that share a factor."""
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
def phase_of(words, upper, size, zero, PHASE: tl.constexpr, KIND: tl.constexpr, TO: tl.constexpr):
    """Codes `PHASE` and `PHASE + 4` of each word as numbers, side by side, times their scales.

    `zero` is 128 and the code that means 0 where each group has its own; for LEAST_CODES it is what is subtracted.
    """
    bits = (words >> (4 * PHASE)) & 0x000F000F
    if KIND >= 7:
        bits = bits | ((upper >> (2 * PHASE)) & 0x00030003) << 4
    if KIND != 4:
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
    if KIND == 4:
        both = both * 8.507059173023462e37 * size
    elif KIND == 6:
        both = (both.to(tl.float32) - 128.0) * size - zero  # in float32: two numbers may cancel
    elif KIND == 5:
        both = (both - zero) * size
    else:
        both = (both - (160.0 if KIND >= 7 else 136.0)) * size
    return both.to(TO)


@triton.jit
@no_type_check
def _sizes(
    scale, top, out, start, first, step,
    GROUPS: tl.constexpr, EACH: tl.constexpr, COUNT: tl.constexpr, SHARE: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """The scales or zero points of `COUNT` groups from `start` on, one for each of their `EACH` numbers. `SHARE` of
    them have one factor (0: none); a row has `step` factors, of which these are from `first` on."""
    group = start + tl.arange(0, COUNT)
    inside = (group < GROUPS)[None, :]
    size = tl.load(scale + out[:, None] * GROUPS + group[None, :], mask=inside, other=0.0)
    if SHARE:
        factor = tl.load(top + out[:, None] * step + first + (group // SHARE)[None, :], mask=inside, other=0.0)
        size = size.to(tl.float32) * factor.to(tl.float32)
    size = tl.broadcast_to(size.to(MATH)[:, :, None], (out.shape[0], COUNT, EACH))
    return tl.reshape(size, (out.shape[0], COUNT * EACH))


@triton.jit
@no_type_check
def _scales(
    scale, top, zero, out, start,
    INNER: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr, BLOCK_IN: tl.constexpr, TO: tl.constexpr,
):  # fmt: skip
    """For each code of a tile of rows `out` its scale, and its zero if `phase_of` reads one."""
    math: tl.constexpr = TO if tl.bfloat16 == TO and KIND != 6 else tl.float32
    packed: tl.constexpr = 8 if KIND >= 3 else 1
    each: tl.constexpr = GROUP if KIND == 2 else GROUP // 4
    groups: tl.constexpr = INNER // GROUP
    count: tl.constexpr = BLOCK_IN * packed // GROUP
    share: tl.constexpr = 256 // GROUP if KIND == 6 or KIND == 8 else 0
    blocks: tl.constexpr = INNER // 256
    step: tl.constexpr = 2 * blocks if KIND == 6 else blocks
    first = start * packed // GROUP
    size = _sizes(scale, top, out, first, 0, step, groups, each, count, share, math)
    off = size
    if KIND == 5:
        off = 128.0 + _sizes(zero, top, out, first, 0, step, groups, each, count, 0, math)
    if KIND == 6:
        off = _sizes(zero, top, out, first, blocks, step, groups, each, count, share, math)
    return size, off


@triton.jit
@no_type_check
def _uppers(codes, out, at, inside, INNER: tl.constexpr):
    """The upper bits of each word's codes: of the first four in the lower half, of the others in the upper half."""
    halves = codes.to(tl.pointer_type(tl.int16))
    half = tl.load(halves + out[:, None] * (3 * INNER // 8) + INNER // 4 + at[None, :], mask=inside, other=0).to(
        tl.int32
    )
    return (half & 0xFF) | (half & 0xFF00) << 8


@triton.jit
@no_type_check
def matrix_of(
    codes, scale, top, zero, number,
    ROWS: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Where one matrix of a stack begins, each of `ROWS` rows."""
    rows = number * ROWS
    codes += rows * (3 * INNER // 16 if KIND >= 7 else INNER // 8 if KIND >= 3 else INNER)
    groups: tl.constexpr = INNER // GROUP if GROUP else 1
    tops: tl.constexpr = INNER // 256 * 2 if KIND == 6 else INNER // 256 if KIND == 8 else 1
    return codes, scale + rows * groups, top + rows * tops, zero + rows * groups


@triton.jit
@no_type_check
def accumulate(
    first, second, x, rows, rows_inside, codes, scale, top, zero, out, gap,
    INNER: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr, PAIR: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    """first + W[out] x[rows]ᵀ; with PAIR also second + W[out + gap] x[rows]ᵀ, from the same rows."""
    stored: tl.constexpr = INNER // 8 if KIND >= 3 else INNER
    apart: tl.constexpr = 3 * INNER // 16 if KIND >= 7 else stored
    to: tl.constexpr = x.dtype.element_ty
    for start in range(0, stored, BLOCK_IN):
        at = start + tl.arange(0, BLOCK_IN)
        inside = (at < stored)[None, :]
        code = tl.load(codes + out[:, None] * apart + at[None, :], mask=inside, other=0.0)
        if PAIR:
            other = tl.load(codes + (out + gap)[:, None] * apart + at[None, :], mask=inside, other=0.0)
        if KIND >= 2:
            size, least = _scales(scale, top, zero, out, start, INNER, GROUP, KIND, BLOCK_IN, to)
            if PAIR:
                more, lower = _scales(scale, top, zero, out + gap, start, INNER, GROUP, KIND, BLOCK_IN, to)
        if KIND >= 3:
            upper, others = code, code
            if KIND >= 7:
                upper = _uppers(codes, out, at, inside, INNER)
                if PAIR:
                    others = _uppers(codes, out + gap, at, inside, INNER)
            place = 2 * start + tl.arange(0, 2 * BLOCK_IN)
            x_mask = rows_inside[:, None] & (place < 2 * stored)[None, :]
            for phase in tl.static_range(4):
                column = phase * 2 * stored + place
                part = tl.load(x + rows[:, None] * INNER + column[None, :], mask=x_mask, other=0.0)
                number = phase_of(code, upper, size, least, phase, KIND, to)
                first = tl.dot(number, tl.trans(part), first, input_precision="ieee")
                if PAIR:
                    number = phase_of(other, others, more, lower, phase, KIND, to)
                    second = tl.dot(number, tl.trans(part), second, input_precision="ieee")
        else:
            if KIND == 2:
                code = (code.to(size.dtype) * size).to(to)
                if PAIR:
                    other = (other.to(size.dtype) * more).to(to)
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
    if KIND == 4:
        found = found * tl.load(top + out)[:, None]
    return found


def kind_of(weight: Tensor | Packed) -> int:
    """The kind of its codes."""
    if not isinstance(weight, Packed):
        return PLAIN
    form = weight.format
    if form.bits == 8:
        return BYTES if form.group else EIGHT
    if form.bits == 6:
        return SIX_BLOCKS if form.block else SIX_CODES
    if form.is_float:
        return NVFP4_CODES
    return LEAST_CODES if form.block else ZERO_CODES if form.zeros else INT4_CODES


def read(x: Float[Tensor, "rows inner"], weight: Tensor | Packed) -> tuple[Tensor, Tensor]:
    """Rows in the layout that the product reads, and their scales; a format without scales never reads them."""
    kind = kind_of(weight)
    if isinstance(weight, Packed) and kind == EIGHT:
        return rounded(x, weight.format)
    x = phased(x) if kind >= INT4_CODES else x.contiguous()
    return x, x


def phased(x: Float[Tensor, "rows inner"]) -> Float[Tensor, "rows inner"]:
    """Rows in the order of unpacked codes: the codes of phase 0 of all words, then of phase 1, and so on."""
    rows, inner = x.shape
    return x.reshape(rows, inner // 8, 2, 4).permute(0, 3, 1, 2).reshape(rows, inner)


def parts(weight: Tensor | Packed) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes, scales, tops and zero points; a format without them never reads them."""
    if not isinstance(weight, Packed):
        return weight.contiguous(), weight, weight, weight
    assert weight.format.block in (0, _BLOCK)
    codes, scale = weight.codes.contiguous(), weight.scale.contiguous()
    codes = codes.view(torch.int32) if kind_of(weight) >= INT4_CODES else codes
    top, zero = (scale if part is None else part.contiguous() for part in (weight.top, weight.zero))
    return codes, scale, top, zero


def constants(x: Tensor, weight: Tensor | Packed, tile: Tile, matrices: int = 1) -> dict[str, Any]:
    """The compile-time constants of a product with rows like x; `weight` has `matrices` matrices, one after another."""
    kind, sums, group = kind_of(weight), tl.float32, 0
    if isinstance(weight, Packed):
        sums = tl.int32 if kind == EIGHT and weight.format.dtype == torch.int8 else tl.float32
        group = weight.format.group
    sizes: dict[str, Any] = {"BLOCK_ROWS": tile.rows, "BLOCK_OUT": tile.out, "BLOCK_IN": tile.inner}
    sizes |= {"INNER": weight.shape[-1], "OUTER": weight.shape[-2] // matrices, "num_warps": tile.warps}
    memory = shared_memory(x.device)
    stages = max(1, min(tile.stages, memory // stage_bytes(kind, tile, x.element_size(), matrices)))
    # With four warps the compiler leaves registers for more programs, and codes that come with factors spill. It does
    # not know that small shared memory has no room for these programs.
    sizes["maxnreg"] = 255 if kind >= LEAST_CODES and tile.warps == 4 and memory < HOPPER else None
    return {"GROUP": group, "KIND": kind, "SUMS": sums, "num_stages": stages, **sizes}


def stage_bytes(kind: int, tile: Tile, size: int, matrices: int) -> int:
    """Shared memory of a stage, for rows of numbers of `size` bytes."""
    # 4 bytes for a word of eight codes and 1 for its share of a scale, but 8 numbers of each row of x. Factors take
    # another 1, upper bits 2.
    words = {LEAST_CODES: 6, SIX_CODES: 7, SIX_BLOCKS: 8}.get(kind, 5)
    a_row, a_column = (words, 8 * size) if kind >= INT4_CODES else (1, 1) if kind == EIGHT else (size, size)
    return tile.inner * (a_row * matrices * tile.out + a_column * tile.rows)


def inner_of(weight: Tensor | Packed) -> int:
    """The usual `inner` of a tile."""
    return {PLAIN: 64, EIGHT: 128, BYTES: 64}.get(kind_of(weight), 16)


def is_narrow(weight: Tensor | Packed) -> bool:
    """Whether tiles of codes in words take 32 rows at most: for more, compute 10.0 has too little tensor memory."""
    return kind_of(weight) >= INT4_CODES and is_compute_10()


def is_crowded(kind: int, memory: int) -> bool:
    """Whether two products of 128 rows and columns at once do not fit into registers: those of codes do not where a
    card with `memory` has smaller matrix units than Hopper's, whose sums are in the same registers.

    Compute 10.0 has none larger for int8; and there a thread has a whole row of sums, so that of fp8 it holds a scale
    for each column.
    """
    return kind != PLAIN and (memory < HOPPER or (kind == EIGHT and is_compute_10()))


def is_compute_10() -> bool:
    """Whether kernels are compiled for compute 10.0 or 10.3."""
    if knobs.runtime.interpret:
        return False
    arch: int = driver.active.get_current_target().arch
    return arch // 10 == 10


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may plan with on a device; the interpreter has no such limit."""
    return HOPPER if knobs.runtime.interpret else _most_shared(driver.active, device.index or 0) - SPARE


@cache
def _most_shared(active: Any, index: int) -> int:
    """What the driver says. It is asked once: on an H200 each answer took most of a millisecond."""
    found: int = active.utils.get_device_properties(index)["max_shared_mem"]
    return found
