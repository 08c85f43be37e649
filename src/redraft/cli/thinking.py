"""`--thinking`: thoughts ahead of an answer, told apart from it and free of its constraint."""

from __future__ import annotations

import argparse

from redraft.errors import RequestError


def thinking_flag(parser: argparse.ArgumentParser, told: str) -> None:
    """`told` is where the thoughts go."""
    parser.add_argument(
        "--thinking",
        action="store_true",
        help=f"let the model think first, free of the constraint; {told}",
    )


def check_thinking(arguments: argparse.Namespace) -> None:
    """Raise RequestError where there is no turn to think about."""
    if arguments.thinking and not arguments.chat:
        raise RequestError("--thinking was given without --chat; a chat template is what turns thinking on: add --chat")
