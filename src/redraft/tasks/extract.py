"""Extraction: sentences and the names of fields in, a compact JSON record with their values out.

    prompt  Extract as JSON: to, qty (integer), due (date)          answer  {"to":"Maria","qty":3,"due":null}
            Send 3 apples to Maria.

A field has one of several names, in several styles, and stands in any order; what the text does not say is null, and
what it says beside that is left out. No text and no value is a list's: see `tasks/values.py` and `tasks/sentences.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from redraft import prompts
from redraft.prompts import Field
from redraft.tasks.records import read_json, same
from redraft.tasks.sentences import (
    Sentences,
    common_roles,
    compose,
    domains,
    expand,
    nothing,
    roles,
    roles_of,
    shares,
    write,
)
from redraft.tasks.strings import Value, quoted
from redraft.tasks.task import Example, Score, share, split_of, stream_seed
from redraft.tasks.values import draw, likeness

_SHORT = 45  # characters of an answer that fits a canvas of 32 nearly always

Asked = tuple[tuple[Field, str], ...]
"""Fields and the JSON of their values."""


def join(asked: Asked) -> str:
    """A record as compact JSON."""
    return "{" + ",".join(f"{json.dumps(field.name, ensure_ascii=False)}:{value}" for field, value in asked) + "}"


def schema_of(prompt: str) -> dict[str, Any]:
    """The schema that an extraction's prompt stands for; every field may be null."""
    head, _, names = prompt.partition("\n")[0].partition(": ")
    fields = (part.partition(" (") for part in names.split(", "))
    properties = {name: _schema(kind.rstrip(")") or "string") for name, _, kind in fields}
    record = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "array", "items": record} if head.endswith("list") else record


def _schema(kind: str) -> dict[str, Any]:
    if "|" in kind:
        return {"enum": [*kind.split("|"), None]}
    if kind == "list":
        return {"type": ["array", "null"], "items": {"type": "string"}}
    looks = {"date": {"format": "date"}, "time": {"pattern": prompts.CLOCK}}
    known = kind if kind in ("integer", "number", "boolean") else "string"
    return {"type": [known, "null"]} | looks.get(kind, {})


def judge(wanted: object, got: object) -> float:
    """The share of the members of a record, or of a list of records, that are right; numbers count by their value."""
    if isinstance(wanted, list):
        listed = got if isinstance(got, list) else []
        parts = [judge(each, listed[i] if i < len(listed) else None) for i, each in enumerate(wanted)]
        return sum(parts) / len(parts) if len(listed) <= len(wanted) and parts else 0.0
    if not isinstance(wanted, dict):
        return float(_alike(wanted, got))
    members = got if isinstance(got, dict) else {}
    return share([key in members and _alike(value, members[key]) for key, value in wanted.items()])


def _alike(wanted: object, got: object) -> bool:
    numbers = isinstance(wanted, int | float) and isinstance(got, int | float)
    if numbers and not isinstance(wanted, bool) and not isinstance(got, bool):
        return wanted == got
    return same(wanted, got)


@dataclass(frozen=True)
class Extract:
    """One record of one to five fields; with `short`, of one or two out of one sentence; with `many`, two to four
    records of one sentence form."""

    many: bool = False
    short: bool = False

    @property
    def name(self) -> str:
        """What recipes and the command line call it."""
        return "extract-lists" if self.many else "extract-short" if self.short else "extract"

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        """Endless sentences about the values of one split. Raises RecipeError for an unknown split."""
        rng = Random(stream_seed(self.name, split, seed))
        while True:
            found = _many(rng, split) if self.many else _one(rng, split, self.short)
            if found is not None and not (self.short and len(found.answer) > _SHORT):
                yield found

    def score(self, example: Example, answer: str) -> Score:
        """`exact`: every value is right, however the JSON is spaced. Parts: `fields`, the share that is."""
        wanted, got = read_json(example.answer), read_json(answer)
        fields = judge(wanted, got)
        return Score(exact=fields == 1.0 and _shape(wanted) == _shape(got), parts={"fields": fields})


def _shape(value: object) -> object:
    if isinstance(value, list):
        return [_shape(each) for each in value]
    return sorted(value) if isinstance(value, dict) else None


def _one(rng: Random, split: str, short: bool) -> Example | None:
    if rng.random() < 0.04:
        made = Sentences(rng.choice(nothing()), {})
        asked = _label(rng, made, rng.sample(_askable(), rng.choice((1, 2) if short else (1, 2, 3))))
    else:
        made, domain = compose(rng, split, 1 if short else 3)
        asked = ask(rng, made, domain, rng.choice((1, 2, 2) if short else (1, 2, 2, 3, 3, 4, 5)))
    if not asked:
        return None
    return Example(prompts.extract([field for field, _ in asked], made.text), join(asked))


