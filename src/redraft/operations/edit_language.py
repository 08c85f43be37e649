"""What an instruction can make of a record: the texts that an edit is held to.

    Set port to 9000. Drop tls.        {"host":"localhost","port":8080,"tls":true}

Members that the instruction speaks of, or all if it speaks of none, have their own value or another one; others stay.
Another value is a part of the instruction between spaces, a number of it, or true, false or null where it says so; of
several clauses about a key each, a part of its own. A key goes, or has another name, where a word of the instruction
says that; new members stand at the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial

from redraft.constraints.compile.automaton import EMPTY, Compiled, Dfa, intersect, subtract
from redraft.constraints.compile.builder import Builder, Part, any_of
from redraft.constraints.compile.limits import CompileLimits
from redraft.constraints.compile.regex import whole_match
from redraft.constraints.language import Source
from redraft.operations.edit_clauses import is_adding, said_of, stays
from redraft.operations.edit_member import CUTS, NUMBER, SHORTENED, shared, words_of
from redraft.operations.edit_names import mentions
from redraft.operations.edit_wording import spread

REMOVING = re.compile(
    r"\b(?:remove|delete|drop|unset|clear|without|omit|erase|strip|discard|rid|longer|cut"
    r"|(?<!comment )(?<!time )out)\b",
    re.IGNORECASE,
)
"""One of these words takes a key away."""
_RENAMING = re.compile(r"\b(?:rename|call|name|instead)", re.IGNORECASE)
_ONLY_RENAMING = re.compile(r"(?:please )?rename (?:(?! and |[.,;] ).)*", re.IGNORECASE | re.DOTALL)
_UNCLEAR = re.compile(
    r"\b(?:or|unless|if|until|from|behind|around|before|after|above|below|value|comments?|quotes?)\b", re.IGNORECASE
)
"""What is to go where such a word stands is not the key."""
_EXCEPTING = re.compile(r"\b(?:everything|all|but|except|only|keep)\b", re.IGNORECASE)
_CLEARING = re.compile(r"\b(?:null|none|nothing|no|empty|clear|forget|blank|unset|reset|unknown)\b", re.IGNORECASE)
_CHOOSING = re.compile(r"\b(?:(?:true|false|yes|no|not|on|off)\b|(?:en|dis)abl|(?:de)?activat)", re.IGNORECASE)
_MEMBER = re.compile(
    r'("(?:[^"\\]|\\.)*")(:[ ]?)("(?:[^"\\]|\\.)*"|\[(?:"(?:[^"\\]|\\.)*"|[^"\[\]])*\]|[\w.+-]+)(, ?|})'
)
_NUMBERS = re.compile(rf"(?<![\w.,-]){NUMBER}(?!\w|[.,]\d|\s?[%°€$£])", re.ASCII)
_STARTS = re.compile(r"""(?:^|(?<=\s))\S|(?:(?<=["'(:])|(?<=\w=))[^\s"'(]""")
_QUOTED = re.compile(r'\\"((?:[^"\\]|\\[^"])+)\\"')
_ENDS = re.compile(
    r"""(?:(?<=[^\s,;:.\\])|(?<=[a-z]\.[a-z]\.)|(?<=\.)(?=,))(?=(?:\\"|['.,;:!?)])*(?:\s|$)|\\"|['")])|(?<=\w)(?==)""",
    re.IGNORECASE,
)
"""Behind no point that ends a sentence."""

_ADDRESS = re.compile(r"\w+://[^\s\"'<>]*[^\s\"'<>.,;:!?)\\]")
"""What is copied as a whole."""

_NAMES = whole_match('"[^,;. "]*"')
_OTHER_NUMBERS = whole_match(r'"-?(?:0x[\dA-Fa-f]+|[\d_,.]*)"')
"""Texts in place of numbers that are numbers in another way."""
_LIKE_NUMBERS = whole_match(r'"(?:[^ "]*|[^a-z"][^"]*)"')
_EMPTY_WORDS = re.compile(
    r"\b(?:the|an|to|except|sure|with|as|be|by|is|of|and|or|from|not|but|for|in|on|at|its?|that|this|so|please|stay)(?![\w-])"
)
"""No value begins with one, unless the instruction says where it does."""

MOST_PLACES = 8_000
"""Places of an instruction in which a value may stand, summed over all that can be begun: one that repeats itself."""


def edited(record: str, instruction: str) -> Source | None:
    """The texts of a record, JSON on one line with plain values or lists of them, behind an edit; None for another."""
    found = [*_MEMBER.finditer(record, 1)]
    if record[:1] != "{" or "{" + "".join(one[0] for one in found) != record:
        return None
    members = {one[1]: one[3] for one in found}
    instruction = " ".join(spread(members, instruction).split())
    return Source("edit", f"{instruction}\n{record}", partial(_compiled, members, found[0][2], instruction))


def _compiled(members: Mapping[str, str], colon: str, instruction: str, limits: CompileLimits) -> Compiled:
    comma = ", " if colon == ": " else ","
    build, said, values = Builder(limits), said_of(members, instruction), dict[str, _Values]()
    removing, only_renames = _removing(instruction), _ONLY_RENAMING.fullmatch(instruction)

    def literal(text: str) -> tuple[int, int]:
        return build.literal(text.encode())

    def stated(clause: str) -> _Values:
        if clause not in values:
            values[clause] = _Values(clause, instruction, members)
        return values[clause]

    def member(key: str, value: str, clause: str | None) -> Part:
        others, names = any_of([said.values[key]]) if key in said.values else EMPTY, EMPTY
        if clause is not None and not stays(key, clause):
            others = others if only_renames else stated(clause).instead_of(key, value)
            if _RENAMING.search(clause) and any(mentions(key, clause)):
                names = stated(clause).names
        own = EMPTY if key in said.values else any_of([value])
        forms = [(said.renames.get(key, key), one) for one in (own, others)]
        parts = [build.then(literal(name + colon), build.embed(one)) for name, one in forms]
        return build.either([*parts, build.then(build.embed(names), literal(colon + value))])

    opened, closed = literal("{"), literal("}")
    first, more = opened[1], build.state()  # where nothing stands yet, and behind a member
    for key, value in members.items():
        nothing, behind, clause = build.state(), build.state(), ". ".join(said.spoken.get(key, ())) or None
        for at, comma_first in ((first, literal("")), (more, literal(comma))) if key not in said.removals else ():
            part = build.then(comma_first, member(key, value, clause))
            assert part is not None
            build.link(at, part[0])
            build.link(part[1], behind)
        if key in said.removals or (clause is not None and removing(key, clause)):
            build.link(first, nothing)
            build.link(more, behind)
        first, more = nothing, behind
    ends = [first, more]
    for name, value in said.new.items():
        behind, commas = build.state(), [literal(""), literal(comma)][-len(ends) :]
        for at, comma_first in zip(ends, commas, strict=True):
            part = build.then(comma_first, literal(name + colon + value))
            assert part is not None
            build.link(at, part[0])
            build.link(part[1], behind)
        ends = [behind]
    for at in ends:
        build.link(at, closed[0])
    if said.rest and not only_renames and is_adding(said.rest):
        added = stated(said.rest)
        behind_it = build.embed(added.instead_of("", "null"))
        part = build.then(literal(comma), build.embed(added.names), literal(colon), behind_it)
        if part is not None:
            build.link(ends[-1], part[0])
            build.link(part[1], ends[-1])
    return Compiled(build.finish((opened[0], closed[1])))


def _removing(instruction: str) -> Callable[[str, str], bool]:
    """Whether an instruction takes a key away that a clause of it speaks of."""
    kept = _EXCEPTING.search(instruction)
    said = instruction[: kept.start() if kept else None] if REMOVING.search(instruction) else ""
    words = frozenset() if kept else words_of(said)

    def is_removed(key: str, clause: str) -> bool:
        if stays(key, clause) or _UNCLEAR.search(clause):
            return False
        return any(mentions(key, said)) or bool(shared(json.loads(key), words))

    return is_removed


class _Values:
    """The values that a clause of an instruction can state, and the names that it can give."""

    def __init__(self, clause: str, instruction: str, keys: Collection[str]) -> None:
        self._clause, self._keys = clause, keys
        self.names = intersect(subtract(_parts(clause, keys), any_of(keys)), _NAMES)
        self._nothing = ["null"] if _CLEARING.search(instruction) else []
        self._choices = ["true", "false"] if _CHOOSING.search(instruction) else []

    def instead_of(self, key: str, value: str) -> Dfa:
        """Those in place of a value: numbers in quotes where a text was, else without, and nothing that begins where
        the key is named."""
        texts, numbers = _parts(self._clause, self._keys, key), list[str]()
        choices = self._choices
        if value in ("true", "false"):
            texts, choices = EMPTY, ["true", "false"]
        elif not value.startswith('"'):
            texts, numbers = subtract(texts, _OTHER_NUMBERS), _NUMBERS.findall(self._clause)
        if re.fullmatch(NUMBER, value):  # a text in place of a number is a word, a name, or has a unit
            one_number = len(numbers) == 1 and not CUTS.search(self._clause)
            texts, choices = EMPTY if one_number else intersect(texts, _LIKE_NUMBERS), []
        build = Builder()
        parts = (texts, any_of(dict.fromkeys([*numbers, *self._nothing, *choices])))
        return build.finish(build.either(map(build.embed, parts)))


def _parts(instruction: str, keys: Collection[str], key: str = "") -> Dfa:
    """Its parts in quotes that are no keys; if there are none, all from a space or a sign to another, but those that
    begin where the first mention of a `key` stands, or of its words. Texts of JSON."""
    text, build = json.dumps(instruction, ensure_ascii=False)[1:-1], Builder(most_members=MOST_PLACES)
    opened, inside, closed = build.literal(b'"'), build.literal(text.encode()), build.literal(b'"')
    assert opened is not None
    assert inside is not None
    assert closed is not None
    starts, ends = ({one.start() for one in form.finditer(text)} for form in (_STARTS, _ENDS))
    for one in SHORTENED.finditer(text):
        ends = ends - {one.end()} | {one.end() + 1}
    if key:
        starts -= {one.start() for one in _EMPTY_WORDS.finditer(text)}
    words = words_of(json.loads(key)) if key else ()
    named = [next(mentions(key, text), None)] if key else []
    if named == [None]:
        named = [re.search(rf"(?<!\w){word}(?!\w)", text, re.IGNORECASE) for word in words]
    for mention in named:
        starts -= set(range(*mention.span())) if mention else set()
    for one in _ADDRESS.finditer(text):
        starts, ends = starts - {*range(one.start() + 1, one.end())}, ends - {*range(*one.span())}
    if quoted := [one for one in _QUOTED.finditer(text) if f'"{one[1]}"' not in keys]:
        starts, ends = {one.start(1) for one in quoted}, {one.end(1) for one in quoted}
    at = inside[0]
    for i, char in enumerate(text + "\n"):
        if i in starts:
            build.link(opened[1], at)
        if i in ends:
            build.link(at, closed[0])
        at += len(char.encode())
    return build.finish((opened[0], closed[1]))
