"""`--check`: a command that judges an answer; what it rejects is repaired, the rest of the answer stays."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from redraft.errors import RequestError

if TYPE_CHECKING:
    from redraft.constraints.checks import Check


def check_flag(parser: argparse._ActionsContainer) -> None:
    """The command that judges."""
    parser.add_argument(
        "--check",
        metavar="COMMAND",
        help="repair what this command rejects: it reads the text, exits 0 if it is right, else explains on stderr",
    )


def check_of(arguments: argparse.Namespace) -> Check | None:
    """The check that the flag names, None without it. Raises RequestError for text that is no command, and beside flags
    that show or return more than the one answer, or wrap it in text that the command could not read."""
    given = arguments.check
    if given is None:
        return None
    for name, flag in (("watch", "--watch"), ("variants", "-n")):
        if getattr(arguments, name, None):
            raise RequestError(
                f"--check and {flag} were both given; a check returns one answer, when it is right: choose one"
            )
    if getattr(arguments, "fence", False):
        raise RequestError("--check and --fence were both given; a command reads the answer alone: choose one")
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise RequestError(f"--check is {given!r}, which a shell cannot read ({error}); correct its quotes") from None
    if not words:
        raise RequestError(f"--check is {given!r}; write a command that reads stdin, as 'python -m json.tool'")

    from redraft.constraints.checks import command_check

    return command_check(words)
