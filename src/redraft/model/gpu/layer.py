"""A whole layer on a GPU in fifteen launches, for any number of sequences.

    norm ► qkv ► heads ► attention ► out ► after attention ─┬► gate up ► gelu ► down ────────────────────┬► after ffw
                                                            └► router ► route ► place ► gate up ► down ──┘

    heads             norm and rotate queries and keys, norm values; keys and values go straight into the cache
    after attention   norm, residual, and the three norms that the dense MLP, the experts and the router read
    route             softmax, choice of the experts, their weights
    after ffw         each row's experts added, both branches normed, added, normed, residual, layer scalar

Everything between two products is one kernel that reads a row once and rounds where the twin rounds. The twin is
`model/gemma.py::Layer` in plain torch.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from redraft.model.attention import Attention
from redraft.model.gemma import Layer
from redraft.model.gpu.attention import attend_spans
from redraft.model.gpu.experts import experts_each, experts_kernel
from redraft.model.gpu.norm import norm_kernel
from redraft.model.moe import Router
from redraft.model.rows import Rows, SpanTables
from redraft.shapes import Float, Int, Tensor


@triton.jit
@no_type_check
def _unit(values, size, eps):
    """Weightless RMSNorm of one row, in float32."""
    return values / tl.sqrt(tl.sum(values * values, axis=0) / size + eps)


@triton.jit
@no_type_check
def _heads(
    qkv, q_scale, k_scale, cos, sin, q, rows, buffers, step, eps,
    HEADS: tl.constexpr, KV: tl.constexpr, FULL: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """One head of one row. In a full layer a key head is also the value head: normed without weight, not rotated."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    kind: tl.constexpr = qkv.dtype.element_ty
    dim: tl.constexpr = 2 * HALF
    low, high = tl.arange(0, HALF), HALF + tl.arange(0, HALF)
    at = qkv + row * step + head * dim
    a, b = tl.load(at + low).to(tl.float32), tl.load(at + high).to(tl.float32)
    shrink = 1.0 / tl.sqrt((tl.sum(a * a, axis=0) + tl.sum(b * b, axis=0)) / dim + eps)
    a, b = a * shrink, b * shrink
    if head < HEADS + KV:
        is_query = head < HEADS
        scale_low = tl.where(is_query, tl.load(q_scale + low), tl.load(k_scale + low)).to(tl.float32)
        scale_high = tl.where(is_query, tl.load(q_scale + high), tl.load(k_scale + high)).to(tl.float32)
        x = (a * scale_low).to(kind).to(tl.float32)
        y = (b * scale_high).to(kind).to(tl.float32)
        turn = row * dim
        left = (x * tl.load(cos + turn + low).to(tl.float32)).to(kind).to(tl.float32)
        right = (y * tl.load(cos + turn + high).to(tl.float32)).to(kind).to(tl.float32)
        left += (y * tl.load(sin + turn + low).to(tl.float32)).to(kind).to(tl.float32)
        right += (x * tl.load(sin + turn + high).to(tl.float32)).to(kind).to(tl.float32)
        if head < HEADS:
            to = q + (row * HEADS + head) * dim
        else:
            to = _place_of(rows, buffers, row, head - HEADS, 0, kind, dim)
        tl.store(to + low, left.to(kind))
        tl.store(to + high, right.to(kind))
    is_value = head >= HEADS if FULL else head >= HEADS + KV
    if is_value:
        to = _place_of(rows, buffers, row, head - (HEADS if FULL else HEADS + KV), 1, kind, dim)
        tl.store(to + low, a.to(kind))
        tl.store(to + high, b.to(kind))


@triton.jit
@no_type_check
def _place_of(rows, buffers, row, head, WHICH: tl.constexpr, KIND: tl.constexpr, DIM: tl.constexpr):
    """The address of a row's keys (WHICH 0) or values (1) of one head."""
    at = buffers + 4 * tl.load(rows + 2 * row)
    base = tl.multiple_of(tl.load(at + WHICH).to(tl.pointer_type(KIND)), 16)
    apart = tl.multiple_of(tl.load(at + 2), 16)
    return base + head * apart + (tl.load(rows + 2 * row + 1) - tl.load(at + 3)) * DIM


