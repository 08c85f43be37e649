"""`redraft inspect`: what a checkpoint is and what it needs, without loading it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from redraft.cli.common import Commands, command, print_json
from redraft.cli.flags import named_model

if TYPE_CHECKING:
    from redraft.config import CheckpointConfig, ModelConfig
    from redraft.measure.parameters import ParameterCount

EPILOG = """examples:
  redraft inspect nano
  redraft inspect recipes/shapes/26b --memory 24      what of the released model fits, before 50 GB are fetched
  redraft inspect google/diffusiongemma-26B-A4B-it --memory 24 --memory 80"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "inspect", "describe a checkpoint and what fits in memory", run, epilog=EPILOG)
    named_model(parser, "a checkpoint (default: nano)")
    parser.add_argument(
        "--memory", type=float, action="append", metavar="GB", help="memory to fit into; repeatable (default: 16 24 80)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Describe."""
    from redraft.config import read_config
    from redraft.errors import RequestError
    from redraft.measure.parameters import count_parameters, stored_bytes
    from redraft.weights.source import Source, has_weights, locate

    sizes = arguments.memory or [16.0, 24.0, 80.0]
    for size in sizes:
        if not 0 < size < math.inf:
            raise RequestError(f"--memory is {size}; it must be a number above 0 (gigabytes)")
    folder = locate(arguments.model)
    config = read_config(folder)
    disk: dict[str, int] | None = None
    if has_weights(folder):
        disk = stored_bytes((stored.dtype, math.prod(stored.shape)) for stored in Source(folder).tensors.values())
    found = describe(config, count_parameters(config.model), disk, sizes)
    if arguments.json:
        print_json(found)
    else:
        for key, value in found.items():
            print("\n".join(_table(value)) if key == "fits" else f"{key.replace('_', ' ')}: {_plain(value)}")
    return 0


def describe(
    config: CheckpointConfig, count: ParameterCount, disk: dict[str, int] | None, sizes: list[float]
) -> dict[str, Any]:
    """Everything the command prints, by name. Bytes are bytes, GB are 10^9 of them; no `disk`: there are no weights."""
    from redraft.weights.vision import vision_parameters

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
    import torch

    from redraft.weights.memory import GIGABYTE, footprint
    from redraft.weights.plan import fitting_plans

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


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Rows of `fits`, for people."""
    each, sizes = rows[0]["tokens"], list(rows[0]["most"])
    yield f"fits: the longest context / how many contexts of {each:,} tokens; - where the weights leave no room"
    yield f"  {'numbers':<16}{'weights':>12}" + "".join(f"{size:>20}" for size in sizes)
    for row in rows:
        most = [f"{one['context']:,} / {one['contexts']:,}" if one["context"] else "-" for one in row["most"].values()]
        yield f"  {row['numbers']:<16}{row['weights_gb']:>9.3g} GB" + "".join(f"{one:>20}" for one in most)


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
