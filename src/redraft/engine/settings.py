"""Bounds of a loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redraft.config import ModelConfig

if TYPE_CHECKING:
    from redraft.engine.request import ResolvedRequest
    from redraft.model.gemma import DiffusionGemma


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


CARD_WORK = 2**23
"""What is looked at on a card's host for schemas held from left to right in one forward (`Language.work_at`): four
canvases of 256, some 0.4 s at the worst, for which all others wait."""


def extra_rows(request: ResolvedRequest, model: DiffusionGemma, max_rows: int) -> int:
    """Rows of a forward that take as long as a step of the request's constraint, about: an edge takes a processor as
    long as a product with 1,000 parameters. A card walks automata itself. A guide's looks run on the card's host, whose
    forwards are short beside them, so they count by what the host may do in one forward."""
    config = model.config
    hidden, inner = config.hidden_size, config.intermediate_size + config.top_k_experts * config.moe_intermediate_size
    rows = request.work * 1000 // (len(config.layers) * hidden * (4 * hidden + 3 * inner))
    if model.device.type == "cpu" or request.language is None or request.language.held != "guided":
        return rows
    return max(rows, request.work * max_rows // CARD_WORK)


CALLERS_ROWS = 32
"""Rows of a caller in each forward of a processor, where several callers ask for answers of different sizes: a canvas
of 256 is in every eighth forward then. On a GPU all of them: a forward takes about as long with few rows as with
many."""

DEFAULT_LOOP = LoopConfig()
