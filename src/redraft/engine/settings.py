"""Bounds of a loop."""

from __future__ import annotations

import math
from dataclasses import dataclass

from redraft.config import ModelConfig


@dataclass(frozen=True)
class LoopConfig:
    """Bounds: rows per forward, requests at a time, requests in the queue, bytes of kept prefixes, bytes in all.

    `max_rows` None is what `redraft bench --knee` measured for the checkpoint on this machine where `load` finds it
    (engine/knee.py), else `default_rows`. `prefix_bytes` None is room for a prompt of a few thousand tokens
    (engine/prefixes.py). `memory` bounds everything that the model takes on its device (engine/memory.py); None is all
    that is free there. `graphs` lets a GPU repeat the steps of up to eight canvases as one graph; None does where it
    can, and goes on without where a graph cannot be recorded.
    """

    max_rows: int | None = None
    max_running: int = 64
    max_waiting: int = 4096
    prefix_bytes: int | None = None
    graphs: bool | None = None
    memory: int | None = None


MOST_CANVASES = 12
"""Canvases in a forward where nobody has measured; `redraft bench --knee` says where more do not pay."""

FULL_ROWS = 256
"""Rows of one matrix from which a processor multiplies as fast as it can: more at a time make no row cheaper, and every
request in the forward waits for all of them (nano's knee, bench/records/knee.json)."""


def default_rows(config: ModelConfig, device: str) -> int:
    """Rows of a forward on a device where nobody has measured: on a processor as many as fill the experts.

    Of a sparse layer an expert's matrix sees k of E rows, so the 26B model (8 of 128) needs more canvases than nano (2
    of 4), which has enough of them with two.
    """
    rows = config.canvas_length
    if device != "cpu":
        return MOST_CANVASES * rows
    wanted = math.ceil(FULL_ROWS * config.num_experts / config.top_k_experts / rows)
    return min(MOST_CANVASES, max(2, wanted)) * rows


def extra_rows(work: int, config: ModelConfig) -> int:
    """Rows of a forward that take a processor as long as so much work of a constraint (`Language.work` times
    positions), about: an edge takes as long as a product with 1,000 parameters."""
    hidden, inner = config.hidden_size, config.intermediate_size + config.top_k_experts * config.moe_intermediate_size
    return work * 1000 // (len(config.layers) * hidden * (4 * hidden + 3 * inner))


CALLERS_ROWS = 32
"""Rows of a caller in each forward of a processor, where several callers ask for answers of different sizes: a canvas
of 256 is in every eighth forward then. On a GPU all of them: a forward takes about as long with few rows as with
many."""

DEFAULT_LOOP = LoopConfig()
