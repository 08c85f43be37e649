"""`redraft demo`: the embedded model on fresh inputs, the canvas on show, then how it did."""

from __future__ import annotations

import argparse
import secrets
import sys
from statistics import mean
from typing import TYPE_CHECKING, Any

from redraft.cli.common import Commands, command, load_engine, print_json
from redraft.cli.flags import model_flags

if TYPE_CHECKING:
    from redraft.measure.evals import Trial

EPILOG = """Every run has new inputs (--seed repeats a run), none of which was in the training data. The canvas of the
first input of each task is shown as it settles. The table counts the right answers; --json prints every answer."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "demo", "watch the model in the package answer fresh inputs", run, epilog=EPILOG)
    model_flags(parser, plan=True)
    parser.add_argument("--count", type=int, default=4, metavar="N", help="inputs per task (default: 4)")
    parser.add_argument("--seed", type=int, help="seed of inputs and noise (default: a new one)")


def run(arguments: argparse.Namespace) -> int:
    """Answer, show, tabulate."""
    from redraft.cli.display import Watch
    from redraft.engine.request import Options, Request
    from redraft.engine.scope import CancelScope
    from redraft.errors import RequestError
    from redraft.measure.evals import Trial, room
    from redraft.tasks import names, task

    if arguments.count < 1:
        raise RequestError(f"--count is {arguments.count}; it must be at least 1")
    seed = secrets.randbits(31) if arguments.seed is None else arguments.seed
    engine = load_engine(arguments)
    trials: list[tuple[str, Trial]] = []
    for name in names():
        max_tokens = room(engine, task(name))
        for i, example in zip(range(arguments.count), task(name).examples("held_out", seed), strict=False):
            options = Options(seed=seed + i, max_tokens=max_tokens)
            request = Request(example.prompt, options, chat=True)
            if i == 0 and not arguments.json:
                print(f"\n{example.prompt}\n", file=sys.stderr)
                with Watch(engine.text) as watch:
                    done = engine.within(CancelScope(watch)).generate(request)
            else:
                done = engine.generate(request)
            trials.append((name, Trial(example, done, task(name).score(example, done.text))))
    _report(trials, seed, as_json=arguments.json)
    return 0


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
