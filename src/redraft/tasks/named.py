"""Fields that a noun of the text names: "The door code is 5512." is asked for as "door_code".

    @1    a noun of any list; @1:relative is one of that list
    ~1    a noun of two words turned around: "name of the dog" for "dog name"
    ^1    the same with an apostrophe: "dog's name"
    $1    the value that belongs to noun 1, of a kind that suits its list; $1:color is of that kind

Such marks stand in sentences beside the slots; `open_slots` puts nouns and slots in their place.
"""

from __future__ import annotations

import re
from random import Random

from redraft.tasks.strings import word

_MARK = re.compile(r"([@~^$])(\d)(?::(\w+))?")
_ARTICLE = re.compile(r"(?<![{\w])([Aa]) (?=[aeiou])")
_ANY = (
    *("person", "city", "company", "code", "count", "digits", "price", "date", "time", "color", "title", "animal"),
    *("food", "language", "weekday", "room", "phone", "percent", "weight", "team", "brand", "job", "small", "year"),
)
_SUITED: dict[str, tuple[str, ...]] = {
    "relative": ("person",),
    "whereabouts": ("city", "city", "country", "address", "room"),
    "figure": ("count", "small", "digits", "bignum"),
    "secret": ("code", "code", "digits", "phone", "version", "username"),
    "day": ("date", "weekday", "date"),
    "moment": ("time",),
    "fee": ("price",),
    "trait": ("color", "animal", "food", "language", "brand", "title", "sport", "city", "team", "hobby"),
    "object": _ANY,
    "pair": _ANY,
}
"""Lists of nouns, and the kinds of value that suit them."""
_FIXED = {
    "goods": ("count",),
    "tally": ("count", "digits", "bignum"),
    "first": _ANY,
    "petword": ("petname",),
    "pair_name": ("person", "petname", "company"),
}
"""The same of lists that only a mark with their name draws from."""


def open_slots(sentence: str, rng: Random) -> str:
    """A sentence with a noun for each mark of one, and a slot for each mark of a value."""
    if "$" not in sentence:
        return sentence
    marks = _MARK.findall(sentence)
    nouns: dict[str, str] = {}
    slots: dict[str, str] = {}
    for number in dict.fromkeys(number for _, number, _ in marks):
        lists = [wanted for mark, other, wanted in marks if mark != "$" and other == number and wanted]
        kinds = [wanted for mark, other, wanted in marks if mark == "$" and other == number and wanted]
        chosen = lists[0] if lists else rng.choice(list(_SUITED))
        noun = word(rng, chosen, 0.08)
        while noun in nouns.values():
            noun = word(rng, chosen, 0.3)
        kind = kinds[0] if kinds else rng.choice((_SUITED | _FIXED)[chosen])
        nouns[number] = noun
        label = re.sub(r"\W+", "_", noun.lower())
        slots[number] = f"{{{kind}__{label}}}"
    found = _MARK.sub(lambda match: _put(match[1], nouns[match[2]], slots[match[2]]), sentence)
    return _ARTICLE.sub(r"\1n ", found)


def _put(mark: str, noun: str, slot: str) -> str:
    head, _, tail = noun.rpartition(" ")
    if mark == "~" and head:
        return f"{tail} of the {head}"
    return slot if mark == "$" else f"{head}'s {tail}" if mark == "^" and head else noun


def names_of(label: str) -> tuple[str, ...]:
    """The names of the field that a noun names: itself, and of two words the last."""
    head, _, tail = label.rpartition("_")
    return (label, label, tail) if head and tail else (label,)
