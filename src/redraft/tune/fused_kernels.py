"""What lies between the matrices of a layer in training, as one kernel each, forward and backward, for a GPU.

    norm         RMSNorm of rows
    after        behind attention: norm, residual, and the three norms that MLP, experts and router read
    route        softmax, choice of the experts, each expert's share of the row
    gated        gelu(gate) * up, times the share of an expert
    joined       behind the MLPs: both normed, added, normed, residual, layer scalar, and the next layer's first norm

All compute in float32. A program takes some rows at a time. In a backward kernel it takes several such tiles, one after
the other, and adds its part of the weights' gradients to those of the others. `unit` is a row over its root mean
square, and `_unit_back` the gradient through it: r (g - unit · mean(g · unit)).
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def _tile(first, rows, size, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Places of the numbers of some rows, and which of them there are."""
    row, at = first + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    return row.to(tl.int64)[:, None] * size + at[None, :], (row < rows)[:, None] & (at < size)[None, :]


@triton.jit
@no_type_check
def _load(x, place, inside):
    return tl.load(x + place, mask=inside, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def _store(x, place, values, inside):
    tl.store(x + place, values.to(x.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _weight(w, size, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    return tl.load(w + at, mask=at < size, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def _add_up(sums, of, total, size, BLOCK: tl.constexpr):
    """Add a program's part to a weight's gradient."""
    at = tl.arange(0, BLOCK)
    tl.atomic_add(sums + of * size + at, total, mask=at < size, sem="relaxed")


@triton.jit
@no_type_check
def _shrink(x, size, eps):
    return 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / size + eps)


@triton.jit
@no_type_check
def _unit_back(g, unit, shrink, size):
    return (g - unit * (tl.sum(g * unit, axis=1) / size)[:, None]) * shrink[:, None]


@triton.jit
@no_type_check
def norm(x, weight, out, rows, size, eps, WEIGHT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    place, inside = _tile(tl.program_id(0) * ROWS, rows, size, ROWS, BLOCK)
    values = _load(x, place, inside)
    unit = values * _shrink(values, size, eps)[:, None]
    if WEIGHT:
        unit *= _weight(weight, size, BLOCK)[None, :]
    _store(out, place, unit, inside)


@triton.jit
@no_type_check
def norm_back(
    g, x, weight, to_x, to_weight, rows, size, eps, WEIGHT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    scale = _weight(weight, size, BLOCK) if WEIGHT else tl.full((BLOCK,), 1.0, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        place, inside = _tile(first, rows, size, ROWS, BLOCK)
        values, grad = _load(x, place, inside), _load(g, place, inside)
        shrink = _shrink(values, size, eps)
        unit = values * shrink[:, None]
        total += tl.sum(grad * unit, axis=0)
        _store(to_x, place, _unit_back(grad * scale[None, :], unit, shrink, size), inside)
    if WEIGHT:
        _add_up(to_weight, 0, total, size, BLOCK)


@triton.jit
@no_type_check
def after(
    attended, x, post, mlp, experts, router, a, for_mlp, for_experts, for_router, rows, size, eps, router_scale,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place, inside = _tile(tl.program_id(0) * ROWS, rows, size, ROWS, BLOCK)
    values = _load(attended, place, inside)
    stream = (
        _load(x, place, inside) + values * _shrink(values, size, eps)[:, None] * _weight(post, size, BLOCK)[None, :]
    )
    _store(a, place, stream, inside)
    unit = stream * _shrink(stream, size, eps)[:, None]
    _store(for_mlp, place, unit * _weight(mlp, size, BLOCK)[None, :], inside)
    _store(for_experts, place, unit * _weight(experts, size, BLOCK)[None, :], inside)
    _store(for_router, place, unit * (_weight(router, size, BLOCK) * router_scale)[None, :], inside)


@triton.jit
@no_type_check
def after_back(
    to_a, to_mlp, to_experts, to_router, attended, a, post, mlp, experts, router, to_attended, to_x, to_weights,
    rows, size, eps, router_scale, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    by_post, by_mlp = _weight(post, size, BLOCK), _weight(mlp, size, BLOCK)
    by_experts, by_router = _weight(experts, size, BLOCK), _weight(router, size, BLOCK) * router_scale
    of_post, of_mlp = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    of_experts, of_router = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        place, inside = _tile(first, rows, size, ROWS, BLOCK)
        stream = _load(a, place, inside)
        shrink = _shrink(stream, size, eps)
        unit = stream * shrink[:, None]
        g = _load(to_mlp, place, inside)
        of_mlp += tl.sum(g * unit, axis=0)
        grad = g * by_mlp[None, :]
        g = _load(to_experts, place, inside)
        of_experts += tl.sum(g * unit, axis=0)
        grad += g * by_experts[None, :]
        g = _load(to_router, place, inside)
        of_router += tl.sum(g * unit, axis=0)
        grad += g * by_router[None, :]
        grad = _load(to_a, place, inside) + _unit_back(grad, unit, shrink, size)
        _store(to_x, place, grad, inside)
        values = _load(attended, place, inside)
        shrink = _shrink(values, size, eps)
        unit = values * shrink[:, None]
        of_post += tl.sum(grad * unit, axis=0)
        _store(to_attended, place, _unit_back(grad * by_post[None, :], unit, shrink, size), inside)
    _add_up(to_weights, 0, of_post, size, BLOCK)
    _add_up(to_weights, 1, of_mlp, size, BLOCK)
    _add_up(to_weights, 2, of_experts, size, BLOCK)
    _add_up(to_weights, 3, of_router * router_scale, size, BLOCK)


@triton.jit
@no_type_check
def _chosen(scores, place, inside, at, TOP: tl.constexpr):
    """Probabilities of some rows' experts, and which are chosen; of equal ones those of lower numbers."""
    z = tl.where(inside, _load(scores, place, inside), -1e30)
    e = tl.where(inside, tl.exp(z - tl.max(z, axis=1)[:, None]), 0.0)
    p = e / tl.maximum(tl.sum(e, axis=1), 1e-30)[:, None]
    left = tl.where(inside, p, -1.0)
    taken = at < 0
    for _ in tl.static_range(TOP):
        taken = taken | (at == tl.argmax(left, axis=1)[:, None])
        left = tl.where(taken, -1.0, left)
    return p, taken & inside


@triton.jit
@no_type_check
def route(scores, scale, share, rows, size, TOP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    place, inside = _tile(tl.program_id(0) * ROWS, rows, size, ROWS, BLOCK)
    at = tl.arange(0, BLOCK)[None, :]
    p, taken = _chosen(scores, place, inside, at, TOP)
    whole = tl.maximum(tl.sum(tl.where(taken, p, 0.0), axis=1), 1e-30)[:, None]
    _store(share, place, tl.where(taken, p / whole * _weight(scale, size, BLOCK)[None, :], 0.0), inside)


@triton.jit
@no_type_check
def route_back(
    g, scores, scale, to_scores, to_scale, rows, size, TOP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    at, by = tl.arange(0, BLOCK)[None, :], _weight(scale, size, BLOCK)[None, :]
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        place, inside = _tile(first, rows, size, ROWS, BLOCK)
        p, taken = _chosen(scores, place, inside, at, TOP)
        part = tl.where(taken, p, 0.0)
        whole = tl.maximum(tl.sum(part, axis=1), 1e-30)[:, None]
        part, grad = part / whole, _load(g, place, inside)
        total += tl.sum(grad * part, axis=0)
        grad *= by
        grad = tl.where(taken, (grad - tl.sum(grad * part, axis=1)[:, None]) / whole, 0.0)
        _store(to_scores, place, p * (grad - tl.sum(grad * p, axis=1)[:, None]), inside)
    _add_up(to_scale, 0, total, size, BLOCK)


@triton.jit
@no_type_check
def _gelu(x):
    """gelu(x) by tanh, and its slope."""
    bent = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))  # (1 + tanh c) / 2 is sigmoid(2c)
    return x * bent, bent + x * bent * (1.0 - bent) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)


@triton.jit
@no_type_check
def gated(gate_up, share, out, rows, size, SHARED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """A row is one expert's of one token: gates first, then ups."""
    row, at = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64), tl.arange(0, BLOCK)[None, :]
    inside = (row < rows)[:, None] & (at < size)
    place = row[:, None] * 2 * size + at
    bent, _ = _gelu(_load(gate_up, place, inside))
    found = bent * _load(gate_up, place + size, inside)
    if SHARED:
        found *= tl.load(share + row, mask=row < rows, other=0.0)[:, None]
    _store(out, row[:, None] * size + at, found, inside)


@triton.jit
@no_type_check
def gated_back(
    g, gate_up, share, to_gate_up, to_share, rows, size, SHARED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row, at = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64), tl.arange(0, BLOCK)[None, :]
    inside = (row < rows)[:, None] & (at < size)
    place = row[:, None] * 2 * size + at
    up, grad = _load(gate_up, place + size, inside), _load(g, row[:, None] * size + at, inside)
    bent, slope = _gelu(_load(gate_up, place, inside))
    if SHARED:
        tl.store(to_share + row, tl.sum(grad * bent * up, axis=1), mask=row < rows)
        grad *= tl.load(share + row, mask=row < rows, other=0.0)[:, None]
    _store(to_gate_up, place, grad * up * slope, inside)
    _store(to_gate_up, place + size, grad * bent, inside)


@triton.jit
@no_type_check
def joined(
    a, dense, routed, by_dense, by_routed, by_both, scalar, by_next, x, h, rows, size, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place, inside = _tile(tl.program_id(0) * ROWS, rows, size, ROWS, BLOCK)
    one, two = _load(dense, place, inside), _load(routed, place, inside)
    both = one * _shrink(one, size, eps)[:, None] * _weight(by_dense, size, BLOCK)[None, :]
    both += two * _shrink(two, size, eps)[:, None] * _weight(by_routed, size, BLOCK)[None, :]
    both = both * _shrink(both, size, eps)[:, None] * _weight(by_both, size, BLOCK)[None, :]
    stream = (_load(a, place, inside) + both) * tl.load(scalar).to(tl.float32)
    _store(x, place, stream, inside)
    _store(h, place, stream * _shrink(stream, size, eps)[:, None] * _weight(by_next, size, BLOCK)[None, :], inside)


@triton.jit
@no_type_check
def joined_back(
    to_x, to_h, dense, routed, by_dense, by_routed, by_both, scalar, by_next, x, to_a, to_dense, to_routed, to_weights,
    rows, size, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    w_dense, w_routed = _weight(by_dense, size, BLOCK)[None, :], _weight(by_routed, size, BLOCK)[None, :]
    w_both, w_next = _weight(by_both, size, BLOCK)[None, :], _weight(by_next, size, BLOCK)[None, :]
    of_dense, of_routed = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    of_both, of_next = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    times = tl.load(scalar).to(tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        place, inside = _tile(first, rows, size, ROWS, BLOCK)
        stream, g = _load(x, place, inside), _load(to_h, place, inside)
        shrink = _shrink(stream, size, eps)
        unit = stream * shrink[:, None]
        of_next += tl.sum(g * unit, axis=0)
        grad = (_load(to_x, place, inside) + _unit_back(g * w_next, unit, shrink, size)) * times
        _store(to_a, place, grad, inside)
        one, two = _load(dense, place, inside), _load(routed, place, inside)
        shrink_one, shrink_two = _shrink(one, size, eps), _shrink(two, size, eps)
        one, two = one * shrink_one[:, None], two * shrink_two[:, None]
        both = one * w_dense + two * w_routed
        shrink = _shrink(both, size, eps)
        both = both * shrink[:, None]
        of_both += tl.sum(grad * both, axis=0)
        grad = _unit_back(grad * w_both, both, shrink, size)
        of_dense += tl.sum(grad * one, axis=0)
        of_routed += tl.sum(grad * two, axis=0)
        _store(to_dense, place, _unit_back(grad * w_dense, one, shrink_one, size), inside)
        _store(to_routed, place, _unit_back(grad * w_routed, two, shrink_two, size), inside)
    _add_up(to_weights, 0, of_dense, size, BLOCK)
    _add_up(to_weights, 1, of_routed, size, BLOCK)
    _add_up(to_weights, 2, of_both, size, BLOCK)
    _add_up(to_weights, 3, of_next, size, BLOCK)
