"""Which dates and times of day a text states, in figures or in English words.

    Kickoff on 12 May 2026 at 9:30 am.         2026-05-12, 09:30
    due 03/04/2026                             2026-03-04, 2026-04-03
    from 2026-05-12 to the 14th                none

In the second either number may be the month. In the third "the 14th" may be a date and is not read, so a field is not
held to the one date that is.
"""

from __future__ import annotations

import re
from calendar import month_name, monthrange
from collections.abc import Sequence
from datetime import date, timedelta
from functools import cache

from redraft.constraints.compile.zones import OFFSET, OFFSET_SAID, is_zone_said, offsets_like, with_offsets
from redraft.numerals import spelled

LARGEST_SPELLED, MOST_MOMENTS = 999, 50
_ISO = r"(\d{4})-(\d\d)-(\d\d)"
DATE = re.compile(rf"(?<!\d){_ISO}(?!\d)", re.ASCII)
CLOCK = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?(Z|[+-]\d\d:\d\d)?", re.ASCII | re.IGNORECASE)
DATE_TIME = re.compile(rf"({_ISO})[Tt ]({CLOCK.pattern})", re.ASCII | re.IGNORECASE)
TIME_OF_SECONDS = re.compile(r"(?<![\d:])(\d{1,2}:\d\d:\d\d)(?![\d:])", re.ASCII)

