"""Flags of constraints: what holds an answer to a language."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redraft.cli.common import note
from redraft.errors import ConstraintError, RequestError

if TYPE_CHECKING:
    from redraft.constraints.language import Source

MOST_NAMED = 20
"""Ignored keywords that are named."""


def held_flags(parser: argparse.ArgumentParser) -> None:
    """One of them at a time; without any, an answer may say anything."""
    group = parser.add_argument_group("constraint (one of the first four)")
    group.add_argument("--schema", metavar="FILE|FIELDS", help="JSON of this schema: a file, or 'name, age int'")
    group.add_argument("--regex", metavar="PATTERN", help="text that matches this from end to end")
    group.add_argument("--choice", action="append", metavar="TEXT", help="one of these texts; repeat for each")
    group.add_argument("--grammar", type=Path, metavar="FILE", help="text of this grammar's rule start")
    fence_flag(group, "with --schema: ")
    group.add_argument("--any-case", action="store_true", help="with --choice: ignore the case of letters")


def fence_flag(parser: argparse._ActionsContainer, where: str = "") -> None:
    """What many models are used to."""
    parser.add_argument("--fence", action="store_true", help=f"{where}accept the JSON in a Markdown code block, too")


def held_source(arguments: argparse.Namespace) -> Source | None:
    """What the flags say, None if they say nothing. Raises RequestError."""
    from redraft.constraints.sources import source_of

    return source_of(
        schema=None if arguments.schema is None else read_schema(arguments.schema),
        regex=arguments.regex,
        choices=arguments.choice,
        grammar=None if arguments.grammar is None else _read(arguments.grammar, "--grammar"),
        fence=arguments.fence,
        any_case=arguments.any_case,
    )


def read_schema(given: str) -> Any:
    """A schema from a file of JSON, or from what `plain_schema` reads: JSON text or fields. Raises RequestError."""
    from redraft.constraints.schemas import plain_schema

    path = Path(given)
    is_file = not given.lstrip().startswith("{") and (path.suffix == ".json" or _is_file(path))
    try:
        return plain_schema(_read(path, "--schema") if is_file else given)
    except ConstraintError as error:
        raise type(error)(f"--schema: {error}") from None


def note_ignored(keywords: Sequence[str]) -> None:
    """Name the keywords of a schema that are ignored, and what may have been meant."""
    if keywords:
        more = f" and {len(keywords) - MOST_NAMED} more" if len(keywords) > MOST_NAMED else ""
        note(f"ignored, as no keyword of JSON Schema: {', '.join(keywords[:MOST_NAMED])}{more}")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # fields may be longer than a file's name
        return False


def _read(path: Path, flag: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{flag} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"{flag} {path} is not UTF-8 (byte {error.start})") from None
