"""What is wrong with a finished text, and where: the part of it that has to be written anew."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar, TypeVarTuple

from redraft.constraints.compile.dialect import URIS, draft_of, reached, validated_as
from redraft.constraints.compile.ecma import for_rust
from redraft.constraints.compile.keywords import NEWER_FORMATS
from redraft.constraints.compile.limits import CALLER, GONE, JUDGES, QUICK_JUDGES, UNTIL, TimeLimitError, is_gone
from redraft.constraints.compile.remembered import remembered
from redraft.constraints.isolated import Helper
from redraft.constraints.places import Span, path_in, repeated, span_of, unfenced
from redraft.errors import BusyError, ConstraintError, DeadlineError, awaited

T = TypeVar("T")
Given = TypeVarTuple("Given")
_KINDS = {
    4: "Draft4Validator",
    6: "Draft6Validator",
    7: "Draft7Validator",
    2019: "Draft201909Validator",
    2020: "Draft202012Validator",
}
_META_SCHEMA = re.compile(r'"\$ref": "(https?://json-schema\.org/draft(?:-0[467]|/20(?:19-09|20-12))/schema)#?"')
MOST_LEVELS = 200
"""Levels of lists and objects in a schema."""
_REGEX = {"backtrack_limit": 100_000, "size_limit": 1 << 20, "dfa_size_limit": 1 << 20}
"""Of one pattern: steps back in one match, and bytes. Of the 2,590 patterns in MaskBench one is larger."""
QUICK_SEC, JUDGE_SEC, LEAST_SEC, JUDGE_BYTES = 0.1, 2.0, 0.5, 1 << 29
"""For one judgement: beside others that are quick, at most, at least where its caller's time is up, and memory."""
TOO_MUCH = (
    f"a validator takes over {JUDGE_SEC:g} seconds or {JUDGE_BYTES >> 20} MiB for it: its references branch too often,"
    " its patterns are too many or too large, or unevaluated… stands within another one"
)
UNDECIDED = "Error executing regex"
"""How the library says that a match took more steps back than it may."""
MOST_SAID = 20
_TWICE = re.compile(r" has (non-unique elements|less than \d+ propert(y|ies))$")
"""How it says that something stands twice, as a key of an object may."""
KNOWN_SEC, MOST_KNOWN = 60.0, 1000
_KNOWN: dict[bytes, tuple[float, float]] = {}
"""Schemas by which a verdict is not quick: until when that is remembered, and the seconds that were not enough."""
MOST_THREADS = 32
"""Of one caller's answers that are judged at a time: each waits for its turn on a thread."""
_JUDGE = """
import jsonschema_rs
newest = lambda name: jsonschema_rs.Draft202012Validator({"format": name}, validate_formats=True).is_valid
def answer(asked):
    draft, newer, regex, metas, schema, value, most = asked
    try:
        if draft is None:
            jsonschema_rs.meta.validate(schema)
            return []
        judge = validator(draft, newer, regex, metas, schema)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        return [list(getattr(error, "instance_path", [])), str(getattr(error, "message", error))]
    try:
        said = [] if not most or judge.is_valid(value) else judge.iter_errors(value)
        return [[list(one.instance_path), str(one.message)[:500]] for one, _ in zip(said, range(most))]
    except ValueError as error:  # half a character
        return [[[], str(error)[:500]]]
def validator(draft, newer, regex, metas, schema):
    options = jsonschema_rs.FancyRegexOptions(**regex)
    how = {"formats": {name: newest(name) for name in newer}, "pattern_options": options}
    resources = {}
    for name, official in metas.items():  # the library knows that of the schema's own draft alone by its name
        whole = jsonschema_rs.bundle({"$schema": official, "properties": {"a": {"$ref": official}}})
        resources |= whole.get("$defs") or whole["definitions"]
        text = resources[official.rstrip("#")]
        resources.setdefault(name, {key: inner for key, inner in text.items() if key not in ("$id", "id")})
    if resources:
        how["registry"] = jsonschema_rs.Registry(list(resources.items()))
    return getattr(jsonschema_rs, draft)(schema, validate_formats=True, offline=True, **how)
"""
_QUICK, _SLOW = (Helper(_JUDGE, "jsonschema_rs", math.ceil(JUDGE_SEC), JUDGE_BYTES) for _ in range(2))


@dataclass(frozen=True)
class Problem:
    """A reason, and the characters that it is about; None if it is about the whole text."""

    reason: str
    span: Span | None = None