_HALVES = {15: "quarter", 30: "half", 45: "quarter"}
_NAMES = [f"{name[:3]}t?(?:{name[3:]})?" for name in month_name[1:]]
_NAME = rf"(?:{'|'.join(_NAMES)})"
_MONTH = re.compile(rf"\b(?:{'|'.join(f'({name})' for name in _NAMES)})\b", re.I)
_VERBS = ("may", "march")
_SLASHED = re.compile(r"(?<![\d/])(\d{1,2})/(\d{1,2})(?!\d)", re.ASCII)
_COUNTED = (
    "hours|hrs|h|uhr|people|visitors|units|fans|guests|euros|dollars|items|pieces|copies|boxes|members|users|students"
)
_DAY, _YEAR = r"(\d{1,2})(?:st|nd|rd|th)?", rf"(?:,? ((?:19|2[01])\d\d)(?!\d|:\d| (?:{_COUNTED})\b))?"
_DAY_FIRST = re.compile(rf"(?<![\d:.,/-]){_DAY}\.? (?:of )?({_NAME})\b\.?{_YEAR}", re.ASCII | re.I)
_MONTH_FIRST = re.compile(rf"\b({_NAME})\.? {_DAY}(?![\d:]|\.\d){_YEAR}", re.ASCII | re.I)
_ABROAD = (
    "janvier|januari?|jänner|enero|gennaio|janeiro|février|februari?|febrero|febbraio|fevereiro|mars|märz|maart|marzo|março"
    "|avril|abril|aprile|mai|mei|mayo|maggio|maio|juin|juni|junio|giugno|junho|juillet|juli|julio|luglio|julho|août"
    "|augustus|agosto|septembre|septiembre|settembre|setembro|octobre|oktober|octubre|ottobre|outubro|novembre|noviembre"
    "|novembro|décembre|dezember|diciembre|dicembre|dezembro"
)
_IN_FIGURES = re.compile(r"(?<![\d./-])(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?!\d)", re.ASCII)
_READ = "\0"
"""Stands where a date or time was read."""
_WEEKDAY = (
    "(?:mon|tues|wednes|thurs|fri|satur|sun)day|(?:mon|diens|donners|frei|sams|sonn)tag|mittwoch|sonnabend"
    "|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|lunes|martes|miércoles|jueves|viernes|sábado|domingo"
    r"|(?-i:Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun|(?:Mo|Di|Mi|Do|Fr|Sa|So)(?=\.))"
)
_BETWEEN = "[-–&/+~→]|[.][.]|and|or|to|until|till|thru|through|bis|und|oder|et|y|au?|al"
_MONEY = re.compile(r"[$€£] ?\d[\d.,]*|(?<![\d.,])\d[\d.,]* ?(?:[$€£%]|EUR|USD|GBP|CHF|euros?|dollars?)", re.I)
_NO_DAYS = (
    "attempts?|batch|bus|call|check|class|delivery|floor|half|inspection|item|line|name|order|page|person|place|release|review"
    "|row|run|service|shift|shipment|step|stop|team|time|train|try|update|version|visit"
)
"""Behind "first" or "next" these are no days."""
_MAY_DO = "(?:not|also|only|still) \\w+|apply|arrive|be|call|change|come|contact|differ|have|need|take|vary"
_FIGURES = (
    r"(?<![\d./-])(?:(?:0?\d|1[0-2])[./-](?:[0-2]?\d|3[01])|(?:[0-2]?\d|3[01])[./-](?:0?\d|1[0-2]))(?![\d/-]|\.\d)"
    r"|\d[./-]\d+[./-]\d"
)
"""What may be a day and its month."""
_RATE = re.compile(
    r"(?:\b(?:per|each)|(?:\d|\bhours?|times?|once|twice) an?) (?:day|week|month|year)\b"
    r"|\d\.\d+ (?:hours|points|stars|percent)\b",
    re.I,
)
"""What comes so often or lasts so long, and is no day."""
_UNREAD_DATE = re.compile(
    rf"(?<!\d)(?:19|20)\d\d(?!\d)|{_READ},? (?:\d{{4}}(?!\d)|['’]?\d\d(?=[.;,)]|$))"
    rf"|\d(?:st|nd|rd|th)\b|(?<!\d)\d{{1,2}}\. |{_FIGURES}"
    rf"|\d ?(?:,|{_BETWEEN}) ?{_READ}|{_READ} ?(?:{_BETWEEN}) ?\d"
    rf"|(?<!{_READ} )(?<!{_READ} \()\b(?:{_WEEKDAY})\b(?!,? (?:the |den |dem |le |el |il )?{_READ})"
    r"|\b(?:years?|quarters?|decades?|annual\w*|yearly|jahre?n?s?|années?|años?)\b"
    r"|(?-i:\d{1,3}d\b)|\bnet \d|\d ans\b"
    r"|\b(?:tonight|fortnight|christmas|easter|weihnacht\w*|silvester|ostern|übermorgen|noël|pâques|navidad)\b"
    r"|\b(?:new year\w*|halloween|thanksgiving|valentine\w*|pentecost|whitsun|hanukkah|diwali|eid|ramadan|passover)\b"
    rf"|\b(?:{_ABROAD})\b"
    rf"|\b(?!may (?:{_MAY_DO})\b)(?:{_NAME}|today|tomorrow|yesterday|heute|morgen|gestern|demain|hier|mañana|ayer"
    r"|days?|weeks?|months?|tagen?|wochen?|monate?n?|jours?|semaines?|mois|días?|semanas?|mes(?:es)?|later|ago)\b"
    rf"|\b(?:\w*(?:[nrfxvh]th|ieth)|first|second|third|twelfth|last|next|following|previous)\b(?! (?:{_NO_DAYS})\b)"
    r"|\d(?:\.|er)? (?:de )?(?:jan|jän|ene|fév|feb|mär|mar|avr|abr|mai|mei|may|jui|jun|jul|aoû|ago|sep|set|okt|oct|ott"
    r"|nov|déc|dez|dic)",
    re.I,
)
"""What may be a date that nothing here reads."""
_NIGHTS = re.compile(r"\b(?:nights?|nächten?|nuits?|noches?)\b", re.I)
_TIMED = re.compile(
    r"(?<![\d:])(\d{1,2}):(\d\d)(?::(\d\d)(?:\.\d+)?)?(?![\d:])(?:\s?([ap])\.?\s?m\b\.?)?", re.ASCII | re.I
)
_HOUR = re.compile(r"(?<![\d.,])\d{1,2}\s?(?:[ap]\.?\s?m\b|o'clock)", re.ASCII | re.I)
_HALF = re.compile(r"(?<![\w.:/-])(\d{1,2})(?:\.([0-5]\d))?\s?([ap])\.?\s?m\b\.?", re.ASCII | re.I)
_HOURS = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|ein[sn]?|zwei|drei|vier|fünf|sechs|sieben|acht|neun"
    "|zehn|elf|zwölf|deux|trois|quatre|cinq|sept|huit|neuf|dix|onze|douze|dos|tres|cuatro|cinco|seis|siete|ocho|nueve"
)
_PARTS_OF_DAY = (
    r"\w*noon|\w*night|\w*morning|evening|past|half|quarter|halb|viertel|morgens|\w*mittags?|abends|nachts|mitternacht"
    "|matin|soir|midi|minuit|tarde|noche|mañana|mediodía"
)
_UNREAD_TIME = re.compile(
    r"\b(?:at|around|about|by|from|between|until|till|before|after|since|um|gegen|ab|bis|von|à|las|alle|dalle|om|kl)"
    r" \d|(?<![\w.:/-])\d{1,2} ?(?:h\b|uhr|hours?\b|hrs?\b|to\b|and\b|or\b|[-–&])|\d[h.]\d\d(?!\d)"
    r"|(?<!\d)(?:[01]\d|2[0-3])[0-5]\d(?!\d)"
    r"|\b[ap]\.?\s?m\b|\d[ap]\.?m\b|(?<![\w.:/-])\d{1,2}(?=\s*(?:[,;.!?]|$))|clock"
    rf"|\b(?:{_PARTS_OF_DAY}|{_HOURS})\b|{_READ} ?(?:{_BETWEEN}) ?\d"
    rf"|{_READ} ?(?:\+|(?:hours?|hrs?|min(?:ute)?s?|stunden?|std|heures?|horas?|ore)\b)"
    r"|(?:\d|\b) ?(?:min(?:ute)?s?|minuten|minuti|minutos)\b"
    r"|\b(?:hours?|hrs?|h|min\w*|stunden?|heures?|horas?|ora|ore|uur)"
    r" (?:before|after|past|to|nach|vor|avant|après|antes|después|dopo|na|depois)\b",
    re.I,
)
"""What may be a time that nothing here reads: an hour alone, figures without a colon, or words."""
_DECIMAL = re.compile(
    r"(?:\b(\w+) )?(?<![\w.,:/-])(\d+(?:\.\d+)+)(?![\d/-]| ?(?i:uhr|h|[ap]\.?m)\b)"
    r"(?: ?((?:[mµn]?s|sec\w*|[kKMGT]i?B|[kKMGT])\b|%)|(\.)(?:\s|$))?"
)
_MEASURED = re.compile(r"(?<![\w.,:/-])\d+[.,]\d+ ?(?:kg|g|t|km|cm|mm|m|l|ml|lbs?|oz|°[CF]?|[kMGT]i?B|%)(?!\w)")
_AHEAD = (
    "at|around|about|by|from|to|between|until|till|before|after|since|on|due|starts?|begins?|ends?|opens?|closes?"
    "|um|gegen|ab|bis|von|nach|am|auf|den|der|beginn|ende|le|el|il|à|las|alle|dalle|om|kl"
)
"""Words behind which figures with a dot may be an hour or a day."""
_NUMBERED = re.compile(
    r"\b(?:aisle|apartment|apt|bay|booth|box|building|bus|chapter|counter|court|desk|dock|flat|floor|gate|hall|house"
    r"|invoice|item|lab|lane|level|line|lot|number|nr|order|page|pier|platform|ramp|room|route|row|seat|section|stand"
    r"|studio|suite|table|team|terminal|ticket|track|trailer|train|tram|truck|unit|van|warehouse|zone)\.? ?#?\d{1,2}"
    r"(?![\d:.]?\d| ?(?:[-–&/]|to|bis|and|or|und|oder|à|h\b|h\d|uhr|hrs?|hours?|o'clock|[ap]\.?\s?m\b)|, ?\d)",
    re.I,
)
"""What has a number of its own, which is no hour."""
_YEAR_SAID = re.compile(r"(?<!\d)(?:19|2[01])\d\d(?!\d)")
_OTHER_YEAR = re.compile(r"(?<!\d)(?:1[0-8]|2[2-9]|[3-9]\d)\d\d(?!\d)")
_YEARS_COUNTED = re.compile(
    r"\b(?:years?|yrs?|decades?|century|months?|quarters?|aged?|leap|anniversary|birthday|jahre?n?|monaten?|ans?|mois|años?|meses|anni|jaar)\b"
    rf"|\d[./-]\d+[./-]\d\d(?!\d)|(?:['’]|{_READ},? |\b\d\d/)\d\d(?![\d:])",
    re.I,
)
_MINUTES_COUNTED = re.compile(
    rf"\b(?:mins?|minut\w*|hours?|half|quarter|oh|{_HOURS}|\w+teen|twenty|thirty|forty|fifty|\w+zehn|zwanzig|dreißig"
    r"|quinze|vingt\w*|quince|veinte\w*)\b|\d ?(?:min|m|h|['′])(?![a-z])",
    re.I,
)
_SECONDS_SAID = re.compile(r"\d[.:hm-]\d\d[.:m-]\d\d|\d{6}|sec", re.I)
_HOURS_COUNTED = re.compile(r"\d\d ?(?:h|hrs?|hours?|stunden?|heures?|horas?|ore|uur)\b", re.I)
"""What a text has that may say another year than it has, another minute, or another day."""
_NO_MIDNIGHT = re.compile(
    r"\b(?:cob|eo[bd]|close|closing|end of|through|brunch|hundred|sunset"
    r"|sunrise|dawn|dusk|daybreak|tea ?time|lunch\w*|breakfast|dinner|supper|bedtime|mittagessen"
    r"|abendessen)\b",
    re.I,
)
_SHIFTED = re.compile(
    r"\b(?:min(?:ute)?s?|hours?|minuten|stunden?) (?:before|after|past|to|vor|nach) \d{1,2}:\d\d", re.I
)
_LATE = re.compile(
    r"\d:\d\d (?:uhr )?(?:at night|(?:in the |this )?(?:evening|afternoon)|(?:am )?(?:abends?|nachmittags?)|du soir"
    r"|de la tarde|de la noche)\b",
    re.I,
)
"""What makes another time of one in figures: so long before it, or in the second half of the day."""


