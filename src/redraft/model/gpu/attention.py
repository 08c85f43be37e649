"""Attention of all spans of a forward in one launch, on a GPU, without a mask in memory.

Two numbers define the keys that a row sees: the first key and the key after the last (`model/rows.py::SpanTables`). So
prompts, commits and canvases of many sequences share the launch, and buffers with fixed addresses can be used in a
graph. The query heads that share a key head are rows of one tile: every key is read once for all of them. Heads have
256 or 512 numbers; libraries have no fused form for 512. Where one canvas has too few tiles to fill a GPU, the keys of
a tile are shared by two programs, and a second launch joins what they found. The twin is
`model/kernels.py::attend_eager`, span by span.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import torch
import triton
import triton.language as tl

from redraft.model.gpu.tiles import HOPPER, is_compute_10, shared_memory
from redraft.model.rows import SpanTables
from redraft.shapes import Float, Tensor

_PROGRAMS = 128  # about one for each multiprocessor of a large GPU
_SLOTS = 4  # heads of rows that a program joins


@dataclass(frozen=True)
class AttentionTile:
    """Rows and keys of a tile, warps, stages of loading, and the programs that share a tile's keys."""

    rows: int
    keys: int
    warps: int = 8
    stages: int = 2
    splits: int = 1


@triton.jit
@no_type_check
def _attend(
    q, out, spans, seen, buffers, heads, found, reached, slots,
    GROUP: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one key head of one span, over all of the keys that it sees or over one of SPLITS shares,
    whose weighted sum goes to `found` [SPLITS, slots, DIM], and its largest score, in base 2, and sum of weights to
    `reached` [SPLITS, slots, 2]; a slot is a head of a row."""
    span, split = tl.program_id(2) // SPLITS, tl.program_id(2) % SPLITS
    rows = tl.load(spans + 2 * span + 1).to(tl.int32)
    if tl.program_id(0) * BLOCK_ROWS >= rows * GROUP:
        return
    to = tl.pointer_type(q.dtype.element_ty)
    k = tl.multiple_of(tl.load(buffers + 4 * span).to(to), 16)
    v = tl.multiple_of(tl.load(buffers + 4 * span + 1).to(to), 16)
    kv = tl.program_id(1)
    apart, origin = tl.multiple_of(tl.load(buffers + 4 * span + 2), 16), tl.load(buffers + 4 * span + 3)
    k, v = k + kv.to(tl.int64) * apart, v + kv.to(tl.int64) * apart
    one = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    inside = one < rows * GROUP
    row, head = tl.load(spans + 2 * span).to(tl.int32) + one // GROUP, kv * GROUP + one % GROUP
    dims = tl.arange(0, DIM)
    at = (row * heads + head)[:, None] * DIM + dims[None, :]
    queries = tl.load(q + at, mask=inside[:, None], other=0.0)
    # Places in the buffers and heads of rows are 32-bit numbers, which take half the registers.
    first = tl.where(inside, tl.load(seen + 2 * row, mask=inside, other=0) - origin, 1 << 30).to(tl.int32)
    behind = tl.where(inside, tl.load(seen + 2 * row + 1, mask=inside, other=0) - origin, 0).to(tl.int32)
    largest = tl.full((BLOCK_ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_ROWS,), dtype=tl.float32)
    mixed = tl.zeros((BLOCK_ROWS, DIM), dtype=tl.float32)
    begin, last = tl.min(first, axis=0) // BLOCK_KEYS * BLOCK_KEYS, tl.max(behind, axis=0)
    end = last
    if SPLITS > 1:
        share = tl.cdiv(tl.cdiv(last - begin, BLOCK_KEYS), SPLITS) * BLOCK_KEYS
        begin += split * share
        end = tl.minimum(last, begin + share)
    for start in range(begin, end, BLOCK_KEYS):
        key = start + tl.arange(0, BLOCK_KEYS)
        visible = (key[None, :] >= first[:, None]) & (key[None, :] < behind[:, None])
        there = key < last
        part = tl.load(k + key[:, None] * DIM + dims[None, :], mask=there[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(part), input_precision="ieee") * 1.4426950408889634
        scores = tl.where(visible, scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1))
        # A row that has seen no key yet has no largest score: use any finite number.
        safe = tl.where(new == float("-inf"), 0.0, new)
        kept, e = tl.exp2(largest - safe), tl.exp2(scores - safe[:, None])
        total = kept * total + tl.sum(e, axis=1)
        values = tl.load(v + key[:, None] * DIM + dims[None, :], mask=there[:, None], other=0.0)
        mixed = tl.dot(e.to(values.dtype), values, kept[:, None] * mixed, input_precision="ieee")
        largest = new
    if SPLITS > 1:
        # Read again, so that no address is kept through the loop: there is no register for one.
        row = tl.load(spans + 2 * span, volatile=True).to(tl.int32) + one // GROUP
        before, slot = split.to(tl.int64) * slots, row * heads + head
        tl.store(found + before * DIM + slot[:, None] * DIM + dims[None, :], mixed, mask=inside[:, None])
        tl.store(reached + 2 * before + 2 * slot, largest, mask=inside)
        tl.store(reached + 2 * before + 2 * slot + 1, total, mask=inside)
    else:
        mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out + at, mixed.to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit
@no_type_check
def _join(found, reached, out, slots, SPLITS: tl.constexpr, DIM: tl.constexpr, SLOTS: tl.constexpr):
    """Some slots: what their shares found, weighted by how far each has reached."""
    slot = tl.program_id(0).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)
    inside, dims = slot < slots, tl.arange(0, DIM)
    largest = tl.full((SLOTS,), float("-inf"), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        at = split * slots + slot
        largest = tl.maximum(largest, tl.load(reached + 2 * at, mask=inside, other=float("-inf")))
    safe = tl.where(largest == float("-inf"), 0.0, largest)
    total = tl.zeros((SLOTS,), dtype=tl.float32)
    mixed = tl.zeros((SLOTS, DIM), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        at = split * slots + slot
        kept = tl.exp2(tl.load(reached + 2 * at, mask=inside, other=float("-inf")) - safe)
        total += kept * tl.load(reached + 2 * at + 1, mask=inside, other=0.0)
        part = tl.load(found + at[:, None] * DIM + dims[None, :], mask=inside[:, None], other=0.0)
        mixed += kept[:, None] * part
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + slot[:, None] * DIM + dims[None, :], mixed.to(out.dtype.element_ty), mask=inside[:, None])


def attend_spans(
    q: Float[Tensor, "rows heads head_dim"],
    tables: SpanTables,
    index: int,
    kv_heads: int,
    tile: AttentionTile | None = None,
) -> Float[Tensor, "rows heads head_dim"]:
    """Attention of every row over the keys that it sees in layer `index`; its own keys have been placed."""
    rows, heads, dim = q.shape
    out, group, slots = torch.empty_like(q), heads // kv_heads, rows * heads
    tile = tile or attention_tile(q)
    found = reached = out  # which nothing is written to, nor read from, where keys are not shared
    if tile.splits > 1:
        found, reached = (q.new_empty(tile.splits, slots, size, dtype=torch.float32) for size in (dim, 2))
    _attend[(triton.cdiv(tables.most_rows * group, tile.rows), kv_heads, tile.splits * len(tables.spans))](
        *(q, out, tables.spans, tables.seen[tables.kinds[index]], tables.buffers[index], heads, found, reached, slots),
        GROUP=group,
        DIM=dim,
        SPLITS=tile.splits,
        BLOCK_ROWS=tile.rows,
        BLOCK_KEYS=tile.keys,
        num_warps=tile.warps,
        num_stages=tile.stages,
        maxnreg=255,  # otherwise the compiler for 8.0 uses half as many, and spills
    )
    if tile.splits > 1:
        _join[(triton.cdiv(slots, _SLOTS),)](found, reached, out, slots, SPLITS=tile.splits, DIM=dim, SLOTS=_SLOTS)
    return out


def attention_tile(q: Float[Tensor, "rows heads head_dim"]) -> AttentionTile:
    """The tile for all rows of a forward.

    On Hopper the tiles that were fastest on an H200 (record `tiles`): at least 64 rows, the least that its matrix units
    take. One canvas has 64 such tiles, so their keys are split.

    Other GPUs have smaller tiles, which no card has timed: those with less shared memory also have smaller matrix
    units, and compute 10.0 has registers for none larger. Where 32 keys leave no room to load ahead, as heads of 512 do
    in the 99 KB of compute 8.6, 8.9 and 12.0, a tile has 16. Half as many rows would read every key twice as often.
    """
    rows, heads, dim = q.shape
    size, memory = q.element_size(), shared_memory(q.device)
    row, many = dim * size, rows * heads >= 128 * _PROGRAMS
    if size == 2 and row <= 1024 and memory >= HOPPER and not is_compute_10():
        splits = 2 if triton.cdiv(rows * heads, 64) < _PROGRAMS else 1
        if row > 512:
            return AttentionTile(64, 32, splits=splits)
        return AttentionTile(128, 32, stages=3) if many else AttentionTile(64, 64, 4, 3, splits)
    if many and row <= 512 and memory >= HOPPER:
        return AttentionTile(128, 32, stages=3)
    tile = 16 if row >= 1024 and q.dtype == torch.float32 else 32
    for keys in (32, 16):
        left = memory - tile * (row + (keys + 1) * size)  # the queries, and what they see of each key
        stages = min(3, 1 + max(0, left) // (2 * keys * row))  # keys and values
        if stages > 1:
            break
    return AttentionTile(tile, keys, stages=stages)