def schema_problems(schema: Any, text: str, *, quick: bool = False) -> list[Problem]:
    """What jsonschema-rs says against a text as a value of a schema. Raises as `verdicts`."""
    try:
        value = json.loads(unfenced(text))
    except ValueError as error:
        return [Problem(f"not JSON: {error}")]
    found = []
    for steps, said in verdicts(schema, value, quick=quick):
        path = path_in(value, steps)
        where, span = "/".join(map(str, steps)) or "the top", span_of(text, path) if path else None
        if path is not None and _TWICE.search(said):
            span = repeated(text, span_of(text, path)[0]) or span
        found.append(Problem(f"at {where}: {said[:200]}", span))
    return found


def contradictions(schema: Any, text: str) -> list[Problem]:
    """The same of a text that was held to all of the schema: no question, but a second look at what redraft compiled.
    Nothing where the validator cannot read the schema, or has no quick answer, or where something ends it."""
    try:
        return [one for one in schema_problems(schema, text, quick=True) if UNDECIDED not in one.reason]
    except (ConstraintError, DeadlineError, BusyError):
        if is_gone():  # the next reader asks again
            raise
        return []


def verdicts(
    schema: Any, value: Any, most: int = MOST_SAID, *, quick: bool = False
) -> list[tuple[list[str | int], str]]:
    """What jsonschema-rs says against a value: paths in it, and messages; nothing if it is valid.

    The library can neither be interrupted nor given a bound on memory, and while it works no thread of Python does. A
    schema of a kilobyte can take it minutes, in more ways than can be counted beforehand: references that branch,
    `unevaluated…` in one another, patterns that search forwards and back. So it works in processes of its own: one
    for all that is quick, and one for what the first found too long, with limits over which a value is as good as
    invalid. Callers take turns at each. With `quick` the second is not asked, and what would need it is valid. Raises
    ConstraintError for a schema that it cannot read, DeadlineError where it takes longer than its caller waits,
    BusyError for one too many, or if something ends the processes.
    """
    draft, text, spelt = _read(json.dumps(schema))
    newer = sorted(NEWER_FORMATS) if draft < max(_KINDS) else []
    metas = {name: URIS[draft_of({"$schema": name}).year] for name in set(_META_SCHEMA.findall(text))}
    found = _judged([_KINDS[draft], newer, _REGEX, metas], text, value, most, quick=quick)
    if len(found) > MOST_SAID:
        return found
    return [(path, reduce(lambda said, one: said.replace(*one), spelt.items(), said)) for path, said in found]


@remembered  # each answer asks, and a schema of 350 kB takes 0.09 s
def _read(given: str) -> tuple[int, str, dict[str, str]]:
    """The draft that the library reads a schema by, the schema as it reads it, and what it calls patterns that it would
    not read as ECMA's."""
    draft, schema = validated_as(json.loads(given))
    text, spelt = json.dumps(schema), dict[str, str]()
    if '"pattern' not in text:
        return draft, text, spelt

    def spell(pattern: str) -> str:
        with suppress(ConstraintError):
            if (new := for_rust(pattern)) != pattern:
                spelt[new], spelt[json.dumps(new)] = pattern, json.dumps(pattern)
            return new
        return pattern

    schema = json.loads(text)
    for node, _ in list(reached(schema, draft_of(schema))):
        if isinstance(node.get("pattern"), str):
            node["pattern"] = spell(node["pattern"])
        inner = node.get("patternProperties")
        if isinstance(inner, dict) and "/patternProperties/" not in text:  # else a reference may lead there
            spelled = {spell(pattern): inner[pattern] for pattern in inner}
            node["patternProperties"] = spelled if len(spelled) == len(inner) else inner
    return draft, json.dumps(schema), spelt


def _judged(
    how: list[Any], schema: str, value: Any, most: int, *, quick: bool = False
) -> list[tuple[list[str | int], str]]:
    asked = f"{json.dumps(how)[:-1]}, {schema}"
    question = f"{asked}, {json.dumps(value)}, {most}]".encode()
    known = hashlib.blake2b(f"{asked}, {bool(most)}".encode()).digest()
    answer = _quickly(question, known)
    if answer is None and not quick:
        answer = _slowly(question, known)
    if answer is None:
        return [] if quick else [([], TOO_MUCH)]
    found = json.loads(answer)
    if len(found) == 2 and isinstance(found[1], str):
        raise _unreadable(*found)
    return [(path, said) for path, said in found]