def date_is_said(year: int, month: int, day: int, text: str) -> bool:
    """Whether a text has the parts of a date, apart from its clocks. Of 03/04/2026 it has none: either may be the
    month."""
    numbers = _numbers(_HOUR.sub(" ", _TIMED.sub(" ", text)))
    dated = [match[2] for match in _DAY_FIRST.finditer(text)] + [match[1] for match in _MONTH_FIRST.finditer(text)]
    named = {_month(name) for name in dated} | _named_months(text)
    slashed = [{int(one), int(other)} for one, other in _SLASHED.findall(text)]
    if day != month and max(day, month) < len(month_name) and {day, month} in slashed and month not in named:
        return False
    # If none is named, perhaps in another language.
    months = month in numbers or month in named or not (named or re.search(r"\d[./-]\d", text))
    return bool(numbers & {year, year % 100}) and months and day in numbers


def clock_is_said(hour: int, minute: int, second: int, text: str) -> bool:
    """Whether a text has the parts of a time, by either clock and apart from its dates."""
    text = re.sub(r"(?<![\d:])\d{4}(?![\d:])", " ", _dates(text)[1])
    numbers, words = _numbers(text), words_of(text)
    if minute == 45 and " quarter to " in words:
        return _is_hour_said(hour + 1, numbers, words)
    said = minute in numbers | {0} or is_spelled(minute, words) or f" {_HALVES.get(minute)} " in words
    return said and second in numbers | {0} and _is_hour_said(hour, numbers, words)


