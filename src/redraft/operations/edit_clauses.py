"""What an instruction says of each key of a record: its clauses, and what is certain of them.

    Set owner to Ann and Bob, replicas to 3, and drop tls.

A clause begins at the start or behind a sign, an "and" or a "but", where a known key is set, removed or renamed, a new
one is added, or another verb stands. What a clause that sets, removes, renames or adds says is no guess of a model's.
Everything else is for a model to read: the clause of a key is what it may take a new value from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from redraft.operations.edit_member import CUTS, shared, words_of

_ASKING = r"(?:(?:please|then|also|and|now) )*"
NUMBER = r"-?(?:0|[1-9]\d*)(?:\.\d+)?"
_QUOTE = r"""(?:\\?["'`])?"""
_NOUN = r"(?: (?:field|key|line|entry|setting|variable|option|member|property|script|flag))?"
_OF = r"(?:value of )?(?:(?!key )[\w-]+(?:['’]s)? )?"
_SETTING = (
    rf"{_ASKING}(?:(?:set|change|update|edit|make|put|switch|bump|upgrade|downgrade|adjust|modify|raise|lower|increase"
    rf"|decrease) (?:the )?{_OF}|the {_OF})?{{0}}{_NOUN}(?: from \S+)?(?: to (?:be )?|\s?=\s?|: )"
    rf"|{_ASKING}(?:use|make) (?:the )?{{0}} (?=\S+(?:$| instead ))"
)
"""What a clause that gives a key its value begins with."""
_ALSO = r"(?!(?:copy|move|rename|add|append|map|link|compare|convert|remove)\b)[\w-]+(?:['’]s)? {0} to (?:be )?"
"""Such a clause behind another one, as in "and server port to 80"."""
_REMOVES = _ASKING + r"(?:remove|delete|drop|unset|omit|erase|get rid of) "
_REMOVED = rf"(?:the )?{{0}}{_NOUN}(?=[.!]?$|[,;.]\s|,?\s+(?:and|but|please|too|as well|entirely)\b)"
_RENAMES, _RENAMED = _ASKING + r"rename ", rf"(?:the )?{{0}}{_NOUN} (?:to|as|into) "
_NAME = re.compile(r"""(?:\\?["'`])?([\w.-]*\w)(?:\\?["'`])?[.!]?$""")
_ADDS = _ASKING + r"add (?:an? |the )?"
_PAIR = r"([\w.-]+)(?:: | ?= ?)(?=\S)"
_PLACES = re.compile(r"\s(?:to|after|before|below|above|if|in|under|for|instead|please|unless|when|at|from)\s", re.I)
"""Behind such a word stands where something goes, perhaps, and no value."""
_OTHER = re.compile(
    rf"{_ASKING}(?:(?:set|change|update|replace) \S+.* (?:to|by|with)\s|(?:add|remove|delete|drop|rename) (?:the )?\w"
    r"|(?:the )?[\w.-]+(?: to |\s?=\s?)\S)",
    re.IGNORECASE,
)
"""How a clause begins that says something else, of a key that is none yet, perhaps."""
_DOES = (
    rf"{_ASKING}(?:enable|disable|keep|leave|clear|make|use|turn|switch|replace|increase|decrease|double|put|without|forget"
    r"|empty|correct|call|take) .*?{0}"
)
"""How a clause begins that does something else to a key."""
_SENTENCE = re.compile(
    r"(?:Set|Change|Make|Update|Replace|Use|Put|Correct|Please|Add|Also|Remove|Drop|Delete|Leave|Without|Take|Clear|Empty"
    r"|Forget|Rename|Call|It has|The)\s"
)
_RUNS_ON = re.compile(rf"\s(?={_SENTENCE.pattern})")
"""Where a sentence may begin behind one without a point, as the training data has them."""
_SAYS = (
    r"(?:The {0} (?:is|must|should)|(?:Correct|Clear|Empty|Forget|Without|Leave out|Take) (?:the )?{0}"
    r"|{0} (?:must|should) be)\b"
)
"""How a sentence about a key begins, whatever stands before it."""
_REPLACING = re.compile(
    rf"{_ASKING}(?:in (?:the )?(\S+?),? )?replace (.+?) (?:by|with) (.+?)(?: in (?:the )?(\S+?))?[.!]?", re.IGNORECASE
)
"""What a clause that replaces a value, or a part of one, says."""
_APPENDING = r"\b(?:add|append)\b.* to "
"""What adds to what is there, and no member."""
_IDLE = re.compile(
    rf"{_ASKING}(?:(?:remove|delete|drop|strip|erase|cut)\b.*\b(?:or|unless|if|from|until)|undo|revert|double|halve"
    r"|increment|decrement|(?:increase|decrease|raise|lower|bump|reduce|multiply|divide)\b.* by|do not|don['’]?t"
    r"|never)\b",
    re.IGNORECASE,
)
"""How a clause begins of which nothing is made."""
_STAYS = (
    r"\b(?:don['’]?t|do not|never|undo|revert|double|halve|increment|decrement)\s.*{0}"
    r"|{0}{1} (?:is|must|should|shall|can|may)(?: not|n't| never| stay| remain)"
    r"|\b(?:increase|decrease|raise|lower|bump|reduce|multiply|divide)\b.*{0}.* by \b"
    r"|\b(?:leave|keep|except|except for|but) (?:the )?{0}|\b(?:add|append)\b.* to (?:the )?{0}"
    r"|\b(?:remove|delete|drop|strip|erase|cut)\b.+ from (?:the )?{0}|\breplace\b.*\b(?:by|with)\b.* in (?:the )?{0}"
    r"|\bin (?:the )?{0},? replace\b|{0} to (?:the same|the value|match|whatever|(?:upper|lower)case)\b"
)
"""A clause that does not give a key another value, or one that is to be computed."""
_AFTER_VALUE = re.compile(
    r"(?=,?\s+(?:please|instead|because|since|so|now|then|but|not|rather|thanks?|again|too|also|as well)\b)"
    r"|(?=,\s+(?:it|i|we|you|he|she|they|this|that|which|if|when)\b|\s\((?:was|not|instead|from)\b)"
    r"|(?<!\b\w)(?<!\b\w\w)(?<!\b\w\w\w)(?=\.\s)|[\s.!?]*$",
    re.IGNORECASE,
)
"""Where such a value may end: at a point behind three letters, as in "Dr. No", it goes on."""
_ONE_WORD = re.compile(r"\S+(?=\s+(?:for|in|of|from|at|on|with)\b)", re.IGNORECASE)
"""A value that may end before such a word: one of several goes on."""
_IN_QUOTES = re.compile(r"""(\\"|['`])((?:(?!\1).)+)\1[.!]?$""")
_SPOKEN = frozenset(("to", "from", "set", "and", "change", "make", "use", "remove", "add", "by", "with", "is", "the"))
"""Keys that are words of instructions: meant where they stand in quotes or before a sign."""


class _Clause(NamedTuple):
    """A part of an instruction: "set", "remove", "rename" or "other" of a key, or "add"; and from where to where."""

    kind: str
    key: str
    start: int
    end: int


@dataclass(frozen=True)
class Said:
    """What an instruction says of the keys of a record: the clause of each that may change; the clauses that set one,
    the values that others get, those that go, the names that others get; what is `new`, and the `rest` that a model is
    to read. Keys, names and values are JSON, clauses are not."""

    clauses: Mapping[str, str]
    settings: Mapping[str, str]
    values: Mapping[str, str]
    removals: Collection[str]
    renames: Mapping[str, str]
    new: Mapping[str, str]
    rest: str


def said_of(members: Mapping[str, str], instruction: str) -> Said:
    """What an instruction says of the members of a record, JSON by JSON."""
    found = [*_clauses(instruction, members)]
    settings, renames, new = dict[str, str](), dict[str, str](), dict[str, str]()
    removals, values, rest = set[str](), dict[str, str](), list[str]()
    for one in found:
        text = instruction[one.start : one.end]
        if one.kind == "set" and one.key not in settings and not stays(one.key, text):
            settings[one.key] = text
        elif one.kind == "remove":
            removals.add(one.key)
        elif one.kind == "rename" and (name := _new_name(one.key, text)):
            renames[one.key] = quoted(name)
        elif one.kind == "add" and (pair := _pair(text)) and quoted(pair[0]) not in members:
            new[quoted(pair[0])] = _json_of(pair[1])
        elif one.kind == "other" and (replaced := _replaced(members, text)):
            values |= replaced
        elif not _means_nothing(one, text):
            rest.append(text)
    certain = {*settings, *removals, *renames, *values}
    clauses = {
        key: text for key in members if key not in certain and (text := _spoken_of(key, members[key], rest, members))
    }
    if rest and not clauses and not certain and not new:
        clauses = dict.fromkeys(members, instruction)
    return Said(clauses | settings, settings, values, removals, renames, new, ". ".join(rest))


def _means_nothing(one: _Clause, text: str) -> bool:
    """Whether nothing can be made of a clause: it computes, forbids, or says a place or a condition."""
    if one.kind == "set":
        return stays(one.key, text)
    return bool(_IDLE.match(text)) or (one.kind == "add" and bool(re.match(_ADDS + _PAIR, text, re.IGNORECASE)))


def _replaced(members: Mapping[str, str], instruction: str) -> dict[str, str]:
    """The value that a clause replaces, or replaces a part of, where there is one alone."""
    found = _REPLACING.fullmatch(instruction.strip())
    if found is None:
        return {}
    old, new, place = found[2].strip("\"'`"), found[3].strip("\"'`"), found[1] or found[4]
    part, changed = re.compile(rf"(?<!\w){re.escape(old)}(?!\w)"), dict[str, str]()
    for key, value in members.items():
        if place and place.lower() != json.loads(key).lower():
            continue
        if value.startswith('"') and part.search(text := json.loads(value)):
            changed[key] = (
                new if text == old and new in ("null", "true", "false") else quoted(part.sub(lambda _: new, text))
            )
        elif value == old:
            changed[key] = _json_of(new)
    return changed if len(changed) == 1 else {}


def _spoken_of(key: str, value: str, rest: list[str], keys: Collection[str]) -> str:
    """Those of some clauses that speak of a key by its name, or else by its words or its value's."""
    named = [text for text in rest if any(mentions(key, text))]
    if any(
        re.search(rf"{_named(key)} of (?:the )?{_named(other)}", text, re.IGNORECASE)
        for text in named
        for other in keys
    ):
        return ""  # a part of another one's value
    whole = ". ".join(named or rest)
    said = words_of(whole)
    is_one_named = any(any(mentions(other, text)) for other in keys for text in rest)
    by_value = "" if is_one_named else re.sub(r"\b\w\b", "", value)
    return whole if named or shared(json.loads(key), said) or shared(by_value, said) else ""


def _clauses(instruction: str, keys: Collection[str]) -> Iterator[_Clause]:
    """Its clauses, in order."""
    cuts = [(0, 0), *(one.span() for one in CUTS.finditer(instruction))]
    cuts = sorted({*cuts, *(one.span() for one in _RUNS_ON.finditer(instruction))}, key=lambda cut: (cut[1], cut[0]))
    last, before = _Clause("other", "", 0, 0), 0
    for start, at in cuts:
        runs_on = bool(start) and not CUTS.match(instruction, start)
        kind, key = _head(instruction, at, keys, last, runs_on=runs_on)
        if not kind and start and instruction[start] in ".;" and _is_sentence(instruction, at, keys, last):
            kind = "other"
        if at == 0:
            last = _Clause(kind or "other", key, 0, 0)
        elif kind and at > before:
            yield last._replace(end=start)
            last = _Clause(kind, key, at, 0)
        before = at
    yield last._replace(end=len(instruction))


def _head(text: str, at: int, keys: Collection[str], last: _Clause, *, runs_on: bool) -> tuple[str, str]:
    """The kind and the key of the clause that begins at a place; two empty texts if none does."""

    def begins(form: str) -> bool:
        return bool(re.compile(form, re.IGNORECASE).match(text, at))

    ordered = sorted(keys, key=len, reverse=True)
    for key in ordered:
        named = _QUOTE + _named(key) + _QUOTE
        for kind, verb, form in (("remove", _REMOVES, _REMOVED), ("rename", _RENAMES, _RENAMED)):
            if begins(verb + form.format(named)) or (last.kind == kind and at and begins(form.format(named))):
                return kind, key
        if begins(_SETTING.format(named)) or (last.kind == "set" and at and begins(_ALSO.format(named))):
            return "set", key
    says = _SAYS if runs_on else _DOES
    if any(begins(says.format(_named(key))) for key in ordered):
        return "other", ""
    if begins(_ADDS + _PAIR * runs_on) or (last.kind == "add" and at and begins(_PAIR)):
        return "add", ""
    return ("other", "") if not runs_on and _OTHER.match(text, at) else ("", "")


def _is_sentence(text: str, at: int, keys: Collection[str], last: _Clause) -> bool:
    """Whether a sentence begins behind a point, and none of a value's: there it has to speak of a key."""
    if any(re.compile(_SAYS.format(_named(key)), re.IGNORECASE).match(text, at) for key in keys):
        return True
    return bool(_SENTENCE.match(text, at)) and (
        last.kind != "set" or any(any(mentions(key, text[at:])) for key in keys)
    )


def _pair(text: str) -> tuple[str, str] | None:
    """The key and the value that a clause adds; None where it may say where to put them, too."""
    found = re.fullmatch(rf"(?:{_ADDS})?{_PAIR}(.+?)\.?", text.strip(), re.IGNORECASE)
    if found is None or (_PLACES.search(found[2]) and not _IN_QUOTES.match(json.dumps(found[2])[1:-1])):
        return None
    return found[1], found[2]


def _new_name(key: str, text: str) -> str:
    """The name that a clause gives a key; nothing where it is not one word."""
    named = _QUOTE + _named(key) + _QUOTE
    head = re.match(f"(?:{_RENAMES})?{_RENAMED.format(named)}", text, re.IGNORECASE)
    found = None if head is None else _NAME.match(text, head.end())
    return "" if found is None else found[1]


def quoted(text: str) -> str:
    """A text as JSON."""
    return json.dumps(text, ensure_ascii=False)


def _json_of(text: str) -> str:
    """A value that an instruction states, as JSON: a number, true, false or null as such."""
    if re.fullmatch(f"{NUMBER}|true|false|null", text):
        return text
    return quoted(text[1:-1] if re.fullmatch(r"\"[^\"]+\"|'[^']+'", text) else text)


def mentions(key: str, text: str) -> Iterator[re.Match[str]]:
    """Where a key stands in a text, with spaces for its underscores, perhaps."""
    return re.finditer(_named(key), text, re.IGNORECASE)


def _named(key: str) -> str:
    """The pattern of a key."""
    plain = json.loads(key)
    spaced = re.sub(r"(?:\\[_-]|_)+", r"[\\s_-]+", re.escape(plain))
    name = rf"(?<![\w.-]){spaced}(?![\w-])"
    return rf"(?:(?<=[\"'`]){name}|{name}(?=\s?[=:]))" if plain.lower() in _SPOKEN else name


def setting_of(key: str, clause: str) -> re.Match[str] | None:
    """How a clause that gives a key its value begins; None for another one."""
    named = _QUOTE + _named(key) + _QUOTE
    return re.match(f"{_SETTING.format(named)}|{_ALSO.format(named)}", clause, re.IGNORECASE)


def stays(key: str, clause: str) -> bool:
    """Whether a clause forbids that a key has another value, or asks for what is none."""
    return bool(re.search(_STAYS.format(_named(key), _NOUN), clause, re.IGNORECASE))


def is_adding(text: str) -> bool:
    """Whether a text may add a member; not where it adds something to what is there."""
    return bool(re.search(r"\b(?:add|note|insert|include)\b", text, re.IGNORECASE)) and not re.search(
        _APPENDING, text, re.IGNORECASE
    )


def value_of(text: str, setting: re.Match[str], ends: Collection[int]) -> tuple[set[int], set[int]]:
    """Where the value of a clause that sets a key begins, and where it may end, of such places."""
    begin = setting.end()
    if quoted := _IN_QUOTES.match(text, begin):
        return {quoted.start(2)}, {quoted.end(2)}
    found = {one.end() for one in [_ONE_WORD.match(text, begin)] if one}
    for one in _AFTER_VALUE.finditer(text, begin):
        found.update(range(one.start(), one.end() + 1))
    last = max((end for end in found if text[begin:end].count("(") == text[begin:end].count(")")), default=begin)
    return {begin}, {end for end in found if end in ends or end == last}


def ends_there(clause: str, at: int) -> bool:
    """Whether a value may end at a place of a clause."""
    return any(one.start() <= at <= one.end() for one in _AFTER_VALUE.finditer(clause, max(0, at - 1))) or bool(
        re.compile(r"\s+(?:for|in|of|from|at|on|seconds?)\b", re.IGNORECASE).match(clause, at)
    )


def spread(keys: Collection[str], instruction: str) -> str:
    """An instruction with a clause for each of several keys that get one value, and signs for the ends of its lines."""
    one = rf"(?:the )?(?:{'|'.join(_named(key) for key in sorted(keys, key=len, reverse=True))})"
    many = re.compile(
        rf"({_ASKING}(?:set|change|update|make)) (?:both )?({one}(?:(?:, (?:and )?| and ){one})+) to ", re.IGNORECASE
    )
    instruction = re.sub(r"[.;,]?\s*\n\s*", "; ", instruction.strip())
    found = many.match(instruction)
    if found is None:
        return instruction
    value = instruction[found.end() :]
    ones = re.split(r", (?:and )?| and ", found[2])
    return ", ".join(f"{found[1] if not i else 'set'} {one} to {value.rstrip('.')}" for i, one in enumerate(ones))
