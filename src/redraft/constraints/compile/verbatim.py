"""The parts of a text: what a value may say that is copied word for word.

    Send 3 apples to Maria.        "Maria", "3 apples", "Send 3 apples to Maria." are parts; "aria" and "3 app" are none
    up at 14:05, don't!            "14:05", "don't!" are parts; ":05", "don'", "'t" and "14:05," are none
    Could Maria come?              "Could Maria" is a part; "Could" is none

A part begins and ends where a word does; a mark goes with the word that it touches. Neither a time with seconds nor the
query of a URL is cut. An automaton of all parts has about two states a byte, however many parts there are.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv6Address
from typing import Any

import numpy as np

from redraft.constraints.compile.automaton import EMPTY, Dfa, intersect
from redraft.constraints.compile.builder import Builder, any_of
from redraft.constraints.compile.keywords import FORMATS
from redraft.constraints.compile.moments import TIME_OF_SECONDS, bound_of, clocks_of, dates_of, has_date, moments_of
from redraft.constraints.compile.regex import whole_match
from redraft.constraints.compile.remembered import remembered
from redraft.constraints.compile.stated import MOST_CHARACTERS, integers_of, numbers_of
from redraft.constraints.compile.values import text_of
from redraft.errors import ConstraintError
from redraft.prompts import CLOCK

WORD = ("L", "M", "N", "Pc")
"""Categories of Unicode whose characters make words: letters, marks, digits, the underscore and its like."""
SOLID, SIGNS = (*WORD, "So", "Sc"), "%‰"
"""And those that are a part by themselves, as emoji and currencies' signs are; signs that may follow a space."""
ALONE = "Lo"
"""Letters without case: their scripts have no spaces between words, or write small words onto others."""
FOLLOWS = ("M", "Cf")
"""Marks and joiners stay with the character before them."""
SEALED = (
    TIME_OF_SECONDS,
    re.compile(r"://[^\s<>\"?#]{1,1000}\?([^\s<>\"]*[^\s<>\"'.,;:!?)\]}])"),
)
"""What no part begins or ends within: times with seconds, and queries of URLs."""
BETWEEN = ",;:"
"""No part ends with one of these."""
_BEGINNING = re.compile(r"(?:\A|(?<=[.!?]\s)|(?<=\n))(?:Could|Would|Should|Does|What)(?= [^\W_])")
"""How English questions begin: no parts by themselves."""
MOST_PLACES = 2_000_000
"""Places of a text in which what has been copied so far stands, summed over all that can be: half a second. A word of
three letters and a space, 900 times, has 1.6 million; pages that people write have a few for each character."""
MOST_LENGTHS = 2**15
"""Characters of a text times those of its parts that are counted: each fifth pair is a state, about."""
MOST_ADDRESSES = 50
_AT = re.compile(r"@|[\[(]\s?at\s?[\])]", re.I)
"""What an address has, as people write it."""
ADDRESSES = {
    "email": r"(?<!\w['’#%&!/*$^{|}~])[A-Za-z0-9_](?:[.+'-]?[A-Za-z0-9_]){0,31}"
    r"@(?:[A-Za-z0-9](?:-?[A-Za-z0-9]){0,19}\.){1,4}[A-Za-z]{2,24}",
    "uuid": r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "ipv4": FORMATS["ipv4"],
    "ipv6": r"(?<!:)[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?!:)",
}