def ask(rng: Random, made: Sentences, domain: str, count: int, choices: bool = True) -> Asked:
    """Fields to ask a text for, and the JSON of their values: so many of those it has, sometimes one it has not. With
    `choices` any value is asked for among some now and then."""
    chosen = rng.sample(list(made.values), min(count, len(made.values)))
    if rng.random() < 0.25:
        held = {name for role in made.values for name in roles()[role].names}
        forms = (expand(rng.choice(domains()[domain]), rng) for _ in range(5))
        others = sorted(set().union(*map(roles_of, forms)) - set(made.values))
        others = [role for role in others if not held & set(roles()[role].names)]
        chosen += rng.sample(others, min(len(others), rng.choice((1, 1, 2))))
    rng.shuffle(chosen)
    return _label(rng, made, chosen, choices)


def _label(rng: Random, made: Sentences, chosen: Sequence[str], choices: bool = True) -> Asked:
    """Fields for these roles, and the JSON of their values; null for what a text does not hold."""
    style = rng.choice((0, 0, 0, 0, 1, 2, 3))
    found: dict[str, tuple[Field, str]] = {}
    for name in chosen:
        kept = name_of(name, chosen, made, rng, style)
        if kept is not None and kept not in found:
            kind, value = typed(name, made.values.get(name), rng, choices)
            found[kept] = (Field(kept, kind), value)
    return tuple(found.values())


@cache
def _askable() -> tuple[str, ...]:
    """Roles that a text of nothing cannot answer: any text has a subject, is a message, is in a language."""
    vague = ("topic", "quote", "title", "issue", "error", "language", "note")
    return tuple(role.name for role in common_roles() if role.kind not in vague)


def name_of(role: str, chosen: Sequence[str], made: Sentences, rng: Random, style: int) -> str | None:
    """A name for a field that no other role at hand could have; None if there is none."""
    others = [roles()[other] for other in dict.fromkeys((*made.values, *chosen)) if other != role]
    taken = {name for other in others for name in other.names}
    for kinds, names in _GENERAL:
        if likeness(roles()[role].kind) in kinds and any(likeness(other.kind) in kinds for other in others):
            taken |= names  # "who" where two persons are would be either
    free = [name for name in roles()[role].names if name not in taken]
    if not free:
        return None
    name = free[0] if rng.random() < 0.4 else rng.choice(free)
    words = name.split("_")
    if style == 1:
        return words[0] + "".join(word.capitalize() for word in words[1:])
    if style == 2:
        return " ".join(words)
    return "".join(word.capitalize() for word in words) if style == 3 and rng.random() < 0.5 else name


_PLACES = ("city", "country", "address", "room", "venue", "street", "airport", "spot")
_DAYS = ("date", "weekday", "year", "month", "quarter")
_COUNTS = ("count", "small", "digits", "bignum")
_CODES = ("code", "flight", "train", "plate", "hex", "postcode", "phone", "house")
_MONEY = ("price", "sum", "fortune")
_UNITS = ("weight", "temp", "celsius", "percent", "pressure", "speed", "length", "power", "memory")
_NAMED = ("person", "company", "petname", "name", "username", "title", "team", "program", "machine", "thing", "file")
_WHATS = (
    *("goods", "thing", "list", "dish", "topic", "issue", "error", "title", "quote", "device", "damage", "machine"),
    *("substance", "program", "reason", "purpose", "home", "law", "event", "stuff", "food", "drink", "lost"),
    "ingredient",
)
_GENERAL = (
    (frozenset(("person", "names")), frozenset(("who", "name", "person", "full_name", "people", "employee"))),
    (frozenset(_PLACES), frozenset(("city", "place", "location", "where", "town", "country", "address", "in", "at"))),
    (frozenset(_MONEY), frozenset(("price", "cost", "total", "sum", "amount", "amount_paid", "value", "money"))),
    (frozenset(_DAYS), frozenset(("date", "day", "on", "year"))),
    (frozenset(("time",)), frozenset(("time", "hour"))),
    (frozenset((*_DAYS, "time")), frozenset(("when", "at", "since", "until"))),
    (frozenset(("company",)), frozenset(("company", "firm", "place", "business", "organisation"))),
    (
        frozenset(_WHATS),
        frozenset(("item", "product", "article", "goods", "what", "object", "subject", "title", "thing")),
    ),
    (frozenset(_COUNTS), frozenset(("number", "count", "amount", "quantity", "people"))),
    (frozenset((*_COUNTS, *_CODES)), frozenset(("number", "id", "code", "no", "reference"))),
    (frozenset((*_COUNTS, *_MONEY)), frozenset(("amount", "value"))),
    (frozenset((*_UNITS, *_COUNTS)), frozenset(("value", "reading", "measurement"))),
    (frozenset(_NAMED), frozenset(("name",))),
    (frozenset(("state", "enum", "boolean")), frozenset(("status", "state"))),
)
"""Kinds that are alike, and the names that say no more than the kind."""


