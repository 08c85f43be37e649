"""Strings of endless supply: listed words, words in the manner of several languages, random letters, and what people
make of such: names, addresses, codes, titles, files. And what a value is: a text, and its JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from random import Random

LETTERS = "abcdefghijklmnopqrstuvwxyz"
CAPITALS = LETTERS.upper()
DIGITS = "0123456789"
_SMALL_WORDS = frozenset(("of", "the", "and", "in", "a"))


@dataclass(frozen=True)
class Value:
    """The text of a value, and its JSON by type: "string", "integer", "number", "date", "time", "boolean", "list"."""

    text: str
    forms: Mapping[str, str]


def said(text: str) -> Value:
    """A value that is what it says."""
    return Value(text, {"string": quoted(text)})


def quoted(text: str) -> str:
    """A JSON string."""
    return json.dumps(text, ensure_ascii=False)


def read(name: str) -> str:
    """A data file of these tasks."""
    return (files("redraft.tasks") / "plain" / name).read_text(encoding="utf-8")


@cache
def word_lists() -> Mapping[str, tuple[str, ...]]:
    """The lists of `plain/words*.txt` by name; an underscore in a word is a space."""
    found = {}
    for part in (read("words.txt") + "\n" + read("words_languages.txt")).split("# ")[1:]:
        name, _, words = part.partition("\n")
        found[name.strip()] = tuple(word.replace("_", " ") for word in words.split())
    return found


@cache
def _languages() -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Onsets, vowels and ends of syllables, a language each; "-" is nothing."""
    rows = [line.split("|") for line in read("syllables.txt").splitlines()]
    return tuple(tuple(tuple(p.replace("-", "") for p in part.split()) for part in row) for row in rows)


def listed(rng: Random, name: str) -> str:
    """A word of a list."""
    return rng.choice(word_lists()[name])


def pick(rng: Random, letters: str, size: int) -> str:
    """So many of some letters."""
    return "".join(rng.choice(letters) for _ in range(size))


def syllables(rng: Random, low: int = 1, high: int = 3) -> str:
    """A word in the manner of some language."""
    language = rng.choice(_languages())
    return "".join(rng.choice(part) for _ in range(rng.randint(low, high)) for part in language)


def scramble(rng: Random) -> str:
    """Random letters: of one case or mixed, or of another alphabet."""
    kind, size = rng.random(), rng.randint(2, 12)
    if kind < 0.2:
        return foreign(rng)
    if kind < 0.4:
        return pick(rng, LETTERS, size).capitalize()
    return pick(rng, LETTERS if kind < 0.5 else CAPITALS if kind < 0.65 else LETTERS + CAPITALS, size)


def foreign(rng: Random) -> str:
    """Random letters of another alphabet."""
    found = pick(rng, listed(rng, "letters"), rng.randint(2, 8))
    return found.capitalize() if rng.random() < 0.5 else found


def word(rng: Random, name: str, made: float = 0.25) -> str:
    """A listed word, or a made one of the same looks."""
    found = listed(rng, name)
    if rng.random() >= made:
        return found
    other = syllables(rng, 1, 3) if rng.random() < 0.8 else scramble(rng)
    return other.capitalize() if found[:1].isupper() else other


def person(rng: Random) -> str:
    """A first name, most often; or first and last, a title, an initial."""
    kind, first = rng.random(), word(rng, "first", 0.3)
    if kind < 0.5:
        return first
    last = word(rng, "last", 0.3)
    if kind < 0.85:
        return f"{first} {last}"
    if kind < 0.9:
        return f"{listed(rng, 'title')} {last}"
    return f"{first[:1]}. {last}" if kind < 0.95 else f"{first} {last}-{word(rng, 'last', 0.5)}"


def company(rng: Random) -> str:
    """A company, with or without what kind it is."""
    first, kind = word(rng, "company", 0.4), rng.random()
    if kind < 0.5:
        return f"{first} {listed(rng, 'suffix')}"
    return f"{word(rng, 'last')} & {word(rng, 'last')}" if kind < 0.65 else first


