"""`redraft inspect`: what a checkpoint is and what it needs, without loading it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Any

from redraft.cli.common import Commands, command, print_json
from redraft.cli.flags import named_model

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
    from redraft.measure.description import describe
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
