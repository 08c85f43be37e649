"""Every keyword of JSON Schema draft 2020-12 and what is done about it; docs/constraints.md prints the table.

GUARANTEED   part of the language: no text that breaks it can be emitted
CHECKED      read by an independent validator when the answer is there; one that breaks it is mended or an error
NOTED        says nothing about which texts are valid
REFUSED      a schema that has it is refused by name
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from redraft.errors import ConstraintError


class Care(Enum):
    """What is done about a keyword."""

    GUARANTEED = "guaranteed"
    CHECKED = "checked"
    NOTED = "noted"
    REFUSED = "refused"


@dataclass(frozen=True)
class Keyword:
    """A keyword, what is done about it, and what else there is to say."""

    name: str
    care: Care
    note: str = ""


def _rows(care: Care, text: str) -> Iterator[Keyword]:
    for line in text.strip().splitlines():
        name, _, note = line.strip().partition("  ")
        yield Keyword(name, care, note.strip())


KEYWORDS: tuple[Keyword, ...] = (
    *_rows(
        Care.GUARANTEED,
        """
        type
        enum  values that the rest of the schema allows
        const
        minimum  digit by digit, exact
        maximum
        exclusiveMinimum
        exclusiveMaximum
        multipleOf  divisors of up to four digits; others are checked
        minLength  up to 1000 characters; beyond that refused
        maxLength  up to 1000 characters; beyond that checked
        pattern  no look-around, back references, word borders, inner anchors or `--` in a class; those are refused
        properties  in the order of the schema
        required
        additionalProperties  keys beyond the declared ones are written only where this is given, or nothing is declared
        patternProperties  up to four patterns; more are refused
        propertyNames
        minProperties  over declared keys; keys beyond them may repeat, which is checked
        maxProperties
        items
        prefixItems
        minItems
        maxItems
        anyOf
        oneOf  at least one; that it is only one is checked
        allOf  merged keyword by keyword
        $ref  within the document; one that meets itself may be open four times at once
        $defs
        definitions  the older spelling
        """,
    ),
    *_rows(
        Care.CHECKED,
        """
        not
        if
        then
        else
        dependentRequired
        dependentSchemas
        contains
        minContains
        maxContains
        uniqueItems
        unevaluatedItems
        unevaluatedProperties
        """,
    ),
    *_rows(
        Care.NOTED,
        """
        $schema
        $id  at the root only; below it is refused
        $comment
        $anchor  as a target of $ref
        title
        description
        default
        examples
        deprecated
        readOnly
        writeOnly
        contentEncoding
        contentMediaType
        contentSchema
        """,
    ),
    *_rows(
        Care.REFUSED,
        """
        $dynamicRef
        $dynamicAnchor
        $recursiveRef
        $recursiveAnchor
        $vocabulary
        dependencies  write dependentRequired or dependentSchemas
        additionalItems  write prefixItems and items
        """,
    ),
    Keyword("format", Care.GUARANTEED, "the formats listed below; others are checked"),
)

CARE: Mapping[str, Care] = {keyword.name: keyword.care for keyword in KEYWORDS}

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_ONE = ("additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else",
        "unevaluatedItems", "unevaluatedProperties")  # fmt: skip

FORMATS: Mapping[str, str] = {
    "date": r"[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "time": r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])",
    "ipv6": r"(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}",
    "email": r"[A-Za-z0-9]{1,20}(?:[._+-][A-Za-z0-9]{1,20}){0,2}"
    r"@(?:[a-z0-9]{1,20}(?:-[a-z0-9]{1,20})?\.){1,3}[a-z]{2,12}",
    "hostname": r"(?:[a-z0-9]{1,20}(?:-[a-z0-9]{1,20}){0,2}\.){0,5}[a-z]{2,12}",
    "uri": r"https?://(?:[a-z0-9]+(?:-[a-z0-9]+)*\.)+[a-z]{2,12}(?::[1-9][0-9]{0,3})?(?:/[A-Za-z0-9._~-]*)*",
    "duration": r"P(?:[0-9]{1,4}D|[0-9]{1,4}W|T[0-9]{1,4}[HMS]|[0-9]{1,4}DT[0-9]{1,4}[HMS])",
    "json-pointer": r"(?:/[A-Za-z0-9_.-]*)*",
}
FORMATS = {**FORMATS, "date-time": FORMATS["date"] + "T" + FORMATS["time"]}


def check_keywords(schema: object, path: str = "#") -> bool:
    """Walk a schema and refuse, by name and place, what cannot be kept; whether some keyword has to be checked after.

    Raises ConstraintError.
    """
    if isinstance(schema, bool):
        return False
    if not isinstance(schema, dict):
        raise ConstraintError(f"schema at {path} is {schema!r:.80}; it must be an object, true or false")
    checked = False
    for name, value in schema.items():
        care = CARE.get(name, Care.REFUSED)
        if care is Care.REFUSED or (name == "$id" and path != "#"):
            note = next((keyword.note for keyword in KEYWORDS if keyword.name == name), "no keyword of draft 2020-12")
            raise ConstraintError(f"schema at {path} has {name!r}, which is not supported{note and ': '}{note}")
        checked |= care is Care.CHECKED or name == "oneOf"
        below = [check_keywords(*inner) for inner in _inner(name, value, path)]  # all of them: each may refuse
        checked |= any(below)
    return checked


def _inner(name: str, value: Any, path: str) -> Iterator[tuple[object, str]]:
    """The schemas that are a keyword's value, each with its place."""
    expected = dict if name in _MAPS else list if name in _LISTS else None
    if expected is not None and not isinstance(value, expected):
        raise ConstraintError(f"schema at {path}: {name} is {value!r:.80}; it must be a JSON {expected.__name__}")
    if name in _MAPS:
        yield from ((inner, f"{path}/{name}/{key}") for key, inner in value.items())
    elif name in _LISTS:
        yield from ((inner, f"{path}/{name}/{i}") for i, inner in enumerate(value))
    elif name in _ONE:
        yield value, f"{path}/{name}"
