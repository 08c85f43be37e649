"""`redraft quantize`: write a checkpoint with its matrices in fewer bits."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from redraft.cli.common import Commands, check_range, command, new_folder, print_json, show
from redraft.cli.flags import named_model, need_model
from redraft.errors import RequestError

if TYPE_CHECKING:
    from redraft.measure.evals import Evaluation
    from redraft.weights.quantize import Report

EPILOG = """plans                experts     attention   dense MLPs
  int8               int8        int8        int8
  int4, int4-g64     4 bits      int8        int8        groups of 32 or 64
  fp8                fp8         fp8         fp8
  nvfp4              nvfp4       as it is    nvfp4
  nvfp4-experts      nvfp4       as it is    as it is

Embeddings, norms, routers and the self-conditioning block stay as they are. The files have the layout of
compressed-tensors, which other engines load. One matrix is in memory at a time; an interrupted run goes on
where it stopped when the same command is given again.

examples:
  redraft quantize google/diffusiongemma-26B-A4B-it --plan int4 --out diffusiongemma-int4
  redraft quantize nano-sudoku --plan int8 --out packed --eval 200 --task records --task sudoku-4x4"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "quantize", "write a checkpoint in fewer bits", run, epilog=EPILOG)
    named_model(parser, "a checkpoint that is not quantized", default=None)
    parser.add_argument("--plan", required=True, metavar="NAME", help="which matrices in which format; see below")
    parser.add_argument("--out", type=new_folder, required=True, metavar="DIR", help="the folder to make")
    parser.add_argument("--eval", type=int, metavar="N", help="then score both on N held-out examples a task")
    parser.add_argument(
        "--task", action="append", metavar="NAME", help="a task of --eval; repeatable (default: as of redraft eval)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write, and score if asked to."""
    from redraft.tasks import names, task

    check_range("eval", arguments.eval, 1)
    if arguments.task and arguments.eval is None:
        raise RequestError(f"--task is {', '.join(arguments.task)} without --eval; say how many examples to score")
    tasks = [task(name) for name in arguments.task or names(arguments.model or "")]

    from redraft.weights.plan import find_plan
    from redraft.weights.quantize import quantize_checkpoint
    from redraft.weights.source import locate

    plan, folder = find_plan(arguments.plan), locate(need_model(arguments))
    report = quantize_checkpoint(folder, arguments.out, plan, progress=_written)
    scores: dict[str, list[Evaluation]] = {}
    if arguments.eval is not None:
        from redraft import load
        from redraft.measure.evals import evaluate

        for name, where in (("before", folder), ("after", report.folder)):
            engine = load(where)
            scores[name] = [evaluate(engine, one, arguments.eval) for one in tasks]
    if arguments.json:
        written = asdict(report) | {"folder": str(report.folder)}
        print_json(written | {name: [asdict(one) for one in found] for name, found in scores.items()})
    else:
        _show(report, scores)
    return 0


def _show(report: Report, scores: dict[str, list[Evaluation]]) -> None:
    print(f"{report.folder}: {report.bytes_after:,} bytes of weights, {report.bytes_before:,} before")
    by_part: dict[str, list[float]] = {}
    for target, error in report.errors.items():
        by_part.setdefault(target.split(".", 2)[2], []).append(error)
    for part, errors in by_part.items():
        middle = sorted(errors)[len(errors) // 2]
        print(f"{part}: relative error {middle:.2%} in the middle layer, {max(errors):.2%} in the worst")
    for before, after in zip(scores.get("before", []), scores.get("after", []), strict=True):
        print(f"{before.task}: {before.exact:.1%} exact before, {after.exact:.1%} after ({before.count} examples)")


def _written(done: int, total: int) -> None:
    show(f"written {done / 1e9:.2f} of {total / 1e9:.2f} GB ({done / total:.0%})", last=done == total)
