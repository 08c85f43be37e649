"""Routed experts on a GPU: three launches for all experts, in any number format.

    place     choices sorted by expert; a block is a run of rows of one expert
    gate up   block × tile of ffn:      gate and up of one tile together, then GELU
    down      block × tile of hidden:   to the row's own place

What a row's experts made is weighted and added by a layer's last kernel (`layer.py`), or by torch without that one. The
device computes the blocks, so nothing waits for the host, and an expert that no row chose costs nothing. A block has
room for twice the average rows of an expert: its matrix is usually read once, and 4-bit matrices are unpacked once, as
they are read (`tiles.py`). 8-bit matrices are multiplied with rows of the same 8-bit format, as integers or by the
fp8 units, and the sums are scaled. The twin is `model/moe.py::experts_grouped`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import no_type_check

import torch
import triton
import triton.language as tl

from redraft.model.gpu.tiles import (
    EIGHT,
    HOPPER,
    INT4_CODES,
    LEAST_CODES,
    PLAIN,
    Tile,
    accumulate,
    constants,
    inner_of,
    is_compute_10,
    is_crowded,
    is_narrow,
    kind_of,
    matrix_of,
    parts,
    read,
    scaled,
    shared_memory,
    stage_bytes,
)
from redraft.model.moe import AnyExperts
from redraft.model.packed import Packed
from redraft.shapes import Float, Int, Tensor

_LEAST, _MOST = 16, 128  # rows of a block
_SCAN = 2048


@triton.jit
@no_type_check
def _place(chosen, order, experts, starts, ends, count, BLOCK_ROWS: tl.constexpr, WIDE: tl.constexpr):
    """One expert's choices in order, after those of all experts before it, and its blocks.

    Its first block has number ⌊choices before it / BLOCK_ROWS⌋ + expert. So there is room for all of its blocks before
    the first block of the next expert; unused blocks are empty. No expert needs to know the blocks of another.
    """
    expert = tl.program_id(0)
    before = 0
    for begin in range(0, count, WIDE):
        at = begin + tl.arange(0, WIDE)
        one = tl.load(chosen + at, mask=at < count, other=1 << 30)
        before += tl.sum((one < expert).to(tl.int32), axis=0)
    end = before
    for begin in range(0, count, WIDE):
        at = begin + tl.arange(0, WIDE)
        own = (tl.load(chosen + at, mask=at < count, other=1 << 30) == expert).to(tl.int32)
        tl.store(order + end + tl.cumsum(own, axis=0) - own, at, mask=own > 0)
        end += tl.sum(own, axis=0)
    first, last = before // BLOCK_ROWS + expert, end // BLOCK_ROWS + expert + 1
    for number in range(first, last):
        tl.store(experts + number, expert)
        tl.store(starts + number, before + (number - first) * BLOCK_ROWS)
        tl.store(ends + number, end)


@triton.jit
@no_type_check
def _gate_up(
    x, x_scale, order, experts, starts, ends, codes, scale, top, zero, result, choices,
    PHASED: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr,
    SUMS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    """gelu(gate) * up of one block and one tile of the inner width, in the order of sorted rows and the layout that
    `down` reads."""
    block = tl.program_id(0)
    begin, end = tl.load(starts + block), tl.load(ends + block)
    if begin >= end:
        return
    expert = tl.load(experts + block).to(tl.int64)
    place = begin + tl.arange(0, BLOCK_ROWS)
    rows_inside = place < end
    rows = tl.load(order + place, mask=rows_inside, other=0).to(tl.int64) // choices
    wanted = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    out = tl.where(wanted < OUTER, wanted, 0)
    codes, scale, top, zero = matrix_of(codes, scale, top, zero, expert, 2 * OUTER, INNER, GROUP, KIND)
    gate = tl.zeros((BLOCK_OUT, BLOCK_ROWS), dtype=SUMS)
    up = tl.zeros((BLOCK_OUT, BLOCK_ROWS), dtype=SUMS)
    gate, up = accumulate(
        gate, up, x, rows, rows_inside, codes, scale, top, zero, out, OUTER, INNER, GROUP, KIND, True, BLOCK_IN
    )
    gate = scaled(gate, x_scale, rows, rows_inside, scale, top, out, KIND)
    up = scaled(up, x_scale, rows, rows_inside, scale, top, out + OUTER, KIND)
    # Rounded where the twin rounds: after each matmul.
    gate = gate.to(result.dtype.element_ty).to(tl.float32)
    up = up.to(result.dtype.element_ty).to(tl.float32)
    cubic = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
    y = gate * tl.sigmoid(2.0 * cubic) * up  # 0.5 (1 + tanh c) is sigmoid(2c)
    to = wanted
    if PHASED:
        to = wanted % 4 * (OUTER // 4) + wanted // 8 * 2 + wanted % 8 // 4
    mask = rows_inside[None, :] & (wanted < OUTER)[:, None]
    tl.store(result + place.to(tl.int64)[None, :] * OUTER + to[:, None], y.to(result.dtype.element_ty), mask=mask)


@triton.jit
@no_type_check
def _down(
    x, x_scale, order, experts, starts, ends, codes, scale, top, zero, result,
    INNER: tl.constexpr, OUTER: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr, SUMS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    """Down projection of one block, one tile of the width, to each choice's own place."""
    block = tl.program_id(0)
    begin, end = tl.load(starts + block), tl.load(ends + block)
    if begin >= end:
        return
    expert = tl.load(experts + block).to(tl.int64)
    place = begin + tl.arange(0, BLOCK_ROWS)
    rows_inside = place < end
    choice = tl.load(order + place, mask=rows_inside, other=0).to(tl.int64)
    rows = place.to(tl.int64)
    wanted = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    out = tl.where(wanted < OUTER, wanted, 0)
    codes, scale, top, zero = matrix_of(codes, scale, top, zero, expert, OUTER, INNER, GROUP, KIND)
    sums = tl.zeros((BLOCK_OUT, BLOCK_ROWS), dtype=SUMS)
    sums, _ = accumulate(
        sums, sums, x, rows, rows_inside, codes, scale, top, zero, out, 0, INNER, GROUP, KIND, False, BLOCK_IN
    )
    found = scaled(sums, x_scale, rows, rows_inside, scale, top, out, KIND)
    mask = rows_inside[None, :] & (wanted < OUTER)[:, None]
    tl.store(result + choice[None, :] * OUTER + wanted[:, None], found.to(result.dtype.element_ty), mask=mask)


