"""Which tile a part of a model runs in, asked of the functions that choose it, so that each can be tried once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from redraft.model.attention import Attention
from redraft.model.gemma import DiffusionGemma
from redraft.model.gpu.attention import attention_tile
from redraft.model.gpu.dense import dense_tile
from redraft.model.gpu.experts import experts_tiles
from redraft.model.linear import PackedLinear
from redraft.model.moe import AnyExperts

Part = PackedLinear | Attention | AnyExperts


def with_other_tiles(model: DiffusionGemma, part: Part, usual: Sequence[int], canvases: int) -> Sequence[int]:
    """`usual` row counts, and one for every other tile of a part in forwards of up to so many canvases: of whole ones
    where that has the tile, for the compiler treats multiples of 16 apart, and batches are such."""
    found, canvas, tile_of = list(usual), model.config.canvas_length, _chooser(model, part)
    tiles, most = set(map(tile_of, usual)), canvases * canvas
    for rows in (*range(canvas, most + 1, canvas), *range(1, most)):
        if (tile := tile_of(rows)) not in tiles:
            tiles.add(tile)
            found.append(rows)
    return found


def _chooser(model: DiffusionGemma, part: Part) -> Callable[[int], object]:
    """Rows of a forward ─► tile."""
    if isinstance(part, PackedLinear):
        return partial(dense_tile, part.packed)
    if isinstance(part, Attention):
        q = torch.empty(1, part.heads, part.layer.head_dim, dtype=model.dtype, device=model.device)
        return lambda rows: attention_tile(q.expand(rows, -1, -1))
    gate_up, top = part.gate_up, model.config.top_k_experts
    return lambda rows: experts_tiles(gate_up, rows * top / gate_up.shape[0], model.dtype)
