"""Sentences with slots: the data in `plain/sentences.txt` and `plain/more_*.txt`, and a text of some of them with the
values it holds.

    # domain                            what follows is one; a text takes its sentences from one domain
    {buyer} ordered {qty} {item}.       slots, by role
    {a one}                             with "a" or "an" in front, as its value wants it
    {paid=true:is paid|false:is due}    phrases that stand for a value
    [ from {seller}]                    there or not
    <Send|Ship>                         one of them
    The @1 is $1.                       a noun and its value, see `tasks/named.py`

`plain/roles*.txt` say for each role of what kind its values are, and which names a field for it may have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from random import Random

from redraft.tasks.locales import is_abroad, language_of, locales
from redraft.tasks.named import names_of, open_slots
from redraft.tasks.strings import Value, quoted, read
from redraft.tasks.values import draw

_OPTIONAL = re.compile(r"\[([^\[\]<>]*)\]")
_CHOICE = re.compile(r"<([^<>\[\]{}]*(?:\{[^{}]*\}[^<>\[\]{}]*)*)>")
_BAR = re.compile(r"\|(?![^{]*\})")
_SLOT = re.compile(r"\{(a )?(\w+)(?:=([^{}]*))?\}")


@dataclass(frozen=True)
class Role:
    """What a slot is about. `choices` are the values of an "enum"."""

    name: str
    kind: str
    choices: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Sentences:
    """A sentence or several, and the values in them by role."""

    text: str
    values: Mapping[str, Value]


class _Roles(dict[str, Role]):
    """Roles by name; that of a noun, "kind__noun", is made when it is asked for."""

    def __missing__(self, name: str) -> Role:
        kind, mark, label = name.partition("__")
        if not mark:
            raise KeyError(name)
        return Role(name, kind, (), names_of(label))


@cache
def roles() -> Mapping[str, Role]:
    """All roles by name."""
    found = _Roles()
    for file in _files("roles"):
        for line in _lines(file):
            left, _, right = line.partition("|")
            name, kind, *choices = left.split()
            found[name] = Role(name, kind, tuple(choices), tuple(right.split()))
    return found


@cache
def common_roles() -> tuple[Role, ...]:
    """Roles for texts of no domain: one of each first name, none of another language."""
    english = (role for role in roles().values() if not is_abroad(role.kind))
    return tuple({role.names[0]: role for role in english if role.names[0].isascii()}.values())


@cache
def domains() -> Mapping[str, tuple[str, ...]]:
    """The sentences with slots, by domain."""
    found: dict[str, list[str]] = {}
    for name in ("sentences.txt", *_files("more_")):
        for line in _lines(name, comments=True):
            if line.startswith("# "):
                here = found.setdefault(line[2:], [])
            else:
                here.append(line)
    return {name: tuple(sentences) for name, sentences in found.items()}


@cache
def shares() -> tuple[float, ...]:
    """How often each domain is drawn: as it has sentences; those of other languages a third as often."""
    return tuple(len(each) / (3 if language_of(name) else 1) for name, each in domains().items())


@cache
def fillers(language: str = "") -> Sequence[str]:
    """Sentences that say nothing to extract."""
    return locales()[language]["fillers"] if language else tuple(_lines("fillers.txt"))


@cache
def nothing() -> tuple[str, ...]:
    """Texts that answer no field at all: questions, verse, code, other languages."""
    return tuple(_lines("nothing.txt"))


@lru_cache(20_000)
def roles_of(sentence: str) -> frozenset[str]:
    """Every role that a sentence may hold."""
    return frozenset(match[2] for match in _SLOT.finditer(sentence))


def expand(sentence: str, rng: Random) -> str:
    """A sentence whose choices are made; its slots are still open."""
    sentence = re.sub(r"<(\{email\})>", "‹\\1›", sentence)  # an address in brackets of its own
    while True:
        optional = _OPTIONAL.search(sentence)
        choice = _CHOICE.search(sentence)
        if optional is not None:
            kept = optional[1] if rng.random() < 0.5 else ""
            sentence = sentence[: optional.start()] + kept + sentence[optional.end() :]
        elif choice is not None:
            sentence = sentence[: choice.start()] + rng.choice(_BAR.split(choice[1])) + sentence[choice.end() :]
        else:
            return open_slots(sentence.replace("‹", "<").replace("›", ">"), rng)


def write(sentence: str, rng: Random, split: str, lower: bool = False) -> Sentences:
    """An expanded sentence with values in its slots. Raises KeyError for a role that is not known."""
    values: dict[str, Value] = {}
    parts, at = [], 0
    for match in _SLOT.finditer(sentence):
        article, name, phrases = match[1], match[2], match[3]
        role = roles()[name]
        if phrases is not None:
            meant, _, text = rng.choice(phrases.split("|")).partition(":")
            forms = {"boolean": meant} if role.kind == "boolean" else {"|".join(role.choices): quoted(meant)}
            value = Value(text, forms)
        else:
            value = draw(role.kind, rng, split)
            if lower:
                texts = {kind: form.lower() for kind, form in value.forms.items() if kind in ("string", "list")}
                value = Value(value.text.lower(), dict(value.forms) | texts)
        parts.append(sentence[at : match.start()])
        if article:
            parts.append("an " if value.text[:1].lower() in "aeiou" else "a ")
        parts.append(value.text)
        values[name] = value
        at = match.end()
    text = "".join((*parts, sentence[at:]))
    return Sentences(text.lower() if lower else text, values)


def compose(rng: Random, split: str, most: int = 3) -> tuple[Sentences, str]:
    """One to `most` sentences of a domain, sometimes with one that says nothing, and the domain's name."""
    domain = rng.choices(list(domains()), shares())[0]
    lower, wanted = rng.random() < 0.08, min(most, rng.choice((1, 1, 1, 2, 2, 3)))
    parts, values = list[str](), dict[str, Value]()
    for _ in range(3 * wanted):
        sentence = expand(rng.choice(domains()[domain]), rng)
        if not roles_of(sentence) or any(_clash(one, two) for one in roles_of(sentence) for two in values):
            continue
        made = write(sentence, rng, split, lower)
        parts.append(made.text)
        values |= made.values
        if len(parts) == wanted:
            break
    if rng.random() < 0.2:
        extra = rng.choice(fillers(language_of(domain)))
        parts.insert(0 if extra.endswith(",") else rng.randint(0, len(parts)), extra.lower() if lower else extra)
    text = rng.choice((" ", " ", " ", "\n")).join(parts)
    if rng.random() < 0.1 and not any(text.endswith(value.text) for value in values.values()):  # "Foo Inc."
        text = text.removesuffix(".")
    return Sentences(text, values), domain


def _clash(one: str, two: str) -> bool:
    """Whether two roles cannot stand in one text: they are the same, or no name would tell them apart."""
    first, second = roles()[one], roles()[two]
    return one == two or len(set(first.names) & set(second.names)) > 1


def _files(start: str) -> list[str]:
    """Data files by how their names begin, in order."""
    return sorted(each.name for each in (files("redraft.tasks") / "plain").iterdir() if each.name.startswith(start))


def _lines(name: str, comments: bool = False) -> list[str]:
    lines = [line for line in read(name).split("\n") if line.strip() and (comments or not line.startswith("# "))]
    return [line.replace("\\n", "\n").replace("\\t", "\t") for line in lines]
