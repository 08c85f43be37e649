"""What is wrong with a finished text, and where: the part of it that has to be written anew."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from redraft.constraints.compile.dialect import URIS, validated_as
from redraft.constraints.compile.keywords import NEWER_FORMATS
from redraft.errors import ConstraintError

if TYPE_CHECKING:
    from jsonschema_rs import Validator

Span = tuple[int, int]

FENCE = "```"
_DECODER = json.JSONDecoder()
_KINDS = {
    4: "Draft4Validator",
    6: "Draft6Validator",
    7: "Draft7Validator",
    2019: "Draft201909Validator",
    2020: "Draft202012Validator",
}
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
MOST_LEVELS = 200
"""Levels of lists and objects in a schema."""
MOST_PARTS = 5000
"""Parts of a schema by which a value is judged right here."""
JUDGE_SEC, JUDGE_BYTES = 2.0, 1 << 29
_JUDGE = """
import contextlib, json, resource, sys
for limit, most in zip((resource.RLIMIT_CPU, resource.RLIMIT_AS), map(int, sys.argv[1:])):
    with contextlib.suppress(ValueError):  # a lower one holds already, or the system knows none of this kind
        resource.setrlimit(limit, (most, most))
import jsonschema_rs
draft, newer, schema, value = json.load(sys.stdin)
newest = lambda name: jsonschema_rs.Draft202012Validator({"format": name}, validate_formats=True).is_valid
formats = {name: newest(name) for name in newer}
judge = getattr(jsonschema_rs, draft)(schema, validate_formats=True, offline=True, formats=formats)
said = [] if judge.is_valid(value) else judge.iter_errors(value)
print(json.dumps([(list(one.instance_path), str(one.message)) for one, _ in zip(said, range(20))]))
"""


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
    for path, said in verdicts(schema, value):
        where = "/".join(map(str, path)) or "the top"
        found.append(Problem(f"at {where}: {said[:200]}", span_of(text, path) if path else None))
    return found


def verdicts(schema: Any, value: Any) -> list[tuple[list[str | int], str]]:
    """What jsonschema-rs says against a value: paths in it, and messages; nothing if it is valid. Raises as
    `validator_of`.

    The library can neither be interrupted nor given a bound on memory, and where references branch, each step from one
    to the next doubles its work: twenty steps of a few bytes each took all memory that there was. So it judges by such
    a schema in a process of its own, with limits; over them the value is as good as invalid.
    """
    validator = validator_of(schema)
    if not _branches(schema):
        return [(list(said.instance_path), str(said.message)) for said in validator.iter_errors(value)]
    draft = validated_as(schema)
    newer = sorted(_newer_formats()) if draft < max(_KINDS) else []
    asked = json.dumps([_KINDS[draft], newer, schema, value])
    command = [sys.executable, "-I", "-c", _JUDGE, *map(str, (math.ceil(JUDGE_SEC), JUDGE_BYTES))]
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, input=asked.encode(), capture_output=True, timeout=JUDGE_SEC, check=False)
        if not done.returncode:
            return [(path, said) for path, said in json.loads(done.stdout)]
    limits = f"{JUDGE_SEC:g} seconds or {JUDGE_BYTES >> 20} MiB"
    return [([], f"a validator takes over {limits} for it: its references branch too often")]


def _branches(schema: Any) -> bool:
    """Whether references lead to so many parts, each counted as often as they do, that a validator may be slow. Those
    that lead back lead to endlessly many."""
    count, stack = 0, [schema]
    while stack and count <= MOST_PARTS:
        node = stack.pop()
        count += 1
        if isinstance(node, list):
            stack += [inner for inner in node if isinstance(inner, dict | list)]
        elif isinstance(node, dict):
            for key, inner in node.items():
                if key in _REFERENCES and isinstance(inner, str):
                    try:
                        stack.append(_pointed(schema, inner))
                    except (LookupError, ValueError, TypeError):
                        return True  # a name, which only the library resolves
                elif key not in ("$defs", "definitions") and isinstance(inner, dict | list):
                    stack.append(inner)
    return count > MOST_PARTS


def _pointed(schema: Any, reference: str) -> Any:
    """What a JSON pointer of a document names. Raises LookupError, ValueError or TypeError for another reference."""
    if not reference.startswith("#"):
        raise LookupError(reference)
    for step in reference[1:].split("/")[1:] if reference[1:2] in ("", "/") else [""]:
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        schema = schema[int(step) if isinstance(schema, list) else step]
    return schema


def validator_of(schema: Any) -> Validator:
    """jsonschema-rs for a schema, read by the schema's own draft; nothing is fetched.

    Raises ConstraintError for a schema that it cannot read, as with a reference that leads nowhere.
    """
    import jsonschema_rs

    draft = validated_as(schema)
    newer = _newer_formats() if draft < max(_KINDS) else {}
    with _naming_the_place():
        kind: type[Validator] = getattr(jsonschema_rs, _KINDS[draft])
        return kind(schema, validate_formats=True, offline=True, formats=newer)


@cache
def _newer_formats() -> dict[str, Callable[[str], bool]]:
    """Judges of the formats that came after draft 4: of a name that its draft lacks, a schema means the newest."""
    from jsonschema_rs import Draft202012Validator

    return {
        name: Draft202012Validator({"format": name}, validate_formats=True).is_valid for name in sorted(NEWER_FORMATS)
    }


def check_depth(schema: Any) -> None:
    """Raise ConstraintError for a schema that nests deeper than MOST_LEVELS, without recursion."""
    level, levels = [schema] if isinstance(schema, dict | list) else [], 0
    while level:
        levels += 1
        if levels > MOST_LEVELS:
            raise ConstraintError(f"the schema nests too deeply: over {MOST_LEVELS} levels; flatten it")
        below = [inner for node in level for inner in (node.values() if isinstance(node, dict) else node)]
        level = [node for node in below if isinstance(node, dict | list)]


def check_form(schema: Any) -> None:
    """Raise ConstraintError for keywords whose values are of the wrong form, by the draft's own meta-schema."""
    from jsonschema_rs import meta

    with _naming_the_place():
        meta.validate({**schema, "$schema": URIS[validated_as(schema)]} if isinstance(schema, dict) else schema)


@contextlib.contextmanager
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
