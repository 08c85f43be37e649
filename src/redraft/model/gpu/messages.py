"""Messages over a canvas on a GPU: three programs walk its positions, one after the other.

    program 0   from the left, how much leads into each state        program 1   from the right, how much leads on
    program 2   the best way into each state; then, in a launch of its own, the way back from the best of all

Each position depends on the one before it, and a program runs on one multiprocessor, so a position has to need little
work: edges are laid out in full rows (`automata.py`), no row is masked, and one barrier ends each level of rows. A sum
is a float32 between 1 and 2 with its own exponent, both in 64 bits, so it never underflows. Best paths are float64
logarithms, which are only added. The twins, in `constraints/condition/forward_backward.py`, are `log_messages` and
`best_paths`.
"""

from __future__ import annotations

import math
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from redraft.model.gpu.automata import FEWER, ROWS, WIDE, WIDER, Edges, Paths
from redraft.shapes import Bool, Float, Int, Tensor

_NOTHING = -(2**30)
"""Exponent of zero. The sum of two fits int32, and no product over a whole canvas comes near it."""
_ZERO, _ONE = _NOTHING << 32, 0x3F800000
_NONE = -1e30
_WARPS, _AT_ONCE = 16, 128


@triton.jit
@no_type_check
def _level(
    rows, weights, level, values, gate, source, target,
    BEST: tl.constexpr, GATED: tl.constexpr, NOTHING: tl.constexpr, NONE: tl.constexpr,
    ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The rows of one level: each is the sum, or the largest, of its entries from `source` times `values`."""
    first, count, place = tl.load(level), tl.load(level + 1), tl.multiple_of(tl.load(level + 2), WIDE)
    for start in range(0, count, ROWS):
        row = start + tl.arange(0, ROWS)
        at = place + row[:, None] * WIDE + tl.arange(0, WIDE)[None, :]
        read, weight = tl.load(source + tl.load(rows + at)), tl.load(values + tl.load(weights + at))
        if BEST:
            found = tl.max(read + weight, axis=1)
            nothing = tl.full((ROWS,), NONE, dtype=tl.float64)
        else:
            size = read.to(tl.int32).to(tl.float32, bitcast=True) * weight.to(tl.int32).to(tl.float32, bitcast=True)
            power = tl.where(size > 0, (read >> 32).to(tl.int32) + (weight >> 32).to(tl.int32), NOTHING)
            top = tl.max(power, axis=1)
            below = power - top[:, None]
            # Two to that power, by its bits. Numbers too small for a float32 are negligible beside 1.
            share = tl.where(below > -127, ((below + 127) << 23).to(tl.float32, bitcast=True), 0.0)
            total = tl.sum(size * share, axis=1)
            bits = total.to(tl.int32, bitcast=True)
            nothing = tl.full((ROWS,), NOTHING, dtype=tl.int64) << 32
            found = ((top + (bits >> 23) - 127).to(tl.int64) << 32) | ((bits & 0x7FFFFF) | 0x3F800000).to(tl.int64)
            found = tl.where(total > 0, found, nothing)
        if GATED:
            found = tl.where(tl.load(gate + first + row) > 0, found, nothing)
        tl.store(target + first + row, found)


@triton.jit
@no_type_check
def _walk(
    rows, weights, levels, shares, tops, gates, sums, best, width, places, nodes, count,
    DEEP: tl.constexpr, GATED: tl.constexpr, NOTHING: tl.constexpr, NONE: tl.constexpr,
    ROWS: tl.constexpr, WIDE: tl.constexpr, FEWER: tl.constexpr, WIDER: tl.constexpr,
):  # fmt: skip
    """All positions in one direction. The first row of the values has the start of the walk."""
    way = tl.program_id(0)
    side = way % 2  # best paths also go from the left
    rows, weights, levels = rows + side * places, weights + side * places, levels + side * DEEP * 3
    gates, sums = gates + side * (width + 1) * nodes, sums + side * (width + 1) * nodes
    for step in range(width):
        i = side * (width - 1 - step) + (1 - side) * step
        gate = gates + (i + 1 - side) * nodes
        here, there, value = step * nodes, (step + 1) * nodes, i * count
        if way == 2:
            _level(
                rows, weights, levels, tops + value, gate, best + here, best + there,
                True, GATED, NOTHING, NONE, ROWS, WIDE,
            )  # fmt: skip
        else:
            _level(
                rows, weights, levels, shares + value, gate, sums + here, sums + there,
                False, GATED, NOTHING, NONE, ROWS, WIDE,
            )  # fmt: skip
        for depth in tl.static_range(1, DEEP):
            tl.debug_barrier()
            if way == 2:
                _level(
                    rows, weights, levels + 3 * depth, tops + value, gate, best + there, best + there,
                    True, GATED, NOTHING, NONE, FEWER, WIDER,
                )  # fmt: skip
            else:
                _level(
                    rows, weights, levels + 3 * depth, shares + value, gate, sums + there, sums + there,
                    False, GATED, NOTHING, NONE, FEWER, WIDER,
                )  # fmt: skip
        tl.debug_barrier()


@triton.jit
@no_type_check
def _back(
    firsts, others, kinds, tops, ends, best, path, width, states, count, NONE: tl.constexpr, AT_ONCE: tl.constexpr
):
    """The best path, backwards from the best final state: the states at all boundaries, then the kinds of edges."""
    span = tl.arange(0, AT_ONCE)
    reached, state = tl.full((), 3 * NONE, dtype=tl.float64), tl.full((), 0, dtype=tl.int32)
    for start in range(0, states, AT_ONCE):
        one = start + span
        opened = tl.load(ends + one, mask=one < states, other=0) > 0
        way = tl.load(best + width * states + one, mask=opened, other=2 * NONE)
        most = tl.max(way, axis=0)
        state = tl.where(most > reached, start + tl.argmax(way, axis=0), state)
        reached = tl.maximum(most, reached)
    tl.store(path + width, state)
    for step in range(width):
        i = width - 1 - step
        begin, end = tl.load(firsts + state), tl.load(firsts + state + 1)
        reached, chosen = tl.full((), 3 * NONE, dtype=tl.float64), tl.full((), 0, dtype=tl.int32)
        for start in range(begin, end, AT_ONCE):
            edge = start + span
            other = tl.load(others + edge, mask=edge < end, other=0)
            kind = tl.load(kinds + edge, mask=edge < end, other=0)
            way = tl.load(best + i * states + other) + tl.load(tops + i * count + kind)
            way = tl.where(edge < end, way, 2 * NONE)
            most = tl.max(way, axis=0)
            chosen = tl.where(most > reached, start + tl.argmax(way, axis=0), chosen)
            reached = tl.maximum(most, reached)
        state = tl.load(others + chosen)
        tl.store(path + i, state)
        tl.store(path + width + 1 + i, tl.load(kinds + chosen))


def walk_kernel(
    edges: Edges,
    mass: Float[Tensor, "canvas kinds"],
    tops: Float[Tensor, "canvas kinds"],
    start: int,
    ends: Bool[Tensor, "states"],
    gates: Bool[Tensor, "boundaries states"] | None,
) -> Paths:
    """The form of `automata.py::Walk` for a GPU."""
    width, device, (left, right) = len(mass), mass.device, edges.nodes
    shares = torch.cat([_packed(mass), torch.full((width, 1), _ONE, device=device)], 1)
    tops = torch.cat([tops, torch.zeros(width, 1, dtype=torch.float64, device=device)], 1)
    sums = torch.full((2, width + 1, edges.states.shape[1]), _ZERO, device=device)
    best = torch.full(sums.shape[1:], _NONE, dtype=torch.float64, device=device)
    sums[0, 0].index_fill_(0, left[start : start + 1], _ONE)
    sums[1, 0].index_copy_(0, right, torch.where(ends, _ONE, _ZERO))
    best[0].index_fill_(0, left[start : start + 1], 0.0)
    opened = ends if gates is None else torch.stack([F.pad(gates, (0, 1), value=True)[:, one] for one in edges.states])
    _walk[(3,)](
        *(edges.rows, edges.weights, edges.levels, shares, tops, opened.to(torch.int8), sums, best),
        *(width, edges.rows.shape[1], sums.shape[2], shares.shape[1]),
        DEEP=edges.levels.shape[1],
        GATED=gates is not None,
        NOTHING=_NOTHING,
        NONE=_NONE,
        ROWS=ROWS,
        WIDE=WIDE,
        FEWER=FEWER,
        WIDER=WIDER,
        num_warps=_WARPS,
    )
    best = best.index_select(1, left)
    path = torch.empty(2 * width + 1, dtype=torch.int32, device=device)
    _back[(1,)](
        *(edges.firsts, edges.others, edges.kinds, tops, ends.to(torch.int8), best, path),
        *(width, len(ends), tops.shape[1]),
        NONE=_NONE,
        AT_ONCE=_AT_ONCE,
        num_warps=1,  # one warp needs no barriers
    )
    before, behind = _logs(sums[0].index_select(1, left)), _logs(sums[1].index_select(1, right))
    return Paths(before, behind.flip(0), best, path[: width + 1], path[width + 1 :])


def _packed(logs: Float[Tensor, "canvas kinds"]) -> Int[Tensor, "canvas kinds"]:
    """Numbers from their logarithms: an exponent and a float32 from 1 to 2, in 64 bits."""
    powers = (logs / math.log(2)).floor().clamp(min=_NOTHING / 2 / len(logs))  # smaller numbers make no difference
    sizes = (logs / math.log(2) - powers).clamp(min=0).exp2().float()
    packed = (powers.long() << 32) | sizes.contiguous().view(torch.int32).long()
    return torch.where(logs > _NONE / 2, packed, _ZERO)


def _logs(packed: Int[Tensor, "boundaries states"]) -> Float[Tensor, "boundaries states"]:
    """The logarithms of packed numbers."""
    sizes = (packed & 0x7FFFFFFF).int().view(torch.float32).double()
    return torch.where(sizes > 0, (sizes.log2() + (packed >> 32)) * math.log(2), _NONE)
