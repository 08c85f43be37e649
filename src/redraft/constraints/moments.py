"""Which dates and times of day a text states, in digits or in English words.

Kickoff on 12 May 2026 at 9:30 am.         2026-05-12, 09:30
due 03/04/2026                             2026-03-04 or 2026-04-03: either may be the month
from 2026-05-12 to the 14th, 3 of us       2026-05-12, 2026-05-14
"""

from __future__ import annotations

import re
from calendar import month_name, monthrange

from redraft.tasks.strings import spelled

LARGEST_SPELLED, MOST_MOMENTS = 999, 50
DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
CLOCK = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?(Z|[+-]\d\d:\d\d)?", re.ASCII | re.IGNORECASE)
DATE_TIME = re.compile(rf"({DATE.pattern})[Tt ]({CLOCK.pattern})", re.ASCII | re.IGNORECASE)
TIME_OF_SECONDS = re.compile(r"(?<![\d:])(\d{1,2}:\d\d:\d\d)(?![\d:])", re.ASCII)

_HALVES = {15: "quarter", 30: "half", 45: "quarter"}
_NAMES = [f"{name[:3]}t?(?:{name[3:]})?" for name in month_name[1:]]
_ANY_NAME = rf"(?:{'|'.join(_NAMES)})"
_MONTH = re.compile(rf"\b(?:{'|'.join(f'({name})' for name in _NAMES)})\b", re.I)
_VERBS = ("may", "march")
_SLASHED = re.compile(r"(?<![\d/])(\d{1,2})/(\d{1,2})(?!\d)", re.ASCII)
_OFFSET = re.compile(r"((?:T\d\d|:\d\d):\d\d(?:\.\d+)?)([+-]\d\d:\d\d)(?![\d:])", re.ASCII)
_ORDINAL = re.compile(r"(?<!\d)(\d{1,2})(?:st|nd|rd|th)\b", re.ASCII)
_IN_FIGURES = re.compile(r"(?<![\d./-])(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?!\d)", re.ASCII)
_TIMED = re.compile(
    r"(?<![\d:])(\d{1,2}):(\d\d)(?::(\d\d)(?:\.\d+)?)?(?![\d:])(?:\s?([ap])\.?m\b\.?)?", re.ASCII | re.I
)
_HOUR = re.compile(r"(?<![\d.,])\d{1,2}\s?(?:[ap]\.?m\b|o'clock)", re.ASCII | re.I)
_DATED = re.compile(
    r"(?<!\d)(?:\d{4}-\d\d-\d\d|\d{1,2}([./])\d{1,2}\1(?:\d{4}|\d\d)"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?\.? (?:of )?{_ANY_NAME}\b|\d{{4}})(?![\d:])"
    rf"|\b{_ANY_NAME}\.? \d{{1,2}}(?:st|nd|rd|th)?(?![\d:])",
    re.ASCII | re.I,
)
_PERHAPS_TIMED = re.compile(
    r"\b(?:at|around|about|by|from|between|until|till|before|after|since|um|gegen|ab|bis|von|à|las|alle|dalle|om|kl)"
    r"\ \d{1,2}(?![\w.:/-]*\d)|(?<![\w.:/-])\d{1,2}\ ?(?:h\b|uhr|hours?\b|hrs?\b|to\b|and\b|[-\u2013])"
    r"|\b[ap]\.?m\b|\d[ap]\.?m\b|clock|noon|night|morning|evening|\b(?:past|half|quarter)\b",
    re.IGNORECASE,
)
"""What may be a time that is written in another way: an hour alone, or words."""


def date_is_said(year: int, month: int, day: int, text: str) -> bool:
    """Whether a text has the parts of a date, apart from its clocks. Of 03/04/2026 it has none: either may be the
    month."""
    numbers = _numbers(_HOUR.sub(" ", _TIMED.sub(" ", text)))
    named = _named_months(text)
    slashed = [{int(one), int(other)} for one, other in _SLASHED.findall(text)]
    if day != month and max(day, month) < len(month_name) and {day, month} in slashed and month not in named:
        return False
    # If none is named, perhaps in another language.
    months = month in numbers or month in named or not (named or re.search(r"\d[./-]\d", text))
    return bool(numbers & {year, year % 100}) and months and day in numbers


def clock_is_said(hour: int, minute: int, second: int, text: str) -> bool:
    """Whether a text has the parts of a time, by either clock and apart from its dates."""
    text = _DATED.sub(" ", text)
    numbers, words = _numbers(text), words_of(text)
    if minute == 45 and " quarter to " in words:
        return _is_hour_said(hour + 1, numbers, words)
    said = minute in numbers | {0} or is_spelled(minute, words) or f" {_HALVES.get(minute)} " in words
    return said and second in numbers | {0} and _is_hour_said(hour, numbers, words)


