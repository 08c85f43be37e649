"""`redraft bench`: speed, measured beside something else in the same run, or of the engine alone."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from redraft.cli.backend import backend_of, bench_remote
from redraft.cli.common import Commands, check_range, command, loaded, note, print_json, progress, set_up
from redraft.cli.flags import backend_flags, experts_of, model_flags
from redraft.errors import RequestError, RunError

if TYPE_CHECKING:
    from redraft.measure.record import Record

PASSES = 10
EXAMPLES = 100
"""Examples a task of the dial."""

EPILOG = """Timings on a shared machine are noisy: runs are paired and medians are reported. Without a flag that
says what to measure (--scenario, --knee, --dial, --device-card), scenario one is: one request at a time.
transformers must be installed for the scenarios.

examples:
  redraft bench --record one.json
  redraft bench --scenario --record-dir records
  redraft bench --scenario together --scenario poisson --runs 5
  redraft bench --dial
  redraft bench --backend openai --base-url http://127.0.0.1:8000/v1 --prompts mine.txt
  redraft bench --device-card --model recipes/shapes/26b --device cuda --dtype bfloat16 --plan int4 --record-dir ."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "bench", "measure speed beside transformers", run, epilog=EPILOG)
    model_flags(parser, plan=True)
    parser.add_argument(
        "--scenario",
        action="append",
        nargs="?",
        const="all",
        metavar="NAME",
        help="many requests: one, together, poisson, variants, long, long-4k; repeatable; without NAME all of them",
    )
    parser.add_argument(
        "--knee", action="store_true", help="rows per forward from which more do not pay; kept for later loads"
    )
    parser.add_argument(
        "--dial",
        type=int,
        nargs="?",
        const=EXAMPLES,
        metavar="N",
        help=f"the table that an effort walks, by N examples a task; kept beside the checkpoint (default: {EXAMPLES})",
    )
    parser.add_argument("--runs", type=int, metavar="N", help=f"repetitions (default: {PASSES})")
    parser.add_argument("--rate", type=float, metavar="R", help="requests per second of the Poisson stream")
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write the record to this file")
    parser.add_argument("--record-dir", type=Path, metavar="DIR", help="also write each record there, under its name")
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE", help="with --backend: a prompt a line (default: held-out examples)"
    )
    parser.add_argument("--their-model", metavar="NAME", help="with --backend: the model's name there, of several")
    backend_flags(parser)
    _card_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, record."""
    _check(arguments)

    import msgspec

    from redraft.measure.record import write_record

    set_up(arguments.threads)
    found = []
    try:
        for record in _measure(arguments):
            found.append(msgspec.to_builtins(record))
            if not arguments.json:
                print(record, flush=True)
            if arguments.record:
                write_record(record, arguments.record)
            if arguments.record_dir:
                write_record(record, arguments.record_dir / f"{record.name}.json")
    finally:  # what was measured is printed, even if it cannot be kept
        if arguments.json and found:
            print_json(found[0] if len(found) == 1 else found)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be measured, before anything is loaded."""
    modes = [f"--{name}" for name in ("scenario", "knee") if getattr(arguments, name)]
    modes += ["--backend"] if backend_of(arguments, beside=True) is not None else []
    modes += ["--device-card"] if arguments.device_card else []
    modes += ["--dial"] if arguments.dial is not None else []
    if len(modes) > 1:
        raise RequestError(f"{' and '.join(modes)} were given together; measure one at a time")
    for name, most in (("runs", 10_000), ("dial", 100_000)):
        check_range(name, getattr(arguments, name), 1, most)
    if arguments.rate is not None and not 0.001 <= arguments.rate <= 1e6:
        raise RequestError(f"--rate is {arguments.rate}; it must be from 0.001 to 1000000 (requests per second)")
    if arguments.device not in ("auto", "cpu") and not arguments.device_card:
        raise RequestError(f"--device is {arguments.device!r}; this comparison runs on cpu")
    if arguments.record and arguments.scenario and (len(arguments.scenario) > 1 or "all" in arguments.scenario):
        raise RequestError("--record is one file and there are several records; use --record-dir")
    if arguments.scenario:
        from redraft.measure.scenario import find_scenarios

        find_scenarios(arguments.scenario)
    _check_flags(arguments, *modes)