def dates_of(text: str) -> list[str]:
    """The dates of a text; none if it has something that may be a date and is not read."""
    found, rest = _dates(_without_amounts(text))
    is_begun = len(found) == 1 and _NIGHTS.search(rest)  # and ends on a date that is not said
    return [] if is_begun or _may_have_date(rest) else _few(found)


def has_date(text: str) -> bool:
    """Whether a text may state a date, in any way."""
    found, rest = _dates(_without_amounts(text))
    return bool(found) or _may_have_date(rest)


def clocks_of(text: str) -> list[str]:
    """The times of day of a text, as 09:30 or 09:30:15; none if it has something that may be a time and is not read.
    Of 9:30 alone either half of the day, unless another time, or a date as ISO has it, shows its clock to have 24
    hours."""
    is_iso, text = bool(DATE.search(text)), OFFSET.sub(r"\1", _dates(_without_amounts(text))[1])
    text = _with_minutes(_NUMBERED.sub(" ", text))  # dock 4 is no hour
    times, found, halves = _TIMED.findall(text), set[str](), set[bool]()
    is_of_24 = is_iso or any(hour[0] == "0" or int(hour) > 12 or second for hour, _, second, _ in times)
    for hour, minute, second, half in times:
        hours = int(hour) % 12 + 12 * (half in "pP") if half else int(hour)
        if hours > 23 or int(minute) > 59 or int(second or 0) > 59 or (half and not 0 < int(hour) <= 12):
            return []
        halves.add(bool(half))
        either = {hours} if half or is_of_24 else {hours, (hours + 12) % 24}
        found |= {f"{one:02}:{minute}" + (f":{second}" if second else "") for one in either}
    if len(halves) > 1:  # the half of the day may be said of several
        return []
    return [] if _UNREAD_TIME.search(_TIMED.sub(_READ, text)) else _few(found)


