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
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from itertools import pairwise

from redraft.constraints.compile.automaton import EMPTY, Compiled, Dfa, subtract
from redraft.constraints.compile.builder import Builder, Part, any_of
from redraft.constraints.compile.limits import CompileLimits
from redraft.constraints.compile.regex import whole_match
from redraft.constraints.language import Source
from redraft.operations.edit_member import shared, words_of

REMOVING = re.compile(
    r"\b(?:remove|delete|drop|unset|clear|without|omit|erase|strip|discard|rid|longer|cut|out)\b", re.IGNORECASE
)
"""One of these words takes a key away."""
_RENAMING = re.compile(r"\b(?:rename|call|name|instead)", re.IGNORECASE)
_ONLY_RENAMING = re.compile(r"(?:please )?rename (?:(?! and |[.,;] ).)*", re.IGNORECASE | re.DOTALL)
_CUTS = re.compile(r"[.;]\s+(?:and\s+)?|,?\s+and\s+|,\s+", re.IGNORECASE)
_BEFORE_KEY = re.compile(r"(?:(?:set|change|make|turn|add|remove|drop|rename) )?(?:the )?", re.IGNORECASE)
"""Between a comma and a key that begins a clause."""
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
    build, clauses, values = Builder(limits), _clauses(members, instruction), dict[str, _Values]()
    renames = _RENAMING.search(instruction)
    kept = _EXCEPTING.search(instruction)
    removing = instruction[: kept.start() if kept else None] if REMOVING.search(instruction) else ""
    only_renames = _ONLY_RENAMING.fullmatch(instruction)

    def literal(text: str) -> Part:
        return build.literal(text.encode())

    def stated(clause: str) -> _Values:
        if clause not in values:
            values[clause] = _Values(clause, instruction, members)
        return values[clause]

    def member(key: str, value: str, others: Dfa, names: Dfa) -> Part:
        forms = [(literal(key + colon), literal(value)), (literal(key + colon), build.embed(others))]
        return build.either(build.then(*form) for form in [*forms, (build.embed(names), literal(colon + value))])

    opened, closed = literal("{"), literal("}")
    assert opened is not None
    assert closed is not None
    first, more = opened[1], build.state()  # where nothing stands yet, and behind a member
    for key, value in members.items():
        nothing, behind, clause = build.state(), build.state(), clauses.get(key)
        others = EMPTY if clause is None or only_renames else stated(clause).instead_of(key, value)
        names = EMPTY if clause is None or not (renames and any(_mentions(key, clause))) else stated(clause).names
        for at, comma_first in ((first, literal("")), (more, literal(comma))):
            part = build.then(comma_first, member(key, value, others, names))
            assert part is not None
            build.link(at, part[0])
            build.link(part[1], behind)
        if key in clauses and (any(_mentions(key, removing)) if kept else removing):
            build.link(first, nothing)
            build.link(more, behind)
        first, more = nothing, behind
    whole = stated(instruction)
    new = build.then(
        literal(comma), build.embed(whole.names), literal(colon), build.embed(whole.instead_of("", "null"))
    )
    for before in (first, more):
        build.link(before, closed[0])
    if new is not None and not only_renames:
        build.link(more, new[0])
        build.link(new[1], more)
    return Compiled(build.finish((opened[0], closed[1])))


def _clauses(members: Mapping[str, str], instruction: str) -> dict[str, str]:
    """Of the members that an instruction speaks of, or of all if it speaks of none, the part of it that does: where it
    has a part for each key that stands there whole, that part."""
    left, spans = instruction, dict[str, int]()
    for key in sorted(members, key=len, reverse=True):
        found = [*_mentions(key, left)]
        spans |= {key: found[0].start()} if found else {}
        for one in found:
            left = left[: one.start()] + " " * len(one[0]) + left[one.end() :]
    said = words_of(left)
    cuts, order, parts = [*_CUTS.finditer(instruction)], sorted(spans, key=lambda key: spans[key]), dict[str, str]()
    between = [
        [
            cut
            for cut in cuts
            if spans[one] < cut.start() < spans[other]
            and (cut[0].strip() != "," or _BEFORE_KEY.fullmatch(instruction, cut.end(), spans[other]))
        ]
        for one, other in pairwise(order)
    ]
    if all(between):  # a clause begins behind the last of them
        begins = [0, *(several[-1].end() for several in between)]
        ends = [*(several[-1].start() for several in between), len(instruction)]
        parts = {key: instruction[begin:end] for key, begin, end in zip(order, begins, ends, strict=False)}
    for key, value in members.items():
        if key in spans or shared(json.loads(key), said) or shared(re.sub(r"\b\w\b", "", value), said):
            parts.setdefault(key, instruction)
    return parts or dict.fromkeys(members, instruction)


def _mentions(key: str, text: str) -> Iterator[re.Match[str]]:
    """Where a key stands in a text, with spaces for its underscores, perhaps."""
    name = re.sub(r"(?:\\[_-]|_)+", r"[\\s_-]+", re.escape(json.loads(key)))
    return re.finditer(rf"(?<![\w.-]){name}(?![\w-])", text, re.IGNORECASE)


class _Values:
    """The values that a clause of an instruction can state, and the names that it can give."""

    def __init__(self, clause: str, instruction: str, keys: Collection[str]) -> None:
        self._clause, self._keys = clause, keys
        self.names = subtract(_parts(clause, keys), any_of(keys))
        self._nothing = ["null"] if _CLEARING.search(instruction) else []
        self._choices = ["true", "false"] if _CHOOSING.search(instruction) else []

    def instead_of(self, key: str, value: str) -> Dfa:
        """Those in place of a value: numbers in quotes where a text was, else without, and nothing that begins where
        the key is named."""
        choices = ["true", "false"] if value in ("true", "false") else self._choices
        texts, numbers = _parts(self._clause, self._keys, key), list[str]()
        if not value.startswith('"'):
            texts, numbers = subtract(texts, whole_match(f'"{_NUMBER}"')), _NUMBERS.findall(self._clause)
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
    words = words_of(json.loads(key)) if key else ()
    mentions = [next(_mentions(key, text), None)] if key else []
    if mentions == [None]:
        mentions = [re.search(rf"(?<!\w){word}(?!\w)", text, re.IGNORECASE) for word in words]
    for mention in mentions:
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
