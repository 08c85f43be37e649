"""`redraft eval`: accuracy on a file of your own, or held-out accuracy on the built-in tasks."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from redraft.cli.backend import backend_of, evaluate_remote
from redraft.cli.common import Commands, check_range, command, load_engine, numbered_lines, print_json, progress
from redraft.cli.constraint_flags import read_schema
from redraft.cli.flags import backend_flags, model_flags, sampling_flags
from redraft.cli.fleet import fleet_of, ray_flags, wants_ray
from redraft.cli.run import served
from redraft.errors import RequestError, RunError

if TYPE_CHECKING:
    from redraft.measure.evals import Evaluation
    from redraft.text import Message

MOST_ROWS_BYTES, MOST_ROWS = 2**30, 10**6
"""Of a file of rows, which are scored from memory; blank lines count."""

EPILOG = """A task's examples are held out by construction: no training run of this repository can have seen them.
Intervals are Wilson's at 95%. An answer may have the checkpoint's max_new_tokens, or as many as its task needs.
A row of --file is what `redraft tune` reads: {"prompt": ..., "response": ...}, or {"messages": [...]} whose last
message is the right answer. An answer is exact if it is equal but for space around it, or equal as JSON.
Of rows of objects the share of every field is shown, too.

examples:
  redraft eval --model runs/orders --file held-out.jsonl
  redraft eval --model runs/orders --file held-out.jsonl --schema 'who, qty int, item'
  redraft eval --model runs/orders --file held-out.jsonl --ray --replicas 4
  redraft eval --task extract-short --count 500 --json
  redraft eval --model nano-sudoku --task sudoku-4x4 --pin --count 1000"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "eval", "score a model on held-out examples", run, epilog=EPILOG)
    model_flags(parser, plan=True)
    parser.add_argument(
        "--task", action="append", metavar="NAME", help="repeatable (default: nano's, or nano-sudoku's)"
    )
    parser.add_argument("--file", type=Path, metavar="FILE", help="score the rows of this file of JSON lines instead")
    parser.add_argument("--schema", metavar="FILE|FIELDS", help="with --file: hold every answer to this schema")
    parser.add_argument(
        "--count", type=int, metavar="N", help="examples per task (default: 500), or rows (default: all)"
    )
    parser.add_argument(
        "--pin", action="store_true", help="also answer with what is known beforehand pinned, as a Sudoku's clues"
    )
    sampling_flags(parser, only=("steps", "preset", "causal"))
    backend_flags(parser)
    parser.add_argument("--seed", type=int, default=0, help="which examples and which noise (default: 0)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write a benchmark record to this file")
    ray_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, print, record."""
    from redraft.tasks import names, task

    check_range("count", arguments.count, 1, 2**31 - 1)
    if arguments.file is not None:
        return _rows(arguments)
    if arguments.schema is not None:
        raise RequestError("--schema was given without --file; a task has a form of its own: leave it out")
    if wants_ray(arguments):
        raise RequestError("--ray was given without --file; a task is answered by the model at hand: add --file")
    arguments.count = 500 if arguments.count is None else arguments.count
    if arguments.pin and arguments.causal:
        raise RequestError("--pin and --causal were both given; a causal answer has no canvas to pin: choose one")
    chosen = [task(name) for name in arguments.task or names(arguments.model)]

    from redraft.engine.request import Options
    from redraft.engine.resolve import preset_name
    from redraft.measure.evals import evaluate, record
    from redraft.measure.record import check_place, write_record

    if arguments.record:
        check_place(arguments.record)

    if (backend := backend_of(arguments)) is not None:
        _show(evaluate_remote(backend, arguments), as_json=arguments.json)
        return 0
    engine, seed = load_engine(arguments), arguments.seed
    options = Options(steps=arguments.steps, preset=arguments.preset, causal=arguments.causal)
    if not options.causal:  # by its name, for the record
        options = replace(options, preset=preset_name(options, engine.config.generation))
    found = [
        evaluate(engine, one, arguments.count, seed=seed, options=options, pin=pin, progress=progress)
        for one in chosen
        for pin in ((False, True) if arguments.pin else (False,))
    ]
    _show(found, as_json=arguments.json)
    if arguments.record:
        taken = record(found, model=arguments.model, seed=seed, options=options, pin=arguments.pin)
        write_record(taken, arguments.record)
    return 0


def _rows(arguments: argparse.Namespace) -> int:
    """Score a file of the caller's."""
    from redraft.engine.request import Options
    from redraft.measure.evals import evaluate_rows
    from redraft.tune.sources import parse_row

    schema = None if arguments.schema is None else read_schema(arguments.schema)
    for flag in ("task", "pin", "record", "backend"):
        if getattr(arguments, flag):
            raise RequestError(
                f"--file and --{flag} were both given; a file is scored by the model at hand: choose one"
            )
    try:
        rows: list[Sequence[Message]] = []
        with arguments.file.open("rb") as file:
            for i, line in islice(_bounded(file, arguments.file), arguments.count):
                rows.append(parse_row(line, f"{arguments.file}, line {i}", arguments.file.parent).messages)
                if len(rows[-1]) < 2:
                    raise RequestError(f"--file {arguments.file} has no question in line {i}")
    except OSError as error:
        raise RequestError(f"--file {arguments.file} cannot be read: {error.strerror}") from None
    if not rows:
        raise RequestError(f"--file {arguments.file} has no rows")
    if wants_ray(arguments):
        _show([_on_ray(arguments, rows, schema)], as_json=arguments.json)
        return 0
    options = Options(steps=arguments.steps, preset=arguments.preset, causal=arguments.causal)
    how = {"seed": arguments.seed, "options": options, "schema": schema, "progress": progress}
    _show([evaluate_rows(load_engine(arguments), arguments.file.name, rows, **how)], as_json=arguments.json)
    return 0