def moments_of(text: str, *, dated: bool) -> list[str]:
    """The times of a text as JSON Schema has them, with seconds and a zone, which is UTC if none is said; with `dated`
    behind each of its dates, and midnight where it has no number but these."""
    named, whole = text, with_offsets(_with_minutes(text))
    text = _without_amounts(whole)
    if is_zone_said(text) or re.search(r":\d\d\.\d", text):
        return []
    offsets = [found[2] for found in OFFSET.finditer(text)]
    if len({*offsets}) > 1 or (offsets and len(offsets) < len(_TIMED.findall(OFFSET.sub(r"\1", text)))):
        return []
    clocks, rest = clocks_of(text), _dates(whole)[1]
    if dated and not clocks and not (re.search(r"\d", rest) or _UNREAD_TIME.search(rest) or _NO_MIDNIGHT.search(rest)):
        clocks = ["00:00"]
    days = dates_of(text) if dated else [""]
    times = [clock if len(clock) > len("09:30") else f"{clock}:00" for clock in clocks]
    zones = offsets_like(offsets[0], named) if offsets else ["Z"]
    sure = {time for time in times if f"{(int(time[:2]) + 12) % 24:02}{time[2:]}" not in times}
    is_late = dated and max(sure, default="") >= "16"  # what is over in the morning then may be over on the next day
    days_of = {
        time: days + [_beside(day, 1) for day in days if is_late and time in sure and time < "11"] for time in times
    }
    return _few({f"{day}{'T' * dated}{time}{zone}" for time in times for day in days_of[time] for zone in zones})


def is_shifted(hour: int, text: str) -> bool:
    """Whether a text means another time than one that it has in figures."""
    return bool(_SHIFTED.search(text) or (hour < 12 and _LATE.search(text)))


def bound_of(text: str, form: str) -> str | None:
    """The pattern of all that may be a date or a time of a format where a text's own are not all read. None where
    anything may be.

    The year is one that the text has, or beside it, unless it may say another; the day one of its dates, or beside, if
    these are read. Minutes stand in the text or end in 0 or 5, unless it counts some; the zone is UTC if it says none.
    """
    found, rest = _dates(text)
    years = {int(year) for year in _YEAR_SAID.findall(" ".join(sorted(found)) + rest)}
    is_near = bool(years) and not _OTHER_YEAR.search(rest)
    year = r"(?:19|2[01])\d\d" if is_near else r"\d{4}"
    if found and is_near and not _YEARS_COUNTED.search(rest):
        year = "|".join(sorted({f"{one + more}" for one in years for more in (-1, 0, 1)}))
    if form == "date":
        return rf"(?:{year})-\d\d-\d\d" if is_near else None
    is_abroad = is_zone_said(text) or bool(OFFSET_SAID.search(rest))
    read = [] if _HOURS_COUNTED.search(text) else dates_of(text)
    days = {_beside(day, more) for day in read for more in (-is_abroad, 0, 1)}
    day = "|".join(sorted(days)) if days else rf"(?:{year})-\d\d-\d\d"
    minutes = {"59", *(f"{five:02}" for five in range(0, 60, 5))} | {*re.findall(r"(?=([0-5]\d))", text, re.ASCII)}
    minute = r"\d\d" if _MINUTES_COUNTED.search(text) else "|".join(sorted(minutes))
    second = r"\d\d(?:\.\d+)?" if _SECONDS_SAID.search(rest) else "(?:00|59)"
    zone = r"(?:Z|[+-]\d\d:(?:[03]0|[14]5))" if is_abroad else "Z"
    clock = rf"\d\d:(?:{minute}):{second}{zone}"
    return f"(?:{day})T{clock}" if form == "date-time" else clock if form == "time" else None


def without_moments(text: str) -> str:
    """A text without its dates and its times with a colon."""
    return _TIMED.sub(_READ, _dates(text)[1])


def words_of(text: str) -> str:
    """A text's English words, with a space on both sides of each."""
    return f" {' '.join(re.findall('[a-z]+', text.lower()))} "


@cache
def number_words() -> frozenset[str]:
    """Words of which every number in words has one."""
    return frozenset(map(spelled, (*range(20), *range(20, 100, 10))))


def is_spelled(value: float, words: str) -> bool:
    """Whether an integer is among words, with or without an "and" behind its hundreds."""
    if not 0 <= value <= LARGEST_SPELLED or value != int(value):  # also NaN, and what is over a float's range
        return False
    name = spelled(int(value)).replace("-", " ")
    return any(f" {one} " in words for one in (name, name.replace(" and ", " ")))


