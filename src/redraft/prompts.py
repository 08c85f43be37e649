"""The prompts that structured answers are asked for with: what the embedded model is taught, in words for any model.

    Extract as JSON: who, qty (integer), due (date)          Edit: Set qty to 5.
    Send 3 apples to Maria by 5 May 2024.                    {"who":"Maria","qty":3}

    Fill in: SELECT * FROM {{table}} LIMIT {{limit}};        Repair the JSON:
    Show me 20 rows of the orders table.                     {'who':'Maria' "qty":3

A first line says what to do, the text stands behind it. A field is a name and, unless it is a string, its type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any

from redraft.pointers import at_step

REPAIR = "Repair the JSON:"
BEGINNINGS = ("Extract as JSON", "Edit:", REPAIR, "Fill in")
"""How these prompts begin."""
CLOCK = "^([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?$"
"""A time of day as people write it: the format "time" of JSON Schema has seconds and a zone, which few texts say."""
_FORMATS = {"date": "date", "time": "time", "date-time": "date and time"}
_MOST_CHOICES = 8
_MOST_STEPS, _DEPTHS = 16, {8: 500, 2: 500, 1: 500, 0: 20_000}
"""References in a row; and how deep fields within fields are named, where the names take no more characters than these:
references make much of little, and nano's context is short."""


@dataclass(frozen=True)
class Field:
    """A field that is asked for. `kind` is what stands in brackets: "string" says nothing."""

    name: str
    kind: str = "string"

    def __str__(self) -> str:
        return self.name if self.kind == "string" else f"{self.name} ({self.kind})"


def extract(fields: Sequence[Field], text: str, many: bool = False) -> str:
    """The prompt for one record, or with `many` for a list of them, out of a text."""
    return f"Extract as JSON{' list' if many else ''}: {', '.join(map(str, fields))}\n{text}"


def edit(instruction: str, text: str) -> str:
    """The prompt for a text changed as an instruction says."""
    return f"Edit: {instruction}\n{text}"


def repair(text: str) -> str:
    """The prompt for valid JSON in place of broken."""
    return f"{REPAIR}\n{text}"


def fill(template: str, text: str) -> str:
    """The prompt for a template whose {{holes}} a text fills."""
    return f"Fill in: {template}\n{text}" if "\n" not in template else f"Fill in:\n{template}\nfrom:\n{text}"


def of_schema(schema: Any, text: str) -> str:
    """The prompt for the fields of a plain JSON schema out of a text; the text itself where the schema has none."""
    asked = fields_of(schema) if isinstance(schema, Mapping) else None
    return text if asked is None else extract(asked[0], text, many=asked[1])


def fields_of(schema: Mapping[str, Any]) -> tuple[tuple[Field, ...], bool] | None:
    """The fields of a JSON schema, and whether it is a list of records; None for one that is neither.

    Of a field's schema the type counts, the format of a date or time, and a short enum's choices; "null" beside another
    type does not, since every field may be without a value. References within the schema count as what they lead to.
    """
    for depth, most in _DEPTHS.items():
        with suppress(_TooLongError):
            return _Reading(schema, depth, most).fields(schema)
    return None


class _TooLongError(Exception):
    """The fields take more characters than they may."""


class _Reading:
    """The fields of one schema, to a depth and with the characters that are left. `inside` are the records that are
    being read: what leads back to itself has an end."""

    def __init__(self, whole: Mapping[str, Any], depth: int, left: int) -> None:
        self.whole, self.depth, self.left = whole, depth, left
        self.inside, self.led = list[object](), dict[str, object]()

    def fields(self, schema: Mapping[str, Any]) -> tuple[tuple[Field, ...], bool] | None:
        schema = self.followed(schema)
        many = schema.get("type") == "array"
        record = self.followed(schema.get("items")) if many else schema
        properties = record.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            return None
        if len(self.inside) > self.depth or any(record is one for one in self.inside):
            return None
        self.inside.append(record)
        found = tuple(Field(self.said(str(name)), self.kind(part)) for name, part in properties.items())
        self.inside.pop()
        return found, many

    def said(self, word: str) -> str:
        """The same word, which takes its characters of those that are left."""
        self.left -= len(word)
        if self.left < 0:
            raise _TooLongError
        return word

    def followed(self, schema: object, *, either: bool = False) -> Mapping[str, Any]:
        """What a reference, an allOf of one or with `either` an anyOf leads to; a schema with fields leads nowhere."""
        for _ in range(_MOST_STEPS):
            if not isinstance(schema, Mapping) or schema.keys() & {"properties", "enum"}:
                break
            name, parts, among = schema.get("$ref"), schema.get("allOf"), schema.get("anyOf")
            if isinstance(name, str) and (name == "#" or name.startswith("#/")):
                if name not in self.led:
                    self.led[name] = reduce(at_step, name.split("/")[1:], self.whole)
                schema = self.led[name]
            elif isinstance(parts, list) and len(parts) == 1:
                schema = parts[0]
            elif either and isinstance(among, list):
                first = next((one for one in among if isinstance(one, Mapping) and one.get("type") != "null"), None)
                if first is None:
                    break
                schema = first
            else:
                break
        return schema if isinstance(schema, Mapping) else {}

    def kind(self, schema: object) -> str:
        """What stands in a field's brackets."""
        schema = self.followed(schema, either=True)
        choices = schema.get("enum")
        if isinstance(choices, list):
            words = [each for each in choices[: 2 * _MOST_CHOICES] if isinstance(each, str)]
            return "|".join(map(self.said, words)) if words and len(words) <= _MOST_CHOICES else "string"
        kinds = schema.get("type", "string")
        kind = next((each for each in kinds if each != "null"), "string") if isinstance(kinds, list) else str(kinds)
        if kind == "string":
            return "time" if schema.get("pattern") == CLOCK else _FORMATS.get(str(schema.get("format")), "string")
        if kind in ("array", "object"):
            inner = self.fields(schema)
            name = "list" if kind == "array" else kind
            return name if inner is None else f"{name}: {', '.join(map(str, inner[0]))}"
        return kind
