"""Which zones a text states beside its times, by name or as an offset.

    14:30 CET, (UTC+2), +0200        14:30:00+01:00, 14:30:00+02:00, 14:30:00+02:00

A name of several meanings, as CST, and a zone apart from its time are said, and not read.
"""

from __future__ import annotations

import re

OFFSET = re.compile(r"((?:T\d\d|:\d\d):\d\d(?:\.\d+)?|\b\d\d?:\d\d(?=\+))([+-]\d\d:\d\d)(?![\d:])", re.ASCII)
"""A time and its offset, as ISO has it."""
OFFSET_SAID = re.compile(r"[+-]\d\d?(?::?\d\d)?(?!\d)")
"""What may be an offset."""
_AHEAD = {
    0: "WET",
    1: "WEST BST CET MEZ",
    2: "CEST MESZ EET SAST",
    3: "EEST MSK",
    8: "SGT HKT",
    9: "JST KST",
    10: "AEST",
    11: "AEDT",
    12: "NZST",
    13: "NZDT",
    -3: "BRT",
    -4: "EDT",
    -5: "EST CDT",
    -6: "MDT",
    -7: "MST PDT",
    -8: "PST AKDT",
    -9: "AKST",
    -10: "HST",
}
_HOURS = {name: hours for hours, names in _AHEAD.items() for name in names.split()}
"""Hours ahead of UTC of the names that have one meaning; CST and IST have several."""
_OF_WINTER = re.compile(r"\b(?:WET|CET|MEZ|EET|[EMP]ST|AKST|AEST|NZST)\b")
"""People write these the whole year."""
_ZONED = re.compile(
    r"(?<![\d:])(\d{1,2}):([0-5]\d)(?:\s?([ap])\.?\s?m\b\.?)?,? ?\(?"
    rf"(?:({'|'.join(_HOURS)})|(?:UTC|GMT) ?([+-])(\d\d?)(?::?([0-5]\d))?|(\+)(\d\d):?([0-5]\d))"
    r"(?![\w:]|\.\d)\)?",
    re.ASCII,
)
"""A time and its zone; a minus alone may be that of a range, as in 9:00-12:30."""
_NAMED = re.compile(
    r"\b(?:(?:UTC|GMT) ?[+-]\d|[ECMP][SD]?T\b|A[KE][SD]T\b|HST\b|[BIJKN]ST\b|WES?T\b|CES?T\b|EES?T\b|MES?Z\b"
    r"|AC[SD]T\b|AWST\b|MSK\b|SGT\b|HKT\b|NZ[SD]T\b|BRT\b|SAST\b|[A-Z][a-z]+ (?:[Ss]tandard |[Dd]aylight )?[Tt]ime\b)"
    r"|(?i:\b(?:time ?zone|eastern|pacific|central|(?:local|uk) time|aoe|time in|heure (?:de|locale)|ortszeit)\b)"
    r"|\b(?:EAT|AST|ART|PKT|GST|IRST|WIB)\b|er Zeit\b|\b[A-Z][a-z]+/[A-Z][a-z]+|(?:UTC|GMT) ?−|\([+-]\d\d?\)"
)
_UNREAD = re.compile(
    r"(?<=:\d\d)(?: ?(?!UTC|GMT)[A-Z]{1,3}[SD]?T\b| ?MES?Z\b| ?(?:UTC|GMT) ?[+-]\d| ?[+-]\d\d(?:\d\d)?(?![\d:])| \+\d)"
)


def is_zone_said(text: str) -> bool:
    """Whether a text may say a zone that is no offset behind a time."""
    return bool(_NAMED.search(text) or _UNREAD.search(OFFSET.sub(r"\1", text)))


def offsets_like(offset: str, text: str) -> list[str]:
    """What a text may mean by an offset: of a winter's name the summer's, too, and none in two ways."""
    sign, hours = offset[0], int(offset[1:3])
    summer = hours + 1 if sign == "+" else hours - 1
    more = [f"{sign}{summer:02}{offset[3:]}"] if _OF_WINTER.search(text) else []
    return [offset, *more, *(["Z", "+00:00"] if offset[1:] == "00:00" else [])]


def with_offsets(text: str) -> str:
    """A text with the zones of its times as ISO has them."""
    return _ZONED.sub(_in_iso, text)


def _in_iso(found: re.Match[str]) -> str:
    hour, minute, half, name, sign, hours, minutes, *plain = found.groups()
    sign, hours, minutes = (sign, hours, minutes) if sign else plain
    if name is not None:
        sign, hours, minutes = "-" if _HOURS[name] < 0 else "+", str(abs(_HOURS[name])), "00"
    of_24 = int(hour) % 12 + 12 * (half in "pP") if half else int(hour)
    if int(hours) > 14 or of_24 > 23 or (half and not 0 < int(hour) <= 12):
        return found[0]
    return f"{of_24:02}:{minute}:00{sign}{int(hours):02}:{minutes or '00'}"
