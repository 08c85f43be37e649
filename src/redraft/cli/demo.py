"""`redraft demo`: the models in the package on fresh inputs, the canvas on show, then how they did."""

from __future__ import annotations

import argparse
import secrets
import sys
from statistics import mean
from typing import TYPE_CHECKING, Any

from redraft.cli.common import Commands, check_range, command, load_engine, print_json
from redraft.cli.flags import model_flags
from redraft.prompts import BEGINNINGS

if TYPE_CHECKING:
    from redraft.measure.evals import Trial
    from redraft.operations.engine import Engine

EPILOG = """It opens with two sentences, which nano reads, and goes on with Sudokus, which nano-sudoku solves; their
canvases are shown as they settle. The table counts right answers to fresh inputs, none of which was in the training
data; --json prints each, --seed repeats a run. With --model that model alone answers them."""

SENTENCES = (("Send 3 apples to Maria.", "who, qty int, item"), ("Alice is 31 years old.", "name, age int"))
ASKED = {"nano": ("extract-short", "mend"), "nano-sudoku": ("sudoku-6x6", "sudoku-4x4")}


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "demo", "watch the models in the package answer fresh inputs", run, epilog=EPILOG)
    model_flags(parser, plan=True)
    parser.add_argument("--count", type=int, default=4, metavar="N", help="inputs per task (default: 4)")
    parser.add_argument("--seed", type=int, help="seed of inputs and noise (default: a new one)")


def run(arguments: argparse.Namespace) -> int:
    """Answer, show, tabulate."""
    from redraft.tasks import names

    check_range("count", arguments.count, 1, 10_000)
    seed = secrets.randbits(31) if arguments.seed is None else arguments.seed
    asked = ASKED if arguments.model == "nano" else {arguments.model: names(arguments.model)}
    trials: list[tuple[str, Trial]] = []
    for model, tasks in asked.items():
        engine = load_engine(argparse.Namespace(**vars(arguments) | {"model": model}))
        if not arguments.json and model != "nano-sudoku":
            _read_sentences(engine, seed)
        for name in tasks:
            show = model == "nano-sudoku" and not arguments.json
            trials += _tried(engine, name, arguments.count, seed, show)
    _report(trials, seed, as_json=arguments.json)
    return 0


def _read_sentences(engine: Engine, seed: int) -> None:
    """The opening: what is typed, the canvas, the answer."""
    from redraft.cli.display import watched
    from redraft.constraints.schemas import plain_schema
    from redraft.constraints.sources import schema_source
    from redraft.engine.request import Options, Request
    from redraft.prompts import of_schema

    for sentence, fields in SENTENCES:
        schema = plain_schema(fields)
        print(f"\n$ redraft json --schema {fields!r} {sentence!r}\n", file=sys.stderr)
        held = engine.language(schema_source(schema, verbatim=sentence))
        watched(engine, Request(of_schema(schema, sentence), Options(seed=seed), chat=True, constraint=held))


def _tried(engine: Engine, name: str, count: int, seed: int, show: bool) -> list[tuple[str, Trial]]:
    """Fresh inputs of a task, the first perhaps on show. Fields of a text are held to as `redraft json` holds them."""
    from redraft.cli.display import watched
    from redraft.constraints.sources import schema_source
    from redraft.engine.request import Options, Request
    from redraft.measure.evals import Trial, room
    from redraft.tasks import task
    from redraft.tasks.extract import schema_of

    found, one = [], task(name)
    max_tokens = room(engine, one)
    for i, example in zip(range(count), one.examples("held_out", seed), strict=False):
        head, _, text = example.prompt.partition("\n")
        source = schema_source(schema_of(example.prompt), verbatim=text) if head.startswith(BEGINNINGS[0]) else None
        held = None if source is None else engine.language(source)
        request = Request(example.prompt, Options(seed=seed + i, max_tokens=max_tokens), chat=True, constraint=held)
        if show and i == 0:
            print(f"\n{example.prompt}\n", file=sys.stderr)
        done = watched(engine, request) if show and i == 0 else engine.generate(request)
        found.append((name, Trial(example, done, one.score(example, done.text))))
    return found


def _report(trials: list[tuple[str, Trial]], seed: int, *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "task": name,
            "input": trial.example.prompt.split("\n", 1)[1],
            "answer": trial.done.text,
            "exact": trial.score.exact,
            "steps": sum(trial.done.steps),
            "tokens_per_forward": round(trial.done.tokens_per_forward, 1),
            "tokens_per_sec": round(len(trial.done.tokens) / trial.done.seconds),
        }
        for name, trial in trials
    ]
    if as_json:
        print_json({"seed": seed, "rows": rows})
        return

    from rich.console import Console
    from rich.table import Table

    table = Table(caption="a model that writes one token after the other has 1 token/forward")
    for name in ("task", "exact", "steps", "tokens/forward", "tokens/s"):
        table.add_column(name, justify="left" if name == "task" else "right")
    for task in dict.fromkeys(name for name, _ in trials):
        of = [row for row in rows if row["task"] == task]
        means = [mean(row[key] for row in of) for key in ("steps", "tokens_per_forward", "tokens_per_sec")]
        right = sum(row["exact"] for row in of)
        exact = f"[{'green' if right == len(of) else 'red'}]{right} of {len(of)}[/]"
        table.add_row(task, exact, f"{means[0]:.1f}", f"{means[1]:.1f}", f"{means[2]:.0f}")
    Console().print(table)
    print(f"{sum(row['exact'] for row in rows)} of {len(rows)} exact; seed {seed} repeats this run")
