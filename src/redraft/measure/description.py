"""What a checkpoint is and what of it fits in a memory, worked out from its config alone."""

from __future__ import annotations

from typing import Any

import torch

from redraft.config import CheckpointConfig, ModelConfig
from redraft.measure.parameters import ParameterCount
from redraft.weights.memory import GIGABYTE, footprint
from redraft.weights.plan import fitting_plans
from redraft.weights.vision import vision_parameters


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
    }


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