def typed(role: str, value: Value | None, rng: Random, choices: bool = False) -> tuple[str, str]:
    """The type to ask for a value in, now and then some `choices` that it is among, and its JSON; null without one."""
    if value is None:
        kind = _kind(role, rng)
        return (_choices(role, None, rng) or kind) if kind == "string" and choices else kind, "null"
    kinds = list(value.forms)
    kind = kinds[0] if kinds[0] != "string" and rng.random() < 0.6 else rng.choice(kinds)
    if kind == "string" and choices and (among := _choices(role, value, rng)):
        style = rng.choice((str, str, str, str.lower, str.lower, str.upper))
        return style(among), style(value.forms[kind])
    return kind, value.forms[kind]


_CHOSEN = 0.12
_CHOICE_LENGTH = 18


def _choices(role: str, value: Value | None, rng: Random) -> str | None:
    """Now and then, the choices that a value of any kind is among, or None: any word of a text may be one of a few."""
    kind = roles()[role].kind
    if rng.random() >= _CHOSEN or kind in ("enum", "boolean"):
        return None
    if value is not None and value.forms["string"] != quoted(value.text):
        return None
    mine = [] if value is None else [value.text]
    found = dict.fromkeys(mine)
    for _ in range(rng.choice((1, 2, 2, 3, 4))):
        other = draw(kind, rng, split_of(value.text) if value else "train")
        found[other.text] = None
    # Neither what would end the list of choices or the field, nor two that differ by case alone.
    plain = all(re.fullmatch(r"[^|(),:\"\\\n]+", each) and len(each) <= _CHOICE_LENGTH for each in found)
    if not plain or len({each.lower() for each in found}) < max(2, len(found)):
        return None
    return "|".join(rng.sample(list(found), len(found)))


_KINDS = {
    **dict.fromkeys(("count", "bignum", "year"), "integer"),
    **dict.fromkeys(("price", "weight", "temp", "celsius"), "number"),
    **{kind: kind for kind in ("date", "time", "list", "boolean")},
    "names": "list",
}


def _kind(role: str, rng: Random) -> str:
    found = roles()[role]
    if found.kind == "enum":
        return "|".join(found.choices)
    kind = _KINDS.get(likeness(found.kind), "string")
    return kind if kind in ("list", "boolean") or rng.random() < 0.7 else "string"


def _many(rng: Random, split: str) -> Example | None:
    """Records of one domain whose sentences hold the same roles, all asked for alike."""
    domain = rng.choices(list(domains()), shares())[0]
    form = expand(rng.choice(domains()[domain]), rng)
    held = roles_of(form)
    if not 1 < len(held) < 5:
        return None
    some = rng.sample(domains()[domain], min(40, len(domains()[domain])))
    alike = [each for each in (expand(one, rng) for one in some) if roles_of(each) >= held]
    count, mixed = rng.choice((2, 2, 3, 3, 4)), rng.random() < 0.4
    texts = [write(rng.choice((*alike, form)) if mixed else form, rng, split) for _ in range(count)]
    texts = [Sentences(each.text, {name: each.values[name] for name in each.values if name in held}) for each in texts]
    first = ask(rng, texts[0], domain, rng.choice((2, 2, 3, 4)))
    by_name = {field.name: field for field, _ in first}
    records: list[str] = []
    for each in texts:
        parts = []
        for field in by_name.values():
            role = next((name for name in sorted(held) if _named(name, field.name)), None)
            value = each.values.get(role) if role is not None else None
            if value is not None and field.kind not in value.forms:
                return None
            parts.append((field, "null" if value is None else value.forms[field.kind]))
        records.append(join(tuple(parts)))
    if len(by_name) < 2:
        return None
    text = rng.choice((" ", "\n", "\n", "; ")).join(each.text for each in texts)
    return Example(prompts.extract(list(by_name.values()), text, many=True), "[" + ",".join(records) + "]")


def _named(role: str, name: str) -> bool:
    return _plain(name) in {_plain(each) for each in roles()[role].names}


def _plain(name: str) -> str:
    return name.replace("_", "").replace(" ", "").lower()
