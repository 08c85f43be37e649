"""Routed experts on a GPU: two launches for all experts, whatever numbers their matrices are in.

Rows are sorted by expert; a block is a run of rows of one expert. Which blocks there are is worked out on the device,
so nothing waits for the host, and an expert that no row chose costs nothing.

    launch 1   block × tile of ffn:      gate and up of the same tile side by side, GELU between them
    launch 2   block × tile of hidden:   down, times the routing weight, to the row's own place; summed afterwards

8-bit matrices meet rows in the same 8 bits, summed as integers or by the fp8 units, and are scaled when the sum is
there. 4-bit matrices are unpacked tile by tile in registers; two codes share a byte, the even input in its low half:
even and odd inputs are multiplied apart and never have to be woven together. The twin is
`model/moe.py::experts_grouped`.
"""

from __future__ import annotations

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl

from redraft.model.moe import AnyExperts
from redraft.model.packed import Packed, round_rows
from redraft.shapes import Tensor

_PLAIN, _EIGHT, INT4_CODES, NVFP4_CODES = 0, 1, 2, 3
_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_BLOCK_ROWS, _BLOCK_OUT, _BLOCK_IN = 16, 64, 64
_WARPS = 8  # with four, the unpacking of nvfp4 does not fit into registers (compiled for compute 9.0)


@triton.jit
@no_type_check
def _e2m1(code):
    """What the 4-bit floats stand for, from their bits: sign, two of exponent, one of mantissa."""
    exponent, mantissa = ((code >> 1) & 3).to(tl.float32), (code & 1).to(tl.float32)
    size = tl.where(exponent == 0, 0.5 * mantissa, tl.exp2(exponent - 1.0) * (1.0 + 0.5 * mantissa))
    return tl.where((code & 8) > 0, -size, size)


