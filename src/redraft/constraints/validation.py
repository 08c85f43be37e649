"""What is wrong with a finished text, and where: the part of it that has to be written anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from redraft.constraints.compile.dialect import URIS, validated_as
from redraft.constraints.compile.keywords import NEWER_FORMATS
from redraft.errors import ConstraintError

if TYPE_CHECKING:
    from jsonschema_rs import Validator

Span = tuple[int, int]

FENCE = "```"
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class Problem:
    """A reason, and the characters that it is about; None if it is about the whole text."""

    reason: str
    span: Span | None = None


def schema_problems(schema: Any, text: str) -> list[Problem]:
    """What jsonschema-rs says against a text as a value of a schema. Raises ConstraintError as `validator_of`."""
    try:
        value = json.loads(unfenced(text))
    except ValueError as error:
        return [Problem(f"not JSON: {error}")]
    found = []
    for said in validator_of(schema).iter_errors(value):
        path = list(said.instance_path)
        where = "/".join(map(str, path)) or "the top"
        span = span_of(text, path) if path else None
        found.append(Problem(f"at {where}: {str(said.message)[:200]}", span))
    return found


def validator_of(schema: Any) -> Validator:
    """jsonschema-rs for a schema, read by the schema's own draft; nothing is fetched.

    Raises ConstraintError for a schema that it cannot read, as with a reference that leads nowhere.
    """
    import jsonschema_rs

    kinds = {
        4: jsonschema_rs.Draft4Validator,
        6: jsonschema_rs.Draft6Validator,
        7: jsonschema_rs.Draft7Validator,
        2019: jsonschema_rs.Draft201909Validator,
        2020: jsonschema_rs.Draft202012Validator,
    }
    draft = validated_as(schema)
    newer = _newer_formats() if draft < max(kinds) else {}
    with _naming_the_place():
        return kinds[draft](schema, validate_formats=True, offline=True, formats=newer)


@cache
def _newer_formats() -> dict[str, Callable[[str], bool]]:
    """Judges of the formats that came after draft 4: of a name that its draft lacks, a schema means the newest."""
    from jsonschema_rs import Draft202012Validator

    return {
        name: Draft202012Validator({"format": name}, validate_formats=True).is_valid for name in sorted(NEWER_FORMATS)
    }


def check_form(schema: Any) -> None:
    """Raise ConstraintError for keywords whose values are of the wrong form, by the draft's own meta-schema."""
    from jsonschema_rs import meta

    with _naming_the_place():
        meta.validate({**schema, "$schema": URIS[validated_as(schema)]} if isinstance(schema, dict) else schema)


@contextmanager
def _naming_the_place() -> Iterator[None]:
    from jsonschema_rs import ReferencingError

    try:
        yield
    except (ValueError, ReferencingError) as error:  # its own ValidationError is a ValueError
        where = "/".join(map(str, getattr(error, "instance_path", [])))
        said = getattr(error, "message", str(error))[:200]
        raise ConstraintError(f"schema at #{where and '/'}{where} is no JSON Schema: {said}") from None


def unfenced(text: str) -> str:
    """A JSON text without the Markdown code block that it may stand in."""
    return text[_opened(text) :].removesuffix("\n```") if text.startswith(FENCE) else text


def span_of(text: str, path: Sequence[str | int]) -> Span:
    """Where the value at a path of a JSON text stands, white space and a code block around it not counted."""
    start = _skip(text, _opened(text))
    for step in path:
        start = _inside(text, start, step)
    return start, _DECODER.raw_decode(text, start)[1]


def _opened(text: str) -> int:
    """Where the text within a code block begins; 0 without one."""
    return text.find("\n") + 1 if text.startswith(FENCE) else 0


def _inside(text: str, start: int, step: str | int) -> int:
    """Where a member of the object or list at `start` begins; of a key given twice, the last."""
    at, count, found = _skip(text, start + 1), 0, start
    while text[at] not in "}]":
        key: str | int = count
        if text[start] == "{":
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        if key == step:
            found = at
        at = _skip(text, _DECODER.raw_decode(text, at)[1])
        at, count = _skip(text, at + 1) if text[at] == "," else at, count + 1
    return found


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\n\r":
        at += 1
    return at