def _dates(text: str) -> tuple[set[str], str]:
    """The dates of a text that name their day and month, in a year of their own or that of another or the next; and the
    rest of it."""
    found, undated = set[tuple[int, int, int]](), set[tuple[int, int]]()

    def iso(match: re.Match[str]) -> str:
        found.add((int(match[1]), int(match[2]), int(match[3])))
        return _READ

    def in_figures(match: re.Match[str]) -> str:
        one, other, year = int(match[1]), int(match[3]), int(match[4])
        found.update({(year, other, one)} | ({(year, one, other)} if match[2] != "." else set()))
        return _READ

    def named(day: str, month: str, year: str | None) -> str:
        parts = _month(month), int(day)
        found.add((int(year), *parts)) if year else undated.add(parts)
        return _READ

    text = _IN_FIGURES.sub(in_figures, DATE.sub(iso, text))
    text = _DAY_FIRST.sub(lambda match: named(match[1], match[2], match[3]), text)
    text = _MONTH_FIRST.sub(lambda match: named(match[2], match[1], match[3]), text)
    if len(found) <= MOST_MOMENTS:
        found |= {(year, *day) for year, *dated in found for day in undated for year in _years_of(day, year, dated)}
    return {f"{year:04}-{month:02}-{day:02}" for year, month, day in found if _is_date(year, month, day)}, text


def _may_have_date(rest: str) -> bool:
    """Whether a text whose dates are taken out may have another one."""
    return bool(_UNREAD_DATE.search(_RATE.sub(" ", _MONEY.sub(" ", _TIMED.sub(" ", _with_minutes(rest))))))


def _with_minutes(text: str) -> str:
    """A text with minutes and a colon in its hours: 2:00 pm for 2 pm, 2:30 pm for 2.30 p.m., and 12:00 pm for noon."""
    text = _HALF.sub(lambda found: f"{found[1]}:{found[2] or '00'} {found[3]}m", text)
    return re.sub(r"\b(?:12 )?(?:noon|midday)\b", "12:00 pm", text, flags=re.I)


def _beside(day: str, more: int) -> str:
    """The day so many days behind one, as ISO has it."""
    try:
        return f"{date.fromisoformat(day) + timedelta(more)}"
    except OverflowError:  # it is the first one, or the last
        return day


def _without_amounts(text: str) -> str:
    """A text without its measures and, if it has 2026-11-02 08:14:55 or the like, its amounts and addresses: 1.55 is a
    load or a size there, and no other moment."""
    text = _MEASURED.sub(" ", text)
    if not DATE_TIME.search(text):
        return text
    return _DECIMAL.sub(lambda found: " " if _is_amount(*found.groups()) else found[0], text)


def _is_amount(before: str | None, number: str, unit: str | None, end: str | None) -> bool:
    """Whether figures with dots are an amount or an address, and neither a day nor an hour."""
    dots = number.count(".")
    is_led = re.fullmatch(_AHEAD, before or "", re.I)
    return bool(unit) or dots == 3 or (dots == 1 and not end and not is_led)


def _month(name: str) -> int:
    match = _MONTH.fullmatch(name)
    return match.lastindex or 0 if match else 0


def _numbers(text: str) -> set[int]:
    return set(map(int, re.findall(r"(?<!\d)\d{1,4}(?!\d)", text, re.ASCII)))


def _named_months(text: str) -> set[int]:
    return {match.lastindex or 0 for match in _MONTH.finditer(text) if match[0] not in _VERBS}


def _years_of(day: tuple[int, int], year: int, dated: Sequence[int]) -> Sequence[int]:
    """The years that a month and day may be of beside a date that has one: 28 December to 3 January 2027."""
    return (year, year + 1, *([year - 1] if day > tuple(dated) else []))


def _is_date(year: int, month: int, day: int) -> bool:
    return year > 0 and 0 < month < len(month_name) and 0 < day <= monthrange(year, month)[1]


def _is_hour_said(hour: int, numbers: set[int], words: str) -> bool:
    """Whether an hour is among numbers or words, by either clock."""
    hours = {hour % 24, hour % 12 or 12}
    name = {0: " midnight ", 12: " noon "}.get(hour % 24, words + "x")
    return bool(numbers & hours) or name in words or any(is_spelled(each, words) for each in hours)


def _few(found: set[str]) -> list[str]:
    return sorted(found) if len(found) <= MOST_MOMENTS else []
