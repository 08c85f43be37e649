"""`redraft bench --device-card`: what this device can do, and how near a step on it comes to that."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from redraft.cli.common import loaded, note
from redraft.cli.flags import experts_of

if TYPE_CHECKING:
    from redraft.measure.record import Record


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What only the device card reads."""
    group = parser.add_argument_group("device card")
    group.add_argument(
        "--device-card",
        action="store_true",
        help="copying, multiplying, and steps as multiples of their floor; a folder without weights gets random ones",
    )
    group.add_argument("--canvases", metavar="N,N", help="canvases per step (default: 1,2,4,8,16)")
    group.add_argument("--prefixes", metavar="N,N", help="tokens of prefix (default: 512,2048,8192,32768,65536)")


def take_card(arguments: argparse.Namespace, runs: int, progress: Callable[[str, int, int], None]) -> Record:
    """Measure the card of the flags."""
    from redraft.config import read_config
    from redraft.measure.device import CANVASES, PREFIXES, device_card
    from redraft.model.fused import fuse_layers
    from redraft.weights.defaults import device_of, dtype_of, kernels_of
    from redraft.weights.load import check_usable, load_model
    from redraft.weights.place import Placement, place_experts
    from redraft.weights.plan import find_plan, formats
    from redraft.weights.source import has_weights, locate

    folder, device = locate(arguments.model), device_of(arguments.device)
    plan, kernels = None if arguments.plan is None else find_plan(arguments.plan), kernels_of(device, note)
    config = read_config(folder).model
    random = arguments.dtype == "auto" and not has_weights(folder)
    dtype = dtype_of("bfloat16" if random else arguments.dtype, folder, config, device)
    placement = place_experts(experts_of(arguments), device)
    model = None
    if has_weights(folder):
        model = load_model(
            folder,
            dtype=dtype,
            device=device,
            kernels=kernels,
            plan=plan,
            placement=placement,
            report=note,
            progress=loaded,
        )[0]
        model = fuse_layers(model) if placement is Placement.DEVICE else model
    else:
        check_usable(config, dtype, formats(config, plan), device, note, placement)
    return device_card(
        config,
        name=folder.name,
        device=device,
        dtype=dtype,
        plan=plan,
        kernels=kernels,
        placement=placement,
        model=model,
        canvases=_numbers("canvases", arguments.canvases) or CANVASES,
        prefixes=_numbers("prefixes", arguments.prefixes) or PREFIXES,
        runs=runs,
        progress=progress,
    )


def _numbers(flag: str, given: str | None) -> tuple[int, ...]:
    from redraft.errors import RequestError

    if given is None:
        return ()
    words = given.split(",")
    if not all(word.isascii() and word.isdecimal() and 0 < int(word) < 2**31 for word in words):
        raise RequestError(f"--{flag} is {given!r}; it must be numbers of at least 1 with commas between them")
    return tuple(map(int, words))
