"""Values that a sentence holds: how one stands in the text, and what it is as JSON of each type that fits.

A free value, one of endless supply (`tasks/strings.py`), belongs to the split that the hash of its text says, so that
copying it cannot be remembered.
"""

from __future__ import annotations

from calendar import month_name
from collections.abc import Callable
from random import Random

from redraft.numerals import spelled
from redraft.tasks.clock import draw_date, draw_time
from redraft.tasks.locales import draw_abroad, is_abroad
from redraft.tasks.strings import CAPITALS, FREE, Value, listed, pick, quoted, said, scramble, syllables, word
from redraft.tasks.task import split_of


def draw(kind: str, rng: Random, split: str) -> Value:
    """A value of a kind, and of the split if the kind is a free one. "count:2-80" is a number in digits, within bounds;
    `tasks/locales.py` has kinds of other languages. Raises KeyError for an unknown kind."""
    if kind in _FEW:
        return _FEW[kind](rng)
    if kind.startswith("count:"):
        low, _, high = kind.partition(":")[2].partition("-")
        return _integer(rng.randint(int(low), int(high)))
    if is_abroad(kind):
        return draw_abroad(kind, rng, split)
    while True:
        found = word(rng, kind, WORDS[kind]) if kind in WORDS else FREE[kind](rng)
        if rng.random() < 0.06:
            found = scramble(rng) if rng.random() < 0.7 else syllables(rng, 1, 4)
        if split_of(found) == split:
            return said(found)


def likeness(kind: str) -> str:
    """The kind that one with bounds, or of another language, is like."""
    return kind.rpartition("_")[0] if is_abroad(kind) else kind.partition(":")[0]


def _integer(number: int, text: str = "") -> Value:
    text = text or str(number)
    return Value(text, {"integer": str(number), "number": str(number), "string": quoted(text)})


def _count(rng: Random) -> Value:
    number, kind = rng.randint(1, 10 ** rng.choice((1, 1, 2, 2, 3, 4)) - 1), rng.random()
    if kind < 0.2:
        number = rng.randint(2, 20) if kind < 0.15 else rng.randint(21, 300)
        return _integer(number, spelled(number))
    return _integer(12, "a dozen") if kind < 0.22 else _integer(number)


def _small(rng: Random) -> Value:
    number = rng.randint(1, 10 ** rng.choice((1, 2)) - 1)
    return _integer(number, spelled(number) if rng.random() < 0.2 else "")


def _large(rng: Random) -> Value:
    number = rng.randint(1, 999) * 10 ** rng.randint(1, 3) if rng.random() < 0.6 else rng.randint(1000, 999999)
    return _integer(number, f"{number:,}" if rng.random() < 0.5 else "")


def _price(rng: Random) -> Value:
    whole, cents = rng.randint(0, 10 ** rng.randint(1, 4) - 1), rng.randint(0, 99)
    digits = rng.choice((f"{whole}", f"{whole}.{cents:02}", f"{whole}.{cents:02}", f"{whole}.{1 + cents // 11}"))
    text = listed(rng, "money").format(digits)
    forms = {"number": digits, "string": quoted(text)}
    return Value(text, forms if "." in digits else forms | {"integer": digits})


def _measure(rng: Random, units: str, negative: float = 0.0, top: int = 60) -> Value:
    sign = "-" if rng.random() < negative else ""
    digits = sign + rng.choice((str(rng.randint(1, top)), f"{rng.randint(0, 40)}.{rng.randint(1, 9)}"))
    text = digits + rng.choice((" ", "")) + listed(rng, units)
    return Value(text, {"number": digits, "string": quoted(text)})


def _celsius(rng: Random) -> Value:
    digits = str(rng.randint(-15, 39))
    text = digits + rng.choice(("°C", " °C", "°"))
    return Value(text, {"number": digits, "string": quoted(text)})


def _sum(rng: Random) -> Value:
    whole, cents = rng.randint(1, 10 ** rng.randint(2, 5)), rng.randint(0, 99)
    plain = f"{whole}.{cents:02}" if rng.random() < 0.5 else str(whole)
    text = plain if rng.random() < 0.6 else f"{float(plain):,.2f}" if "." in plain else f"{whole:,}"
    forms = {"number": plain, "string": quoted(text)}
    return Value(text, forms if "." in plain else forms | {"integer": plain})


