"""What a text states: numbers, dates and times in digits or in English words, and choices of a schema. What an answer
has beside them was made up or mended."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from itertools import pairwise
from typing import Any

from redraft.constraints.compile.limits import check_time
from redraft.constraints.compile.moments import (
    CLOCK,
    DATE,
    DATE_TIME,
    LARGEST_SPELLED,
    clock_is_said,
    date_is_said,
    is_shifted,
    is_spelled,
    number_words,
    without_moments,
    words_of,
)
from redraft.constraints.compile.named import named_values
from redraft.constraints.compile.zones import is_zone_said
from redraft.numerals import spelled
from redraft.pointers import at_step

_SIGN = r"(?:(?<![\w.)])[-−])?"
_NUMBER = re.compile(rf"{_SIGN}(?:\d+(?:[.,'’]\d+)*(?:[eE][+-]?\d{{1,3}}(?!\w))?|(?<![\w.,])\.\d+)", re.ASCII)
_SPACED = re.compile(rf"{_SIGN}(?<!\d)\d{{1,3}}(?:[ \u00a0\u2009\u202f]\d{{3}})+(?:[.,]\d+)?(?!\d)", re.ASCII)
_GROUPED = re.compile(
    r"-?(?!0)\d{1,3}(?:([.,'’])\d{3})(?:\1\d{3})*(?:(?!\1)[.,]\d+)?|-?\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?"
)
_PLAIN = re.compile(r"-?\d*(?:[.,]\d+)?")
_SCALED = re.compile(
    r"(?<![\d.,])([-−]?\d+(?:[.,]\d+)?) ?(%|k|thousand|m|million|bn|billion)(?!\w)", re.ASCII | re.IGNORECASE
)
_LARGE = re.compile(
    rf"(?<!\d)\d+(?:[.,]\d+)? ?(?:k|thousand|million|bn|billion)(?!\w)"
    rf"|[$€£] ?\d+(?:[.,]\d+)? ?m(?!\w)|{_SPACED.pattern}",
    re.ASCII | re.IGNORECASE,
)
_PARTIAL = re.compile(r"(?<![\d/])(?:\d{1,20}(?:_\d{1,20})+|\d{1,20} ?[½¼¾⅓⅔]|(?:\d{1,9} )?\d{1,9}/\d{1,9}(?![\d/]))")
"""Digits that are parts of one number, as in 1_000, 1½ and 2 1/2."""
_SCALES = {"%": -2, "k": 3, "thousand": 3, "m": 6, "million": 6, "bn": 9, "billion": 9}
_MARKS, _COMMAS = re.compile("[.,'’]"), re.compile("[,'’]")
_MARKED = re.compile(r"\d[.,'’]\d")
_DOTTED = re.compile(r"(?<!\d)\d+(?:\.\d+){2,}", re.ASCII)
_UNREAD_NUMBER = re.compile(
    r"(?<!\d)(?<!\d )\b(?:thousand|million|billion)\b|\b(?:half|quarters?|thirds?|dozens?|couple|pairs?|hundreds?)\b"
    r"|\b(?:thousands|millions|billions|trillions?|millionen|milione|milioni|milh(?:ão|ões)|mill(?:ón|ones)|miljoen"
    r"|mil(?:l?iard\w*|jard)|mio|mrd|tsd|mila|crores?|lakhs?|dutzend|docenas?)\b"
    r"|\b(?:hundert|tausend|mille|mil|zwanzig|dreißig|vingt|trente|veinte|treinta)\b|[½¼¾]"
    r"|\([$€£]?\d[\d.,]*\)|\d-(?!\w)|\d \d/\d",
    re.I,
)
"""Numbers in words, a bookkeeper's negative ones, and fractions."""
_UNREAD_THOUSANDS = re.compile(
    r"\d(?:[\s/()_^-]|\)\s?|\s\()\d|\d ?[x×*+] ?\d|['’]\d\d(?!\d)|\d{4} ?(?:-|–|to|and|bis|à|al?) ?\d\d(?!\d)"
    r"|\d(?!(?:st|nd|rd|th)\b)[^\W\d_]|\d ?(?:mln|млн|тыс|tys|grand|md\b|mrd|thsd|bin\b|tis)|\bM[MDCLXVI]{2,}\b"
    r"|(?:tausend|duizend|tusen|tusind|tisíc|tysi|тыся|тисяч|хиляд|χιλ|tuhat|tuhan|ezer|thousand|million|billion)"
    r"|(?:mila|mille|mil|mii)\b|\bbin\b",
    re.IGNORECASE,
)
"""What may state an integer above 999 and is not read: digits that may be parts of one number, factors, years without
their century, digits with letters, and words for thousands."""
_FALLEN = re.compile(
    r"\b(?:minus|negativ\w*|below|(?:unter|moins de|sous|bajo|sotto|onder|abaixo de) (?:null|nul|zéro|cero|zero)"
    r"|(?:moins|menos) \d+|loss(?:es)?"
    r"|fell|fallen|deficit|overdrawn)\b",
    re.IGNORECASE,
)
"""Words for numbers below zero."""
_HALVES = re.compile(r"(?:\d ?°\s?|\.\d{3,}\s?)[SW]\b")
"""The two halves of the earth where they are; or seconds and watts."""
_BELOW = re.compile(
    rf"[-−–(] ?\d|\d-|unter|moins|menos|bajo|sotto|onder|{_FALLEN.pattern}|(?-i:{_HALVES.pattern})", re.IGNORECASE
)
"""What a text has that may state a number below zero."""
_CLOCK_OR_DATE = re.compile(r"\d{1,2}(?::\d\d)+|\d{4}-\d\d-\d\d", re.ASCII)
MOST_NUMBERS, MOST_DIGITS = 200, 20
"""Numbers of a text that an answer's are held to, and their digits: more than sentences have."""
MOST_CHOICES, MOST_DEPTH, MOST_CHARACTERS = 64, 8, 2**15
"""Choices of a field that are looked for in a text, parts of a schema within each other that have such fields, and
characters of a text that is looked through: longer ones are seldom short enough to copy from."""
MOST_STEPS = 2**25
"""Characters of a text times those of all choices: half a second where each repeats the other."""
_REFERENCE = re.compile(r'"\$(?:ref|dynamicRef)": "(?!#/(?:\$defs|definitions)/[^/"]*")')
_DEPENDING = re.compile(r'"(?:if|not|allOf|anyOf|oneOf|items|prefixItems|dependent\w+)": ')
_LACKING = re.compile(r"\b(?:n/a|unknown|missing|anonymous\w*|tbd|tba|none|withheld)\b", re.I)
_NEGATION = re.compile(
    r"\b(?:not|no|never|none|without|cannot|except|instead|unlike|neither|nor|(?:anything|other|rather) (?:but|than)"
    r"|until|used to|formerly|previously|originally"
    r"|hardly|rarely|far from|nicht|kein\w*|ohne|statt|außer|niemals|weder|alles andere|niet|geen|nooit|pas|plus|jamais"
    r"|aucun\w*|ni|sans|sauf|sin|nunca|jamás|excepto|non|senza|não|sem|не|нет|nie|inte|ikke)\b"
    r"|n['’]t\b",
    re.I,
)
_TITLE = re.compile(r"\b(?:mr|mrs|ms|miss|dr|prof|herr|frau|señor|señora|mme|monsieur|madame)\.? $", re.I)
LOOKS = frozenset(("const", "format", "pattern", "minLength", "maxLength", "allOf", "oneOf", "not", "if", "$ref"))
"""Keywords by which a schema says itself how a string looks."""
_SEPARATORS = r"[\s_-]"
_BETWEEN_WORDS = re.compile(rf"(?<=[^\W_]){_SEPARATORS}+(?=[^\W_])")


