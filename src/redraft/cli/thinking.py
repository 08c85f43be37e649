"""`--thinking`: thoughts ahead of an answer, told apart from it and free of its constraint."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from redraft.errors import RequestError

if TYPE_CHECKING:
    from redraft.constraints.language import Language
    from redraft.engine.engine import Engine
    from redraft.engine.request import Generation, Options, Request
    from redraft.text import Text


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


def thoughtful(engine: Engine, prompt: str, options: Options, language: Language | None) -> Request:
    """A user's turn to a model that is to think first. Raises RequestError for one that cannot."""
    from redraft.constraints.thinking import after_thinking

    tokens = engine.text.chat([{"role": "user", "content": prompt}], thinking=True)
    opening, closing = _marks(engine.text)
    held = None if language is None else after_thinking(language, closing, opening)
    return engine.request_of(tokens, options, held)


def told_apart(text: Text, done: Generation) -> tuple[str, Generation]:
    """What was thought, and the answer behind it with what is told of each of its tokens."""
    from redraft.server.voice import LABEL

    opening, closing = _marks(text)
    ends = done.tokens.index(closing) + 1 if closing in done.tokens else len(done.tokens)
    at = ends if closing in done.tokens or opening in done.tokens else 0
    thought = text.decode(done.tokens[:at])
    answer = replace(
        done,
        text=done.text[len(thought) :],  # which a stop string may have cut
        tokens=done.tokens[at:],
        entropy=done.entropy[at:],
        settled_at=done.settled_at[at:],
        changes=done.changes[at:],
        log_mass=done.log_mass[at:],
    )
    return thought.removeprefix(LABEL).strip(), answer


def _marks(text: Text) -> tuple[int, int]:
    """The tokens that begin and end thinking. Raises RequestError if there are none."""
    from redraft.server.voice import marks_of

    found = marks_of(text).thinking
    if found is None:
        raise RequestError("--thinking was given, and this checkpoint has no tokens that mark thinking; leave it out")
    return found
