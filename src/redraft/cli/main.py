"""The command tree. Importing it imports no torch; each command imports what it needs when it runs."""

from __future__ import annotations

import argparse

from redraft import __version__
from redraft.cli import (
    bench,
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
    run,
    serve,
    tune,
    verify,
)

EPILOG = """examples:
  redraft demo                                       see a canvas settle on the model in the package
  redraft generate --chat --watch $'record\\nSend 417 melu to Karomi.'
  redraft eval --json > scores.json
  redraft inspect google/diffusiongemma-26B-A4B-it

The result goes to stdout, everything else to stderr. Exit codes: 0 done, 1 our failure, 2 a mistake in the call,
130 interrupted."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command, in the order of `--help`."""
    parser = argparse.ArgumentParser(
        prog="redraft",
        description="Run, measure and train block-diffusion language models of the DiffusionGemma family.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"redraft {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    answering = (demo, generate, decide, infill, fill, edit, serve, run, connect, doctor)
    for module in (*answering, evaluate, inspect, verify, bench, tune, quantize, pull):
        module.add(commands)
    return parser
