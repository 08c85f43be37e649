"""`redraft inspect`: what a checkpoint is and what it needs, without loading it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redraft.cli.common import Commands, check_range, command, print_json, tame
from redraft.cli.flags import MODEL, PACKING, named_model
from redraft.errors import RequestError

if TYPE_CHECKING:
    from redraft.config import ModelConfig
    from redraft.weights.plan import Formats

MOST_REQUESTS, MOST_GIGABYTES = 10_000, 1_000_000
"""Of a ledger: more than any machine has."""
EPILOG = """examples:
  redraft inspect nano
  redraft inspect recipes/shapes/26b --memory 24      what of the released model fits, before 50 GB are fetched
  redraft inspect google/diffusiongemma-26B-A4B-it --memory 24 --memory 80
  redraft inspect recipes/shapes/26b --memory 24 --plan int4 --context 8192 --batch 4    the ledger, line by line"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "inspect", "describe a checkpoint and what fits in memory", run, epilog=EPILOG)
    named_model(parser, "a checkpoint (default: nano)")
    parser.add_argument(
        "--memory",
        type=float,
        nargs="?",
        action="append",
        metavar="GB",
        help="memory to fit into; repeatable (default: 16 24 80); with no number, the ledger of what is free here",
    )
    parser.add_argument("--context", type=int, metavar="N", help="tokens of a request in the ledger (default: 8192)")
    parser.add_argument("--batch", type=int, metavar="N", help="requests in the ledger at once (default: 1)")
    parser.add_argument("--constrained", action="store_true", help="the ledger's requests keep to a constraint")
    for flag in (*MODEL, *PACKING):
        if flag.name in ("--device", "--dtype", "--plan"):
            flag.add(parser, flag.brief or flag.full)


def run(arguments: argparse.Namespace) -> int:
    """Describe."""
    from redraft.config import read_config
    from redraft.measure.description import describe
    from redraft.measure.parameters import count_parameters, stored_bytes
    from redraft.weights.gguf import open_source
    from redraft.weights.source import WeightSource, has_weights, locate

    given = arguments.memory or []
    sizes = [size for size in given if size is not None] or [16.0, 24.0, 80.0]
    for size in sizes:
        if not 0 < size <= MOST_GIGABYTES:
            raise RequestError(f"--memory is {size}; it must be above 0 and at most {MOST_GIGABYTES} (gigabytes)")
    folder = locate(arguments.model)
    config = read_config(folder)
    disk: dict[str, int] | None = None
    if has_weights(folder):
        disk = stored_bytes((stored.dtype, math.prod(stored.shape)) for stored in WeightSource(folder).tensors.values())
    elif blocks := sorted(folder.glob("*.gguf")):
        open_source(folder)  # which says of a file that it is cut
        disk = {"GGUF": sum(path.stat().st_size for path in blocks)}
    found = describe(config, count_parameters(config.model), disk, sizes)
    asked = (arguments.context, arguments.batch, arguments.plan)
    if None in given or arguments.constrained or any(one is not None for one in asked):
        found["ledger"] = _ledger(arguments, folder, config.model, None if None in given else sizes[0])
    if arguments.json:
        print_json(found)
    else:
        for key, value in found.items():
            tables: dict[str, Callable[[Any], Iterator[str]]] = {"fits": _table, "ledger": _book, "floors": _floors}
            if key in tables:
                print("\n".join(tables[key](value)), end="\n" if value else "")
            else:
                print(f"{key.replace('_', ' ')}: {tame(_plain(value))}")
    return 0


def _ledger(arguments: argparse.Namespace, folder: Path, model: ModelConfig, size: float | None) -> dict[str, Any]:
    """The ledger of the model on a device, or in `size` GB of one."""
    from redraft.measure.description import book
    from redraft.weights.defaults import device_of, dtype_of
    from redraft.weights.gguf import open_source
    from redraft.weights.layouts import read_layout
    from redraft.weights.load import read_settings
    from redraft.weights.memory import free_memory
    from redraft.weights.names import slots
    from redraft.weights.plan import find_plan, formats
    from redraft.weights.source import has_weights

    for name, most in (("context", 2**40), ("batch", MOST_REQUESTS)):
        check_range(name, getattr(arguments, name), 1, most)
    device = device_of(arguments.device)
    stored = has_weights(folder)
    packed: Formats = {}
    if stored or any(folder.glob("*.gguf")):
        source, wanted = open_source(folder), slots(model)
        packed = read_layout(source.tensors, wanted, read_settings(folder)).formats or source.kept(wanted)
    if arguments.plan is not None:
        packed = formats(model, find_plan(arguments.plan))
    auto = arguments.dtype == "auto" and not stored
    dtype = dtype_of("bfloat16" if auto else arguments.dtype, folder, model, device)
    memory = free_memory(device) if size is None else int(size * 1e9)
    graphs = device.type == "cuda" or (size is not None and arguments.device == "auto")  # a card that is elsewhere
    context = min(model.max_positions, 8192 if arguments.context is None else arguments.context)
    requests = (arguments.batch or 1, context, arguments.constrained)
    return book(model, dtype, packed, memory, requests, graphs=graphs)


def _floors(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The floors, for people: a line for each card."""
    if rows:
        yield "floors: least ms of a step of one canvas (computed), 84 of 128 experts touched / all of them"
    for card in dict.fromkeys(row["card"] for row in rows):
        own = [f"{row['numbers']} {row['ms_84_of_128']} / {row['ms_all']}" for row in rows if row["card"] == card]
        yield f"  {card}: {', '.join(own)}"


def _book(found: dict[str, Any]) -> Iterator[str]:
    """The ledger, for people."""
    memory = found["memory"]
    room = "an unknown amount" if memory is None else f"{memory / 1e9:.4g} GB"
    yield f"ledger: {found['requests']} of {found['context']:,} tokens, in {room}"
    for use, size in found["bytes"].items():
        yield f"  {use:<14}{size / 1e9:>9.4f} GB"
    yield f"  {found['verdict']}"


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
