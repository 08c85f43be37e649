"""What an instruction says of each key of a record: the clauses that it has, and what is certain of them.

    Set owner to Ann and Bob, replicas to 3, and drop tls.

A clause that sets a key has its value behind "to"; one that removes a key has nothing else. What such clauses say is no
guess of a model's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise

from redraft.operations.edit_member import shared, words_of

_SHORT = ("Inc", "Ltd", "Corp", "Co", "Jr", "Sr", "St")
"""The point behind them is no sentence's."""
CUTS = re.compile("".join(rf"(?<!\b{word})" for word in _SHORT) + r"[.;]\s+(?:and\s+)?|,?\s+and\s+|,\s+", re.IGNORECASE)
"""Where a clause ends, perhaps."""
_ASKING = r"(?:(?:please|then|also) )*"
_BEFORE_KEY = re.compile(
    rf"(?:^|[.;,]\s+|\band\s+){_ASKING}(?:(?:set|change|make|turn|add|remove|drop|rename) )?(?:the )?$", re.IGNORECASE
)
"""Before a key that begins a clause."""
_QUOTE = r"""(?:\\?["'`])?"""
_NOUN = r"(?: (?:field|key|line|entry|setting|variable|option|member|property|script|flag))?"
_SETTING = (
    _ASKING
    + r"(?:(?:set|change|update|edit|make|put|switch|bump|raise|lower|increase|decrease) )?(?:the )?(?:value of )?"
    rf"{{0}}{_NOUN}(?: from \S+)?(?: to |\s?=\s?|: )|(?:use|make) (?:the )?{{0}} (?=\S+$)"
)
"""What a clause that gives a key its value begins with."""
_REMOVES = _ASKING + r"(?:remove|delete|drop|unset|omit|erase|get rid of) "
_REMOVED = rf"(?:the )?{{0}}{_NOUN}[.!]?(?=$|[,;.]\s|\s+and\s)"
_STAYS = (
    r"\b(?:don['’]?t|do not|never)\s.*{0}|{0}{1} (?:is|must|should|shall|can|may)(?: not|n't| never| stay| remain)"
    r"|\b(?:leave|keep|except|except for|but) (?:the )?{0}|\b(?:add|append)\b.* to (?:the )?{0}"
)
"""A clause that does not give a key another value."""
_GOES_ON = re.compile(
    r"(?:[,;.]|\s+and)\s+(?:(?:and|then|also|please)\s+)*(?:the\s+)?(?:[\w-]+(?: to |\s?=)|(?:set|change|make|turn|add"
    r"|remove|drop|rename|delete|clear|update|switch|replace|unset|enable|disable|keep|leave)\b)",
    re.IGNORECASE,
)
"""Where another clause begins, of a key that is none yet, perhaps."""
_AFTER_VALUE = re.compile(
    r"(?=,?\s+(?:please|instead|because|since|so|as|now|then|but|not|rather|thanks?|again|too|also)\b)|(?=[;(]|[.!?]\s)"
    r"|(?=,\s+(?:it|i|we|you|he|she|they|this|that|which|for|in|on|at|if|when)\b)|[\s.,;:!?)'\\\"]*$",
    re.IGNORECASE,
)
"""Where such a value may end."""
_SENTENCE = re.compile(
    r"\s(?=(?:Set|Change|Make|Update|Replace|Use|Put|Correct|Please|Add|Also|Remove|Drop|Delete|Leave|Without|Take|Clear|Empty"
    r"|Forget|Rename|Call|It has)\s)"
)
"""Where a sentence may begin behind one without a point."""
_ONE_WORD = re.compile(r"\S+(?=\s+(?:for|in|of|from|at|on|with)\b)", re.IGNORECASE)
"""A value that may end before such a word: one of several goes on."""
SHORTENED = re.compile(rf"\b(?:{'|'.join(_SHORT)})(?=\.(?!\w))")
"""A word whose point is its own."""


def clauses_of(members: Mapping[str, str], instruction: str) -> dict[str, str]:
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


def removals_of(clauses: Mapping[str, str]) -> dict[str, str]:
    """Those that remove their keys and say nothing else of them, "remove a, b and c" too."""
    found, goes_on = dict[str, str](), False
    for key, clause in clauses.items():
        removed = _REMOVED.format(_QUOTE + _named(key) + _QUOTE)
        goes_on = bool(re.match(rf"{_REMOVES}{removed}" + (f"|{removed}" if goes_on else ""), clause, re.IGNORECASE))
        found |= {key: clause} if goes_on else {}
    return found


def stays(key: str, clause: str) -> bool:
    """Whether a clause forbids that a key has another value, or asks for what is none."""
    return bool(re.search(_STAYS.format(_named(key), _NOUN), clause, re.IGNORECASE))


def rest_of(clauses: Mapping[str, str], keys: Collection[str], instruction: str) -> str:
    """What an instruction says besides these clauses, each about its key alone."""
    for key, clause in clauses.items():
        ends = [found for found in (_GOES_ON.search(clause), *_others(key, keys, clause)) if found]
        own = clause[: min((found.start() for found in ends), default=None)]
        instruction = instruction.replace(own, " ", 1)
    return instruction if words_of(instruction) - {"and", "then"} else ""


def value_ends(key: str, keys: Collection[str], text: str, setting: re.Match[str]) -> set[int]:
    """Where the value of a clause that sets a key may end."""
    begin, goes_on = setting.end(), _GOES_ON.search(text, setting.end())
    ends = {one.start() for one in _others(key, keys, text) if one.start() > begin}
    ends |= {one.end() for one in [_ONE_WORD.match(text, begin)] if one}
    for one in _AFTER_VALUE.finditer(text, begin, goes_on.start() if goes_on else len(text)):
        ends.update(range(one.start(), one.end() + 1))
    return ends


def _others(key: str, keys: Collection[str], text: str) -> Iterator[re.Match[str]]:
    """Where a clause without a sign before it may begin, of another key."""
    yield from _SENTENCE.finditer(text)
    for other in keys:
        if other != key:
            yield from re.finditer(rf"\s(?:the )?{_named(other)}(?= (?:is|to|=)\s|:)", text, re.IGNORECASE)
