"""Whether schemas exclude each other, as far as can be seen without solving them: then `oneOf` is `anyOf`."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from redraft.constraints.compile.dialect import modern
from redraft.constraints.compile.document import Document
from redraft.constraints.compile.values import json_key

MOST_PAIRS = 2_000
DEEPEST = 6
ALL = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})


def exclusive(document: Document, schemas: list[Any]) -> bool:
    """Whether no value can satisfy two of the schemas. False where that is not plain to see."""
    if len(schemas) * (len(schemas) - 1) // 2 > MOST_PAIRS:
        return False
    return all(_disjoint(document, a, b, DEEPEST) for a, b in combinations(schemas, 2))


def _disjoint(document: Document, a: Any, b: Any, depth: int) -> bool:
    a, b = _followed(document, a, depth), _followed(document, b, depth)
    if a is False or b is False:
        return True
    if not isinstance(a, dict) or not isinstance(b, dict) or depth == 0:
        return False
    for one, other in ((a, b), (b, a)):
        if any(_disjoint(document, part, other, depth - 1) for part in one.get("allOf", [])):
            return True
        for word in ("anyOf", "oneOf"):
            if word in one and all(_disjoint(document, part, other, depth - 1) for part in one[word]):
                return True
    shared = _types(a) & _types(b)
    if not shared:
        return True
    values = [_values(one) for one in (a, b)]
    if values[0] is not None and values[1] is not None:
        return {*map(json_key, values[0])}.isdisjoint(map(json_key, values[1]))
    return shared == {"object"} and _objects_differ(document, a, b, depth)


def _followed(document: Document, schema: Any, depth: int) -> Any:
    """A schema's own words, or those that it only refers to."""
    for _ in range(depth):
        if not isinstance(schema, dict):
            return schema
        words = modern(schema, document.draft)
        if "$ref" not in words:
            return words
        schema = document.target(words.pop("$ref"), schema)[1]
        if words:
            return {"allOf": [schema, words]}
    return True


def _types(schema: dict[str, Any]) -> frozenset[str]:
    """The types that its values may have; what is a number may be an integer."""
    named = schema.get("type", ALL)
    kinds = frozenset([named] if isinstance(named, str) else named)
    values = _values(schema)
    if values is not None:
        kinds &= frozenset(kind for value in values for kind in _types_of(value))
    return kinds | {"integer"} if "number" in kinds else kinds


def _types_of(value: Any) -> tuple[str, ...]:
    if value is None or isinstance(value, bool):
        return ("null",) if value is None else ("boolean",)
    if isinstance(value, int | float):
        return ("number", "integer")
    return ("string",) if isinstance(value, str) else ("object",) if isinstance(value, dict) else ("array",)


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _objects_differ(document: Document, a: dict[str, Any], b: dict[str, Any], depth: int) -> bool:
    """Whether some key that one of them has to have can never have the same value in both."""
    for one, other in ((a, b), (b, a)):
        mine, theirs = one.get("properties", {}), other.get("properties", {})
        for key in one.get("required", []):
            if key in mine and key in theirs and _disjoint(document, mine[key], theirs[key], depth - 1):
                return True
            closed = other.get("additionalProperties") is False and not other.get("patternProperties")
            if closed and key not in theirs:
                return True
    return False
