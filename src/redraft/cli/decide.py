"""`redraft decide`: how likely each of some answers is, without writing one."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from redraft.cli.common import (
    Commands,
    asked,
    command,
    load_engine,
    note,
    print_json,
    prompt_flags,
    read_prompt,
    say_bounds,
)
from redraft.cli.flags import model_flags
from redraft.cli.generate import check_images
from redraft.errors import RequestError

if TYPE_CHECKING:
    from redraft.operations.decide import Decision

EPILOG = """The shares of the choices add up to 1. If the checkpoint has a temperature that was fitted on questions with
known answers, the shares are calibrated by it (docs/deciding.md); else they are the model's own.

examples:
  redraft decide --model nano-sudoku --chat \\
      --form $'1{{2|3}}24\\n2413\\n3142\\n4{{1|2|3}}31' $'sudoku\\n1..4\\n..1.\\n..42\\n4...'
  redraft decide --choice 1 --choice 2 --choice 3 --canvases 8 --json 'Score from 1 to 3:'
  redraft decide --model ./checkpoint --chat 'Is 7 prime?'"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "decide", "estimate how likely each of some answers is", run, epilog=EPILOG)
    prompt_flags(parser, "the question", "question")
    parser.add_argument(
        "--choice", action="append", metavar="TEXT", help="an answer; repeat for each (default: yes and no)"
    )
    parser.add_argument(
        "--form",
        metavar="TEXT",
        help="an answer to many questions, with {{yes|no}} wherever one is; all are read from one canvas",
    )
    parser.add_argument(
        "--temperature", type=float, metavar="X", help="above 1 for humbler shares (default: the fitted one, or 1)"
    )
    parser.add_argument("--canvases", type=int, default=1, metavar="N", help="canvases to average over (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the canvases' noise (default: 0)")
    model_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Load, read, print."""
    if arguments.form is not None and arguments.choice:
        raise RequestError("--form and --choice were both given; a form has its choices in it: leave --choice out")
    if arguments.choice and len(set(arguments.choice)) < 2:
        twice = f"{len(arguments.choice)} times " * (len(arguments.choice) > 1)
        raise RequestError(f"--choice is {twice}{arguments.choice[0]!r} alone; give another to compare it with")
    check_images(arguments)
    prompt = read_prompt(arguments.prompt, arguments.file)

    from redraft.engine.request import Options, Request
    from redraft.operations.decide import UNEXPECTED, decide, decide_all, read_belief, read_form

    say_bounds(arguments, prompt if arguments.chat else None)
    engine = load_engine(arguments)
    options = Options(seed=arguments.seed, preset="reference")
    request = engine.resolve(Request(asked(prompt, arguments.image), options, chat=arguments.chat))
    if arguments.form is None:
        found = [decide(engine, request, arguments.choice or ["yes", "no"], canvases=arguments.canvases)]
    else:
        found = decide_all(engine, request, read_form(arguments.form), canvases=arguments.canvases)
    temperature, belief = arguments.temperature, read_belief(engine)
    if temperature is None:
        temperature = 1.0 if belief is None else belief.temperature
    found = [one.at(temperature) for one in found]
    if arguments.form is None and found[0].log_mass < UNEXPECTED:
        note(f"the model would say none of these (log_mass {found[0].log_mass:.0f}), so their shares say nothing")
    if arguments.json:
        rows = [{"best": one.best} | asdict(one) for one in found]
        print_json(rows[0] if arguments.form is None else {"decisions": rows})
    else:
        print("\n\n".join(map(_lines, found)))
    return 0


def _lines(found: Decision) -> str:
    ordered = sorted(found.shares.items(), key=lambda pair: -pair[1])
    return "\n".join(f"{share:.4f}  {choice}" for choice, share in ordered)