def _is_slow(known: bytes) -> bool:
    return time.monotonic() < _KNOWN.get(known, (0.0, 0.0))[0]


def _quickly(question: bytes, known: bytes) -> bytes | None:
    """The answer, unless it takes long; also where its caller's time was up before."""
    if _is_slow(known):
        return None
    until = UNTIL.get()
    token = UNTIL.set(None if until is None else max(until, time.monotonic() + LEAST_SEC))
    try:
        with QUICK_JUDGES.turn(str(threading.get_ident()), counted=False):
            # By another answer it may have become known while this one waited.
            answer = None if _is_slow(known) else _QUICK.ask(question, QUICK_SEC)
            if answer is None and not _is_slow(known):
                _remember(known, 0.0)
            return answer
    finally:
        UNTIL.reset(token)


def _slowly(question: bytes, known: bytes) -> bytes | None:
    """The answer; None if it takes too long. Raises DeadlineError if that is for lack of its caller's time."""
    with JUDGES.turn(str(threading.get_ident())):
        until = UNTIL.get()
        left = JUDGE_SEC if until is None else max(LEAST_SEC, min(JUDGE_SEC, until - time.monotonic()))
        known_until, not_enough = _KNOWN.get(known, (0.0, 0.0))
        answer = None
        if left > not_enough or time.monotonic() >= known_until:
            answer = _SLOW.ask(question, left)
            _remember(known, left if answer is None else 0.0)
    if answer is None and left < JUDGE_SEC:
        raise DeadlineError("the time was up before there was a verdict")
    return answer


def _remember(known: bytes, seconds: float) -> None:
    """That by this schema a verdict takes long, and that so many seconds are not enough."""
    while len(_KNOWN) >= MOST_KNOWN:
        _KNOWN.pop(next(iter(_KNOWN)), None)
    _KNOWN[known] = time.monotonic() + KNOWN_SEC, seconds


async def judged(work: Callable[[*Given], T], *given: *Given) -> T:
    """What some work returns that may judge, on a thread of its caller's own. If who awaits it is cancelled, it ends
    where it would wait for its turn."""
    context, left = copy_context(), threading.Event()
    context.run(GONE.set, left)
    with _POOLS.of(CALLER.get()) as pool:
        try:
            judging = asyncio.get_running_loop().run_in_executor(
                pool, lambda: context.run(lambda: awaited(work, *given))
            )
        except RuntimeError:  # the program ends, and no thread can be begun
            return awaited(work, *given)
        else:
            return await judging
        finally:
            left.set()


class _Pools:
    """Threads of each caller that has answers to judge: so none of them waits behind another's."""

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # a fork has none of the threads

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[Hashable, tuple[ThreadPoolExecutor, int]] = {}  # and how many answers it has

    @contextmanager
    def of(self, caller: Hashable) -> Iterator[ThreadPoolExecutor]:
        """The caller's threads, for one answer."""
        with self._lock:
            pool, answers = self._pools.get(caller) or (ThreadPoolExecutor(MOST_THREADS, "judge"), 0)
            self._pools[caller] = pool, answers + 1
        try:
            yield pool
        finally:
            with self._lock:
                answers = self._pools[caller][1] - 1
                self._pools[caller] = pool, answers
                if not answers:
                    del self._pools[caller]
                    pool.shutdown(wait=False)


_POOLS = _Pools()


def check_readable(schema: Any) -> None:
    """Raise ConstraintError for a schema that the validator cannot read, as with a reference that leads nowhere, or
    takes too long to read."""
    if verdicts(schema, None, 0):
        raise TimeLimitError(f"the schema: {TOO_MUCH}")


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
    draft, schema = validated_as(schema)  # with its patterns as they are: drafts up to 7 hold them to be ECMA's
    named = {**schema, "$schema": URIS[draft]} if isinstance(schema, dict) else schema
    if _judged([None, [], {}, {}], json.dumps(named), None, 0):
        raise TimeLimitError(f"the schema: {TOO_MUCH}")


def _unreadable(path: Sequence[str | int], said: str) -> ConstraintError:
    where = "/".join(map(str, path))
    if [*path[-1:]] == ["type"] and "'anyOf'" in said:
        said = f"{said.split(' is not ')[0]} is no type; types: array, boolean, integer, null, number, object, string"
    if said != (pattern := said.removesuffix(' is not a "regex"')):
        said = f"{pattern[:120]} is no pattern, or too large a one for the validator"
    return ConstraintError(f"schema at #{where and '/'}{where} is no JSON Schema: {said[:200]}")
