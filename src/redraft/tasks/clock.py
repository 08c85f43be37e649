"""Dates and times as people write them, with what they are in ISO 8601."""

from __future__ import annotations

from calendar import day_name, month_name
from datetime import date, timedelta
from random import Random

from redraft.tasks.strings import Value, quoted, said

_FIRST, _SPAN = date(1950, 1, 1), 31_000
_HOURS = ["twelve", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]


def draw_date(rng: Random) -> Value:
    """A date, as "string" and, where its text has day, month and year, as "date"."""
    recent = rng.random() < 0.7
    when = date(2019, 1, 1) + timedelta(rng.randrange(4000)) if recent else _FIRST + timedelta(rng.randrange(_SPAN))
    month, year, day = month_name[when.month], when.year, when.day
    ending = "th" if 10 < day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    weekday = day_name[when.weekday()]
    if rng.random() < 0.22:
        text = rng.choice(
            (f"{day} {month}", f"{month} {day}", f"{month} {day}{ending}", f"{day}. {month}", f"{day}/{when.month}")
        )
        return said(text)
    text = rng.choice(
        (
            when.isoformat(),
            f"{day} {month} {year}",
            f"{month} {day}, {year}",
            f"{month} {day}{ending}, {year}",
            f"{day}.{when.month}.{year}",
            f"{day:02}.{when.month:02}.{year}",
            f"{day} {month[:3]} {year}",
            f"{month[:3]} {day}, {year}",
            f"{year}/{when.month:02}/{day:02}",
            f"{weekday}, {day} {month} {year}",
            f"the {day}{ending} of {month} {year}",
        )
    )
    return Value(text, {"string": quoted(text), "date": quoted(when.isoformat())})


def draw_time(rng: Random) -> Value:
    """A time of day, as "string" and, where its text tells morning from afternoon, as "time"."""
    hour, minute = rng.randrange(24), rng.choice((0, 0, 15, 30, 45, 5 * rng.randrange(12), rng.randrange(60)))
    half, twelve = "am" if hour < 12 else "pm", hour % 12 or 12
    iso = f"{hour:02}:{minute:02}"
    kind = rng.random()
    if kind < 0.35:
        text = rng.choice((iso, f"{hour}:{minute:02}", f"{hour}.{minute:02}"))
    elif kind < 0.75:
        clock = f"{twelve}" if not minute else f"{twelve}:{minute:02}"
        text = f"{clock}{rng.choice((' ', ''))}{rng.choice((half, half, half.upper(), f'{half[0]}.m.'))}"
    elif kind < 0.8:
        text, iso = rng.choice((("noon", "12:00"), ("midnight", "00:00")))
    elif kind < 0.9:
        part, name = rng.choice(((0, "{} o'clock"), (30, "half past {}"), (15, "a quarter past {}")))
        when = rng.choice(("in the morning", "in the evening"))
        hour = rng.randint(5, 11) if when.endswith("morning") else rng.randint(18, 22)
        text = f"{name.format(_HOURS[hour % 12])} {when}"
        iso = f"{hour:02}:{part:02}"
    else:
        text = rng.choice(
            (f"{twelve} o'clock", f"half past {_HOURS[hour % 12]}", f"a quarter past {_HOURS[hour % 12]}")
        )
        return said(text)
    return Value(text, {"string": quoted(text), "time": quoted(iso)})