def _bounded(file: BinaryIO, name: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, of a file or a pipe that may have no end. Raises RequestError."""
    left = MOST_ROWS_BYTES
    for number, line in numbered_lines(file, f"--file {name}"):
        left -= len(line)
        if left < 0:
            raise RequestError(f"--file {name} has over {MOST_ROWS_BYTES} bytes; score its first N rows by --count N")
        if number > MOST_ROWS:
            raise RequestError(f"--file {name} has over {MOST_ROWS} lines; score its first N rows by --count N")
        if line.strip():
            yield number, line


def _on_ray(arguments: argparse.Namespace, rows: Sequence[Sequence[Message]], schema: Any) -> Evaluation:
    """Score rows that the engines of a Ray cluster answer; the time is that of all rows together."""
    from redraft.distributed.cluster import check_nodes, joined
    from redraft.measure.evals import tally_rows

    if arguments.causal or any(isinstance(message["content"], list) for row in rows for message in row):
        raise RequestError("--ray was given with --causal, or for a file with images; leave --ray out")
    fleet = fleet_of(arguments, served(arguments))
    with joined(arguments.address) as ray:
        check_nodes(ray, fleet)
        from redraft.distributed.batch import answers

        fields: dict[str, Any] = {} if arguments.steps is None else {"max_steps": arguments.steps}
        if schema is not None:
            named = {"name": "rows", "schema": schema}
            fields["response_format"] = {"type": "json_schema", "json_schema": named}
        sent = (json.dumps({"messages": row[:-1], **fields}).encode() for row in rows)
        bodies, began = list[dict[str, Any]](), time.monotonic()
        for status, body in answers(ray, fleet, sent, first=0, seed=arguments.seed):
            if status != 200:
                raise RunError(f"row {len(bodies) + 1} has no answer: {body['error']['message']}")
            bodies.append(body)
            progress("row", len(bodies), len(rows))
    texts = [body["choices"][0]["message"]["content"] or "" for body in bodies]
    return tally_rows(
        arguments.file.name,
        [(row[-1]["content"], text) for row, text in zip(rows, texts, strict=True)],
        tokens=sum(body["usage"]["completion_tokens"] for body in bodies),
        steps=sum(body["usage"]["steps"] for body in bodies),
        seconds=time.monotonic() - began,
    )


def _show(found: list[Evaluation], *, as_json: bool) -> None:
    if as_json:  # null is what another server does not report
        optional = ("mean_steps", "tokens_per_forward", "tokens_per_sec")
        print_json([asdict(one) | {name: getattr(one, name) or None for name in optional} for one in found])
        return

    from rich.console import Console
    from rich.table import Table

    table = Table("task", "examples", "exact", "95% interval", "steps", "tokens per forward", "tokens/s")
    for one in found:
        interval = f"{one.low:.1%} to {one.high:.1%}"
        steps = (f"{one.mean_steps:.1f}", f"{one.tokens_per_forward:.1f}") if one.mean_steps else ("not reported",) * 2
        rate = f"{one.tokens_per_sec:.0f}" if one.tokens_per_sec else "not reported"
        table.add_row(one.task, str(one.count), f"{one.exact:.1%}", interval, *steps, rate)
    Console().print(table)
    for one in found:
        if one.parts:
            print(f"{one.task}: " + ", ".join(f"{name} {share:.1%}" for name, share in one.parts.items()))
