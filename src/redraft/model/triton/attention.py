"""Attention of a span over its prefix and itself, on a GPU, without a mask in memory.

A canvas sees every key it is handed; an encoded span sees keys up to its own, in a window or not: two numbers say it.
The query heads that share a key head are rows of the same tile, so every key is read once for all of them. Heads are of
256 or 512, and of the larger size libraries have no fused form. The twin is `model/kernels.py::attend_eager`.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from redraft.model.kernels import Causal, attend_fused
from redraft.model.triton.tiles import shared_memory
from redraft.shapes import Float, Int, Tensor

_BLOCK_KEYS = 32
_PROGRAMS = 128  # about one for each multiprocessor of a large GPU
_HOPPER = 227 * 1024  # bytes of shared memory; what has less has smaller matrix units, too


# What changes from step to step is no reason to compile anew.
@triton.jit(do_not_specialize=["rows", "keys", "window"], do_not_specialize_on_alignment=["extent"])
@no_type_check
def _attend(
    q, k, v, out, rows, heads, keys, window, extent, k_head, k_key, v_head, v_key,
    GROUP: tl.constexpr, DIM: tl.constexpr, CAUSAL: tl.constexpr, STANDING: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one key head. Key `keys - rows + i` stands at the place of row i.

    Where memory stands still, `extent` says which part of the buffers is read, from its first row to its last.
    """
    if STANDING:
        first = tl.load(extent)
        keys = tl.load(extent + 1) - first
        k += first * k_key
        v += first * v_key
    kv = tl.program_id(1).to(tl.int64)
    one = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    row, head = one // GROUP, kv * GROUP + one % GROUP
    inside = row < rows
    dims = tl.arange(0, DIM)
    at = (row * heads + head)[:, None] * DIM + dims[None, :]
    queries = tl.load(q + at, mask=inside[:, None], other=0.0)
    place = keys - rows + row
    largest = tl.full((BLOCK_ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_ROWS,), dtype=tl.float32)
    mixed = tl.zeros((BLOCK_ROWS, DIM), dtype=tl.float32)
    begin, end = 0, keys
    if CAUSAL:  # what the tile's first row no longer sees, and what its last one does not see yet
        early = keys - rows + tl.program_id(0) * BLOCK_ROWS // GROUP
        begin = tl.maximum(early - window + 1, 0) // BLOCK_KEYS * BLOCK_KEYS
        end = tl.minimum(early + (BLOCK_ROWS + GROUP - 1) // GROUP + 1, keys)
    for start in range(begin, end, BLOCK_KEYS):
        key = start + tl.arange(0, BLOCK_KEYS)
        there = key < keys
        part = tl.load(k + kv * k_head + key[:, None] * k_key + dims[None, :], mask=there[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(part), input_precision="ieee")
        seen = there[None, :] & inside[:, None]
        if CAUSAL:
            seen = seen & (key[None, :] <= place[:, None]) & (key[None, :] > place[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1))
        # A row that has seen no key yet has no largest score; any finite number does instead.
        safe = tl.where(new == float("-inf"), 0.0, new)
        kept, e = tl.exp(largest - safe), tl.exp(scores - safe[:, None])
        total = kept * total + tl.sum(e, axis=1)
        values = tl.load(v + kv * v_head + key[:, None] * v_key + dims[None, :], mask=there[:, None], other=0.0)
        mixed = kept[:, None] * mixed + tl.dot(e.to(values.dtype), values, input_precision="ieee")
        largest = new
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + at, mixed.to(out.dtype.element_ty), mask=inside[:, None])


def attend_kernel(q: Tensor, k: Tensor, v: Tensor, causal: Causal | None) -> Tensor:
    """The form of `model/kernels.py::Attend` for a GPU. Rows of images, rare and seen once, go by the mask."""
    if causal is not None and causal.images:
        return attend_fused(q, k, v, causal)
    window = None if causal is None else causal.window
    return _launch(q, k, v, None, is_causal=causal is not None, window=window)


def attend_standing(
    q: Float[Tensor, "rows heads head_dim"],
    k: Float[Tensor, "kv_heads room head_dim"],
    v: Float[Tensor, "kv_heads room head_dim"],
    seen: Int[Tensor, "2"],
) -> Float[Tensor, "rows heads head_dim"]:
    """A canvas over the part `seen[0]` to `seen[1]` of whole buffers, which the host need not know to launch it."""
    return _launch(q, k, v, seen, is_causal=False, window=None)


def _launch(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, *, is_causal: bool, window: int | None) -> Tensor:
    rows, heads, dim = q.shape
    keys, group = k.shape[1], heads // k.shape[0]
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    tile_rows, stages = _tile(q)
    _attend[(triton.cdiv(rows * group, tile_rows), k.shape[0])](
        *(q.contiguous(), k, v, out, rows, heads, keys, window or keys + 1, q if seen is None else seen),
        *(k.stride(0), k.stride(1), v.stride(0), v.stride(1)),
        GROUP=group,
        DIM=dim,
        CAUSAL=is_causal,
        STANDING=seen is not None,
        BLOCK_ROWS=tile_rows,
        BLOCK_KEYS=_BLOCK_KEYS,
        num_warps=8,
        num_stages=stages,
    )
    return out


def _tile(q: Float[Tensor, "rows heads head_dim"]) -> tuple[int, int]:
    """Rows of a tile and stages of loading, for the memory that a program may have; with eight warps nothing spills.

    Tiles of 128 rows have the matrix units to themselves, but of heads of 512 they do not fit into registers, and of
    one canvas they would leave most of a GPU idle.
    """
    rows, heads, dim = q.shape
    row, memory = dim * q.element_size(), shared_memory(q.device)
    if rows * heads >= 128 * _PROGRAMS and row <= 512 and memory >= _HOPPER:
        return 128, 3
    tile = 16 if row >= 1024 and q.dtype == torch.float32 else 32
    left = memory - tile * (row + (_BLOCK_KEYS + 1) * q.element_size())  # the queries, and what they see of each key
    return tile, min(3, 1 + max(0, left) // (2 * _BLOCK_KEYS * row))  # keys and values
