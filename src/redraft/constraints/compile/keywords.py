"""Every keyword of JSON Schema, the drafts that define it, and what is done (docs/constraints.md has the table).

GUARANTEED   part of the language: no text that breaks it can be emitted
CHECKED      read by an independent validator when the answer is there; one that breaks it is repaired or an error
NOTED        says nothing about which texts are valid

A keyword that the schema's draft does not define is an annotation, as the standard says: it is ignored and listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum


class Care(Enum):
    """What is done about a keyword."""

    GUARANTEED = "guaranteed"
    CHECKED = "checked"
    NOTED = "noted"


DRAFTS = (4, 6, 7, 2019, 2020)


@dataclass(frozen=True)
class Keyword:
    """A keyword, what is done about it, what else there is to say, and the first and last draft that define it."""

    name: str
    care: Care
    note: str = ""
    first: int = 4
    last: int = 2020


def _rows(care: Care, text: str, first: int = 4) -> Iterator[Keyword]:
    for line in text.strip().splitlines():
        name, _, note = line.strip().partition("  ")
        yield Keyword(name, care, note.strip(), first)


KEYWORDS: tuple[Keyword, ...] = (
    *_rows(
        Care.GUARANTEED,
        """
        type
        enum  values that the rest of the schema allows
        minimum  digit by digit; integers of 20 digits, others of 15, or as many as a bound has (fewer in vast schemas)
        maximum
        exclusiveMinimum  a number or, in draft 4, a boolean
        exclusiveMaximum  likewise
        multipleOf  divisors of up to four digits, unless their states are too many (9973); others are checked
        minLength  up to 1000 characters; beyond that guided
        maxLength  up to 1000 characters; beyond that, and of `uri`, checked
        pattern  look-around but ahead from its beginning, back references, word borders and inner anchors are checked
        properties  in the order of the schema
        required
        additionalProperties  keys beyond the declared ones are written only where this is given, or nothing is declared
        patternProperties  up to four patterns; with more the schema is guided, or refused if they overlap
        minProperties  over declared keys; keys beyond them may repeat, which is checked
        maxProperties
        items
        minItems
        maxItems
        uniqueItems  of few listed values, as seven days of the week; of others checked
        anyOf
        oneOf  at least one; that it is only one is checked, unless the schemas exclude each other
        allOf  merged keyword by keyword
        $ref  within the document; one that meets itself may be open four times at once
        definitions
        """,
    ),
    Keyword("additionalItems", Care.GUARANTEED, "the older spelling of items behind a list of them", 4, 2019),
    *_rows(Care.GUARANTEED, "const\npropertyNames", 6),
    *_rows(Care.GUARANTEED, "$defs", 2019),
    *_rows(Care.GUARANTEED, "prefixItems", 2020),
    *_rows(Care.CHECKED, "not\ndependencies  as dependentRequired and dependentSchemas"),
    *_rows(Care.CHECKED, "contains", 6),
    *_rows(Care.CHECKED, "if\nthen\nelse", 7),
    *_rows(
        Care.CHECKED,
        """
        dependentRequired
        dependentSchemas
        minContains
        maxContains
        unevaluatedItems
        unevaluatedProperties
        """,
        2019,
    ),
    Keyword("$recursiveRef", Care.CHECKED, "followed as $ref", 2019, 2019),
    Keyword("$dynamicRef", Care.CHECKED, "followed as $ref", 2020),
    *_rows(Care.NOTED, "$schema  which draft the schema is read by\ntitle\ndescription\ndefault"),
    Keyword("id", Care.NOTED, "what relative references start from", 4, 4),
    Keyword("$id", Care.NOTED, "what relative references start from", 6),
    *_rows(Care.NOTED, "examples", 6),
    *_rows(Care.NOTED, "$comment\nreadOnly\nwriteOnly\ncontentEncoding\ncontentMediaType", 7),
    *_rows(Care.NOTED, "$anchor  as a target of $ref\ndeprecated\ncontentSchema\n$vocabulary", 2019),
    Keyword("$recursiveAnchor", Care.NOTED, "", 2019, 2019),
    Keyword("$dynamicAnchor", Care.NOTED, "as a target of $ref", 2020),
    Keyword("format", Care.GUARANTEED, "the formats listed below; others that the validator knows are checked"),
)

CARE: Mapping[str, Care] = {keyword.name: keyword.care for keyword in KEYWORDS}
DEFINED: Mapping[int, frozenset[str]] = {
    draft: frozenset(keyword.name for keyword in KEYWORDS if keyword.first <= draft <= keyword.last) for draft in DRAFTS
}
"""The keywords of each draft."""
OLDER = frozenset({"id", "additionalItems", "dependencies", "definitions"})
"""Keywords of older drafts that are read where a schema does not say which draft it is of."""

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
ONE = ("additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else",
       "unevaluatedItems", "unevaluatedProperties", "additionalItems")  # fmt: skip


ELSEWHERE = frozenset({"example", "definition"})
"""Words of other standards that look like a keyword and mean something else."""


def near_miss(name: str, draft: int) -> str | None:
    """The keyword that a misspelt one may stand for: `maxLength` for `maxlength`."""
    defined = {known.lower(): known for known in DEFINED[draft]}
    close = get_close_matches(name.lower(), defined, n=1, cutoff=0.85)
    return defined[close[0]] if close and len(name) > 3 and name not in ELSEWHERE else None


_YEAR = r"(?:[1-9][0-9]{3}|0(?:[1-9][0-9]{2}|0(?:[1-9][0-9]|0[1-9])))"
_FOURTH = r"(?:0[48]|[2468][048]|[13579][26])"
_IPV4 = r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = "[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    (
        f"(?:{_GROUP}:){{7}}{_GROUP}",
        f"(?:{_GROUP}:){{1,7}}:",
        *(f"(?:{_GROUP}:){{1,{8 - behind}}}(?::{_GROUP}){{1,{behind - 1}}}" for behind in range(2, 8)),
        f":(?::{_GROUP}){{1,7}}|::(?:[Ff]{{4}}:{_IPV4})?",
    )
)
_PORT = r"(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6(?:[0-4][0-9]{3}|5(?:[0-4][0-9]{2}|5(?:[0-2][0-9]|3[0-5]))))"
_HOST = rf"(?:(?:[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*\.)*[A-Za-z](?:-?[A-Za-z0-9])*|{_IPV4})"
_IN_PATH = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_PATH = rf"(?:/{_IN_PATH}*)*"
_WEB = rf"https?://(?:[A-Za-z0-9._~-]+(?::[A-Za-z0-9._~-]*)?@)?{_HOST}(?::{_PORT})?{_PATH}"
# No "ht" begins another scheme, so that every text that begins with "http" has a host.
_OTHER = rf"(?:[a-gi-z]|h[a-su-z])[a-z0-9+.-]+:(?://(?:[A-Za-z0-9._~:-]+@)?[A-Za-z0-9._~-]*(?::{_PORT})?|/?{_IN_PATH}+){_PATH}"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_{|}~-]"
_LABEL = "(?:-?[A-Za-z0-9]){0,19}"  # behind its first character: at most 38, so that none of a name counts the others
_TIMES = "T(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S)"
_DAYS = "(?:(?:[0-9]{1,4}Y)?[0-9]{1,4}M)?[0-9]{1,4}D|(?:[0-9]{1,4}Y)?[0-9]{1,4}M|[0-9]{1,4}Y"
FORMATS: Mapping[str, str] = {
    "date": rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)",
    "time": r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
    "uuid": r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    # At most 63 characters, and 184: 64 and, together with these, 254 are allowed.
    "email": rf"{_ATOM}(?:\.?{_ATOM}){{0,31}}@(?:[A-Za-z0-9]{_LABEL}\.){{1,4}}[A-Za-z]{{2,24}}",
    # At most 239 characters; a name may have 253.
    "hostname": rf"[A-Za-z0-9]{_LABEL}(?:\.[A-Za-z0-9]{_LABEL}){{0,5}}",
    "uri": rf"(?:{_WEB}|{_OTHER})(?:\?(?:{_IN_PATH}|[/?])*)?(?:#(?:{_IN_PATH}|[/?])*)?",
    "duration": rf"P(?:[0-9]{{1,4}}W|{_TIMES}|(?:{_DAYS})(?:{_TIMES})?)",
    "json-pointer": r"(?:/(?:[ -.0-}]|~[01])*)*",
}
_VERSION = r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-%s[0-9A-Fa-f]{3}-[89ABab][0-9A-Fa-f]{3}-[0-9A-Fa-f]{12}"
FORMATS = {
    **FORMATS,
    "date-time": FORMATS["date"] + "T" + FORMATS["time"],
    **{f"uuid{version}": _VERSION % version for version in (1, *range(3, 9))},
    "ipvanyaddress": FORMATS["ipv4"],
    "ipvanynetwork": FORMATS["ipv4"],
    "base64": r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
    "base64url": r"(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?",
}
NEWER_FORMATS = frozenset(
    {
        *("duration", "idn-hostname", "uri-reference", "uri-template", "iri", "iri-reference", "uuid"),
        *("json-pointer", "relative-json-pointer"),
    }
)
VALIDATED_FORMATS = NEWER_FORMATS | {
    *("date", "time", "date-time", "email", "idn-email", "hostname", "ipv4", "ipv6", "uri", "regex")
}
"""Formats that the validator knows; those that draft 4 lacks have names."""
