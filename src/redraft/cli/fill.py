"""`redraft fill`: a template with typed holes in, the filled text out."""

from __future__ import annotations

import argparse
from pathlib import Path

from redraft.cli.common import (
    Commands,
    command,
    copying_flags,
    load_engine,
    print_json,
    read_prompt,
    say_bounds,
    say_guesses,
)
from redraft.cli.constraint_flags import check_flag, check_of
from redraft.cli.flags import model_flags, options_of, sampling_flags
from redraft.cli.trace import trace_flag, traced
from redraft.errors import RequestError

EPILOG = """A hole is {{name: kind}}. Kinds: string, line, code, identifier, int, number (each with a range, as in
int(1..65535) or string(1..20)), enum(a|b), regex(...), bool, date, time, uuid, email. The text around the
holes stays as it is, byte for byte.

examples:
  redraft fill --text 'Show me 20 rows of orders.' 'SELECT * FROM {{table: identifier}} LIMIT {{limit: int}};'
  redraft fill --model ./checkpoint --file app.toml.in --prompt 'A small service on port 8080'
  echo 'port = {{port: int(1..65535)}}' | redraft fill --model ./checkpoint --json"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "fill", "fill a template's holes", run, epilog=EPILOG)
    parser.add_argument("template", nargs="?", metavar="TEMPLATE", help='the template; "-" or nothing reads stdin')
    parser.add_argument("--file", type=Path, help="read the template from a file")
    parser.add_argument("--text", help="what belongs in the holes is in this text; it is shown with the template")
    parser.add_argument("--prompt", help="a prompt instead (default: the template itself)")
    parser.add_argument("--chat", action="store_true", help="send the prompt as a user's turn")
    parser.add_argument(
        "--kind", action="append", default=[], metavar="NAME=KIND", help="type a hole that the template leaves bare"
    )
    check_flag(parser)
    copying_flags(parser)
    trace_flag(parser)
    sampling_flags(parser, own={"max_tokens": "most tokens of the filled text"})
    model_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Load, fill, print."""
    template = read_prompt(arguments.template, arguments.file, "template")
    kinds = dict(_pair(given) for given in arguments.kind)
    check = check_of(arguments)

    say_bounds(arguments, "Fill in" if arguments.text is not None else arguments.prompt if arguments.chat else None)
    engine = load_engine(arguments)
    with traced(engine, arguments, "fill") as engine:
        done = engine.fill(
            template,
            kinds,
            source=arguments.text,
            prompt=arguments.prompt,
            chat=arguments.chat,
            check=check,
            read_back=arguments.read_back,
            verbatim=arguments.verbatim,
            options=options_of(arguments),
        )
    if arguments.json:
        seed, steps = done.done.seed, list(done.done.steps)
        read = {} if done.guesses is None else {"guesses": done.guesses}
        print_json({"text": done.text, "values": done.values, "seed": seed, "steps": steps} | read)
    else:
        print(done.text)
        say_guesses(arguments, done.guesses or ())
    return 0


def _pair(given: str) -> tuple[str, str]:
    name, equals, kind = given.partition("=")
    if not equals:
        raise RequestError(f"--kind is {given!r}; write it as NAME=KIND")
    return name, kind
