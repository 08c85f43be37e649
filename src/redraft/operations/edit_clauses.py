"""What an instruction says of each key of a record: the clauses that it has, and what is certain of them.

    Set owner to Ann and Bob, replicas to 3, and drop tls.

A clause that sets a key has its value behind "to"; one that removes a key has nothing else. What such clauses say is no
guess of a model's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from redraft.operations.edit_member import CUTS, shared, words_of

_ASKING = r"(?:(?:please|then|also) )*"
_BEFORE_KEY = re.compile(
    rf"(?:^|[.;,]\s+|\b(?:and|but)\s+){_ASKING}(?:(?:set|change|make|turn|add|remove|drop|rename) )?(?:the )?$",
    re.IGNORECASE,
)
"""Before a key that begins a clause."""
_QUOTE = r"""(?:\\?["'`])?"""
_NOUN = r"(?: (?:field|key|line|entry|setting|variable|option|member|property|script|flag))?"
_OF = r"(?:value of )?(?:(?!key )[\w-]+(?:['’]s)? )?"
_SETTING = (
    rf"{_ASKING}(?:(?:set|change|update|edit|make|put|switch|bump|raise|lower|increase|decrease) (?:the )?{_OF}"
    rf"|the {_OF})?"
    rf"{{0}}{_NOUN}(?: from \S+)?(?: to |\s?=\s?|: )"
    r"|(?:use|make) (?:the )?{0} (?=\S+(?:$| instead ))"
)
"""What a clause that gives a key its value begins with."""
_REMOVES = _ASKING + r"(?:remove|delete|drop|unset|omit|erase|get rid of) "
_REMOVED = rf"(?:the )?{{0}}{_NOUN}[.!]?(?=$|[,;.]\s|\s+and\s)"
_RENAMES, _RENAMED = _ASKING + r"rename ", rf"(?:the )?{{0}}{_NOUN} (?:to|as|into) "
APPENDING = r"\b(?:add|append)\b.* to "
_STAYS = (
    r"\b(?:don['’]?t|do not|never)\s.*{0}|{0}{1} (?:is|must|should|shall|can|may)(?: not|n't| never| stay| remain)"
    r"|\b(?:leave|keep|except|except for|but) (?:the )?{0}|" + APPENDING + r"(?:the )?{0}"
)
"""A clause that does not give a key another value."""
_ADDITION = re.compile(
    rf"(?:and )?{_ASKING}add (?:an? |the )?([\w.-]+)(?:: | ?= ?)((?:(?! and |[,;.] ).)+?)\.?", re.IGNORECASE
)
_GOES_ON = re.compile(
    r"(?:[,;.]|\s+and)\s+(?:(?:and|then|also|please)\s+)*(?:the\s+)?(?:[\w-]+(?: to |\s?=)|(?:set|change|make|turn|add"
    r"|remove|drop|rename|delete|clear|update|switch|replace|unset|enable|disable|keep|leave)\b)",
    re.IGNORECASE,
)
"""Where another clause begins, of a key that is none yet, perhaps."""
_AFTER_VALUE = re.compile(
    r"(?=,?\s+(?:please|instead|because|since|so|as|now|then|but|not|rather|thanks?|again|too|also)\b)"
    r"|(?=,\s+(?:it|i|we|you|he|she|they|this|that|which|if|when)\b|\s\((?:was|not|instead|from)\b)"
    r"|(?<!\b\w)(?<!\b\w\w)(?<!\b\w\w\w)(?=\.\s)|[\s.!?]*$",
    re.IGNORECASE,
)
"""Where such a value may end: at a point behind three letters, as in "Dr. No", it goes on."""
_SENTENCE = re.compile(
    r"\s(?=(?:Set|Change|Make|Update|Replace|Use|Put|Correct|Please|Add|Also|Remove|Drop|Delete|Leave|Without|Take|Clear|Empty"
    r"|Forget|Rename|Call|It has)\s)"
)
"""Where a sentence may begin behind one without a point."""
_ONE_WORD = re.compile(r"\S+(?=\s+(?:for|in|of|from|at|on|with)\b)", re.IGNORECASE)
"""A value that may end before such a word: one of several goes on."""
_IN_QUOTES = re.compile(r"""(\\"|['`])((?:(?!\1).)+)\1[.!]?$""")


@dataclass(frozen=True)
class Said:
    """What an instruction says of the keys of a record: the clause of each that may change, those of them that set,
    remove and rename one, `new`, a key and its value, and the `rest`, where it says more than that."""

    clauses: Mapping[str, str]
    settings: Mapping[str, str]
    removals: Mapping[str, str]
    renames: Mapping[str, str]
    new: tuple[str, str] | None
    rest: str


def said_of(members: Mapping[str, str], instruction: str) -> Said:
    """What an instruction says of the members of a record, JSON by JSON."""
    clauses = _clauses_of(members, instruction)
    removals, renames = _going_on(clauses, _REMOVES, _REMOVED), _going_on(clauses, _RENAMES, _RENAMED)
    settings = {
        key: clause
        for key, clause in clauses.items()
        if setting_of(key, clause) and not stays(key, clause) and key not in renames
    }
    rest, new = _rest_of(settings | removals, members, instruction), None
    if (found := _ADDITION.fullmatch(rest.strip())) and json.dumps(found[1], ensure_ascii=False) not in members:
        rest, new = "", (found[1], found[2])
    return Said(clauses if rest else settings | removals, settings, removals, renames, new, rest)


def _clauses_of(members: Mapping[str, str], instruction: str) -> dict[str, str]:
    """Of the members that an instruction speaks of, or of all if it speaks of none, the part of it that does: where it
    has a part for each key that stands there whole, that part."""
    left, spans = instruction, dict[str, int]()
    for key in sorted(members, key=len, reverse=True):
        found = [*mentions(key, left)]
        begun = (one.start() for one in found if _BEFORE_KEY.search(instruction[: one.start()]))
        spans |= {key: next(begun, found[0].start())} if found else {}
        for one in found:
            left = left[: one.start()] + " " * len(one[0]) + left[one.end() :]
    said = words_of(left)
    cuts, order, parts = [*CUTS.finditer(instruction)], sorted(spans, key=lambda key: spans[key]), dict[str, str]()
    between = [
        [
            cut
            for cut in cuts
            if spans[one] < cut.start() < spans[other]
            and (cut[0].strip() != "," or _BEFORE_KEY.fullmatch(instruction[cut.start() : spans[other]]))
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


def mentions(key: str, text: str) -> Iterator[re.Match[str]]:
    """Where a key stands in a text, with spaces for its underscores, perhaps."""
    return re.finditer(_named(key), text, re.IGNORECASE)


def _named(key: str) -> str:
    """The pattern of a key."""
    name = re.sub(r"(?:\\[_-]|_)+", r"[\\s_-]+", re.escape(json.loads(key)))
    return rf"(?<![\w.-]){name}(?![\w-])"


def setting_of(key: str, clause: str) -> re.Match[str] | None:
    """How a clause that gives a key its value begins; None for another one."""
    return re.match(_SETTING.format(_QUOTE + _named(key) + _QUOTE), clause, re.IGNORECASE)


def _going_on(clauses: Mapping[str, str], verb: str, said: str) -> dict[str, str]:
    """Those that do this to their keys, also without the verb behind one that has it: "remove a, b and c"."""
    found, goes_on = dict[str, str](), False
    for key, clause in clauses.items():
        form = said.format(_QUOTE + _named(key) + _QUOTE)
        goes_on = bool(re.match(f"{verb}{form}" + (f"|{form}" if goes_on else ""), clause, re.IGNORECASE))
        found |= {key: clause} if goes_on else {}
    return found


def stays(key: str, clause: str) -> bool:
    """Whether a clause forbids that a key has another value, or asks for what is none."""
    return bool(re.search(_STAYS.format(_named(key), _NOUN), clause, re.IGNORECASE))


def _rest_of(clauses: Mapping[str, str], keys: Collection[str], instruction: str) -> str:
    """What an instruction says besides these clauses, each about its key alone."""
    for key, clause in clauses.items():
        ends = [found for found in (_GOES_ON.search(clause), *_others(key, keys, clause)) if found]
        own = clause[: min((found.start() for found in ends), default=None)]
        instruction = instruction.replace(own, " ", 1)
    return instruction if words_of(instruction) - {"and", "then"} else ""


def value_of(
    key: str, keys: Collection[str], text: str, setting: re.Match[str], ends: Collection[int]
) -> tuple[set[int], set[int]]:
    """Where the value of a clause that sets a key begins, and where it may end, of such places."""
    begin, goes_on = setting.end(), _GOES_ON.search(text, setting.end())
    if quoted := _IN_QUOTES.match(text, begin):
        return {quoted.start(2)}, {quoted.end(2)}
    found = {one.start() for one in _others(key, keys, text) if one.start() > begin}
    found |= {one.end() for one in [_ONE_WORD.match(text, begin)] if one}
    for one in _AFTER_VALUE.finditer(text, begin, goes_on.start() if goes_on else len(text)):
        found.update(range(one.start(), one.end() + 1))
    last = max((end for end in found if text[begin:end].count("(") == text[begin:end].count(")")), default=begin)
    return {begin}, {end for end in found if end in ends or end == last}


def _others(key: str, keys: Collection[str], text: str) -> Iterator[re.Match[str]]:
    """Where a clause without a sign before it may begin, of another key."""
    yield from _SENTENCE.finditer(text)
    for other in keys:
        if other != key:
            yield from re.finditer(rf"\s(?:the )?{_named(other)}(?= (?:is|to)\s| ?=|:)", text, re.IGNORECASE)