def _fortune(rng: Random) -> Value:
    name, size = rng.choice((("million", 6), ("billion", 9), ("m", 6), ("bn", 9)))
    whole, tenth = rng.randint(1, 900), rng.randint(1, 9)
    digits, number = (f"{whole}", whole * 10) if rng.random() < 0.5 else (f"{whole}.{tenth}", whole * 10 + tenth)
    sign, after = rng.choice((("$", ""), ("€", ""), ("£", ""), ("", " euros"), ("", " dollars")))
    text = f"{sign}{digits}{' ' if len(name) > 2 else ''}{name}{after}"
    return Value(text, {"string": quoted(text), "number": str(number * 10 ** (size - 1))})


def _span(rng: Random) -> Value:
    amount = str(rng.randint(2, 59)) if rng.random() < 0.7 else spelled(rng.randint(2, 20))
    return said(f"{amount} {listed(rng, 'span')}")


def _several(rng: Random, one: Callable[[Random], str]) -> Value:
    parts = list(dict.fromkeys(one(rng) for _ in range(rng.choice((2, 3, 3, 4)))))
    last = (" and " if rng.random() < 0.8 else ", ") + parts[-1] if len(parts) > 1 else ""
    text = ", ".join(parts[:-1] if last else parts) + last
    return Value(text, {"list": "[" + ",".join(map(quoted, parts)) + "]"})


WORDS = {
    "topic": 0.1,
    "issue": 0.1,
    "error": 0.15,
    "service": 0.25,
    "job": 0.15,
    "department": 0.1,
    "language": 0.15,
    "city": 0.35,
    "country": 0.2,
    "dish": 0.2,
    "animal": 0.15,
    "sport": 0.15,
    "brand": 0.4,
    **dict.fromkeys(("food", "drink", "ingredient", "beast", "hobby", "instrument", "element", "invention"), 0.15),
    **dict.fromkeys(("subject_", "symptom", "medicine", "spot", "relation", "genre", "weather", "vehicle"), 0.1),
    **dict.fromkeys(("lost", "material", "mood"), 0.1),
    **dict.fromkeys(("mountain", "river"), 0.4),
    "state": 0.1,
    "device": 0.2,
    "program": 0.25,
    "stuff": 0.15,
    "venue": 0.2,
    "reason": 0.1,
    "purpose": 0.1,
    "law": 0.15,
    "substance": 0.2,
    "cup": 0.15,
    "home": 0.1,
    "damage": 0.1,
    "machine": 0.15,
    "system": 0.15,
}
"""Kinds that are a list's words, and the share of made words among them."""

_FEW: dict[str, Callable[[Random], Value]] = {
    "count": _count,
    "small": _small,
    "digits": lambda rng: _integer(rng.randint(0, 10 ** rng.randint(1, 4) - 1)),
    "bignum": _large,
    "year": lambda rng: _integer(rng.randint(1900, 2035)),
    "port": lambda rng: _integer(rng.choice((80, 443, 8080, 5432, 3306, rng.randint(1024, 65535)))),
    "status_code": lambda rng: _integer(rng.randint(100, 599)),
    "price": _price,
    "weight": lambda rng: _measure(rng, "scale"),
    "temp": lambda rng: _measure(rng, "degree", negative=0.2),
    "percent": lambda rng: _measure(rng, "share"),
    "celsius": _celsius,
    "pressure": lambda rng: _measure(rng, "pressure", top=1200),
    "speed": lambda rng: _measure(rng, "speed", top=300),
    "length": lambda rng: _measure(rng, "length", top=400),
    "power": lambda rng: _measure(rng, "power", top=900),
    "memory": lambda rng: _measure(rng, "memory", top=512),
    "sum": _sum,
    "fortune": _fortune,
    "currency": lambda rng: said(listed(rng, "currency")),
    "month": lambda rng: said(rng.choice(month_name[1:])),
    "quarter": lambda rng: said(listed(rng, "quarter")),
    "airport": lambda rng: said(pick(rng, CAPITALS, 3)),
    "house": lambda rng: said(f"{rng.randint(1, 10 ** rng.randint(1, 3))}{rng.choice(('', '', '', 'a', 'b', 'B'))}"),
    "duration": _span,
    "date": draw_date,
    "time": draw_time,
    "weekday": lambda rng: said(listed(rng, "weekday")),
    "color": lambda rng: said(word(rng, "color", 0.15)),
    "size": lambda rng: said(listed(rng, "size")),
    "gate": lambda rng: said(f"{rng.choice(CAPITALS[:8])}{rng.randint(1, 60)}"),
    "seat": lambda rng: said(f"{rng.randint(1, 45)}{rng.choice(CAPITALS[:11])}"),
    "list": lambda rng: _several(rng, FREE["goods"]),
    "names": lambda rng: _several(rng, FREE["person"]),
}
"""Kinds whose values are too few to hold some out, or are not copied as they are."""

KINDS = (*FREE, *WORDS, *_FEW)