def _check_flags(arguments: argparse.Namespace, mode: str = "") -> None:
    """Refuse a flag that the mode does not read, and a place where no record can be written."""
    from redraft.measure.record import check_place

    own = {"canvases": "--device-card", "prefixes": "--device-card", "plan": "--device-card and --knee"}
    for name, modes in own.items():
        if getattr(arguments, name) is not None and (mode or "none") not in modes:
            raise RequestError(f"--{name} goes with {modes}; leave it out")
    if arguments.adapter is not None:
        raise RequestError("--adapter was given, and what is measured are models as stored; leave it out")
    if arguments.offload is not None and mode != "--device-card":
        raise RequestError("--offload goes with --device-card; all else is measured on cpu, where experts are anyway")
    if arguments.no_graphs:
        raise RequestError("--no-graphs was given; --device-card times steps both ways, and all else runs on cpu")
    if arguments.runs is not None and mode == "--dial":
        raise RequestError("--runs was given with --dial, which runs once; give the number of examples to --dial")
    if arguments.rate is not None and {"poisson", "all"}.isdisjoint(arguments.scenario or ()):
        raise RequestError("--rate is that of the Poisson stream; it goes with --scenario poisson")
    if arguments.record:
        check_place(arguments.record)
    if arguments.record_dir:
        check_place(arguments.record_dir / "record.json")


def _measure(arguments: argparse.Namespace) -> Iterator[Record]:
    """The records of the chosen mode, each as soon as it is there."""
    from redraft.measure import throughput
    from redraft.measure.scenario import RATE, find_scenarios
    from redraft.weights.source import locate

    folder, runs = locate(arguments.model), arguments.runs or PASSES
    if (backend := backend_of(arguments, beside=True)) is not None:
        yield bench_remote(backend, arguments)
    elif arguments.device_card:
        yield _card(arguments, runs)
    elif arguments.knee:
        yield _knee(arguments, folder, runs)
    elif arguments.dial is not None:
        yield _dial(arguments, folder)
    else:
        dtype, rate = _dtype(arguments, folder), arguments.rate or RATE
        for scenario in find_scenarios(arguments.scenario or ["one"]):
            yield throughput.bench_scenario(scenario, folder, runs=runs, dtype=dtype, rate=rate, progress=progress)


def _knee(arguments: argparse.Namespace, folder: Path, runs: int) -> Record:
    from redraft.engine.knee import knee_key, write_knee
    from redraft.measure.knee import bench_knee

    plan, dtype = arguments.plan, _dtype(arguments, folder)
    record = bench_knee(folder, runs=runs, dtype=dtype, plan=plan, progress=progress)
    try:
        path = write_knee(knee_key(folder, dtype, "cpu", plan), record.figures["knee_rows"])
        note(f"kept in {path} for loads in these numbers with as many threads")
    except RunError as error:  # what has been measured is worth printing all the same
        note(str(error))
    return record


def _dial(arguments: argparse.Namespace, folder: Path) -> Record:
    from redraft.engine.dial import write_dial
    from redraft.measure.dial import bench_dial
    from redraft.operations.engine import Engine

    engine = Engine.load(arguments.model, device="cpu", dtype=arguments.dtype)
    dial, record = bench_dial(folder, engine, count=arguments.dial, progress=progress)
    note(f"kept in {write_dial(dial, folder)}; --effort walks it")
    return record


def _dtype(arguments: argparse.Namespace, folder: Path) -> str:
    """The number format by its name, for records."""
    import torch

    from redraft.config import read_config
    from redraft.weights.defaults import dtype_name, dtype_of

    if arguments.dtype != "auto":
        return str(arguments.dtype)
    return dtype_name(dtype_of("auto", folder, read_config(folder).model, torch.device("cpu")))


def _card_flags(parser: argparse.ArgumentParser) -> None:
    """What only the device card reads."""
    group = parser.add_argument_group("device card")
    group.add_argument(
        "--device-card",
        action="store_true",
        help="copying, multiplying, and steps as multiples of their floor; a folder without weights gets random ones",
    )
    group.add_argument("--canvases", metavar="N,N", help="canvases per step (default: 1,2,4,8,16)")
    group.add_argument("--prefixes", metavar="N,N", help="tokens of prefix (default: 512,2048,8192,32768,65536)")


def _card(arguments: argparse.Namespace, runs: int) -> Record:
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
    if given is None:
        return ()
    words = given.split(",")
    if not all(word.isascii() and word.isdecimal() and 0 < int(word) < 2**31 for word in words):
        raise RequestError(f"--{flag} is {given!r}; it must be numbers of at least 1 with commas between them")
    return tuple(map(int, words))
