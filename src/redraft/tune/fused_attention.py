"""Kernels of attention in training, for a GPU: what stands beside its products, forward and backward.

    heads     queries and keys normed and rotated, values normed, laid out as the products read them
    gather    a line's keys and values, for each of its canvases
    softmax   of scores, over the keys that a row sees

As in `tune/fused_kernels.py`, all compute in float32, and a backward kernel adds up the gradients of weights.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from redraft.tune.fused_kernels import _load, _shrink, _store, _tile, _unit_back


@triton.jit
@no_type_check
def _place_of(first, start, row, tokens, places, CANVAS: tl.constexpr, inside):
    """A row's position in its sequence; `first` is where that begins in its line, `start` where its canvas does. The
    padding of a canvas may be behind the last of `places`."""
    line, token = row // tokens, row % tokens
    if CANVAS:
        found = tl.load(start + line, mask=inside, other=0) - tl.load(first + line, mask=inside, other=0) + token
    else:
        found = token - tl.load(first + row, mask=inside, other=0)
    return tl.minimum(found, places - 1)


@triton.jit
@no_type_check
def heads(
    qkv, q_scale, k_scale, cos, sin, first, start, q, k, v, rows, tokens, keys, offset, step, places, eps,
    CANVAS: tl.constexpr, HEADS: tl.constexpr, KV: tl.constexpr, FULL: tl.constexpr, DIM: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """One head of some rows. In a full layer a key head is also the value head, neither scaled nor rotated. Keys and
    values go behind the `offset` that are there already."""
    head, row = tl.program_id(1), (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    at = tl.arange(0, DIM)
    other = (at + DIM // 2) % DIM
    there = row < rows
    inside = there[:, None] & (at < DIM)[None, :]
    base = row[:, None] * step + head * DIM
    turn = _place_of(first, start, row, tokens, places, CANVAS, there)[:, None] * DIM
    x = _load(qkv, base + at[None, :], inside)
    shrink = _shrink(x, DIM, eps)[:, None]
    line, token = (row // tokens)[:, None], (row % tokens)[:, None]
    if head < HEADS + KV:
        is_query = head < HEADS
        scale = tl.where(is_query, tl.load(q_scale + at), tl.load(k_scale + at)).to(tl.float32)
        scale_other = tl.where(is_query, tl.load(q_scale + other), tl.load(k_scale + other)).to(tl.float32)
        y = _load(qkv, base + other[None, :], inside)
        out = x * scale[None, :] * _load(cos, turn + at[None, :], inside)
        out += y * scale_other[None, :] * _load(sin, turn + at[None, :], inside)
        if head < HEADS:
            _store(q, ((line * HEADS + head) * tokens + token) * DIM + at[None, :], out * shrink, inside)
        else:
            to = ((line * KV + head - HEADS) * keys + offset + token) * DIM
            _store(k, to + at[None, :], out * shrink, inside)
    first_value: tl.constexpr = HEADS if FULL else HEADS + KV
    if head >= first_value:
        to = ((line * KV + head - first_value) * keys + offset + token) * DIM
        _store(v, to + at[None, :], x * shrink, inside)


@triton.jit
@no_type_check
def heads_back(
    to_q, to_k, to_v, qkv, q_scale, k_scale, cos, sin, first, start, to_qkv, to_scales, rows, tokens, keys, offset,
    step, places, eps,
    CANVAS: tl.constexpr, HEADS: tl.constexpr, KV: tl.constexpr, FULL: tl.constexpr, DIM: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    head, at = tl.program_id(1), tl.arange(0, DIM)
    other = (at + DIM // 2) % DIM
    first_value: tl.constexpr = HEADS if FULL else HEADS + KV
    scale = tl.where(head < HEADS, tl.load(q_scale + at), tl.load(k_scale + at)).to(tl.float32)
    total = tl.zeros((DIM,), tl.float32)
    for begin in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = (begin + tl.arange(0, ROWS)).to(tl.int64)
        there = row < rows
        inside = there[:, None] & (at < DIM)[None, :]
        base = row[:, None] * step + head * DIM
        turn = _place_of(first, start, row, tokens, places, CANVAS, there)[:, None] * DIM
        x = _load(qkv, base + at[None, :], inside)
        shrink = _shrink(x, DIM, eps)
        unit = x * shrink[:, None]
        line, token = (row // tokens)[:, None], (row % tokens)[:, None]
        grad = tl.zeros((ROWS, DIM), tl.float32)
        if head < HEADS + KV:
            if head < HEADS:
                place = ((line * HEADS + head) * tokens + token) * DIM
                g, g_other = _load(to_q, place + at[None, :], inside), _load(to_q, place + other[None, :], inside)
            else:
                place = ((line * KV + head - HEADS) * keys + offset + token) * DIM
                g, g_other = _load(to_k, place + at[None, :], inside), _load(to_k, place + other[None, :], inside)
            turned = g * _load(cos, turn + at[None, :], inside) + g_other * _load(sin, turn + other[None, :], inside)
            total += tl.sum(turned * unit, axis=0)
            grad += turned * scale[None, :]
        if head >= first_value:
            place = ((line * KV + head - first_value) * keys + offset + token) * DIM
            grad += _load(to_v, place + at[None, :], inside)
        _store(to_qkv, base + at[None, :], _unit_back(grad, unit, shrink, DIM), inside)
    if head < HEADS + KV:
        tl.atomic_add(to_scales + tl.where(head < HEADS, 0, DIM) + at, total, sem="relaxed")


@triton.jit
@no_type_check
def gather(old_k, old_v, owner, k, v, numbers, step, to_step, KV: tl.constexpr, BLOCK: tl.constexpr):
    """The first `numbers` of each head of a line's keys and values, to each canvas of the line."""
    at, canvas = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), (tl.program_id(0) // KV).to(tl.int64)
    head = tl.program_id(0) % KV
    line = tl.load(owner + canvas)
    take, put = (line * KV + head) * step, (canvas * KV + head) * to_step
    tl.store(k + put + at, tl.load(old_k + take + at, mask=at < numbers), mask=at < numbers)
    tl.store(v + put + at, tl.load(old_v + take + at, mask=at < numbers), mask=at < numbers)


@triton.jit
@no_type_check
def gather_back(to_k, to_v, bounds, to_old_k, to_old_v, numbers, step, to_step, KV: tl.constexpr, BLOCK: tl.constexpr):
    """A line's canvases are those from its bound to the next line's."""
    at, line = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), (tl.program_id(0) // KV).to(tl.int64)
    head = tl.program_id(0) % KV
    of_k, of_v = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for canvas in range(tl.load(bounds + line), tl.load(bounds + line + 1)):
        put = ((0 * line + canvas) * KV + head) * to_step  # in 64 bits, as the line is
        of_k += tl.load(to_k + put + at, mask=at < numbers, other=0.0).to(tl.float32)
        of_v += tl.load(to_v + put + at, mask=at < numbers, other=0.0).to(tl.float32)
    take = (line * KV + head) * step
    tl.store(to_old_k + take + at, of_k.to(to_old_k.dtype.element_ty), mask=at < step)
    tl.store(to_old_v + take + at, of_v.to(to_old_v.dtype.element_ty), mask=at < step)


@triton.jit
@no_type_check
def softmax(
    scores, first, start, live, rows, keys, tokens, line_rows, reach, window, CANVAS: tl.constexpr, LIVE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """In place. A token sees its sequence up to itself. A position of a canvas sees the sequence before the canvas, and
    behind `reach` what is there of the canvas. Of a sequence a window shows the last. A line has `line_rows` rows."""
    row, at = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64), tl.arange(0, BLOCK)[None, :]
    there = row < rows
    line, token = row // line_rows, row % tokens
    if CANVAS:
        begins = tl.load(first + line, mask=there, other=0)
        ends = tl.load(start + line, mask=there, other=1)
        stops = reach + (tl.load(live + line, mask=there, other=0) if LIVE else tokens + 0 * line)
    else:
        begins = tl.load(first + line * tokens + token, mask=there, other=0)
        ends = token + 1
        stops = 0 * line
    begins = tl.maximum(begins, ends - window + (1 if CANVAS else 0))
    seen = ((at >= begins[:, None]) & (at < ends[:, None])) | ((at >= reach) & (at < stops[:, None]))
    place, inside = row[:, None] * keys + at, there[:, None] & (at < keys)
    z = tl.where(seen, _load(scores, place, inside), -1e30)
    e = tl.where(seen, tl.exp(z - tl.max(z, axis=1)[:, None]), 0.0)
    _store(scores, place, e / tl.maximum(tl.sum(e, axis=1), 1e-30)[:, None], inside)


@triton.jit
@no_type_check
def softmax_back(g, weights, rows, keys, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """In place, in `g`."""
    place, inside = _tile(tl.program_id(0) * ROWS, rows, keys, ROWS, BLOCK)
    w, grad = _load(weights, place, inside), _load(g, place, inside)
    _store(g, place, w * (grad - tl.sum(grad * w, axis=1)[:, None]), inside)