def unstated(values: Mapping[str, Any], text: str) -> set[str]:
    """The keys of what a text does not state, of the numbers, ISO dates and clock times among some values.

    A number counts with its sign: 1,250 is 1250, and 19,99 never 1999 or 19. Of a date the text has
    year, month and day, of a time hour and minute; 03/04/2026 states no day, since it may be of March or of April.
    """
    numbers = {
        key: value for key, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
    digits, words = frozenset[Decimal](), words_of(text)
    if numbers:  # a part of 12k or of 12 500 is none that is stated
        whole = _PARTIAL.sub(" ", text)
        large = [re.split(r"[    ]|[kmbt]", one, flags=re.I) for one in _LARGE.findall(whole)]
        parts = {one for several in large for part in several for one in _in_digits(part)}
        digits = frozenset(_in_digits(whole, grouped_alone=True)) - parts
        digits |= {*_in_digits(_LARGE.sub(" ", whole), grouped_alone=True)}
    odd = {
        key for key, value in numbers.items() if Decimal(str(value)) not in digits and not _is_spelled_out(value, words)
    }
    strings = {key: value for key, value in values.items() if isinstance(value, str) and value not in text}
    return odd | {key for key, value in strings.items() if not _is_moment_said(value, text)}


def _is_spelled_out(value: float, words: str) -> bool:
    """Whether an integer is among words and no part of a larger one, as five is in "two thousand five hundred"."""
    if not is_spelled(value, words):
        return False
    more = "|".join((*number_words(), "hundred", "thousand", "million", "billion", "dozen"))
    name = re.sub("[ -]", " (?:and )?", spelled(int(value)).replace(" and ", " "))
    behind = "(?:and )?" if name.endswith("hundred") else ""
    found = re.finditer(rf"(?<= )((?:(?:{more}|and) ){{0,4}})({name}) ({behind}(?:{more}) )?", words)
    return any(one[3] is None and not re.search(more, one[1]) for one in found)


def numbers_of(text: str) -> list[str]:
    """The numbers that a text states, by every reading and as JSON has them, if one has a mark or a space inside, as
    19,99 and 12 000 do, which are easily misread, and none is in words that nothing here reads; none of other texts.
    Dates, times, versions and addresses count for nothing."""
    text = _DOTTED.sub(lambda match: match[0] if _GROUPED.fullmatch(match[0]) else " ", without_moments(text))
    marked = _MARKED.search(text) or _SPACED.search(text)
    unread = _UNREAD_NUMBER.search(text) or _HALVES.search(text)
    if not marked or unread or len(_NUMBER.findall(text)) > MOST_NUMBERS:
        return []
    text = _SPACED.sub(lambda match: re.sub(r"\s", "", match[0]) if "000" in match[0] else match[0], text)
    words = words_of(text)
    said = range(LARGEST_SPELLED + 1) if not number_words().isdisjoint(words.split()) else ()
    found = {*_in_digits(text), *(Decimal(one) for one in said if is_spelled(one, words))}
    found |= {-one for one in found if one} if _FALLEN.search(text) else set()
    plain = (one for one in found if max(len(one.as_tuple().digits), abs(one.adjusted())) <= MOST_DIGITS)
    forms = {form for one in plain for form in (f"{one:f}", f"{one.normalize():f}")}
    return sorted(forms | {form + ".0" for form in forms if "." not in form})


def integers_of(text: str) -> str | None:
    """A pattern of the integers that a text may state: those up to 999, which are said in many ways, or counted, and
    the larger ones that it has, by every reading. None where it may state more: in words that nothing here reads, or
    by digits that belong together."""
    rest = _SPACED.sub(" ", _SCALED.sub(" ", _DOTTED.sub(" ", without_moments(text))))
    several = [word in number_words() for word in words_of(text).split()]
    in_words = any(one and other for one, other in pairwise(several))
    unread = in_words or _UNREAD_THOUSANDS.search(rest) or _UNREAD_NUMBER.search(rest)
    if unread or len(_NUMBER.findall(text)) > MOST_NUMBERS or not re.sub("[^\\d]", "", text).isascii():
        return None
    marked = (*_NUMBER.findall(text), *_SPACED.findall(text), *_CLOCK_OR_DATE.findall(text))
    runs = {*re.findall(r"\d+", text, re.ASCII), *(re.sub(r"\D", "", one, flags=re.ASCII) for one in marked)}
    found = {int(one) for one in runs if one and len(one) <= MOST_DIGITS}
    read = [one for one in _in_digits(text) if abs(one.adjusted()) < MOST_DIGITS]
    found |= {abs(int(one)) + more for one in read for more in (0, 1) if not more or one != int(one)}
    large = "|".join(str(one) for one in sorted(found) if one > LARGEST_SPELLED)
    return "-?[0-9]{1,3}" + (f"|{'-?' * bool(_BELOW.search(text))}(?:{large})" if large else "")


def stated_choice(choices: Sequence[Any], text: str) -> list[Any]:
    """Of the texts among some choices the one that a text has as a word of its own, if it has exactly one and no word
    such as "not" (docs/log.md), and all others that are no texts; else all.

    "very high" says `very_high` and no `high`, and "un-paid" no `paid`. One of up to two letters counts as it is
    written: "I'll" has no L, and "Max L. Smith" none that is a size. A and I are words, too, and small letters seldom
    say anything.
    """
    texts = [one for one in choices if isinstance(one, str) and re.search(r"\w", one)]
    if len(texts) > MOST_CHOICES or len(text) > MOST_CHARACTERS or sum(map(len, texts)) * len(text) > MOST_STEPS:
        return [*choices]
    if _NEGATION.search(text):
        return [*choices]
    left, lowered, said = text, text.lower(), list[tuple[str, bool]]()
    for one in sorted(texts, key=len, reverse=True):
        check_time()
        if (short := len(one) <= 2) and one.islower():
            continue
        if any(word not in lowered for word in _BETWEEN_WORDS.split(one.lower())):
            continue
        form, flags = _form(one), re.NOFLAG if short else re.I
        alone = rf"(?<!\w)(?<!\w['’-]){form}(?!['’-]?\w)" + r"(?!\.\s*\S)" * short
        found = re.search(alone, left, flags)
        is_alone = found is not None and not _is_name(one, left, found)
        left, count = re.subn(rf"(?<!\w)(?<!\w['’]){form}(?!['’]?\w)", " ", left, flags=flags)
        said += [(one, is_alone)] * (count > 0)
    if len(said) != 1 or not said[0][1] or said[0][0] in ("A", "I"):
        return [*choices]
    return [one for one in choices if not isinstance(one, str) or one == said[0][0]]


def _is_name(choice: str, text: str, found: re.Match[str]) -> bool:
    """Whether a choice stands in a text as a name, as of Mr Black or Ada Small."""
    before = text[max(0, found.start() - 30) : found.start()]
    is_capital = choice.isalpha() and choice[0].islower() and found[0][0].isupper() and not found[0].isupper()
    first = re.search(r"(?<![\w'’-])[^\W\d_][\w'’-]+ $", before)
    word = first[0].strip() if first and is_capital else ""
    is_loud = len(word) > 2 and word.isupper()
    is_thing = is_loud or word.endswith(("'s", "’s")) or word[:1].islower() or word[1:2] == "-"
    return bool(_TITLE.search(before) or (word and not is_thing))  # as COLOR, Levi's and T-shirt are


def _form(choice: str) -> str:
    """A pattern of a choice: its words may be parted by other marks, or by none but between digits."""
    first, *_ = words = _BETWEEN_WORDS.split(choice)
    found = re.escape(first)
    for before, word in pairwise(words):
        least = "+" if before[-1].isdigit() and word[0].isdigit() else "*"
        found += _SEPARATORS + least + re.escape(word)
    return found


def with_stated_choices(schema: Any, text: str) -> Any:
    """A schema whose fields choose what a text says (`stated_choice`), or has for such a name (`named_values`). Not so
    within lists, of whose items each may mean another."""

    def narrowed(part: Any, depth: int, name: str = "") -> Any:
        check_time()
        if not isinstance(part, dict) or depth == 0:
            return part
        if part.keys() == {"$ref"} and str(part["$ref"]).startswith("#/"):
            named = reduce(at_step, str(part["$ref"])[2:].split("/"), schema)
            return narrowed(named, 1) if isinstance(named, dict) and "enum" in named else part
        if isinstance(choices := part.get("enum"), list):
            return part | {"enum": stated_choice(choices, text)}
        if isinstance(several := part.get("anyOf"), list):
            return part | {"anyOf": [narrowed(one, depth - 1, name) for one in several]}
        if isinstance(fields := part.get("properties"), dict):
            return part | {"properties": {name: narrowed(field, depth - 1, name) for name, field in fields.items()}}
        if (
            part.get("type") in ("string", ["string"], ["string", "null"], ["null", "string"])
            and not part.keys() & LOOKS
        ):
            values: list[str | None] = [*named_values(name, text)]
            return part | {"enum": values + [None] * ("null" in part["type"] and name != said)} if values else part
        return part

    # A reference into a field would take what this field alone is held to.
    elsewhere = _REFERENCE.search(whole := json.dumps(schema))
    # Of one such field, by its plain name, the text says what it has, unless it says that there is none. Another, as
    # `work_email`, may not be there, and where there are two, whose the one is that is there is not said.
    unsure = _DEPENDING.search(whole) or _NEGATION.search(text) or _LACKING.search(text)
    named = [] if unsure else re.findall(r'"([^"]*(?:mail|url|link|page|site|reply)[^"]*)": [{]', whole, re.IGNORECASE)
    said = named[0] if len(named) == 1 and named[0].lower() in ("email", "url") else None
    return schema if elsewhere or len(text) > MOST_CHARACTERS else narrowed(schema, MOST_DEPTH)


def _is_moment_said(value: str, text: str) -> bool:
    """Whether the parts of a date or time, or of both, stand in a text; True for any other string."""
    if found := DATE_TIME.fullmatch(value):
        return _is_moment_said(found[1], text) and _is_moment_said(found[5], text)
    if found := DATE.fullmatch(value):
        year, month, day = map(int, found.groups())
        return date_is_said(year, month, day, text)
    if found := CLOCK.fullmatch(value):
        hour, minute, second = (int(part or 0) for part in found.groups()[:3])
        is_said = found[4] is None or (not is_zone_said(text) if found[4] in "zZ" else found[4] in text)
        return is_said and not is_shifted(hour, text) and clock_is_said(hour, minute, second, text)
    return True


def _in_digits(text: str, *, grouped_alone: bool = False) -> Iterator[Decimal]:
    """The readings of every number in digits; with `grouped_alone` 1,250 is 1250, and not 1.25 as well."""
    text = re.sub(r"\bminus (?=\d)", "-", text, flags=re.IGNORECASE)
    for number, scale in _SCALED.findall(text):
        if len(number) > MOST_DIGITS:
            continue
        yield Decimal(number.replace(",", ".").replace("−", "-")).scaleb(_SCALES[scale.lower()])
    for found in (*_NUMBER.findall(text), *_SPACED.findall(text)):
        number = re.sub(r"[ \u00a0\u2009\u202f]", "", found).replace("−", "-")
        if re.fullmatch(r"-?\d+(?:\.\d+)?[eE][+-]?\d+", scaled := _COMMAS.sub("", number)):
            yield Decimal(scaled)
            continue
        grouped, plain = _GROUPED.fullmatch(number), _PLAIN.fullmatch(number)
        if grouped:
            points = {*re.findall(r"[.,]", number)} - {grouped[1] or ","}
            whole, _, rest = number.rpartition(points.pop()) if points else (number, "", "")
            yield Decimal(_MARKS.sub("", whole) + "." + (rest or "0"))
        if plain and not (grouped and grouped_alone):
            yield Decimal(number.replace(",", "."))
        if not grouped and not plain:  # a date, a version, a list
            yield from map(Decimal, re.findall(r"\d+", number))
            yield from (Decimal(part) for part in number.split(",") if re.fullmatch(r"-?\d+(\.\d+)?", part))