def as_text(text: str, name: str = "text to copy from") -> str:
    """A text as it is, such as that which parts are copied from. Raises ConstraintError for what is none."""
    if not isinstance(text, str):
        raise ConstraintError(f"the {name} is {text!r:.80}; it must be a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        bad = f"{text[error.start]!r} at character {error.start}"
        raise ConstraintError(f"the {name} has an unpaired surrogate, {bad}; use valid Unicode") from None
    return text


def parts_of(text: str, low: int = 0, high: int | None = None) -> Dfa:
    """The parts of a text in UTF-8, of `low` to `high` characters; none if it is too long for so many to be counted.

    Raises OutOfReachError for a text that is too long by itself, or repeats itself too often.
    """
    size = len(text)
    if low <= 1 and (high is None or high >= size):
        return _all_parts(text)
    if low > size or size * min(size, size if high is None else high) > MOST_LENGTHS:
        return EMPTY
    found = intersect(text_of(low, high), _all_parts(text))
    return intersect(text_of(low, high), _all_parts(text, beginnings=True)) if found.is_empty else found


def formatted(text: str, form: str) -> list[str]:
    """The addresses, dates or times of a format in a text, as the format is written here: domains and digits of UUIDs
    in small letters, all groups of an IPv6 address. None where there are many, or if there may be some that are written
    in a way that nothing here reads."""
    if form == CLOCK:
        return clocks_of(text)
    if form == "date":
        return dates_of(text)
    if form in ("time", "date-time"):
        return moments_of(text, dated=form == "date-time")
    if form not in ADDRESSES:
        return []
    found = re.findall(rf"(?<![\w.+-])(?:{ADDRESSES[form]})(?![\w@-]|\.\w)", text)
    if form == "email" and len(found) < len(_AT.findall(text)):
        return []
    found = [*dict.fromkeys(written for one in found if (written := _as_written(one, form)))]
    return found if len(found) <= MOST_ADDRESSES else []


_ADDRESSED = re.compile(
    r"[@＠﹫]|%40|&#64;|commat|arroba|arobase|chiocciola|klammeraffe|snabel|małpa|apenstaart|[^\W_]\.[^\W\d_]{2}"
    r"|(?<![^\W_])(?:dot|point|period|punkt|punto|punt|ponto|kropka)(?![^\W_])",
    re.IGNORECASE,
)
"""What a text has that states an e-mail address, however it is written."""


def is_silent(text: str, plain: Mapping[str, Any]) -> bool:
    """Whether a text cannot state what a schema of dates or e-mail addresses asks for: it has no digit and no word that
    may be of a date, or nothing of an address. Where null is an answer, it is the one then."""
    looks = [*plain.get("formats", []), *plain.get("patterns", [])]
    is_text = {*plain.get("type", ["any"])} <= {"string", "null"}
    if len(looks) != 1 or not is_text or not 0 < len(text) <= MOST_CHARACTERS:
        return False
    if looks[0] == "email":
        return _ADDRESSED.search(text) is None
    return looks[0] in ("date", "date-time") and not any(map(str.isdigit, text)) and not has_date(text)


@remembered
def formatted_in(text: str, form: str) -> Dfa:
    """Those values, as an automaton, or for dates and times all that may be one (`bound_of`); nothing if the text is
    long, or anything may be."""
    if not 0 < len(text) <= MOST_CHARACTERS:
        return EMPTY
    if found := formatted(text, form):
        return any_of(found)
    bound = bound_of(text, form) if form in ("date", "time", "date-time") else None
    return EMPTY if bound is None else intersect(whole_match(FORMATS[form]), whole_match(bound))


def _as_written(address: str, form: str) -> str:
    """An address in the one form in which an answer has it; empty if it is none."""
    if form == "ipv6":
        with suppress(ValueError):
            return ":".join(f"{int(group, 16):x}" for group in IPv6Address(address).exploded.split(":"))
        return ""
    name, _, domain = address.rpartition("@")
    return f"{name}@{domain.lower()}" if name else domain.lower()


@remembered
def numbers_in(text: str) -> Dfa:
    """The numbers that a text states, if it has such as are easily misread (`numbers_of`)."""
    return any_of(numbers_of(text) if len(text) <= MOST_CHARACTERS else [])


@remembered
def integers_in(text: str) -> Dfa:
    """The integers that a text may state (`integers_of`); nothing where it may state any."""
    pattern = integers_of(text) if text and len(text) <= MOST_CHARACTERS else None
    return EMPTY if pattern is None else whole_match(pattern)


@remembered
def _all_parts(text: str, *, beginnings: bool = False) -> Dfa:
    """The parts; with `beginnings`, or if there are no others, also the words with which questions begin."""
    alone = {} if beginnings else {match.start(): match[0] for match in _BEGINNING.finditer(text)}
    build = Builder(most_members=MOST_PLACES)
    first, last, (at, _) = build.state(), build.state(), build.literal(text.encode())
    edges = [True, *map(_parted, text, text[1:]), True]
    for match in (match for form in SEALED for match in form.finditer(text)):
        edges[match.start(1) + 1 : match.end(1)] = [False] * (match.end(1) - match.start(1) - 1)
    for i, char in enumerate(text):
        before, behind = text[i - 1] if i else " ", text[i + 1] if i + 1 < len(text) else " "
        if edges[i] and (_solid(char) or not (char.isspace() or behind.isspace() or _wordy(before))):
            begin = at
            if word := alone.get(i):  # by a way of its own, which joins the other behind the space
                begin, joins = build.literal((word + text[i + len(word)]).encode())
                build.link(joins, at + len(word) + 1)
            build.link(first, begin)
        at += len(char.encode())
        ends = not (char.isspace() or char in BETWEEN or before.isspace() or _wordy(behind))
        if edges[i + 1] and (_solid(char) or ends):
            build.link(at, last)
    found = build.finish((first, last))
    # The empty text is no part, but some places are a beginning and an end. Nothing leads back to the first state: it
    # holds the leftmost beginning.
    found = replace(found, accepts=found.accepts & (np.arange(len(found)) > 0))
    return _all_parts(text, beginnings=True) if found.is_empty and alone else found


def _wordy(char: str) -> bool:
    return unicodedata.category(char).startswith(WORD)


def _solid(char: str) -> bool:
    return unicodedata.category(char).startswith(SOLID) or char in SIGNS


def _parted(left: str, right: str) -> bool:
    """Whether a part may begin or end between two characters."""
    before, behind = unicodedata.category(left), unicodedata.category(right)
    if behind.startswith(FOLLOWS) or left == "\u200d" or "\U0001f3fb" <= right <= "\U0001f3ff":  # emoji of several
        return False
    return not (before.startswith(WORD) and behind.startswith(WORD)) or ALONE in (before, behind)
