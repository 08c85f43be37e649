"""`redraft decide`: how likely each of some answers is, without writing one."""

from __future__ import annotations

import argparse
from pathlib import Path

from redraft.cli.common import Commands, command, load_engine, model_flags, print_json, read_prompt

EPILOG = """Shares are the model's own, of the choices given, and are not calibrated.

examples:
  redraft decide --chat --choice yes --choice no 'Is 7 prime?'
  redraft decide --choice 1 --choice 2 --choice 3 --canvases 8 --json 'Score from 1 to 3:'"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "decide", "tell how likely each of some answers is", run, epilog=EPILOG)
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help='the question; "-" or nothing reads stdin')
    parser.add_argument("--file", type=Path, help="read the question from a file")
    parser.add_argument("--chat", action="store_true", help="send it as a user's turn through the chat template")
    parser.add_argument(
        "--choice", action="append", metavar="TEXT", help="an answer; repeat for each (default: yes and no)"
    )
    parser.add_argument("--canvases", type=int, default=1, metavar="N", help="canvases to average over (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the canvases' noise (default: 0)")
    model_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Load, read, print."""
    prompt = read_prompt(arguments.prompt, arguments.file)

    from redraft.engine.decide import decide
    from redraft.engine.request import Options

    engine = load_engine(arguments)
    request = engine.request(prompt, chat=arguments.chat, options=Options(seed=arguments.seed))
    found = decide(engine, request, arguments.choice or ["yes", "no"], canvases=arguments.canvases)
    if arguments.json:
        print_json({"best": found.best, "shares": found.shares, "log_mass": found.log_mass})
    else:
        for choice, share in sorted(found.shares.items(), key=lambda pair: -pair[1]):
            print(f"{share:.4f}  {choice}")
    return 0
