"""Flags of constraints: what holds an answer to a language."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redraft.errors import RequestError

if TYPE_CHECKING:
    from redraft.constraints.language import Source

TYPES = {
    "str": {"type": "string"},
    "text": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "number": {"type": "number"},
    "bool": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "email": {"type": "string", "format": "email"},
    "uuid": {"type": "string", "format": "uuid"},
}

FIELD = re.compile(
    r"(?P<name>[^\s?*\[\]|:]+)(?P<maybe>\?)?(?:\s+(?:enum\s+)?(?P<kind>\S.*?))?(?P<many>\*|\[\])?(?P<too>\?)?"
)
"""One of the terse form: a name, a type, or texts separated by |, `[]` for a list, `?` for what may be missing."""


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
    """A schema from a file's JSON, from JSON itself, or from fields: "name, age int?, size S|M|L, tags str[]"."""
    if given.lstrip().startswith("{"):
        return given
    path = Path(given)
    if path.suffix == ".json" or os.path.isfile(path):  # noqa: PTH113, it takes fields of any length
        return _read(path, "--schema")
    fields, required = dict[str, Any](), list[str]()
    for said in given.split(","):
        field = FIELD.fullmatch(said.strip())
        kind = None if field is None else _kind(field["kind"])
        if field is not None and field["name"] in fields:
            raise RequestError(f"--schema {given!r} names {field['name']!r} twice; leave one out")
        if field is None or kind is None:
            raise RequestError(
                f"--schema {given!r}: {said.strip()!r} is no field; write a file's name, or fields as "
                f"'name, age int?, size S|M|L, tags str[]' with types {', '.join(TYPES)}"
            )
        fields[field["name"]] = {"type": "array", "items": kind} if field["many"] else kind
        required += [] if field["maybe"] or field["too"] else [field["name"]]
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


def _kind(said: str | None) -> dict[str, Any] | None:
    """The schema of a type's name, or of texts of which one is to be said; None for neither."""
    if said is not None and "|" in said:
        texts = [text.strip() for text in said.split("|")]
        return {"enum": texts} if all(texts) and len(set(texts)) == len(texts) else None
    return TYPES.get(said or "str")


def _read(path: Path, flag: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{flag} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"{flag} {path} is not UTF-8 (byte {error.start})") from None
