"""The command tree. Importing it imports no torch; each command imports what it needs when it runs."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from redraft import __version__
from redraft.cli import (
    bench,
    chat,
    connect,
    decide,
    demo,
    doctor,
    edit,
    evaluate,
    fill,
    generate,
    infill,
    inspect,
    pull,
    quantize,
    record,
    replay,
    run,
    serve,
    tune,
    verify,
)

EPILOG = """examples:
  redraft demo                                       see a canvas settle on the model in the package
  redraft generate --chat --watch $'sudoku\\n.153..\\n..3..4\\n......\\n.3.245\\n6514..\\n.4..6.'
  redraft eval --json > scores.json
  redraft serve                                      a page to watch, and an API for other tools

The result goes to stdout, everything else to stderr. Exit codes: 0 done, 1 our failure, 2 a mistake in the call,
130 interrupted."""


class Parser(argparse.ArgumentParser):
    """Tells a mistake in one line, as every other error is told, where argparse prints the whole usage before it."""

    def error(self, message: str) -> NoReturn:
        """Leave with exit code 2."""
        self.exit(2, f"redraft: {' '.join(message.split())}; see `{self.prog} --help`\n")


def build_parser() -> Parser:
    """The parser of every command, in the order of `--help`."""
    parser = Parser(
        prog="redraft",
        description="Run, measure and train block-diffusion language models of the DiffusionGemma family.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"redraft {__version__}")
    parser.set_defaults(run=lambda _: _told(parser), mistaken=parser.error, debug=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    answering = (demo, generate, record, chat, decide, infill, fill, edit, replay, serve, run, connect, doctor)
    for module in (*answering, evaluate, inspect, verify, bench, tune, quantize, pull):
        module.add(commands)
    return parser


def _told(parser: Parser) -> int:
    """The answer to the name alone: what there is to type."""
    parser.print_help(sys.stderr)
    return 2
