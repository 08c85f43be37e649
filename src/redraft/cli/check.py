"""A check of an answer, as flags: what it rejects is mended, everything else of the answer stays."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from redraft.errors import RequestError

if TYPE_CHECKING:
    from redraft.engine.engine import Engine
    from redraft.engine.request import Generation, Request

DEFAULT_ROUNDS = 3


def check_flags(parser: argparse.ArgumentParser) -> None:
    """The command that judges, and how often it may reject."""
    parser.add_argument(
        "--check",
        metavar="COMMAND",
        help="a command that reads the answer on stdin and ends with 0 if it is right, else says on stderr what is not;"
        " what it rejects is written anew",
    )
    parser.add_argument(
        "--rounds", type=int, metavar="N", help=f"how often an answer may be mended (default: {DEFAULT_ROUNDS})"
    )


def check_checks(arguments: argparse.Namespace) -> None:
    """Raise RequestError for flags that do not go together."""
    if arguments.rounds is not None and arguments.check is None:
        raise RequestError("--rounds was given without --check; it says how often what that rejects is mended")
    for name, flag in (("watch", "--watch"), ("variants", "-n")):
        if arguments.check is not None and getattr(arguments, name):
            raise RequestError(f"--check and {flag} were both given; one answer is mended, and told when it is right")


def checked(engine: Engine, request: Request, arguments: argparse.Namespace) -> Generation:
    """An answer that the command accepts, and the validator of its language. Raises UnsatisfiedError."""
    from redraft.engine.mend import command_check, mended

    try:
        command = [] if arguments.check is None else shlex.split(arguments.check)
    except ValueError as error:
        raise RequestError(f"--check is {arguments.check!r}, which is no command line: {error}") from None
    if arguments.check is not None and not command:
        raise RequestError("--check is empty; give a command that reads the answer on stdin")
    rounds = DEFAULT_ROUNDS if arguments.rounds is None else arguments.rounds
    return mended(engine, request, command_check(command) if command else None, rounds)