def dates_of(text: str) -> list[str]:
    """The dates of a text: those in figures, and those that its other numbers can be read as, beside them ordinals
    alone; none if it names no year."""
    whole = {(int(found[1]), int(found[2]), int(found[3])) for found in DATE.finditer(text)}
    for one, mark, other, year in _IN_FIGURES.findall(text):
        whole |= {(int(year), int(other), int(one))} | ({(int(year), int(one), int(other))} if mark != "." else set())
    rest = _HOUR.sub(" ", without_moments(text))
    numbers = _numbers(rest)
    days = set(map(int, _ORDINAL.findall(rest))) if whole else {number for number in numbers if 0 < number <= 31}
    digits = numbers if re.search(r"\d[./-]\d", rest) else range(1, 13)
    months = _named_months(rest) or {month for _, month, _ in whole} or {one for one in digits if 0 < one <= 12}
    years = {number for number in numbers if number > 999} | {year for year, _, _ in whole}
    if len(years) * len(months) * len(days) > 10 * MOST_MOMENTS:
        return []
    read = {(year, month, day) for year in years for month in months for day in days}
    return _few({f"{year:04}-{month:02}-{day:02}" for year, month, day in whole | read if _is_date(year, month, day)})


def clocks_of(text: str) -> list[str]:
    """The times of day of a text, as 09:30 or 09:30:15; none if there may be one that is not written with a colon."""
    text = _DATED.sub(" ", _OFFSET.sub(r"\1", text))
    found = set[str]()
    for hour, minute, second, half in _TIMED.findall(text):
        hours = int(hour) % 12 + 12 * (half in "pP") if half else int(hour)
        if hours < 24 and int(minute) < 60 and int(second or 0) < 60 and not (half and not 0 < int(hour) <= 12):
            found.add(f"{hours:02}:{minute}" + (f":{second}" if second else ""))
    return [] if _PERHAPS_TIMED.search(_TIMED.sub(" ", text)) else _few(found)


def moments_of(text: str, *, dated: bool) -> list[str]:
    """The times of a text as JSON Schema has them, with seconds and a zone, which is UTC if none is said; with `dated`
    behind each of its dates, and midnight where no time is said."""
    offsets = {found[2] for found in _OFFSET.finditer(text)} or {"Z"}
    clocks = clocks_of(text)
    if dated and not clocks and not _PERHAPS_TIMED.search(_DATED.sub(" ", text)) and not _TIMED.search(text):
        clocks = ["00:00"]
    days = [f"{day}T" for day in dates_of(text)] if dated else [""]
    times = [clock if len(clock) > len("09:30") else f"{clock}:00" for clock in clocks]
    return _few({f"{day}{time}{zone}" for day in days for time in times for zone in offsets})


def without_moments(text: str) -> str:
    """A text without its dates in figures and its times with a colon."""
    return _TIMED.sub(" ", _IN_FIGURES.sub(" ", DATE.sub(" ", text)))


def words_of(text: str) -> str:
    """A text's English words, with a space on both sides of each."""
    return f" {' '.join(re.findall('[a-z]+', text.lower()))} "


def is_spelled(value: float, words: str) -> bool:
    """Whether an integer is among words, with or without an "and" behind its hundreds."""
    if not 0 <= value <= LARGEST_SPELLED or value != int(value):  # also NaN, and what is over a float's range
        return False
    name = spelled(int(value)).replace("-", " ")
    return any(f" {one} " in words for one in (name, name.replace(" and ", " ")))


def _numbers(text: str) -> set[int]:
    return set(map(int, re.findall(r"(?<!\d)\d{1,4}(?!\d)", text, re.ASCII)))


def _named_months(text: str) -> set[int]:
    return {match.lastindex or 0 for match in _MONTH.finditer(text) if match[0] not in _VERBS}


def _is_date(year: int, month: int, day: int) -> bool:
    return year > 0 and 0 < month < len(month_name) and 0 < day <= monthrange(year, month)[1]


def _is_hour_said(hour: int, numbers: set[int], words: str) -> bool:
    """Whether an hour is among numbers or words, by either clock."""
    hours = {hour % 24, hour % 12 or 12}
    name = {0: " midnight ", 12: " noon "}.get(hour % 24, words + "x")
    return bool(numbers & hours) or name in words or any(is_spelled(each, words) for each in hours)


def _few(found: set[str]) -> list[str]:
    return sorted(found) if len(found) <= MOST_MOMENTS else []