def thing(rng: Random, name: str) -> str:
    """A thing of a list, a third of the time with an adjective or two."""
    found = word(rng, name, 0.2)
    for share in (0.35, 0.1):
        if rng.random() < share:
            found = f"{word(rng, 'adjective', 0.1)} {found}"
    return found


def address(rng: Random) -> str:
    """A street and a number, in some country's order."""
    number, name, kind = rng.randint(1, 10 ** rng.randint(1, 3)), word(rng, "street", 0.3), rng.random()
    if kind < 0.7:
        return f"{number}{rng.choice(('', '', '', 'a', 'b'))} {name} {listed(rng, 'way')}"
    return f"{name}{listed(rng, 'way_abroad')} {number}" if kind < 0.85 else f"{listed(rng, 'via')} {name} {number}"


def street(rng: Random) -> str:
    """A street without a number."""
    if rng.random() < 0.4:
        return listed(rng, "street_abroad")
    return f"{word(rng, 'street', 0.3)} {listed(rng, 'way')}"


def postcode(rng: Random) -> str:
    """A postal code of some country's form."""
    forms = ("00000", "00000", "00000", "0000", "AA0 0AA", "A00 0AA", "0000 AA", "A0A 0A0", "000-0000", "00-000")
    parts = {"0": DIGITS, "A": CAPITALS}
    return "".join(rng.choice(parts.get(char, char)) for char in rng.choice(forms))


def identifier(rng: Random) -> str:
    """What a programmer calls a table, a column, a setting."""
    parts = [rng.choice((word(rng, "service"), word(rng, "noun"))) for _ in range(rng.choice((1, 2, 2, 3)))]
    return rng.choice(("_", "_", "_", ".", "-")).join(parts).lower().replace(" ", "_")


def local(rng: Random) -> str:
    """What stands before the @ of an address, or a user's name."""
    first, last = (rng.choice((syllables(rng), word(rng, "first"))).lower().replace(" ", "") for _ in range(2))
    forms = ("{0}", "{0}.{1}", "{0}_{1}", "{2}.{1}", "{0}{3}", "{2}{1}")
    return rng.choice(forms).format(first, last, first[0], rng.randint(1, 99))


def domain(rng: Random) -> str:
    """A domain of the net."""
    name = rng.choice((syllables(rng, 2, 3), word(rng, "company").lower(), scramble(rng).lower())).replace(" ", "-")
    return f"{name}.{listed(rng, 'domain')}"


def code(rng: Random) -> str:
    """An order's number and the like: letters, digits and hyphens."""
    letters = rng.choice((CAPITALS, CAPITALS, LETTERS))
    head, number = pick(rng, letters, rng.randint(1, 4)), pick(rng, DIGITS, rng.randint(2, 7))
    end, year = pick(rng, letters + DIGITS, rng.randint(1, 4)), f"20{number[:2]}"
    forms = ("{0}-{1}", "{0}-{1}", "{0}{1}", "{0}-{1}-{2}", "#{1}", "{1}", "{3}", "{0}/{1}", "{4}-{1}", "{0} {1}")
    mixed = pick(rng, LETTERS + DIGITS, rng.randint(5, 12))
    return rng.choice(forms).format(head, number, end, mixed, year)


def clause(rng: Random) -> str:
    """What somebody says, for quotation marks."""
    subject = rng.choice((listed(rng, "subject"), "the " + word(rng, "thing"), word(rng, "first")))
    what = rng.choice(("it", "the " + word(rng, "thing"), "a " + word(rng, "thing"), word(rng, "topic")))
    end = rng.choice(("", "", f" {listed(rng, 'tail')}", f" in {word(rng, 'city')}"))
    found = f"{subject} {listed(rng, 'verb')} {what}{end}"
    if rng.random() < 0.6:
        found = found[0].upper() + found[1:]
    return found + rng.choice(("", "", ".", "!", "?"))


