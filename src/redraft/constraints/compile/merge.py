"""Schemas made plain: references followed, allOf merged away, so that each value has one set of keywords.

A plain schema has no $ref, allOf, anyOf, oneOf, const or boolean form at its top. What two schemas say together is
said keyword by keyword. A schema that nothing can satisfy is None. Where two keywords cannot be joined exactly, what is
left out is left to the check of the finished answer; that is noted in `inexact`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import reduce
from typing import Any

from redraft.constraints.compile.dialect import discriminator, modern
from redraft.constraints.compile.document import Document
from redraft.constraints.compile.ecma import widest_search
from redraft.constraints.compile.exclusive import exclusive
from redraft.constraints.compile.limits import OutOfReachError, check_time
from redraft.constraints.compile.values import json_key
from redraft.errors import ConstraintError

Schema = dict[str, Any]
Trail = tuple[str, ...]
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
MOST_ALTERNATIVES = 20_000
"""Ways through the allOf and anyOf of a schema that are looked at, valid or not."""
LOWER, UPPER = ("minLength", "minItems", "minProperties"), ("maxLength", "maxItems", "maxProperties")
_JOIN: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys((*LOWER, "minimum", "exclusiveMinimum"), max),
    **dict.fromkeys((*UPPER, "maximum", "exclusiveMaximum"), min),
    **dict.fromkeys(("patterns", "formats", "names", "multiples"), operator.add),
    "uniqueItems": operator.or_,
    "required": lambda a, b: list(dict.fromkeys([*a, *b])),
}
_LISTED = {"pattern": "patterns", "format": "formats", "propertyNames": "names", "multipleOf": "multiples"}


@dataclass
class Resolver:
    """The document that references point into, and how often a reference may be open inside itself.

    It counts the alternatives that it has looked at, and knows whether a reference was cut off at its depth and whether
    the language is only close to the schema's. A trail has the references that are open, of those that lead back to
    themselves, in alphabetical order: schemas with equal trails have equal languages.
    """

    document: Document
    depth: int = 4
    inexact: bool = False
    cut: bool = False
    alternatives: int = 0
    joined: dict[tuple[int, ...], Schema] = field(default_factory=dict)

    def plain(self, schema: Any, trail: Trail = ()) -> Iterator[tuple[Schema, Trail]]:
        """The alternatives of a schema, each plain, with the references that lead to it."""
        if schema is False:
            return
        check_time()
        self.alternatives += 1
        if self.alternatives > MOST_ALTERNATIVES:
            raise OutOfReachError(
                f"allOf, anyOf and $ref make over {MOST_ALTERNATIVES} alternatives of the schema; write fewer"
            )
        rest = {} if schema is True else modern(schema, self.document.draft)
        parts: list[list[tuple[Any, Trail]]] = []
        if "$ref" in rest:
            name, target = self.document.target(rest.pop("$ref"), schema)
            if name in self.document.recursive(name):
                if trail.count(name) >= self.depth:
                    self.cut = True
                    return
                trail = tuple(sorted((*trail, name)))
            parts.append([(target, trail)])
        parts += [[(one, trail)] for one in rest.pop("allOf", [])]
        self.inexact |= "oneOf" in rest and not exclusive(self.document, rest["oneOf"])
        if (told_by := discriminator(schema)) is not None:
            parts.append([({"required": [told_by]}, trail)])
        parts += [[(one, trail) for one in rest.pop(word)] for word in ("anyOf", "oneOf") if word in rest]
        yield from self._together(_normal(rest), trail, parts)

    def _together(
        self, rest: Schema | None, trail: Trail, parts: list[list[tuple[Any, Trail]]]
    ) -> Iterator[tuple[Schema, Trail]]:
        if rest is None:
            return
        if not parts:
            yield rest, trail
            return
        for choice, inner_trail in parts[0]:
            for found, deeper in self.plain(choice, inner_trail):
                longest = max(trail, deeper, key=len)
                yield from self._together(self.merge(rest, found), longest, parts[1:])

    def together(self, schemas: list[Any]) -> Any:
        """One schema for several, left to be made plain when its turn comes; the same one for the same several."""
        kept = [schema for schema in schemas if schema is not True]
        if any(schema is False for schema in kept):
            return False
        if len(kept) <= 1:
            return kept[0] if kept else True
        return self.joined.setdefault(tuple(map(id, kept)), {"allOf": kept})

    def merge(self, a: Schema, b: Schema) -> Schema | None:
        """What two plain schemas say together."""
        both = {key: _JOIN[key](a[key], b[key]) if key in a and key in b else {**a, **b}[key]
                for key in _JOIN if key in a or key in b}  # fmt: skip
        both["type"] = _types_of_both(a["type"], b["type"])
        if "enum" in a or "enum" in b:
            lists = [one["enum"] for one in (a, b) if "enum" in one]
            shared = set[Hashable].intersection(*({*map(json_key, one)} for one in lists))
            both["enum"] = [value for value in lists[0] if json_key(value) in shared]
        both |= self._objects(a, b) | self._arrays(a, b)
        known = {*both, "properties", "patternProperties", "additionalProperties", "items", "prefixItems", "enum"}
        for key in (*a, *b):
            if key not in known:
                both[key] = a.get(key, b.get(key))
        return both if both["type"] and both.get("enum", True) else None

    def _objects(self, a: Schema, b: Schema) -> Schema:
        """Each declared property with all that either side says about its key."""
        keys = list(dict.fromkeys([*a.get("properties", {}), *b.get("properties", {})]))
        found: Schema = {}
        if keys:
            found["properties"] = {key: self.together([*says(a, key), *says(b, key)]) for key in keys}
        patterns = list(dict.fromkeys([*a.get("patternProperties", {}), *b.get("patternProperties", {})]))
        if patterns:
            found["patternProperties"] = {
                pattern: self.together([one["patternProperties"][pattern] for one in (a, b)
                               if pattern in one.get("patternProperties", {})])
                for pattern in patterns
            }  # fmt: skip
            self.inexact |= any("additionalProperties" in one for one in (a, b))
        extra = [one["additionalProperties"] for one in (a, b) if "additionalProperties" in one]
        if extra:
            found["additionalProperties"] = self.together(extra)
        return found

    def _arrays(self, a: Schema, b: Schema) -> Schema:
        count = max(len(a.get("prefixItems", [])), len(b.get("prefixItems", [])))
        found: Schema = {}
        if count:
            found["prefixItems"] = [self.together([item_at(a, i), item_at(b, i)]) for i in range(count)]
        if "items" in a or "items" in b:
            found["items"] = self.together([one["items"] for one in (a, b) if "items" in one])
        return found


def says(schema: Schema, key: str) -> list[Any]:
    """All that a schema says about the value of a key."""
    found = [schema["properties"][key]] if key in schema.get("properties", {}) else []
    for pattern, inner in schema.get("patternProperties", {}).items():
        if widest_search(pattern).matches(key.encode()):
            found.append(inner)
    return found or ([schema["additionalProperties"]] if "additionalProperties" in schema else [True])


def item_at(schema: Schema, i: int) -> Any:
    first = schema.get("prefixItems", [])
    return first[i] if i < len(first) else schema.get("items", True)


def _normal(schema: Schema) -> Schema | None:
    """One spelling for each thing: lists for what may come more than once, enum for const, all types named."""
    found = {key: value for key, value in schema.items() if key not in _LISTED}
    found |= {plural: [schema[word]] for word, plural in _LISTED.items() if word in schema}
    types = schema.get("type", list(TYPES))
    types = [types] if isinstance(types, str) else types
    if not isinstance(types, list) or any(kind not in TYPES for kind in types):
        raise ConstraintError(f"type is {schema['type']!r:.80}; known: {', '.join(TYPES)}")
    found["type"] = [kind for kind in types if not (kind == "integer" and "number" in types)]
    for name in (*LOWER, *UPPER):
        value = found.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
            raise ConstraintError(f"{name} is {value!r:.80}; it must be an integer of at least 0")
        found |= {name: int(value)} if name in found else {}
    for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
        value = schema.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) == math.inf:
            raise ConstraintError(f"{name} is {value!r:.80}; it must be a number")
    if "const" in found:
        value = found.pop("const")
        found["enum"] = [value] if json_key(value) in map(json_key, found.get("enum", [value])) else []
    return found if found.get("enum", True) else None


def _types_of_both(a: list[str], b: list[str]) -> list[str]:
    shared = [kind for kind in a if kind in b]
    if "integer" not in shared and {"integer", "number"} <= {*a, *b} and not ("number" in a and "number" in b):
        shared.append("integer")
    return shared


def exact(value: int | float) -> Decimal:
    """A JSON number as the decimal that it was written as."""
    return Decimal(repr(value))


def tightest(schema: Schema) -> tuple[Decimal | None, bool, Decimal | None, bool]:
    """Lower bound and whether it is open, upper bound and whether it is open."""
    lows = [(exact(schema[key]), key != "minimum") for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [(exact(schema[key]), key == "maximum") for key in ("maximum", "exclusiveMaximum") if key in schema]
    low = reduce(max, lows) if lows else (None, False)
    high = reduce(min, highs) if highs else (None, True)
    return low[0], low[1], high[0], not high[1]
