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
from collections.abc import Collection, Mapping
from functools import partial

from redraft.constraints.compile.automaton import EMPTY, Compiled, Dfa, intersect, subtract
from redraft.constraints.compile.builder import Builder, Part, any_of
from redraft.constraints.compile.limits import CompileLimits
from redraft.constraints.compile.regex import whole_match
from redraft.constraints.language import Source
from redraft.numerals import spelled
from redraft.operations.edit_clauses import (
    CUTS,
    SHORTENED,
    clauses_of,
    mentions,
    removals_of,
    rest_of,
    setting_of,
    stays,
    value_ends,
)
from redraft.operations.edit_member import words_of

REMOVING = re.compile(
    r"\b(?:remove|delete|drop|unset|clear|without|omit|erase|strip|discard|rid|longer|cut|out)\b", re.IGNORECASE
)
"""One of these words takes a key away."""
_RENAMING = re.compile(r"\b(?:rename|call|name|instead)", re.IGNORECASE)
_ONLY_RENAMING = re.compile(r"(?:please )?rename (?:(?! and |[.,;] ).)*", re.IGNORECASE | re.DOTALL)
_EXCEPTING = re.compile(r"\b(?:everything|all|but|except|only|keep)\b", re.IGNORECASE)
_CLEARING = re.compile(r"\b(?:null|none|nothing|no|empty|clear|forget|blank|unset|reset|unknown)\b", re.IGNORECASE)
_CHOOSING = re.compile(r"\b(?:true|false|yes|no|not|on|off|en|dis|(?:de)?activate)", re.IGNORECASE)
_MEMBER = re.compile(
    r'("(?:[^"\\]|\\.)*")(:[ ]?)("(?:[^"\\]|\\.)*"|\[(?:"(?:[^"\\]|\\.)*"|[^"\[\]])*\]|[\w.+-]+)(, ?|})'
)
_NUMBER = r"-?(?:0|[1-9]\d*)(?:\.\d+)?"
_NUMBERS = re.compile(rf"(?<![\w.,-]){_NUMBER}(?!\w|[.,]\d|\s?[%°€$£])", re.ASCII)
_STARTS = re.compile(r"""(?:^|(?<=\s))\S|(?:(?<=["'(:])|(?<=\w=))[^\s"'(]""")
_QUOTED = re.compile(r'\\"((?:[^"\\]|\\[^"])+)\\"')
_ENDS = re.compile(
    r"""(?:(?<=[^\s,;:.\\])|(?<=[a-z]\.[a-z]\.)|(?<=\.)(?=,))(?=(?:\\"|['.,;:!?)])*(?:\s|$)|\\"|['")])|(?<=\w)(?==)""",
    re.IGNORECASE,
)
"""Behind no point that ends a sentence."""

_NAMES = whole_match('"[^,;"]*"')
_LIKE_NUMBERS = whole_match(r'"(?:[^ "]*|[^a-z"][^"]*)"')
_UNIT = re.compile(r"\s*(?:minutes?|hours?|days?|weeks?|k|[kKMG]i?B|thousand|million)\b")
"""A number before it counts something else than the one that was there, perhaps."""
_SWITCHED = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"}
_SPELLED = {spelled(number): str(number) for number in range(101)}
_EMPTY_WORDS = re.compile(
    r"\b(?:to|except|sure|with|as|be|by|is|of|and|or|from|not|but|for|in|on|at|its?|that|this|so|please|stay)(?![\w-])"
)
"""No value begins with one, unless the instruction says where it does."""

MOST_PLACES = 8_000
"""Places of an instruction in which a value may stand, summed over all that can be begun: one that repeats itself."""


def edited(record: str, instruction: str) -> Source | None:
    """The texts of a record, JSON on one line with plain values or lists of them, behind an edit; None for another."""
    instruction, found = " ".join(instruction.split()), [*_MEMBER.finditer(record, 1)]
    if record[:1] != "{" or "{" + "".join(one[0] for one in found) != record:
        return None
    members = {one[1]: one[3] for one in found}
    return Source("edit", f"{instruction}\n{record}", partial(_compiled, members, found[0][2], instruction))


