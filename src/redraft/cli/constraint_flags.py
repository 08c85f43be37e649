"""Flags that say what an answer must be: its constraint, its check, and thinking, which neither of them binds."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redraft.cli.common import decoded, note, read_file
from redraft.errors import ConstraintError, RequestError

if TYPE_CHECKING:
    from redraft.constraints.checks import Check
    from redraft.constraints.language import Source

OTHER_FORMS = {
    **dict.fromkeys((".yaml", ".yml", ".toml"), "no JSON; convert it, since nothing else is read"),
    ".py": "Python; write what YourModel.model_json_schema() returns to a file, as JSON",
}
"""What people have their schemas in, too."""
MOST_NAMED = 20
"""Ignored keywords that are named."""


def constraint_flags(parser: argparse.ArgumentParser) -> None:
    """The constraints, of which one at a time can be given."""
    group = parser.add_argument_group("constraint (one of the first four)")
    group.add_argument("--schema", metavar="FILE|FIELDS", help="JSON of this schema: a file, or 'name, age int'")
    group.add_argument("--regex", metavar="PATTERN", help="text that matches this from end to end")
    group.add_argument("--choice", action="append", metavar="TEXT", help="one of these texts; repeat for each")
    group.add_argument("--grammar", type=Path, metavar="FILE", help="text of this grammar's rule start")
    style_flags(group, "with --schema: ")
    group.add_argument("--any-case", action="store_true", help="with --choice: ignore the case of letters")


def style_flags(parser: argparse._ActionsContainer, where: str = "") -> None:
    """How JSON may be written: in the block that many models put around it, and without spaces."""
    parser.add_argument("--fence", action="store_true", help=f"{where}allow a Markdown code block around it")
    parser.add_argument("--compact", action="store_true", help=f"{where}no spaces outside strings")


def constraint_of(arguments: argparse.Namespace) -> Source | None:
    """The constraint that the flags name, None without one. Raises RequestError."""
    from redraft.constraints.sources import source_of

    return source_of(
        schema=None if arguments.schema is None else read_schema(arguments.schema),
        regex=arguments.regex,
        choices=arguments.choice,
        grammar=None if arguments.grammar is None else _read(arguments.grammar, "--grammar"),
        fence=arguments.fence,
        compact=arguments.compact,
        any_case=arguments.any_case,
    )


def read_schema(given: str) -> Any:
    """A schema from a file of JSON, or from what `plain_schema` reads: JSON text or fields. Raises RequestError.

    An object with names of types in place of keywords is no schema, although the standard would allow anything for it.
    """
    from redraft.constraints.schemas import check_keywords, plain_schema

    path = Path(given)
    is_named = path.suffix in (".json", *OTHER_FORMS) or given.startswith(("./", "../", "/", "~/")) or given == "-"
    is_file = not given.lstrip().startswith("{") and (is_named or _is_file(path, given))
    if is_file and path.suffix in OTHER_FORMS and _is_file(path, given):
        raise RequestError(f"--schema: {path} is {OTHER_FORMS[path.suffix]}")
    try:
        schema = plain_schema(_read(path, "--schema") if is_file else given)
        check_keywords(schema)
        return schema
    except ConstraintError as error:
        raise type(error)(f"--schema: {error}") from None


def note_ignored(keywords: Sequence[str]) -> None:
    """Name the keywords of a schema that are ignored, and what may have been meant."""
    if keywords:
        more = f" and {len(keywords) - MOST_NAMED} more" if len(keywords) > MOST_NAMED else ""
        note(f"ignored, as no keyword of JSON Schema: {', '.join(keywords[:MOST_NAMED])}{more}")


def _is_file(path: Path, given: str) -> bool:
    """Or a pipe, as `<(command)` gives one, or a folder named with a slash: a field may be called as a folder is."""
    try:
        return path.exists() and not (path.is_dir() and "/" not in given)
    except OSError:  # fields may be longer than a file's name
        return False


def _read(path: Path, flag: str) -> str:
    name = f"{flag} {path}"
    return decoded(read_file(path, name), name)


def check_flag(parser: argparse._ActionsContainer) -> None:
    """The command that judges."""
    parser.add_argument(
        "--check",
        metavar="COMMAND",
        help="repair what this command rejects: it reads the text, exits 0 if it is right, else explains on stderr",
    )


def check_of(arguments: argparse.Namespace) -> Check | None:
    """The check that the flag names, None without it. Raises RequestError for text that is not a command, and beside
    flags that return more than one answer or wrap it in text that the command could not read."""
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


def thinking_flag(parser: argparse.ArgumentParser, where: str) -> None:
    """`where` says how the thinking is returned."""
    parser.add_argument(
        "--thinking",
        action="store_true",
        help=f"let the model think first, free of the constraint; {where}",
    )


def check_thinking(arguments: argparse.Namespace) -> None:
    """Raise RequestError where there is no user's turn to think about."""
    if arguments.thinking and not arguments.chat:
        raise RequestError("--thinking was given without --chat; the chat template turns thinking on: add --chat")
