"""What is wrong with a finished text, and where: the part of it that has to be written anew."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple
from urllib.parse import unquote

from redraft.constraints.compile.dialect import URIS, draft_of, validated_as
from redraft.constraints.compile.keywords import MAPS, NEWER_FORMATS
from redraft.constraints.compile.limits import JUDGES, UNTIL, TimeLimitError
from redraft.constraints.isolated import isolated
from redraft.errors import ConstraintError, DeadlineError, awaited

if TYPE_CHECKING:
    from jsonschema_rs import Validator

T = TypeVar("T")
Given = TypeVarTuple("Given")
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
_META_SCHEMA = re.compile(r'"\$ref": "(https?://json-schema\.org/draft(?:-0[467]|/20(?:19-09|20-12))/schema)#?"')
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ASIDE = ("$defs", "definitions", "const", "enum", "default", "examples")
"""Keywords whose parts no validator tries, but by references."""
_NAMED = (*MAPS, "dependencies")
"""Keywords of whose parts the keys are names."""
MOST_LEVELS = 200
"""Levels of lists and objects in a schema."""
MOST_PARTS, MOST_PATTERNS, MOST_MATCHES = 5000, 16, 200
"""Of a schema by which a value is judged right here: parts, patterns, and those times the texts in the value."""
PATTERN_CHARS = 125
"""A pattern of more counts as one more for each."""
_REGEX = {"backtrack_limit": 10_000, "size_limit": 1 << 20, "dfa_size_limit": 1 << 20}
"""Of one pattern: steps back in one match, and bytes. Of the 2,590 patterns in MaskBench one is larger."""
JUDGE_SEC, LEAST_SEC, JUDGE_BYTES = 2.0, 0.5, 1 << 29
"""For one judgement: at most, at least where its caller's time is up, and memory."""
TOO_MUCH = (
    f"a validator takes over {JUDGE_SEC:g} seconds or {JUDGE_BYTES >> 20} MiB for it: its references branch too often,"
    " or its patterns are too many or too large"
)
MOST_SAID = 20
SLOW_SEC, MOST_SLOW = 60.0, 1000
_SLOW: dict[str, tuple[float, float]] = {}
"""Schemas by which there was no verdict: until when that is remembered, and the seconds that were not enough."""
_THREADS = ThreadPoolExecutor(512, "judge")  # begun as they are needed; each may wait for its caller's turn
_JUDGE = """
import contextlib, json, resource, sys
for limit, most in zip((resource.RLIMIT_CPU, resource.RLIMIT_AS), map(int, sys.argv[1:])):
    with contextlib.suppress(ValueError):  # a lower one holds already, or the system knows none of this kind
        resource.setrlimit(limit, (most, most))
import jsonschema_rs
draft, newer, regex, metas, schema, value, most = json.load(sys.stdin)
newest = lambda name: jsonschema_rs.Draft202012Validator({"format": name}, validate_formats=True).is_valid
how = {"formats": {name: newest(name) for name in newer}, "pattern_options": jsonschema_rs.FancyRegexOptions(**regex)}
resources = {}
for name, official in metas.items():  # the library knows that of the schema's own draft alone by its name
    whole = jsonschema_rs.bundle({"$schema": official, "properties": {"a": {"$ref": official}}})
    resources |= whole.get("$defs") or whole["definitions"]
    text = resources[official.rstrip("#")]
    resources.setdefault(name, {key: inner for key, inner in text.items() if key not in ("$id", "id")})
if resources:
    how["registry"] = jsonschema_rs.Registry(list(resources.items()))
try:
    judge = getattr(jsonschema_rs, draft)(schema, validate_formats=True, offline=True, **how)
except (ValueError, jsonschema_rs.ReferencingError) as error:
    place, said = getattr(error, "instance_path", []), str(getattr(error, "message", error))
    print(json.dumps([list(place), said]))
else:
    said = [] if not most or judge.is_valid(value) else judge.iter_errors(value)
    print(json.dumps([[list(one.instance_path), str(one.message)[:500]] for one, _ in zip(said, range(most))]))
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


def verdicts(schema: Any, value: Any, most: int = MOST_SAID) -> list[tuple[list[str | int], str]]:
    """What jsonschema-rs says against a value: paths in it, and messages; nothing if it is valid. Raises as
    `validator_of`.

    The library can neither be interrupted nor given a bound on memory. Where references branch, each step from one to
    the next doubles its work: twenty steps of a few bytes each took all memory that there was. A thousand patterns that
    search forwards and back took a minute, in which no thread ran. So by such a schema it judges in a process of its
    own, with limits; over them the value is as good as invalid. There is one such process at a time; callers take
    turns. Raises DeadlineError for one that takes longer than its caller waits, and BusyError for one too many.
    """
    if not _is_costly(schema, value):
        validator = validator_of(schema)
        return [(list(said.instance_path), str(said.message)) for said in validator.iter_errors(value)]
    return _elsewhere(schema, value, most)


def _elsewhere(schema: Any, value: Any, most: int) -> list[tuple[list[str | int], str]]:
    """The verdicts of a process of its own. With a `most` of 0 it only reads the schema, which is known apart."""
    draft = validated_as(schema)
    newer = sorted(_newer_formats()) if draft < max(_KINDS) else []
    whole = json.dumps(schema)
    named = set(_META_SCHEMA.findall(whole))
    metas = {name: URIS[draft_of({"$schema": name}).year] for name in named}
    asked = json.dumps([_KINDS[draft], newer, _REGEX, metas, schema, value, most])
    command = isolated(_JUDGE, "jsonschema_rs", math.ceil(JUDGE_SEC), JUDGE_BYTES)
    with JUDGES.turn(str(threading.get_ident())):
        until = UNTIL.get()
        left = JUDGE_SEC if until is None else max(LEAST_SEC, min(JUDGE_SEC, until - time.monotonic()))
        known = f"{bool(most)} {whole}"
        slow_until, slow = _SLOW.get(known, (0.0, 0.0))
        try:
            if left <= slow and time.monotonic() < slow_until:
                raise subprocess.TimeoutExpired(command, left)
            done = subprocess.run(command, input=asked.encode(), capture_output=True, timeout=left, check=False)
        except subprocess.TimeoutExpired:
            if left > slow or time.monotonic() >= slow_until:
                _remember(known, left)
            if left < JUDGE_SEC:
                raise DeadlineError("the time was up before there was a verdict") from None
            return [([], TOO_MUCH)]
    if done.returncode:  # its processor time or its memory was at an end
        _remember(known, left)
        return [([], TOO_MUCH)]
    found = json.loads(done.stdout)
    if len(found) == 2 and isinstance(found[1], str):
        raise _unreadable(*found)
    return [(path, said) for path, said in found]


def _remember(known: str, seconds: float) -> None:
    """That so many seconds are not enough for a verdict."""
    while len(_SLOW) >= MOST_SLOW:
        _SLOW.pop(next(iter(_SLOW)), None)
    _SLOW[known] = time.monotonic() + SLOW_SEC, seconds


def _is_costly(schema: Any, value: Any) -> bool:
    parts, patterns = _cost(schema)
    return parts > MOST_PARTS or patterns > MOST_PATTERNS or patterns * _texts(value) > MOST_MATCHES


def _texts(value: Any) -> int:
    """How many strings are in a value, keys included."""
    count, stack = 0, [value]
    while stack:
        node = stack.pop()
        count += len(node) if isinstance(node, dict) else isinstance(node, str)
        if isinstance(node, dict | list):
            stack += node.values() if isinstance(node, dict) else node
    return count


async def judged(work: Callable[[*Given], T], *given: *Given) -> T:
    """What some work returns that may judge, on a thread of those that nothing else waits for."""
    context = copy_context()
    return await asyncio.get_running_loop().run_in_executor(
        _THREADS, lambda: context.run(lambda: awaited(work, *given))
    )


def _cost(schema: Any) -> tuple[int, int]:
    """How many parts of a schema, and patterns, a validator tries, each counted as often as references lead there: too
    many if they lead back, or are names, which only the library resolves. A format of expressions counts as many."""
    count, patterns, refers, moved = 0, 0, False, False
    stack = [(schema, False)]
    while stack and count <= MOST_PARTS:
        node, named = stack.pop()
        count += 1
        if isinstance(node, list):
            stack += [(inner, False) for inner in node if isinstance(inner, dict | list)]
        elif named:  # keys are names there, whatever they are called
            stack += [(inner, False) for inner in node.values() if isinstance(inner, dict | list)]
        elif isinstance(node, dict):
            patterns += _expressions(node)
            moved |= node is not schema and any(isinstance(node.get(word), str) for word in ("$id", "id"))
            for key, inner in node.items():
                if key in _REFERENCES and isinstance(inner, str):
                    refers = True
                    try:
                        stack.append((_pointed(schema, inner), False))
                    except (LookupError, ValueError, TypeError):
                        return MOST_PARTS + 1, patterns
                elif key not in _ASIDE and isinstance(inner, dict | list):
                    stack.append((inner, key in _NAMED and isinstance(inner, dict)))
    # Of a part with a name of its own, references begin there.
    return MOST_PARTS + 1 if refers and moved else count, patterns


def _expressions(part: dict[str, Any]) -> int:
    """How many expressions one part of a schema has. A long one counts as several, and a format of expressions as too
    many: to read one takes the library as long as it is long, and more, and it holds Python's lock."""
    named = part.get("patternProperties")
    found = [part.get("pattern"), *(named if isinstance(named, dict) else ())]
    count = sum(1 + len(one) // PATTERN_CHARS for one in found if isinstance(one, str))
    return count + (MOST_PATTERNS + 1) * (part.get("format") == "regex")


def _pointed(schema: Any, reference: str) -> Any:
    """What a JSON pointer of a document names. Raises LookupError, ValueError or TypeError for another reference."""
    if not reference.startswith("#"):
        raise LookupError(reference)
    for step in reference[1:].split("/")[1:] if reference[1:2] in ("", "/") else [""]:
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        schema = schema[int(step) if isinstance(schema, list) else step]
    return schema


def check_readable(schema: Any) -> None:
    """Raise ConstraintError for a schema that the validator cannot read, as with a reference that leads nowhere, or
    takes too long to read: patterns do, and of the references those that branch below `unevaluated…`."""
    whole = json.dumps(schema)
    branches = '"unevaluated' in whole and _cost(schema)[0] > MOST_PARTS
    if not branches and _patterns(schema) <= MOST_PATTERNS and _META_SCHEMA.search(whole) is None:
        validator_of(schema)
    elif _elsewhere(schema, None, 0):
        raise TimeLimitError(f"the schema: {TOO_MUCH}")


def _patterns(schema: Any) -> int:
    """How many expressions are in a schema. A format of expressions counts as too many."""
    count, stack = 0, [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            count += _expressions(node)
        if isinstance(node, dict | list):
            stack += node.values() if isinstance(node, dict) else node
    return count


def validator_of(schema: Any) -> Validator:
    """jsonschema-rs for a schema, read by the schema's own draft; nothing is fetched. Raises ConstraintError for a
    schema that it cannot read. What comes from a stranger goes through `verdicts`."""
    import jsonschema_rs

    draft = validated_as(schema)
    newer = _newer_formats() if draft < max(_KINDS) else {}
    with _naming_the_place():
        kind: type[Validator] = getattr(jsonschema_rs, _KINDS[draft])
        limits = jsonschema_rs.FancyRegexOptions(**_REGEX)
        return kind(schema, validate_formats=True, offline=True, formats=newer, pattern_options=limits)


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
        raise _unreadable(getattr(error, "instance_path", []), getattr(error, "message", str(error))) from None


def _unreadable(path: Sequence[str | int], said: str) -> ConstraintError:
    where = "/".join(map(str, path))
    if [*path[-1:]] == ["type"] and "'anyOf'" in said:
        said = f"{said.split(' is not ')[0]} is no type; types: array, boolean, integer, null, number, object, string"
    return ConstraintError(f"schema at #{where and '/'}{where} is no JSON Schema: {said[:200]}")


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