def _compiled(members: Mapping[str, str], colon: str, instruction: str, limits: CompileLimits) -> Compiled:
    comma = ", " if colon == ": " else ","
    build, clauses, values = Builder(limits), clauses_of(members, instruction), dict[str, _Values]()
    renames = _RENAMING.search(instruction)
    kept = _EXCEPTING.search(instruction)
    removing = instruction[: kept.start() if kept else None] if REMOVING.search(instruction) else ""
    only_renames = _ONLY_RENAMING.fullmatch(instruction)
    settings = {key: clause for key, clause in clauses.items() if setting_of(key, clause) and not stays(key, clause)}
    removals = removals_of(clauses)
    rest = rest_of(settings | removals, members, instruction)
    if not rest:  # then nothing else changes
        clauses = settings | removals

    def literal(text: str) -> Part:
        return build.literal(text.encode())

    def stated(clause: str) -> _Values:
        if clause not in values:
            values[clause] = _Values(clause, instruction, members)
        return values[clause]

    def member(key: str, value: str, others: Dfa, names: Dfa) -> Part:
        forms = [(literal(key + colon), build.embed(others))]
        if key not in settings or forms[0][1] is None:  # what it is set to is no longer what it was
            forms.append((literal(key + colon), literal(value)))
        return build.either(build.then(*form) for form in [*forms, (build.embed(names), literal(colon + value))])

    opened, closed = literal("{"), literal("}")
    assert opened is not None
    assert closed is not None
    first, more = opened[1], build.state()  # where nothing stands yet, and behind a member
    for key, value in members.items():
        nothing, behind, clause = build.state(), build.state(), clauses.get(key)
        is_fixed = clause is None or only_renames or stays(key, clause)
        others = EMPTY if clause is None or is_fixed else stated(clause).instead_of(key, value)
        names = (
            stated(clause).names if clause and renames and key not in settings and any(mentions(key, clause)) else EMPTY
        )
        for at, comma_first in ((first, literal("")), (more, literal(comma))) if key not in removals else ():
            part = build.then(comma_first, member(key, value, others, names))
            assert part is not None
            build.link(at, part[0])
            build.link(part[1], behind)
        may_go = not is_fixed and key not in settings and (any(mentions(key, removing)) if kept else removing)
        if may_go or key in removals:
            build.link(first, nothing)
            build.link(more, behind)
        first, more = nothing, behind
    for before in (first, more):
        build.link(before, closed[0])
    if rest and not only_renames:
        said = stated(rest)
        new = build.then(
            literal(comma), build.embed(said.names), literal(colon), build.embed(said.instead_of("", "null"))
        )
        if new is not None:
            build.link(more, new[0])
            build.link(new[1], more)
    return Compiled(build.finish((opened[0], closed[1])))


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
        said = self._said(key, value)
        if said is not None:
            return any_of([said])
        texts, numbers = _parts(self._clause, self._keys, key), list[str]()
        choices = ["true", "false"] if value in ("true", "false") else self._choices
        if not value.startswith('"'):
            texts, numbers = subtract(texts, whole_match(f'"{_NUMBER}"')), _NUMBERS.findall(self._clause)
        if re.fullmatch(_NUMBER, value):  # a text in place of a number is a word, a name, or has a unit
            one_number = len(numbers) == 1 and not CUTS.search(self._clause) and not setting_of(key, self._clause)
            texts = EMPTY if one_number else intersect(texts, _LIKE_NUMBERS)
        build = Builder()
        parts = (texts, any_of(dict.fromkeys([*numbers, *self._nothing, *choices])))
        return build.finish(build.either(map(build.embed, parts)))

    def _said(self, key: str, value: str) -> str | None:
        """The number, or true or false, that the clause sets a key to that has such a value; None for another one."""
        setting = setting_of(key, self._clause) if key and not value.startswith('"') else None
        if setting is None:
            return None
        word = self._clause[setting.end() :].rstrip(" .!").lower()
        if value in ("true", "false"):
            return _SWITCHED.get(word)
        found = _NUMBERS.match(self._clause, setting.end())
        if found and _UNIT.match(self._clause, found.end()):
            return value
        return _SPELLED.get(word, found[0] if found else None)


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
    if setting := setting_of(key, text) if key else None:
        starts, ends = starts & {setting.end(), setting.end() + 1}, ends & value_ends(key, keys, text, setting)
    elif key:
        starts -= {one.start() for one in _EMPTY_WORDS.finditer(text)}
    words = words_of(json.loads(key)) if key else ()
    named = [next(mentions(key, text), None)] if key else []
    if named == [None]:
        named = [re.search(rf"(?<!\w){word}(?!\w)", text, re.IGNORECASE) for word in words]
    for mention in named:
        starts -= set(range(*mention.span())) if mention else set()
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
