"""What a checkpoint is and what of it fits in a memory, worked out from its config alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from redraft.config import CheckpointConfig, ModelConfig
from redraft.engine.memory import Demand, Ledger
from redraft.measure.parameters import ParameterCount
from redraft.measure.roofline import CARDS, OF_EXPERTS, TOUCHED, step_work
from redraft.weights.memory import GIGABYTE, footprint
from redraft.weights.plan import Formats, fitting_plans
from redraft.weights.vision import vision_parameters

SHOWN = ("bfloat16", "int8", "int4", "fp8", "nvfp4")
"""Number formats whose floors are worked out: the others differ from these by little."""


def describe(
    config: CheckpointConfig, count: ParameterCount, disk: dict[str, int] | None, sizes: list[float]
) -> dict[str, Any]:
    """Everything the command prints, by name. Bytes are bytes, GB are 10^9 of them; no `disk`: there are no weights."""
    model = config.model
    full = sum(layer.is_full for layer in model.layers)
    return {
        "architecture": f"{len(model.layers)} layers ({full} full, {len(model.layers) - full} sliding of window "
        f"{model.window}), width {model.hidden_size}, {model.num_heads} heads, "
        f"{model.num_experts} experts of which {model.top_k_experts} per row, vocabulary {model.vocab_size}, "
        f"canvas {model.canvas_length}, context {model.max_positions}",
        "parameters_total": count.total,
        "parameters_active": count.active,
        "parameters_by_group": count.groups,
        "parameters_of_vision_tower": vision_parameters(model),
        "stored_bytes": "unknown: the folder has no weights" if disk is None else disk,
        "cache_bytes_per_token": count.cache_growth,
        "cache_bytes_sliding_most": count.cache_window,
        "unknown_config_keys": list(config.unknown_keys),
        "fits": fits(model, sizes),
        "floors": list(floors(model)) if model.num_experts == OF_EXPERTS else [],
    }


def floors(model: ModelConfig) -> Iterator[dict[str, Any]]:
    """The least milliseconds of a step of one canvas behind 2,048 tokens on cards that the weights fit on (computed):
    with as many experts as real text touches, and with all."""
    for card in CARDS:
        for name, packed in [("bfloat16", {}), *fitting_plans(model)]:
            if name not in SHOWN:
                continue
            eight = any(form.is_float for form in packed.values()) and card.fp8 is None
            if eight or footprint(model, torch.bfloat16, packed).longest_context(card.memory) is None:
                continue
            works = [step_work(model, torch.bfloat16, packed, touched=share) for share in (TOUCHED / OF_EXPERTS, 1.0)]
            touched, whole = (work.seconds(card) * 1e3 for work in works)
            yield {"card": card.name, "numbers": name, "ms_84_of_128": round(touched, 2), "ms_all": round(whole, 2)}


def book(
    config: ModelConfig,
    dtype: torch.dtype,
    packed: Formats,
    memory: int | None,
    requests: tuple[int, int, bool],
    *,
    graphs: bool,
) -> dict[str, Any]:
    """The ledger of a model that is not loaded, with (number, tokens of context, constrained) requests at once.

    Bytes by use, their sum, and in words whether that fits and what would.
    """
    need = footprint(config, dtype, packed)
    ledger = Ledger(config, dtype, need, memory=memory, max_rows=requests[0] * config.canvas_length, graphs=graphs)
    alone = config.canvas_length if requests[2] else 0
    demand = Demand(ledger.cache(requests[1]), ledger.logits(alone), ledger.reading(alone))
    for number in range(requests[0]):
        ledger.enter(number, demand)
    found = {use: size for use, size in ledger.lines(0) if size or use == "weights"}
    total = sum(found.values())
    verdict = f"together {total / GIGABYTE:.4g} GB"
    if memory is not None:
        left = memory - total
        short = f": {-left / GIGABYTE:.4g} GB short"
        verdict += f"; {left / GIGABYTE:.4g} GB are left" if left >= 0 else short
        most = ledger.longest(max(0, memory - ledger.fixed - demand.reading))
        verdict += f"; one request fits with {min(most, config.max_positions):,} tokens"
    kind = f"{requests[0]} constrained requests" if requests[2] else f"{requests[0]} requests"
    return {"memory": memory, "requests": kind, "context": requests[1], "bytes": found, "verdict": verdict}


def fits(model: ModelConfig, sizes: list[float]) -> list[dict[str, Any]]:
    """What fits in each memory, a row for plain numbers of both dtypes and for each plan beside bfloat16.

    `most` has for each memory the longest context of one request, and how many requests of `tokens` each fit at once.
    """
    needs = {name: footprint(model, getattr(torch, name), {}) for name in ("float32", "bfloat16")}
    needs |= {name: footprint(model, torch.bfloat16, packed) for name, packed in fitting_plans(model)}
    found = []
    for name, need in needs.items():
        each, most = min(8192, need.most), {}
        for size in sizes:
            room = int(size * GIGABYTE)
            context = need.longest_context(room) or 0
            most[f"{size:g} GB"] = {"context": context, "contexts": need.most_canvases(room, each) if context else 0}
        found.append({"numbers": name, "weights_gb": need.fixed / GIGABYTE, "tokens": each, "most": most})
    return found
