"""`redraft tune`: train a model from a recipe."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from redraft.cli.common import Commands, at_a_terminal, command, new_folder, note, print_json, progress, show
from redraft.errors import RedraftError, RequestError
from redraft.files import recipes

if TYPE_CHECKING:
    from redraft.measure.forgotten import Forgotten
    from redraft.tune.recipe import Recipe

EPILOG = """Run the same command again to resume an interrupted run. Ctrl-C keeps the step that runs; a kill loses the
steps since the last saved state ([train] save_every).
The folder receives the checkpoint, training-log.jsonl with a row for every step, and training-record.json.
Where the start is nano or nano-sudoku, its tasks are asked again at the end, and what was forgotten is named.

examples:
  redraft tune nano --out runs/nano
  redraft tune my-task.toml --out runs/my-task
  redraft tune my-task.toml --out runs/my-task --minutes 30
  torchrun --standalone --nproc-per-node 4 -m redraft tune my-task.toml --out runs/my-task      one GPU each
  redraft generate --model runs/my-task --chat "..."

docs/tutorials/fine-tune.md goes from rows of your own to a tuned model."""

EVERY, EVERY_SEC = 50, 30
RECORD = "training-record.json"
MOST_MINUTES = 100_000  # two months


def add(commands: Commands) -> None:
    """Add the command."""
    names = ", ".join(sorted(path.stem for path in recipes().glob("*.toml")))
    parser = command(commands, "tune", "train a model from a recipe", run, epilog=EPILOG)
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help=f"a TOML file, or one of the package: {names}")
    out = "where checkpoint, log and state go"
    parser.add_argument("--out", type=new_folder, required=True, metavar="FOLDER", help=out)
    minutes = "train for so long, whatever [train] steps says; in the last 45%% of it the rate falls"
    parser.add_argument("--minutes", type=float, metavar="M", help=minutes)
    parser.add_argument("--skip-old-tasks", action="store_true", help="do not ask at the end what was forgotten")


def run(arguments: argparse.Namespace) -> int:
    """Train, with a line of progress, and record what was trained."""
    from redraft.measure.record import check_place, write_record
    from redraft.measure.training import training_record
    from redraft.tune.parallel import place
    from redraft.tune.recipe import read_recipe
    from redraft.tune.train import LOG, train

    if arguments.recipe.suffix in (".json", ".jsonl"):
        name = f"{arguments.recipe} is a file of rows; a recipe names it under [data]"
        raise RequestError(
            f"{name}, as docs/tutorials/fine-tune.md shows: files = {{ {arguments.recipe.name!r} = 1.0 }}"
        )
    if arguments.recipe.suffix.lower() in (".csv", ".tsv", ".xlsx"):
        raise RequestError(f"{arguments.recipe} is a table; docs/tuning.md makes rows of one, which a recipe names")
    if arguments.minutes is not None and not 0 < arguments.minutes <= MOST_MINUTES:
        raise RequestError(f"--minutes is {arguments.minutes}; it must be above 0 and at most {MOST_MINUTES}")
    seconds_of_run = None if arguments.minutes is None else 60 * arguments.minutes
    recipe = read_recipe(arguments.recipe)
    if os.path.isdir(arguments.out):  # noqa: PTH112  # which raises nothing for a name that is too long
        check_place(arguments.out / RECORD)
    began = time.monotonic()
    shown = Progress()
    try:
        out = train(recipe, arguments.out, shown, seconds=seconds_of_run)
    finally:
        shown.close()
    seconds = round(time.monotonic() - began, 1)
    new = shown.ran > 0 or not (out / RECORD).exists()  # a kill may have come behind the last step
    if new:
        names = {"recipe": recipe.name, "start": recipe.start, "sources": recipe.data.shares}
        workload = names | {"seed": recipe.train.seed}
        batch = recipe.train.batch_size
        record = training_record(out / LOG, workload=workload, batch=batch, seconds=seconds, ran=shown.ran)
        write_record(record, out / RECORD)
    if place()[0]:
        return 0  # the first of several processes prints and writes
    lost = _forgotten(recipe, out) if new and not arguments.skip_old_tasks else []
    if arguments.json:
        said = {"recipe": recipe.name, "folder": str(out), "seconds": seconds, "record": str(out / RECORD)}
        print_json(said | {"forgotten": [asdict(one) for one in lost]})
    else:
        for one in lost:
            note(f"forgotten: {one.task}, {one.after:.0%} right where {recipe.start} has {one.before:.0%}")
        if lost:
            shares = ", ".join(f"{one.task} = 0.1" for one in lost)
            note(f"to keep them, mix their examples in and train again:  [data] tasks = {{ {shares} }}")
        note(
            f"{out} is a checkpoint; try  redraft generate --model {out} --chat PROMPT  or, for fields out of"
            f" a text,  redraft json --model {out} --schema FIELDS TEXT"
        )
        print(out)
    return 0


def _forgotten(recipe: Recipe, out: Path) -> list[Forgotten]:
    from redraft import load
    from redraft.measure.forgotten import forgotten, old_tasks
    from redraft.weights.source import EMBEDDED

    if recipe.start not in EMBEDDED:
        return []
    shares = [recipe.data.tasks, *(stage.data.tasks for stage in recipe.stages if stage.data is not None)]
    trained = {name for each in shares for name in each}
    if old := old_tasks(recipe.start, trained):
        said = f"{out} is a checkpoint already; to see what was forgotten, {recipe.start} and it are asked"
        note(f"{said} {len(old)} old tasks, which takes minutes ({', '.join(old)}); --skip-old-tasks leaves it out")
    try:
        each = progress if at_a_terminal() else lambda what, done, total: note(f"{what} {done}/{total}")
        return forgotten(recipe.start, load(recipe.start), load(out), trained, progress=each)
    except RedraftError as error:  # the run itself is finished
        note(f"what was forgotten could not be counted: {error}")
    except KeyboardInterrupt:
        note(f"what was forgotten is not counted; {out} is complete")
    return []


class Progress:
    """A line on stderr: rewritten in place on a terminal, else at the first step, each `EVERY` and each
    `EVERY_SEC`; a probe's stays."""

    def __init__(self) -> None:
        self.ran = 0
        self._began = self._said = time.monotonic()
        self._open = False

    def __call__(self, step: int, total: int, row: dict[str, float]) -> None:
        from redraft.measure.training import JUDGED

        self.ran += 1
        left = (time.monotonic() - self._began) / self.ran * (total - step)
        probed = any(name.endswith(JUDGED) for name in row)
        stays = probed or step == total
        parts = [f"{name} {row[name]:.3f}" for name in ("encode", "denoise") if name in row]
        parts += [f"{name} {value:.2f}" for name, value in row.items() if name.endswith((*JUDGED, " per forward"))]
        parts.append(f"{left / 60:.0f} min left" if left > 120 else f"{left:.0f} s left")
        line = f"step {step}/{total}  {'  '.join(parts)}"
        if sys.stderr.isatty():
            show(line, last=stays)
            self._open = not stays
        elif stays or self.ran == 1 or step % EVERY == 0 or time.monotonic() > self._said + EVERY_SEC:
            note(line)
            self._said = time.monotonic()

    def close(self) -> None:
        """End the line, so that the next output has one of its own."""
        if self._open:
            print(file=sys.stderr)
