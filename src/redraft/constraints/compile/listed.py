"""Lists of values in a schema: which of them satisfy what stands beside the list, by an independent validator."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator
from math import comb
from typing import Any

from redraft.constraints.compile.limits import TimeLimitError, check_time, part_compiled
from redraft.constraints.compile.merge import Resolver, Schema, Trail
from redraft.constraints.compile.values import json_key
from redraft.constraints.validation import UNDECIDED, verdicts

_NAMES = ("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor")
_SHAPE = ("properties", "patternProperties", "additionalProperties", "required", "names", "items", "prefixItems")
"""What is said of the parts of a value. Of several schemas together it is never more than they say."""
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef", "$schema", "$id")
_SILENT = {"type", "allOf", "title", "description", "default", "deprecated", "readOnly", "writeOnly", "$comment"}
"""Beside a list of texts: those of the type that it names are not asked for."""
MOST_LISTED = 50_000
"""Reasons against values of a list."""
MOST_ORDERED, MOST_WRITTEN = 30, 8_000
"""Listed values, and bytes of them, that are written in every order: seven of ten bytes have 4,480."""


def satisfying(resolver: Resolver, plain: Schema) -> Iterator[Any]:
    """The values that a plain schema lists and that satisfy the keywords beside the list.

    What these say of parts of a value is left to the check of the finished answer if it refers to other schemas, or
    may be in the forms of another draft.
    """
    values = plain["enum"]
    has_parts = any(isinstance(value, dict | list) for value in values)
    words = _beside(resolver, plain, parts=has_parts)
    texts = "string" in words.get("type", ["string"]) and all(isinstance(value, str) for value in values)
    quick = texts and words["allOf"] == [{}] and words.keys() <= _SILENT
    said = [] if quick else verdicts({"items": words}, values, most=MOST_LISTED)
    resolver.inexact |= any(UNDECIDED in why for _, why in said)
    wrong = {path[0] if path else -1 for path, why in said if UNDECIDED not in why}
    if -1 in wrong or len(said) == MOST_LISTED:
        raise TimeLimitError(f"{part_compiled()} lists values that take a validator too long; list fewer of them")
    for i, value in enumerate(values):
        check_time()
        # Of a number like 1.0 the drafts say different things about whether it is an integer.
        if isinstance(value, dict | list) or (isinstance(value, float) and value.is_integer()):
            resolver.inexact = True
        if i not in wrong:
            yield value


def few(resolver: Resolver, schema: Any, trail: Trail, high: int | None) -> list[Any]:
    """The values of a schema, where up to `high` of them can be written in every order; else none."""
    found = dict[Hashable, Any]()
    for plain, _ in resolver.plain(schema, trail):
        values: Iterable[Any] = [*(True, False) * ("boolean" in plain["type"]), *[None] * ("null" in plain["type"])]
        if "enum" in plain and len(plain["enum"]) < MOST_ORDERED:
            values = satisfying(resolver, plain)
        elif "enum" in plain or {*plain["type"]} - {"boolean", "null"}:
            return []
        for value in values:
            found.setdefault(json_key(value), value)
    most = len(found) if high is None else min(high, len(found))
    places = sum(comb(len(found) - 1, before) for before in range(most))  # of each value
    written = places * sum(len(json.dumps(value)) for value in found.values())
    return [*found.values()] if written <= MOST_WRITTEN else []


def _beside(resolver: Resolver, plain: Schema, *, parts: bool) -> Schema:
    """The keywords beside a list, with those about `parts` of values, for the validator."""
    shape = {key: plain[key] for key in _SHAPE if key in plain} if parts else {}
    written = json.dumps(shape)
    refers = any(f'"{word}"' in written for word in _REFERENCES)
    words = {key: inner for key, inner in plain.items() if not isinstance(inner, dict | list) or key == "type"}
    words = {key: inner for key, inner in words.items() if key not in (*_NAMES, *_SHAPE, *_UNEVALUATED)}
    words |= shape if resolver.document.is_newest and not refers else {}
    words["allOf"] = [{}, *({"pattern": one} for one in dict.fromkeys(plain.get("patterns", [])))]
    words["allOf"] += [{"multipleOf": one} for one in plain.get("multiples", [])]
    words["allOf"] += [{"format": one} for one in plain.get("formats", [])]
    words["allOf"] += [{"propertyNames": one} for one in words.pop("names", [])]
    return words