def experts_kernel(experts: AnyExperts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Sum of each row's chosen experts, weighted; the form of `model/moe.py::ExpertsForm` for a GPU."""
    each = experts_each(experts, x, chosen).view(*chosen.shape, -1)
    # One choice after the other, in float32 as the weights are: all at once take eight times the memory.
    total = each[:, 0] * weights[:, :1]
    for i in range(1, chosen.shape[1]):
        total += each[:, i] * weights[:, i, None]
    return total.to(x.dtype)


def experts_each(
    experts: AnyExperts, x: Tensor, chosen: Tensor, tiles: tuple[Tile, Tile] | None = None
) -> Float[Tensor, "choices_of_all_rows hidden"]:
    """The outputs of each row's chosen experts, one after the other, not yet weighted."""
    rows, choices = chosen.shape
    gate_up, down = experts.gate_up, experts.down
    ffn, hidden = gate_up.shape[1] // 2, down.shape[1]
    tile, down_tile = tiles or experts_tiles(gate_up, rows * choices / gate_up.shape[0], x.dtype)
    down_tile = down_tile if tiles else replace(down_tile, inner=inner_of(down))  # it may have another format
    order, *blocks = _blocks(chosen.contiguous(), gate_up.shape[0], tile.rows)
    inner = x.new_empty(rows * choices, ffn)
    is_phased = kind_of(down) >= INT4_CODES
    _gate_up[(len(blocks[0]), triton.cdiv(ffn, tile.out))](
        *(*read(x, gate_up), order, *blocks, *parts(gate_up), inner, choices),
        **constants(x, gate_up, tile, 2),
        PHASED=is_phased,
    )
    each = x.new_empty(rows * choices, hidden)
    _down[(len(blocks[0]), triton.cdiv(hidden, down_tile.out))](
        *((inner, inner) if is_phased else read(inner, down)),
        *(order, *blocks, *parts(down), each),
        **constants(x, down, down_tile),
    )
    return each


def experts_tiles(weight: Tensor | Packed, rows: float, dtype: torch.dtype) -> tuple[Tile, Tile]:
    """Tiles of the two products if an expert gets `rows` rows of `dtype` on average.

    Large tiles of float32 do not fit into registers, nor tiles of plain matrices into the 64 KiB of compute 7.5. Where
    shared memory has no room for two stages of the first product (99 KiB, RTX cards), its tile is half as large: with
    one stage nothing is loaded ahead, and registers spill. So do they for 128 rows of most codes (`is_crowded`).
    Three stages of narrow tiles of codes, and wide tiles of plain matrices on Hopper, were the fastest of int4 and
    bfloat16 on an H200 (record `tiles`); other cards and codes were not timed. Least values are float32, like the
    scales that they come with: there half as many words are unpacked at a time.
    """
    kind = kind_of(weight)
    most = 32 if (dtype == torch.float32 and kind != EIGHT) or is_narrow(weight) else _MOST
    block = min(max(triton.next_power_of_2(math.ceil(2 * rows)), _LEAST), most)
    inner = inner_of(weight)
    if block <= 32:
        return Tile(block, 64, inner, stages=3 if kind >= INT4_CODES else 4), Tile(block, 128, inner)
    wide = Tile(block, 128, inner, warps=8, stages=3)
    device = (weight.codes if isinstance(weight, Packed) else weight).device
    memory = shared_memory(device)
    if kind == PLAIN and block == _MOST and memory >= HOPPER and not is_compute_10():
        return Tile(block, 64, inner, stages=3), Tile(block, 256, inner, warps=8)
    two = 2 * stage_bytes(kind, wide, dtype.itemsize, 2) <= memory
    spills = block == _MOST and is_crowded(kind, memory)
    first = replace(wide, out=64) if spills or not two else wide
    return replace(first, inner=inner // 2) if spills and kind == LEAST_CODES else first, wide


def _blocks(chosen: Int[Tensor, "rows choices"], experts: int, rows: int) -> tuple[Tensor, ...]:
    """Choices sorted by expert, and each block's expert, first place and end; unused blocks are empty."""
    count = chosen.numel()
    order = torch.empty(count, dtype=torch.int32, device=chosen.device)
    blocks = torch.empty(3, count // rows + experts, dtype=torch.int32, device=chosen.device).unbind()
    _place[(experts,)](chosen, order, *blocks, count, BLOCK_ROWS=rows, WIDE=_SCAN)
    return order, *blocks