@triton.jit
@no_type_check
def _after_attention(
    attended, x, post, mlp, experts, router, onto, for_mlp, for_experts, for_router, size, shrink, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: the residual stream after attention, and the inputs of the three branches."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside, place = at < size, row * size + at
    kind: tl.constexpr = x.dtype.element_ty
    values = tl.load(attended + place, mask=inside, other=0.0).to(tl.float32)
    normed = _unit(values, size, eps) * tl.load(post + at, mask=inside, other=0.0).to(tl.float32)
    stream = tl.load(x + row * size + at, mask=inside, other=0.0).to(tl.float32) + normed.to(kind).to(tl.float32)
    stream = stream.to(kind)
    tl.store(onto + place, stream, mask=inside)
    unit = _unit(stream.to(tl.float32), size, eps)
    tl.store(for_mlp + place, (unit * tl.load(mlp + at, mask=inside, other=0.0).to(tl.float32)).to(kind), mask=inside)
    weight = tl.load(experts + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(for_experts + place, (unit * weight).to(kind), mask=inside)
    scored = unit.to(kind).to(tl.float32) * tl.load(router + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(for_router + place, (scored.to(kind).to(tl.float32) * shrink).to(kind), mask=inside)


@triton.jit
@no_type_check
def _gelu(gate_up, out, size, BLOCK: tl.constexpr):
    """gelu(gate) * up of some numbers of one row."""
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    gate = tl.load(gate_up + row * 2 * size + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + at, mask=inside, other=0.0).to(tl.float32)
    cubic = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
    gate = (gate * tl.sigmoid(2.0 * cubic)).to(out.dtype.element_ty).to(tl.float32)  # 0.5 (1 + tanh c) is sigmoid(2c)
    tl.store(out + row * size + at, (gate * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _route(scores, scale, weights, chosen, count, TOP: tl.constexpr, BLOCK: tl.constexpr):
    """One row's experts, the likeliest first; of equal ones the lower number first."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    z = tl.load(scores + row * count + at, mask=at < count, other=float("-inf")).to(tl.float32)
    e = tl.exp(z - tl.max(z, axis=0))
    p = tl.where(at < count, e / tl.sum(e, axis=0), -1.0)
    left, total = p, 0.0
    for _ in tl.static_range(TOP):
        best = tl.max(left, axis=0)
        total += best
        left = tl.where(at == tl.argmax(left, axis=0), -1.0, left)
    left = p
    for place in tl.static_range(TOP):
        best, expert = tl.max(left, axis=0), tl.argmax(left, axis=0)
        tl.store(weights + row * TOP + place, best / total * tl.load(scale + expert).to(tl.float32))
        tl.store(chosen + row * TOP + place, expert)
        left = tl.where(at == expert, -1.0, left)


@triton.jit
@no_type_check
def _after_ffw(
    dense, each, weights, a, post_mlp, post_experts, post_ffw, encode, denoise, is_canvas, out, size, eps,
    CHOICES: tl.constexpr, MIXED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: its experts added in order, the two branches joined, and the stream times the layer's scalar."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside, place = at < size, row * size + at
    kind: tl.constexpr = out.dtype.element_ty
    routed = tl.zeros((BLOCK,), dtype=tl.float32)
    for choice in tl.static_range(CHOICES):
        one = row * CHOICES + choice
        part = tl.load(each + one * size + at, mask=inside, other=0.0).to(tl.float32)
        routed += part * tl.load(weights + one)
    routed = _unit(routed.to(kind).to(tl.float32), size, eps)
    routed = (routed * tl.load(post_experts + at, mask=inside, other=0.0).to(tl.float32)).to(kind).to(tl.float32)
    both = _unit(tl.load(dense + place, mask=inside, other=0.0).to(tl.float32), size, eps)
    both = (both * tl.load(post_mlp + at, mask=inside, other=0.0).to(tl.float32)).to(kind).to(tl.float32)
    both = _unit((both + routed).to(kind).to(tl.float32), size, eps)
    both = (both * tl.load(post_ffw + at, mask=inside, other=0.0).to(tl.float32)).to(kind).to(tl.float32)
    stream = (tl.load(a + place, mask=inside, other=0.0).to(tl.float32) + both).to(kind).to(tl.float32)
    scalar = tl.load(denoise).to(tl.float32)
    if MIXED:
        scalar = tl.where(tl.load(is_canvas + row) != 0, scalar, tl.load(encode).to(tl.float32))
    tl.store(out + place, (stream * scalar).to(kind), mask=inside)


def layer_kernel(layer: Layer, x: Float[Tensor, "rows hidden"], context: Rows) -> Float[Tensor, "rows hidden"]:
    """The form of `model/kernels.py::LayerForm` for a GPU. Experts on the host keep their own form."""
    index, x = layer.attention.index, x.contiguous()
    tables = context.tables(index)
    (normed,) = norm_kernel(x, [layer.input_norm.weight], layer.eps)
    q = heads_kernel(layer.attention, layer.attention.qkv(normed), context, tables)
    mixed = attend_spans(q, tables, index, layer.attention.kv_heads)
    a, for_mlp, for_experts, for_router = _branches(layer, layer.attention.out(mixed.flatten(1)), x)
    dense = layer.mlp.down(gelu_kernel(layer.mlp.gate_up(for_mlp)))
    weights, chosen = route_kernel(layer.router, layer.router.proj(for_router))
    if layer.kernels.experts is experts_kernel:
        each = experts_each(layer.experts, for_experts, chosen)
    else:
        each = layer.kernels.experts(layer.experts, for_experts, weights, chosen)
        weights = torch.ones_like(weights[:, :1])
    return _joined(layer, dense, each, weights, a, context)


def heads_kernel(
    attention: Attention, qkv: Float[Tensor, "rows columns"], context: Rows, tables: SpanTables
) -> Float[Tensor, "rows heads head_dim"]:
    """Queries, normed and rotated; keys and values are written into the cache."""
    layer, heads, kv_heads = attention.layer, attention.heads, attention.kv_heads
    cos, sin = context.rotation(layer)
    q = qkv.new_empty(qkv.shape[0], heads, layer.head_dim)
    _heads[(qkv.shape[0], qkv.shape[1] // layer.head_dim)](
        *(qkv.contiguous(), attention.q_norm.weight, attention.k_norm.weight, cos, sin, q),
        *(tables.rows, tables.buffers[attention.index], qkv.shape[1], attention.eps),
        HEADS=heads,
        KV=kv_heads,
        FULL=layer.is_full,
        HALF=layer.head_dim // 2,
        num_warps=1,
    )
    return q


def gelu_kernel(gate_up: Float[Tensor, "rows twice"]) -> Float[Tensor, "rows ffn"]:
    """gelu(gate) * up; the first half of each row is the gate."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out, block = gate_up.new_empty(rows, size), min(1024, triton.next_power_of_2(size))
    _gelu[(rows, triton.cdiv(size, block))](gate_up.contiguous(), out, size, BLOCK=block)
    return out


def route_kernel(
    router: Router, scores: Float[Tensor, "rows experts"]
) -> tuple[Float[Tensor, "rows top"], Int[Tensor, "rows top"]]:
    """Weights (float32) and numbers (int32) of each row's experts."""
    rows, count = scores.shape
    weights = torch.empty(rows, router.top_k, dtype=torch.float32, device=scores.device)
    chosen = torch.empty(rows, router.top_k, dtype=torch.int32, device=scores.device)
    block = triton.next_power_of_2(count)
    _route[(rows,)](
        scores.contiguous(), router.per_expert_scale, weights, chosen, count, TOP=router.top_k, BLOCK=block, num_warps=1
    )
    return weights, chosen


def _branches(layer: Layer, attended: Tensor, x: Tensor) -> list[Tensor]:
    found, size = [torch.empty_like(x) for _ in range(4)], x.shape[1]
    block = triton.next_power_of_2(size)
    _after_attention[(x.shape[0],)](
        *(attended.contiguous(), x, layer.post_attention_norm.weight, layer.pre_mlp_norm.weight),
        *(layer.pre_experts_norm.weight, layer.router.scale, *found, size, size**-0.5, layer.eps),
        BLOCK=block,
        num_warps=4 if block > 512 else 1,
    )
    return found


def _joined(layer: Layer, dense: Tensor, each: Tensor, weights: Tensor, a: Tensor, context: Rows) -> Tensor:
    out, size, of_rows = torch.empty_like(a), a.shape[1], context.is_canvas
    block, mixed = triton.next_power_of_2(size), not isinstance(of_rows, bool)
    scalar = layer.encode_scalar if of_rows is False else layer.denoise_scalar
    norms = (layer.post_mlp_norm.weight, layer.post_experts_norm.weight, layer.post_ffw_norm.weight)
    _after_ffw[(a.shape[0],)](
        *(dense.contiguous(), each, weights, a, *norms, layer.encode_scalar, scalar),
        *(of_rows if isinstance(of_rows, torch.Tensor) else a, out, size, layer.eps),
        CHOICES=weights.shape[1],
        MIXED=mixed,
        BLOCK=block,
        num_warps=4 if block > 512 else 1,
    )
    return out