def title(rng: Random) -> str:
    """A book's or a show's."""
    one, two, adjective = word(rng, "noun", 0.15), word(rng, "noun", 0.15), word(rng, "adjective", 0.1)
    forms = ("the {0}", "{0} and {1}", "the {2} {0}", "{0} of the {1}", "a {0} in {3}", "the {0}'s {1}", "{2} {0}")
    found = rng.choice(forms).format(one, two, adjective, word(rng, "city")).split()
    return " ".join(p if i and p in _SMALL_WORDS else p[:1].upper() + p[1:] for i, p in enumerate(found))


def path(rng: Random) -> str:
    """A folder's."""
    parts = (
        rng.choice((syllables(rng), listed(rng, "folder"), word(rng, "service"))) for _ in range(rng.randint(1, 3))
    )
    return "/" + "/".join(parts)


def file(rng: Random) -> str:
    """A file's name."""
    noun = word(rng, "noun")
    name = rng.choice((syllables(rng, 2, 3), noun, f"{noun}_{rng.randint(1, 99)}", f"{noun}-{noun}", scramble(rng)))
    return f"{name}.{listed(rng, 'extension')}"


def phone(rng: Random) -> str:
    """A telephone's number."""
    forms = ("+00 000 0000000", "000-0000", "(000) 000-0000", "0000 00000", "000-000-0000", "+0 00 0000", "00000 0000")
    return "".join(rng.choice(DIGITS) if char == "0" else char for char in rng.choice(forms))


def host(rng: Random) -> str:
    """A machine's name."""
    number = rng.randint(1, 99)
    forms = ("{0}", "{1}{2}", "{0}-{2}", "{3}", "{1}-{2:02}")
    return rng.choice(forms).format(syllables(rng, 2, 3), word(rng, "service"), number, domain(rng))


def room(rng: Random) -> str:
    """A room's number or name."""
    number = rng.randint(1, 499)
    forms = ("{0}{1}", "{2}", "{3}.{4:02}", "{5}", "{0}-{1}")
    parts = (rng.choice(CAPITALS), number % 100, number, number % 10, number % 40, word(rng, "city"))
    return rng.choice(forms).format(*parts)


def plate(rng: Random) -> str:
    """A car's."""
    return f"{pick(rng, CAPITALS, rng.randint(1, 3))}-{pick(rng, CAPITALS, 2)} {rng.randint(1, 9999)}"


FREE: Mapping[str, Callable[[Random], str]] = {
    "person": person,
    "company": company,
    "address": address,
    "goods": lambda rng: thing(rng, "goods"),
    "thing": lambda rng: thing(rng, "thing"),
    "email": lambda rng: f"{local(rng)}@{domain(rng)}",
    "phone": phone,
    "url": lambda rng: rng.choice(("https://", "www.", "http://", "")) + domain(rng) + rng.choice(("", "", path(rng))),
    "code": code,
    "name": host,
    "username": local,
    "file": file,
    "path": path,
    "street": street,
    "postcode": postcode,
    "identifier": identifier,
    "branch": lambda rng: rng.choice(("", "feature/", "fix/", "release/")) + identifier(rng).replace("_", "-"),
    "hex": lambda rng: pick(rng, DIGITS + "abcdef", rng.choice((7, 8, 8, 10, 12))),
    "quote": clause,
    "title": title,
    "room": room,
    "flight": lambda rng: f"{listed(rng, 'airline')}{rng.choice(('', ' '))}{rng.randint(1, 9999)}",
    "train": lambda rng: f"{listed(rng, 'rail')} {rng.randint(1, 9999)}",
    "plate": plate,
    "version": lambda rng: ".".join(str(rng.randint(0, 20)) for _ in range(rng.randint(2, 3))),
    "ip": lambda rng: ".".join(str(rng.randint(0, 255)) for _ in range(4)),
    "petname": lambda rng: word(rng, "pet", 0.4),
    "team": lambda rng: rng.choice(("{0}", "{1}", "{1} {0}")).format(word(rng, "team"), word(rng, "city")),
}
"""Kinds of string by name."""
