"""`redraft tune`: train a model from a recipe."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from redraft.cli.common import Commands, command, print_json

EPILOG = """An interrupted run continues exactly where its last saved state was: run the same command again.

example:
  redraft tune recipes/nano.toml --out runs/nano"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "tune", "train a model from a recipe", run, epilog=EPILOG)
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="a TOML recipe; recipes/ has examples")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where checkpoint, log and state go")


def run(arguments: argparse.Namespace) -> int:
    """Train, with a line of progress."""
    from redraft.tune.recipe import read_recipe
    from redraft.tune.train import train

    recipe = read_recipe(arguments.recipe)
    began = time.monotonic()
    first: list[int] = []

    def progress(step: int, total: int, row: dict[str, float]) -> None:
        first.append(step) if not first else None
        spent = time.monotonic() - began
        left = spent / max(1, step - first[0] + 1) * (total - step)
        scores = "  ".join(f"{name} {value:.3f}" for name, value in row.items() if name != "seconds")
        probed = any(name.endswith("exact") for name in row)
        if probed or sys.stderr.isatty() or step % EVERY == 0:
            line = f"step {step}/{total}  {scores}  {left / 60:.0f} min left"
            print(f"\r{line:<110}", end="\n" if probed or not sys.stderr.isatty() else "", file=sys.stderr, flush=True)

    out = train(recipe, arguments.out, progress)
    seconds = round(time.monotonic() - began, 1)
    if arguments.json:
        print_json({"recipe": recipe.name, "folder": str(out), "seconds": seconds})
    else:
        print(out)
    return 0


EVERY = 50
