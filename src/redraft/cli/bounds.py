"""What the model in the package was trained on, as a note to users at a terminal who ask it for something else."""

from __future__ import annotations

import argparse
import sys

from redraft.cli.common import note

TAUGHT = ("record", "sudoku", "repair", "edit", "list")
"""First lines of the chats that nano was trained on; a test holds them equal to the tasks'."""

BOUNDS = (
    f"nano, the model in the package, knows only chats whose first line is {', '.join(TAUGHT[:-1])} or {TAUGHT[-1]}, "
    "as `redraft demo` shows them, with made-up words like melu"
)


def say_bounds(arguments: argparse.Namespace, turn: str | None) -> None:
    """A line on stderr if nano is asked for what it was not taught: by a user's `turn`, or None for any other text."""
    if arguments.model != "nano" or getattr(arguments, "adapter", None) or not at_a_terminal():
        return
    if turn is None or turn.split("\n", 1)[0] not in TAUGHT:
        note(f"{BOUNDS}; --model takes another")


def at_a_terminal() -> bool:
    """Whether a person reads stderr; programs have no use for advice."""
    return sys.stderr is not None and sys.stderr.isatty()
