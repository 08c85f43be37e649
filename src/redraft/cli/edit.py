"""`redraft edit`: some lines of a file revised, everything around them as it was."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from redraft.cli.common import Commands, command, load_engine, note, say_bounds
from redraft.cli.file_lines import PLACE_HELP, read_lines
from redraft.cli.flags import model_flags
from redraft.cli.infill import gap_constraint, gap_flags, gap_options, show
from redraft.cli.trace import traced
from redraft.errors import RequestError

EPILOG = """The lines named are where the canvas starts from: each of their tokens is replaced by noise with probability
--strength, and the rest is denoised with it. 0.3 polishes, 0.6 rephrases, 1 rewrites. The result is a diff on
stdout; nothing is written without --write, which replaces the file in one move and refuses if it has changed
meanwhile.

examples:
  redraft edit notes.md:4-6 --strength 0.4
  redraft edit order.json:1 --instruction 'Set qty to 520.' --write
  redraft edit settings.toml --instruction 'Set port to 9090.'"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "edit", "revise some lines of a file", run, epilog=EPILOG)
    parser.add_argument("place", metavar="FILE[:LINES]", help=PLACE_HELP + "; with --instruction also the file alone")
    parser.add_argument("--write", action="store_true", help="write the result to the file")
    share = "share that starts as noise, up to 1 (default: 0.5, or 1 with --instruction)"
    parser.add_argument("--strength", type=float, metavar="S", help=share)
    parser.add_argument("--instruction", metavar="TEXT", help="what to do; shown with the text as a user's turn")
    more = "tokens the lines may lose or gain (default: 0, or any with --instruction)"
    parser.add_argument("--slack", type=int, metavar="N", help=more)
    gap_flags(parser)
    model_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read, load, revise, print, write."""
    source = read_lines(arguments.place, to_write=arguments.write, may_be_whole=arguments.instruction is not None)
    if len(source.spans) > 1:
        raise RequestError(f"{len(source.spans)} ranges of lines were given; edit takes one")
    constraint = gap_constraint(arguments)
    say_bounds(arguments, None if arguments.instruction is None else "Edit:")
    engine = load_engine(arguments)
    with traced(engine, arguments, "edit") as engine:
        done = engine.edit(
            source.data,
            source.spans[0],
            strength=arguments.strength,
            instruction=arguments.instruction,
            slack=arguments.slack,
            constraint=constraint,
            options=gap_options(arguments),
        )
    if done.left_out and done.after != done.before:
        note(f"left as it was: {', '.join(done.left_out)}; say it in an edit of its own")
    if done.guesses:
        note(f"a guess: {', '.join(done.guesses)}; look at the diff, or say it plainly, as 'Set port to 9.'")
    details = {key: value for key, value in asdict(done).items() if key != "data"}
    return show(source, done.data, details, arguments, is_cut=done.finish == "deadline")
