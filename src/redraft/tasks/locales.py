"""Values as other languages write them: kinds "date_de", "price_fr", "person_ja", "goods_pl" and the like.

Words come from `plain/words_languages.txt`; how dates, times and money are written, from `plain/locales.toml`. Where a
number stands before a noun, it is one that the noun's form may follow (Polish "5 lamp", and not "2 lamp"). Listed words
are of both splits; what is made for English texts, too, is of one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from functools import cache
from random import Random
from typing import Any

from redraft.tasks.strings import Value, listed, person, quoted, read, said, word, word_lists
from redraft.tasks.task import split_of

LAST_FIRST = {"zh": "", "ja": "", "ko": "", "hu": " ", "vi": " "}
"""Languages whose last names come first, and what stands between."""
PAIRED = ("ru", "pl", "cs")
"""Languages whose lists of names go man, woman, man, woman."""
OTHER_LETTERS = ("ar", "el", "ja", "ko", "ru", "uk", "zh")
COUNTS = {"pl": (5, 20), "cs": (5, 20), "ru": (5, 20), "uk": (5, 20), "ar": (3, 10), "ro": (3, 19)}
"""Numbers that a list's plurals may follow, where that is not every one above 1."""


@cache
def locales() -> Mapping[str, Mapping[str, Any]]:
    """How each language writes things, by its two letters."""
    return tomllib.loads(read("locales.toml"))


def draw_abroad(kind: str, rng: Random, split: str) -> Value:
    """A value of a kind of another language. Raises KeyError for an unknown kind."""
    what, _, language = kind.rpartition("_")
    if language in locales() and what in _SHARED and language not in OTHER_LETTERS and rng.random() < 0.2:
        while split_of(found := _SHARED[what](rng)) != split:
            pass
        return said(found)
    if what in _MADE and language in locales():
        return _MADE[what](rng, language)
    found = listed(rng, kind)
    return said(found.replace("{n}", str(rng.randint(1, rng.choice((9, 60, 200))))))


def is_abroad(kind: str) -> bool:
    """Whether a kind is one of another language."""
    what, _, language = kind.rpartition("_")
    return language in locales() and (what in _MADE or kind in word_lists())


def language_of(domain: str) -> str:
    """The two letters that a domain's name ends with; none for English."""
    end = domain.rpartition("_")[2]
    return end if end in locales() else ""


def _number(rng: Random, language: str, most: int = 400) -> Value:
    low, high = COUNTS.get(language, (2, most))
    if rng.random() < 0.4:
        text, _, digits = listed(rng, f"count_{language}").rpartition(" ")
    else:
        text = digits = str(min(most, rng.randint(low, rng.choice((high, min(high, 20))))))
    return Value(text, {"integer": digits, "number": digits, "string": quoted(text)})


def _few(rng: Random, language: str) -> Value:
    while True:
        found = _number(rng, language, 12)
        if int(found.forms["integer"]) <= 12:
            return found


def _person(rng: Random, language: str) -> Value:
    first, second = word_lists()[f"first_{language}"], word_lists()[f"last_{language}"]
    one, kind = rng.choice(first), rng.random()
    two = rng.choice(second[first.index(one) % 2 :: 2] if language in PAIRED else second)
    if language in LAST_FIRST:
        return said(two + LAST_FIRST[language] + one)
    return said(one if kind < 0.3 else f"{one} {two}")


def _date(rng: Random, language: str) -> Value:
    local = locales()[language]
    when = date(2019, 1, 1) + timedelta(rng.randrange(4000))
    if rng.random() < 0.2:
        when = date(1950, 1, 1) + timedelta(rng.randrange(31_000))
    form, month = rng.choice(local["dates"]), local["months"][when.month - 1]
    day = "1er" if language == "fr" and when.day == 1 and "{month}" in form else str(when.day)
    weekday = word_lists()[f"weekday_{language}"][when.weekday()]
    parts = {"d": day, "m": when.month, "y": when.year, "month": month, "weekday": weekday}
    found = said(form.format(dd=f"{when.day:02}", mm=f"{when.month:02}", **parts))
    return Value(found.text, {"date": quoted(when.isoformat()), **found.forms}) if "{y}" in form else found


def _time(rng: Random, language: str) -> Value:
    local = locales()[language]
    form = rng.choice(local["times"])
    hour = rng.randint(6, 23) if rng.random() < 0.9 else rng.randint(0, 5)
    hour += "{h}" in form and hour % 12 == 0  # noon and midnight have words of their own
    minute = rng.choice((0, 15, 30, 30, 45, rng.randrange(60))) if "{MM}" in form else 0
    half = local["halves"][hour >= 12]
    text = form.format(H=hour, HH=f"{hour:02}", h=hour % 12 or 12, MM=f"{minute:02}", half=half)
    return Value(text, {"time": quoted(f"{hour:02}:{minute:02}"), "string": quoted(text)})


def _price(rng: Random, language: str) -> Value:
    local = locales()[language]
    (mark, group), step = local["marks"], local["step"]
    whole = rng.randint(1, 10 ** rng.randint(1, 4 if step < 1000 else 3)) * step
    plain = whole < 10_000 and rng.random() < 0.4
    text, number = str(whole) if plain else f"{whole:,}".replace(",", group), str(whole)
    if rng.random() < local["cents"]:
        cents = f"{rng.choice((50, 90, 95, 99, rng.randrange(100))):02}"
        text, number = text + mark + cents, f"{number}.{cents}"
    found = said(rng.choice(local["money"]).replace("{}", text))
    return Value(found.text, {"number": number, **found.forms} | ({} if "." in number else {"integer": number}))


_MADE: Mapping[str, Callable[[Random, str], Value]] = {
    "count": _number,
    "small": _few,
    "person": _person,
    "date": _date,
    "time": _time,
    "price": _price,
}
"""Kinds that are more than a list's words."""

_SHARED: Mapping[str, Callable[[Random], str]] = {"person": person, "city": lambda rng: word(rng, "city")}
"""Kinds of which a text in Latin letters may have an English one."""