@triton.jit
@no_type_check
def _accumulate(
    sums,
    x,
    rows,
    rows_inside,
    codes,
    scale,
    top,
    out,
    out_inside,
    inner,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    """sums + x[rows] W[out]ᵀ for one tile; `codes`, `scale` and `top` point at the expert's matrix."""
    groups = 1 if GROUP == 0 else inner // GROUP
    stored = inner // 2 if KIND >= 2 else inner
    span = tl.arange(0, BLOCK_IN)
    for start in range(0, stored, BLOCK_IN):
        at = start + span
        inside = at < stored
        mask = out_inside[:, None] & inside[None, :]
        code = tl.load(codes + out[:, None] * stored + at[None, :], mask=mask, other=0.0)
        x_mask = rows_inside[:, None] & inside[None, :]
        if KIND >= 2:
            group = (2 * at) // GROUP
            size = tl.load(scale + out[:, None] * groups + group[None, :], mask=mask, other=0.0).to(tl.float32)
            even = tl.load(x + rows[:, None] * inner + 2 * at[None, :], mask=x_mask, other=0.0)
            odd = tl.load(x + rows[:, None] * inner + 2 * at[None, :] + 1, mask=x_mask, other=0.0)
            if KIND == 2:
                low, high = (code & 15).to(tl.float32) - 8.0, (code >> 4).to(tl.float32) - 8.0
            else:
                size = size * tl.load(top + out, mask=out_inside, other=0.0)[:, None]
                low, high = _e2m1(code & 15), _e2m1(code >> 4)
            sums = tl.dot(even, tl.trans((low * size).to(even.dtype)), sums, input_precision="ieee")
            sums = tl.dot(odd, tl.trans((high * size).to(odd.dtype)), sums, input_precision="ieee")
        else:
            part = tl.load(x + rows[:, None] * inner + at[None, :], mask=x_mask, other=0.0)
            sums = tl.dot(part, tl.trans(code), sums, out_dtype=sums.dtype, input_precision="ieee")
    return sums


@triton.jit
@no_type_check
def _scaled(sums, x_scale, rows, rows_inside, scale, out, out_inside, KIND: tl.constexpr):
    """Sums as numbers: those of 8-bit codes times the scales of their rows and of the matrix's."""
    found = sums.to(tl.float32)
    if KIND == 1:
        found = found * tl.load(x_scale + rows, mask=rows_inside, other=0.0)[:, None]
        found = found * tl.load(scale + out, mask=out_inside, other=0.0).to(tl.float32)[None, :]
    return found


@triton.jit
@no_type_check
def _gate_up(
    x,
    x_scale,
    order,
    block_expert,
    block_start,
    block_end,
    codes,
    scale,
    top,
    result,
    hidden,
    ffn,
    choices,
    codes_step,
    scale_step,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    """gelu(gate) * up of one block, one tile of the inner width. `result` is in the order of the sorted rows."""
    block = tl.program_id(0)
    expert = tl.load(block_expert + block).to(tl.int64)
    end = tl.load(block_end + block)
    place = tl.load(block_start + block) + tl.arange(0, BLOCK_ROWS)
    rows_inside = place < end
    rows = tl.load(order + place, mask=rows_inside, other=0) // choices
    out = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    out_inside = out < ffn
    codes += expert * codes_step
    scale += expert * scale_step
    top += expert * 2 * ffn
    gate = tl.zeros((BLOCK_ROWS, BLOCK_OUT), dtype=SUMS)
    up = tl.zeros((BLOCK_ROWS, BLOCK_OUT), dtype=SUMS)
    gate = _accumulate(gate, x, rows, rows_inside, codes, scale, top, out, out_inside, hidden, GROUP, KIND, BLOCK_IN)
    up = _accumulate(up, x, rows, rows_inside, codes, scale, top, out + ffn, out_inside, hidden, GROUP, KIND, BLOCK_IN)
    gate = _scaled(gate, x_scale, rows, rows_inside, scale, out, out_inside, KIND)
    up = _scaled(up, x_scale, rows, rows_inside, scale, out + ffn, out_inside, KIND)
    # Rounded where the twin rounds: after each matmul.
    gate = gate.to(result.dtype.element_ty).to(tl.float32)
    up = up.to(result.dtype.element_ty).to(tl.float32)
    cubic = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
    y = gate * tl.sigmoid(2.0 * cubic) * up  # 0.5 (1 + tanh c) is sigmoid(2c)
    mask = rows_inside[:, None] & out_inside[None, :]
    tl.store(result + place[:, None] * ffn + out[None, :], y.to(result.dtype.element_ty), mask=mask)


@triton.jit
@no_type_check
def _down(
    x,
    x_scale,
    order,
    weights,
    block_expert,
    block_start,
    block_end,
    codes,
    scale,
    top,
    result,
    ffn,
    hidden,
    codes_step,
    scale_step,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    ROUND: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    """Weighted down projection of one block, one tile of the width, to each choice's own place."""
    block = tl.program_id(0)
    expert = tl.load(block_expert + block).to(tl.int64)
    end = tl.load(block_end + block)
    place = tl.load(block_start + block) + tl.arange(0, BLOCK_ROWS)
    rows_inside = place < end
    choice = tl.load(order + place, mask=rows_inside, other=0)
    out = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    out_inside = out < hidden
    scale += expert * scale_step
    sums = tl.zeros((BLOCK_ROWS, BLOCK_OUT), dtype=SUMS)
    sums = _accumulate(
        sums,
        x,
        place,
        rows_inside,
        codes + expert * codes_step,
        scale,
        top + expert * hidden,
        out,
        out_inside,
        ffn,
        GROUP,
        KIND,
        BLOCK_IN,
    )
    found = _scaled(sums, x_scale, place, rows_inside, scale, out, out_inside, KIND).to(ROUND).to(tl.float32)
    found = found * tl.load(weights + choice, mask=rows_inside, other=0.0)[:, None]
    mask = rows_inside[:, None] & out_inside[None, :]
    tl.store(result + choice[:, None] * hidden + out[None, :], found, mask=mask)


def experts_kernel(experts: AnyExperts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Sum of each row's chosen experts, weighted; the form of `model/moe.py::ExpertsForm` for a GPU."""
    rows, choices = chosen.shape
    gate_up, down = experts.gate_up, experts.down
    ffn, hidden = gate_up.shape[1] // 2, down.shape[1]
    order, *blocks = _blocks(chosen, gate_up.shape[0])
    inner = x.new_empty(rows * choices, ffn)
    tiles = (len(blocks[0]), triton.cdiv(ffn, _BLOCK_OUT))
    _gate_up[tiles](
        *_rounded(x, gate_up),
        *(order, *blocks, *_held(gate_up), inner, hidden, ffn, choices, *_steps(gate_up)),
        **_constants(gate_up),
    )
    each = torch.empty(rows * choices, hidden, dtype=torch.float32, device=x.device)
    _down[(len(blocks[0]), triton.cdiv(hidden, _BLOCK_OUT))](
        *_rounded(inner, down),
        *(order, weights.flatten().contiguous(), *blocks, *_held(down), each, ffn, hidden, *_steps(down)),
        **_constants(down),
        ROUND=_TYPES[x.dtype],
    )
    return each.view(rows, choices, hidden).sum(1).to(x.dtype)


def _blocks(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Choices sorted by expert, and each block's expert, first and last place; blocks that are not needed are empty."""
    order = torch.argsort(chosen.flatten(), stable=True)
    counts = torch.zeros(experts, dtype=torch.int64, device=chosen.device)
    counts.scatter_add_(0, chosen.flatten(), torch.ones_like(order))
    ends, needed = counts.cumsum(0), -(-counts // _BLOCK_ROWS)
    last = needed.cumsum(0)
    # As many as there can be: full ones, and for every expert one that is not.
    number = torch.arange(order.numel() // _BLOCK_ROWS + min(experts, order.numel()), device=chosen.device)
    expert = torch.searchsorted(last, number, right=True).clamp_(max=experts - 1)
    start = (ends - counts)[expert] + (number - (last - needed)[expert]) * _BLOCK_ROWS
    return order, expert, start, ends[expert]


def _rounded(x: Tensor, weight: Tensor | Packed) -> tuple[Tensor, Tensor]:
    """Rows as the format reads them, contiguous, and their scales, which are never read where there are none."""
    if isinstance(weight, Packed) and weight.format.round_rows:
        codes, scale = round_rows(x, weight.format)
        return codes.contiguous(), scale
    return x.contiguous(), x


def _held(weight: Tensor | Packed) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales and tops; what a format does not have is never read."""
    if not isinstance(weight, Packed):
        return weight.contiguous(), weight, weight
    top = weight.scale if weight.top is None else weight.top.contiguous()
    return weight.codes.contiguous(), weight.scale.contiguous(), top


def _steps(weight: Tensor | Packed) -> tuple[int, int]:
    """Distance from one expert to the next, in codes and in scales."""
    codes, scale, _ = _held(weight)
    return codes[0].numel(), scale[0].numel()


def _constants(weight: Tensor | Packed) -> dict[str, Any]:
    kind, group, sums = _PLAIN, 0, tl.float32
    if isinstance(weight, Packed):
        sums = tl.int32 if weight.format.dtype == torch.int8 else tl.float32
        group = weight.format.group
        kind = _EIGHT if weight.format.bits == 8 else NVFP4_CODES if weight.format.is_float else INT4_CODES
    sizes = {"BLOCK_ROWS": _BLOCK_ROWS, "BLOCK_OUT": _BLOCK_OUT, "BLOCK_IN": _BLOCK_IN}
    return {"GROUP": group, "KIND": kind, "SUMS": sums, "num_warps": _WARPS, **sizes}
