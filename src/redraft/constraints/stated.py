"""Which numbers, dates and times a text states, in digits or in English words: what an answer has beside them was made
up or mended."""

from __future__ import annotations

import re
from calendar import month_name
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from redraft.tasks.strings import spelled

_SIGN = r"(?:(?<![\w.)])[-−])?"
_NUMBER = re.compile(rf"{_SIGN}(?:\d+(?:[.,'’]\d+)*(?:[eE][+-]?\d{{1,3}}(?!\w))?|(?<![\w.,])\.\d+)", re.ASCII)
_SPACED = re.compile(rf"{_SIGN}(?<!\d)\d{{1,3}}(?:[ \u00a0\u202f]\d{{3}})+(?:[.,]\d+)?(?!\d)", re.ASCII)
_GROUPED = re.compile(r"-?\d{1,3}(?:([.,'’])\d{3})(?:\1\d{3})*(?:(?!\1)[.,]\d+)?|-?\d{1,2}(?:,\d{2})+,\d{3}")
_PLAIN = re.compile(r"-?\d*(?:[.,]\d+)?")
_SCALED = re.compile(
    r"(?<![\d.,])([-−]?\d+(?:[.,]\d+)?) ?(%|k|thousand|m|million|bn|billion)(?!\w)", re.ASCII | re.IGNORECASE
)
_SCALES = {"%": -2, "k": 3, "thousand": 3, "m": 6, "million": 6, "bn": 9, "billion": 9}
_MARKS = re.compile("[.,'’]")
_LARGEST_SPELLED = 999
_MARKED = re.compile(r"\d[.,'’]\d")
MOST_NUMBERS, MOST_DIGITS = 200, 20
"""Numbers of a text that an answer's are held to, and their digits: more than sentences have."""


_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_CLOCK = re.compile(r"(\d\d):(\d\d)(?::(\d\d))?", re.ASCII)
_HALVES = {15: "quarter", 30: "half", 45: "quarter"}
_MONTH = re.compile(r"\b(?:" + "|".join(rf"({name[:3]}t?(?:{name[3:]})?)" for name in month_name[1:]) + r")\b", re.I)
_VERBS = ("may", "march")
_SLASHED = re.compile(r"(?<![\d/])(\d{1,2})/(\d{1,2})(?!\d)", re.ASCII)


def unstated(values: Mapping[str, Any], text: str) -> set[str]:
    """The keys of what a text does not state, of the numbers, ISO dates and clock times among some values.

    A number counts with its sign: 1,250 is 1250 as well as 1.25, and 19,99 never 1999 or 19. Of a date the text has
    year, month and day, of a time hour and minute; 03/04/2026 states no day, since it may be of March or of April.
    """
    numbers = {
        key: value for key, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
    digits = frozenset(_in_digits(text)) if numbers else frozenset()
    words = _words(text)
    odd = {key for key, value in numbers.items() if Decimal(str(value)) not in digits and not _is_said(value, words)}
    strings = {key: value for key, value in values.items() if isinstance(value, str) and value not in text}
    return odd | {key for key, value in strings.items() if not _is_moment_said(value, text, words)}


def numbers_of(text: str) -> list[str]:
    """The numbers that a text states, by every reading and as JSON has them, if one has a mark or a space inside, as
    19,99 and 12 000 do, which are easily misread; none of other texts, which may say theirs in any language's words."""
    if not (_MARKED.search(text) or _SPACED.search(text)) or len(_NUMBER.findall(text)) > MOST_NUMBERS:
        return []
    text = _SPACED.sub(lambda match: re.sub(r"\s", "", match[0]) if "000" in match[0] else match[0], text)
    words = _words(text)
    said = [*map(Decimal, range(_LARGEST_SPELLED + 1))]
    found = {*_in_digits(text), *(one for one in said if _is_said(int(one), words))}
    plain = (one for one in found if len(one.as_tuple().digits) + abs(one.adjusted()) <= MOST_DIGITS)
    forms = {form for one in plain for form in (f"{one:f}", f"{one.normalize():f}")}
    return sorted(forms | {form + ".0" for form in forms if "." not in form})


def _is_moment_said(value: str, text: str, words: str) -> bool:
    """Whether the parts of a date or time stand in a text; True for any other string."""
    numbers = set(map(int, re.findall(r"(?<!\d)\d{1,4}(?!\d)", text, re.ASCII)))
    if found := _DATE.fullmatch(value):
        year, month, day = map(int, found.groups())
        named = {match.lastindex for match in _MONTH.finditer(text) if match[0] not in _VERBS}
        slashed = [{int(one), int(other)} for one, other in _SLASHED.findall(text)]
        if day != month and max(day, month) < len(month_name) and {day, month} in slashed and month not in named:
            return False  # either may be the month
        # If none is named, perhaps in another language.
        months = month in numbers or month in named or not (named or re.search(r"\d[./-]\d", text))
        return bool(numbers & {year, year % 100}) and months and day in numbers
    if found := _CLOCK.fullmatch(value):
        hour, minute, second = (int(part or 0) for part in found.groups())
        if minute == 45 and " quarter to " in words:
            return _is_hour_said(hour + 1, numbers, words)
        said = minute in numbers | {0} or _is_said(minute, words) or f" {_HALVES.get(minute)} " in words
        return said and second in numbers | {0} and _is_hour_said(hour, numbers, words)
    return True


def _words(text: str) -> str:
    """A text's English words, with a space on both sides of each."""
    return f" {' '.join(re.findall('[a-z]+', text.lower()))} "


def _is_hour_said(hour: int, numbers: set[int], words: str) -> bool:
    """Whether an hour is among numbers or words, by either clock."""
    hours = {hour % 24, hour % 12 or 12}
    name = {0: " midnight ", 12: " noon "}.get(hour % 24, words + "x")
    return bool(numbers & hours) or name in words or any(_is_said(each, words) for each in hours)


def _is_said(value: float, words: str) -> bool:
    """Whether an integer is among words, with or without an "and" behind its hundreds."""
    if not 0 <= value <= _LARGEST_SPELLED or value != int(value):  # also NaN, and what is over a float's range
        return False
    name = spelled(int(value)).replace("-", " ")
    return any(f" {one} " in words for one in (name, name.replace(" and ", " ")))


def _in_digits(text: str) -> Iterator[Decimal]:
    """The readings of every number in digits."""
    text = re.sub(r"\bminus (?=\d)", "-", text, flags=re.IGNORECASE)
    for number, scale in _SCALED.findall(text):
        yield Decimal(number.replace(",", ".").replace("−", "-")).scaleb(_SCALES[scale.lower()])
    for found in (*_NUMBER.findall(text), *_SPACED.findall(text)):
        number = re.sub(r"[ \u00a0\u202f]", "", found).replace("−", "-")
        if re.search("[eE]", number):
            yield Decimal(re.sub("[,'’]", "", number))
            continue
        grouped, plain = _GROUPED.fullmatch(number), _PLAIN.fullmatch(number)
        if grouped:
            points = {*re.findall(r"[.,]", number)} - {grouped[1] or ","}
            whole, _, rest = number.rpartition(points.pop()) if points else (number, "", "")
            yield Decimal(_MARKS.sub("", whole) + "." + (rest or "0"))
        if plain:
            yield Decimal(number.replace(",", "."))
        if not grouped and not plain:  # a date, a version, a list
            yield from map(Decimal, re.findall(r"\d+", number))
            yield from (Decimal(part) for part in number.split(",") if re.fullmatch(r"-?\d+(\.\d+)?", part))
