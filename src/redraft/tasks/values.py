"""Values that a sentence holds: how one stands in the text, and what it is as JSON of each type that fits.

A kind is a function from random numbers to a value. Free kinds are strings of endless supply: listed words, words of
syllables in the manner of several languages, and random letters of any case and alphabet, so that copying cannot be
remembered. A free value belongs to the split that the hash of its text says (`Values.draw`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from random import Random

from redraft.tasks.clock import draw_date, draw_time
from redraft.tasks.task import split_of


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


@cache
def word_lists() -> Mapping[str, tuple[str, ...]]:
    """The lists of `plain/words.txt` by name; an underscore in a word is a space."""
    text = (files("redraft.tasks") / "plain" / "words.txt").read_text(encoding="utf-8")
    found = {}
    for part in text.split("# ")[1:]:
        name, _, words = part.partition("\n")
        found[name.strip()] = tuple(dict.fromkeys(word.replace("_", " ") for word in words.split()))
    return found


# -- strings of endless supply -----------------------------------------------------------------------------------------

_LANGUAGES = (  # onsets, vowels, ends of a syllable
    ("b c d f g l m n p r s t v tr br st".split(), "a e i o u ia io".split(), ["", "", "", "n", "r", "l", "s"]),
    ("b d f g h k l m n r s t w sch st br".split(), "a e i o u ei au ie".split(), ["", "n", "r", "l", "s", "ch", "ck"]),
    ("k s t n h m y r w g z d b sh ch".split(), "a i u e o".split(), ["", "", "", "n"]),
    ("p t k s r l m n v j h".split(), "a e i o u ä ö aa ii uu".split(), ["", "", "n", "s", "l"]),
    ("b d j k l m n s t z r kr zv st vl".split(), "a e i o u".split(), ["", "", "k", "v", "n", "c", "sk"]),
    ("b d f h k l m n q r s sh t z j kh".split(), "a i u aa ee ou".split(), ["", "", "m", "r", "d", "n"]),
    ("b c d f g h l m p r s t w th sh ch bl cr".split(), "a e i o u ee oo ay".split(), ["", "n", "t", "rd", "ll", "m", "ck"]),
    ("b g k l m n ng p s t w y nd mb".split(), "a e i o u".split(), [""]),
)
_ALPHABETS = ("абвгдежзиклмнопрстуфхцчшыьюя", "αβγδεζηθικλμνξοπρστυφχψω", "あいうえおかきくけこさしすせそたちつてとなにの", "אבגדהוזחטיכלמנסעפצקרשת")
_ALPHABETS += ("ابتثجحخدذرزسشصضطظعغفقكلمنهوي", "가나다라마바사아자차카타파하고노도로모보", "山川水火木金土日月人口田中大小上下東西南北", "áéíóúñçãõêôüöäßøåæ")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def syllables(rng: Random, low: int = 1, high: int = 3) -> str:
    """A word in the manner of some language."""
    onsets, vowels, ends = rng.choice(_LANGUAGES)
    parts = (rng.choice(onsets) + rng.choice(vowels) + rng.choice(ends) for _ in range(rng.randint(low, high)))
    return "".join(parts)


def scramble(rng: Random) -> str:
    """Random letters: of one case or mixed, with digits or of another alphabet."""
    kind, size = rng.random(), rng.randint(2, 12)
    if kind < 0.2:
        alphabet = rng.choice(_ALPHABETS)
        word = "".join(rng.choice(alphabet) for _ in range(rng.randint(2, 8)))
        return word.capitalize() if rng.random() < 0.5 else word
    letters = _LETTERS if kind < 0.5 else _LETTERS.upper() if kind < 0.65 else _LETTERS + _LETTERS.upper()
    return "".join(rng.choice(letters) for _ in range(size)).capitalize() if kind < 0.4 else _pick(rng, letters, size)


def _pick(rng: Random, letters: str, size: int) -> str:
    return "".join(rng.choice(letters) for _ in range(size))


def word(rng: Random, name: str, made: float = 0.25) -> str:
    """A listed word, or a made one of the same looks."""
    listed = rng.choice(word_lists()[name])
    if rng.random() >= made:
        return listed
    found = syllables(rng, 1, 3) if rng.random() < 0.8 else scramble(rng)
    return found.capitalize() if listed[:1].isupper() else found


def _person(rng: Random) -> str:
    kind = rng.random()
    first = word(rng, "first", 0.3)
    if kind < 0.5:
        return first
    last = word(rng, "last", 0.3).removeprefix("_")
    if kind < 0.85:
        return f"{first} {last}"
    if kind < 0.9:
        return f"{rng.choice(('Mr', 'Ms', 'Dr', 'Mrs', 'Prof.'))} {last}"
    if kind < 0.95:
        return f"{first[:1]}. {last}"
    return f"{first} {last}-{word(rng, 'last', 0.5)}"


def _company(rng: Random) -> str:
    first = word(rng, "company", 0.4)
    kind = rng.random()
    if kind < 0.5:
        return f"{first} {word(rng, 'suffix', 0.0)}"
    return f"{word(rng, 'last')} & {word(rng, 'last')}" if kind < 0.65 else first


def _thing(rng: Random, name: str) -> str:
    what = word(rng, name, 0.2)
    if rng.random() < 0.35:
        what = f"{word(rng, 'adjective', 0.1)} {what}"
        if rng.random() < 0.15:
            what = f"{word(rng, 'adjective', 0.1)} {what}"
    return what


def _address(rng: Random) -> str:
    number, name = rng.randint(1, 10 ** rng.randint(1, 3)), word(rng, "street", 0.3)
    kind = rng.random()
    if kind < 0.7:
        return f"{number}{rng.choice(('', '', '', 'a', 'b'))} {name} {word(rng, 'way', 0.0)}"
    ending = rng.choice(("straße", "gatan", "weg", "gasse", "laan", "katu"))
    return f"{name}{ending} {number}" if kind < 0.85 else f"{rng.choice(('Rue', 'Via', 'Calle', 'Rua'))} {name} {number}"


def _local(rng: Random) -> str:
    first, last = (rng.choice((syllables(rng), word(rng, "first"))).lower().replace(" ", "") for _ in range(2))
    forms = (first, f"{first}.{last}", f"{first}_{last}", f"{first[0]}.{last}", f"{first}{rng.randint(1, 99)}", f"{first[:1]}{last}")
    return rng.choice(forms)


def _domain(rng: Random) -> str:
    name = rng.choice((syllables(rng, 2, 3), word(rng, "company").lower(), scramble(rng).lower())).replace(" ", "-")
    return f"{name}.{rng.choice('com org net de fr it es se fi io co.uk edu example jp br'.split())}"


def _code(rng: Random) -> str:
    letters = rng.choice((_LETTERS.upper(), _LETTERS.upper(), _LETTERS))
    head, number = _pick(rng, letters, rng.randint(1, 4)), _pick(rng, "0123456789", rng.randint(2, 7))
    kind = rng.random()
    if kind < 0.35:
        return f"{head}-{number}"
    if kind < 0.5:
        return f"{head}{number}"
    if kind < 0.6:
        return f"{head}-{number}-{_pick(rng, letters + '0123456789', rng.randint(1, 4))}"
    if kind < 0.7:
        return f"#{number}"
    if kind < 0.8:
        return number
    if kind < 0.9:
        return _pick(rng, _LETTERS + "0123456789", rng.randint(5, 12))
    return f"{rng.choice((head, '20' + number[:2]))}/{number}"


def _sentence(rng: Random) -> str:
    """A clause for quotation marks."""
    subject = rng.choice(("I", "we", "you", "they", "the " + word(rng, "thing"), word(rng, "first")))
    verb = rng.choice("lost found need like sold forgot moved cleaned painted will_call cannot_find saw miss".split())
    rest = rng.choice(("it", "the " + word(rng, "thing"), "a " + word(rng, "thing"), word(rng, "topic"), word(rng, "city")))
    found = f"{subject} {verb.replace('_', ' ')} {rest}{rng.choice(('', '', ' again', ' today', ' soon', ' in ' + word(rng, 'city')))}"
    if rng.random() < 0.6:
        found = found[0].upper() + found[1:]
    return found + rng.choice(("", "", ".", "!", "?"))


def _title(rng: Random) -> str:
    one, two = word(rng, "noun", 0.15), word(rng, "noun", 0.15)
    adjective = word(rng, "adjective", 0.1)
    forms = (f"the {one}", f"{one} and {two}", f"the {adjective} {one}", f"{one} of the {two}", f"a {one} in {word(rng, 'city')}", f"the {one}'s {two}", f"{adjective} {one}")
    found = rng.choice(forms)
    return " ".join(part if i and part in ("of", "the", "and", "in", "a") else part[:1].upper() + part[1:] for i, part in enumerate(found.split()))


def _path(rng: Random) -> str:
    parts = [rng.choice((syllables(rng), "var", "srv", "data", "home", "tmp", "api", "users", word(rng, "service"))) for _ in range(rng.randint(1, 3))]
    return "/" + "/".join(parts)


def _file(rng: Random) -> str:
    name = rng.choice((syllables(rng, 2, 3), word(rng, "noun"), f"{word(rng, 'noun')}_{rng.randint(1, 99)}", scramble(rng)))
    return f"{name}.{rng.choice('txt csv pdf log json xml png jpg py md zip docx xlsx toml'.split())}"


def _phone(rng: Random) -> str:
    group = lambda size: _pick(rng, "0123456789", size)  # noqa: E731 - three characters of one thing
    kind = rng.randrange(5)
    if kind == 0:
        return f"+{rng.randint(1, 99)} {group(rng.randint(2, 3))} {group(rng.randint(4, 7))}"
    if kind == 1:
        return f"{group(3)}-{group(4)}"
    if kind == 2:
        return f"({group(3)}) {group(3)}-{group(4)}"
    return f"0{group(rng.randint(2, 4))} {group(rng.randint(4, 6))}" if kind == 3 else f"{group(3)}-{group(3)}-{group(4)}"


# -- numbers -----------------------------------------------------------------------------------------------------------

_SMALL = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()
_SMALL += "seventeen eighteen nineteen twenty".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def spelled(number: int) -> str:
    """An integer from 0 to 999 in English words."""
    if number <= 20:
        return _SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")
    hundreds, rest = divmod(number, 100)
    return f"{_SMALL[hundreds]} hundred" + (f" and {spelled(rest)}" if rest else "")


def _integer(text: str, number: int) -> Value:
    return Value(text, {"integer": str(number), "number": str(number), "string": quoted(text)})


def _count(rng: Random) -> Value:
    kind = rng.random()
    number = rng.randint(1, 10 ** rng.choice((1, 1, 2, 2, 3, 4)) - 1)
    if kind < 0.2:
        number = rng.randint(2, 20) if kind < 0.15 else rng.randint(21, 300)
        return _integer(spelled(number), number)
    if kind < 0.22:
        return _integer("a dozen", 12)
    return _integer(str(number), number)


def _bignum(rng: Random) -> Value:
    number = rng.randint(1, 999) * 10 ** rng.randint(1, 3) if rng.random() < 0.6 else rng.randint(1000, 999999)
    return _integer(f"{number:,}" if rng.random() < 0.5 else str(number), number)


def _price(rng: Random) -> Value:
    whole = rng.randint(0, 10 ** rng.randint(1, 4) - 1)
    digits = rng.choice((f"{whole}", f"{whole}.{rng.randint(0, 99):02}", f"{whole}.{rng.randint(0, 99):02}", f"{whole}.{rng.randint(1, 9)}"))
    form = rng.choice(("${}", "€{}", "£{}", "{} euros", "{} dollars", "{} EUR", "{} USD", "{} €", "{} pounds", "CHF {}"))
    forms = {"number": digits, "string": quoted(form.format(digits))}
    return Value(form.format(digits), forms if "." in digits else forms | {"integer": digits})


def _measure(rng: Random, units: str, negative: bool = False) -> Value:
    sign = "-" if negative and rng.random() < 0.2 else ""
    digits = sign + rng.choice((str(rng.randint(1, 60)), f"{rng.randint(0, 40)}.{rng.randint(1, 9)}"))
    text = digits + rng.choice((" ", "")) + rng.choice(units.split())
    return Value(text, {"number": digits, "string": quoted(text)})


def _duration(rng: Random) -> Value:
    number = rng.randint(2, 59)
    amount = str(number) if rng.random() < 0.7 else spelled(rng.randint(2, 20))
    return said(f"{amount} {rng.choice(('minutes', 'hours', 'days', 'weeks', 'months', 'years', 'seconds'))}")


def _listed(rng: Random, kind: str) -> Value:
    number = rng.choice((2, 3, 3, 4))
    parts = list(dict.fromkeys(_thing(rng, "goods") if kind == "list" else _person(rng) for _ in range(number)))
    text = ", ".join(parts[:-1]) + (" and " if rng.random() < 0.8 else ", ") + parts[-1] if len(parts) > 1 else parts[0]
    return Value(text, {"list": "[" + ",".join(map(quoted, parts)) + "]"})


_PREPOSED = ("MX", "LH", "BA", "AF", "KL", "SK", "TK", "QF", "AY", "IB")

KINDS: dict[str, Callable[[Random], Value]] = {
    "person": lambda rng: said(_person(rng)),
    "company": lambda rng: said(_company(rng)),
    "address": lambda rng: said(_address(rng)),
    "goods": lambda rng: said(_thing(rng, "goods")),
    "thing": lambda rng: said(_thing(rng, "thing")),
    "email": lambda rng: said(f"{_local(rng)}@{_domain(rng)}"),
    "phone": lambda rng: said(_phone(rng)),
    "url": lambda rng: said(rng.choice(("https://", "www.", "http://", "")) + _domain(rng) + rng.choice(("", "", _path(rng)))),
    "code": lambda rng: said(_code(rng)),
    "name": lambda rng: said(rng.choice((syllables(rng, 2, 3), f"{word(rng, 'service')}{rng.randint(1, 99)}", f"{syllables(rng)}-{rng.randint(1, 99)}", _domain(rng)))),
    "username": lambda rng: said(_local(rng)),
    "file": lambda rng: said(_file(rng)),
    "path": lambda rng: said(_path(rng)),
    "quote": lambda rng: said(_sentence(rng)),
    "title": lambda rng: said(_title(rng)),
    "room": lambda rng: said(rng.choice((f"{rng.choice('ABCDEFGH')}{rng.randint(1, 99)}", str(rng.randint(1, 499)), f"{rng.randint(0, 9)}.{rng.randint(1, 40):02}", word(rng, "city")))),
    "flight": lambda rng: said(f"{rng.choice((rng.choice(_PREPOSED), _pick(rng, _LETTERS.upper(), 2)))}{rng.choice(('', ' '))}{rng.randint(1, 9999)}"),
    "train": lambda rng: said(f"{rng.choice(('IC', 'ICE', 'RE', 'R', 'TGV', 'EC', 'S'))} {rng.randint(1, 9999)}"),
    "gate": lambda rng: said(f"{rng.choice('ABCDEFGH')}{rng.randint(1, 60)}"),
    "seat": lambda rng: said(f"{rng.randint(1, 45)}{rng.choice('ABCDEFGHK')}"),
    "plate": lambda rng: said(f"{_pick(rng, _LETTERS.upper(), rng.randint(1, 3))}-{_pick(rng, _LETTERS.upper(), 2)} {rng.randint(1, 9999)}"),
    "version": lambda rng: said(".".join(str(rng.randint(0, 20)) for _ in range(rng.randint(2, 3)))),
    "ip": lambda rng: said(".".join(str(rng.randint(0, 255)) for _ in range(4))),
    "port": lambda rng: (lambda n: _integer(str(n), n))(rng.choice((80, 443, 8080, 5432, 3306, rng.randint(1024, 65535)))),
    "status_code": lambda rng: (lambda n: _integer(str(n), n))(rng.randint(100, 599)),
    "year": lambda rng: (lambda n: _integer(str(n), n))(rng.randint(1900, 2035)),
    "count": _count,
    "small": lambda rng: (lambda n: _integer(str(n) if rng.random() < 0.8 else spelled(n), n))(rng.randint(1, 10 ** rng.choice((1, 2)) - 1)),
    "digits": lambda rng: (lambda n: _integer(str(n), n))(rng.randint(0, 10 ** rng.randint(1, 4) - 1)),
    "bignum": _bignum,
    "price": _price,
    "weight": lambda rng: _measure(rng, "kg g kilos tons lbs"),
    "temp": lambda rng: _measure(rng, "degrees °C °F °", negative=True),
    "percent": lambda rng: _measure(rng, "% percent"),
    "duration": _duration,
    "date": lambda rng: Value(*draw_date(rng, quoted)),
    "time": lambda rng: Value(*draw_time(rng, quoted)),
    "weekday": lambda rng: said(rng.choice("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())),
    "petname": lambda rng: said(word(rng, "pet", 0.4)),
    "team": lambda rng: said(rng.choice((word(rng, "team"), word(rng, "city"), f"{word(rng, 'city')} {word(rng, 'team', 0)}"))),
    "list": lambda rng: _listed(rng, "list"),
    "names": lambda rng: _listed(rng, "names"),
}
_WORD_KINDS = {"topic": 0.1, "issue": 0.1, "error": 0.15, "service": 0.25, "job": 0.15, "department": 0.1, "color": 0.15, "size": 0.0}
_WORD_KINDS |= {"language": 0.15, "city": 0.35, "country": 0.2, "dish": 0.2, "animal": 0.15, "sport": 0.15, "brand": 0.4}
CLOSED = frozenset(("count", "small", "digits", "bignum", "price", "weight", "temp", "percent", "duration", "date", "time", "weekday", "port", "status_code", "year", "size", "color", "gate", "seat", "list", "names"))
"""Kinds whose values are too few to hold some out, or are not copied as they are."""


def draw(kind: str, rng: Random, split: str) -> Value:
    """A value of a kind, and of the split if the kind is a free one. Raises KeyError for an unknown kind."""
    while True:
        if kind in _WORD_KINDS:
            found = said(word(rng, kind, _WORD_KINDS[kind]))
        else:
            found = KINDS[kind](rng)
        if kind not in CLOSED and rng.random() < 0.06 and "string" in found.forms:
            found = said(scramble(rng) if rng.random() < 0.7 else syllables(rng, 1, 4))
        if kind in CLOSED or split_of(found.text) == split:
            return found
