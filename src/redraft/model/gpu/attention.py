"""Attention of all spans of a forward in one launch, on a GPU, without a mask in memory.

Two numbers define the keys that a row sees: the first key and the key after the last (`model/rows.py::SpanTables`). So
prompts, commits and canvases of many sequences share the launch, and buffers with fixed addresses can be used in a
graph. The query heads that share a key head are rows of one tile: every key is read once for all of them. Heads have
256 or 512 numbers; libraries have no fused form for 512. The twin is `model/kernels.py::attend_eager`, span by span.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from redraft.model.gpu.tiles import HOPPER, shared_memory
from redraft.model.rows import SpanTables
from redraft.shapes import Float, Tensor

_PROGRAMS = 128  # about one for each multiprocessor of a large GPU


@triton.jit
@no_type_check
def _attend(
    q, out, spans, seen, buffers, heads,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one key head of one span."""
    span = tl.program_id(2)
    rows = tl.load(spans + 2 * span + 1)
    if tl.program_id(0) * BLOCK_ROWS >= rows * GROUP:
        return
    to = tl.pointer_type(q.dtype.element_ty)
    k = tl.multiple_of(tl.load(buffers + 4 * span).to(to), 16)
    v = tl.multiple_of(tl.load(buffers + 4 * span + 1).to(to), 16)
    kv = tl.program_id(1).to(tl.int64)
    apart, origin = tl.multiple_of(tl.load(buffers + 4 * span + 2), 16), tl.load(buffers + 4 * span + 3)
    k += kv * apart
    v += kv * apart
    one = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    inside = one < rows * GROUP
    row, head = tl.load(spans + 2 * span) + one // GROUP, kv * GROUP + one % GROUP
    dims = tl.arange(0, DIM)
    at = (row * heads + head)[:, None] * DIM + dims[None, :]
    queries = tl.load(q + at, mask=inside[:, None], other=0.0)
    first = tl.load(seen + 2 * row, mask=inside, other=1 << 40) - origin
    behind = tl.load(seen + 2 * row + 1, mask=inside, other=0) - origin
    largest = tl.full((BLOCK_ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_ROWS,), dtype=tl.float32)
    mixed = tl.zeros((BLOCK_ROWS, DIM), dtype=tl.float32)
    begin = tl.min(first, axis=0) // BLOCK_KEYS * BLOCK_KEYS
    for start in range(begin.to(tl.int32), tl.max(behind, axis=0).to(tl.int32), BLOCK_KEYS):
        key = start + tl.arange(0, BLOCK_KEYS)
        visible = (key[None, :] >= first[:, None]) & (key[None, :] < behind[:, None])
        there = key < tl.max(behind, axis=0)
        part = tl.load(k + key[:, None] * DIM + dims[None, :], mask=there[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(part), input_precision="ieee")
        scores = tl.where(visible, scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1))
        # A row that has seen no key yet has no largest score: use any finite number.
        safe = tl.where(new == float("-inf"), 0.0, new)
        kept, e = tl.exp(largest - safe), tl.exp(scores - safe[:, None])
        total = kept * total + tl.sum(e, axis=1)
        values = tl.load(v + key[:, None] * DIM + dims[None, :], mask=there[:, None], other=0.0)
        mixed = kept[:, None] * mixed + tl.dot(e.to(values.dtype), values, input_precision="ieee")
        largest = new
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + at, mixed.to(out.dtype.element_ty), mask=inside[:, None])


def attend_spans(
    q: Float[Tensor, "rows heads head_dim"], tables: SpanTables, index: int, kv_heads: int
) -> Float[Tensor, "rows heads head_dim"]:
    """Attention of every row over the keys that it sees in layer `index`; its own keys have been placed."""
    _, heads, dim = q.shape
    out, group = torch.empty_like(q), heads // kv_heads
    tile_rows, keys, stages = _tile(q)
    _attend[(triton.cdiv(tables.most_rows * group, tile_rows), kv_heads, len(tables.spans))](
        *(q, out, tables.spans, tables.seen[tables.kinds[index]], tables.buffers[index], heads),
        GROUP=group,
        DIM=dim,
        BLOCK_ROWS=tile_rows,
        BLOCK_KEYS=keys,
        num_warps=8,
        num_stages=stages,
        maxnreg=255,  # otherwise the compiler for 8.0 uses half as many, and spills
    )
    return out


def _tile(q: Float[Tensor, "rows heads head_dim"]) -> tuple[int, int, int]:
    """Rows and keys of a tile, and stages of loading, for the shared memory of a program; with eight warps nothing
    spills.

    Tiles of 128 rows use the matrix units best. But with heads of 512 they do not fit into registers, and for one
    canvas they would leave most of a GPU idle. GPUs with less shared memory than HOPPER also have smaller matrix units.

    Where 32 keys leave no room to load ahead, as heads of 512 do in the 99 KB of compute 8.6, 8.9 and 12.0, a tile has
    16. Half as many rows would read every key twice as often.
    """
    rows, heads, dim = q.shape
    size, memory = q.element_size(), shared_memory(q.device)
    row = dim * size
    if rows * heads >= 128 * _PROGRAMS and row <= 512 and memory >= HOPPER:
        return 128, 32, 3
    tile = 16 if row >= 1024 and q.dtype == torch.float32 else 32
    for keys in (32, 16):
        left = memory - tile * (row + (keys + 1) * size)  # the queries, and what they see of each key
        stages = min(3, 1 + max(0, left) // (2 * keys * row))  # keys and values
        if stages > 1:
            break
    return tile, keys, stages
