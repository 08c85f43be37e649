"""What an instruction says of each key of a record: its clauses, and what is certain of them.

    Set owner to Ann and Bob, replicas to 3, and drop tls.

A clause begins at the start or behind a sign, an "and" or a "but", where a known key is set, removed or renamed, a new
one is added, or another verb stands. What a clause that sets, removes, renames or adds says is no guess of a model's.
Everything else is for a model to read: the clause of a key is what it may take a new value from. A key is not meant
where a word before it names another thing ("the redis port"). What nothing comes of is `unread`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from redraft.operations.edit_member import CUTS, hidden, quoted, shared, words_of
from redraft.operations.edit_names import (
    ASKING,
    NOUNS,
    OPPOSITES,
    PLAIN_WORDS,
    SWITCHES,
    is_of_another,
    mentions,
    named_by,
    words_named,
)
from redraft.operations.edit_parts import assigned, is_exchange, replaced, runs_on_to, was_there
from redraft.operations.edit_values import asking, plain_of, stated

_QUOTE = r"""(?:\\?["'`“”])?"""
_NOUN = rf"(?: (?:{NOUNS}|version))?"
_OF = r"(?:value of )?(?:(?!key )[\w-]+(?:['’]s)? )?"
_TO = (
    r"(?: (?:over |back )?to:? (?:be )?|\s?(?:=>?|:=|->|→)\s?|: | equal to "
    r"| as (?!(?:well|before|usual|always|is|it|they|long|soon|needed|\w+ed)\b))"
)
_SETTING = (
    rf"{ASKING}(?:(?:set|change|update|edit|make|put|switch|bump|upgrade|downgrade|adjust|modify|raise|lower|increase"
    rf"|decrease|point) (?:the )?{_OF}|the {_OF})?{{0}}{_NOUN}(?: from (?P<was>.{{{{1,60}}}}?)| {{1}})?{_TO}"
    rf"|{ASKING}(?:use|make) (?:the )?{{0}} (?=\S+(?:$| instead ))"
    rf"|{ASKING}(?:the )?{_OF}{{0}}{_NOUN} (?:(?:should|must|shall|needs to|has to) (?:now )?"
    r"(?:be (?:(?:set|changed|increased|decreased|raised|lowered|reduced|bumped|updated|moved) to "
    r"|(?:turned|switched) (?=o(?:n|ff)\b))?|say |read |run |use )|goes to |becomes |is now (?:set to )?)"
    r"(?!not |called |named )"
    rf"|{ASKING}(?:make|have|let) (?:the )?{_OF}{{0}}{_NOUN} (?:run|say|be|read|use) "
    r"(?!not |called |named |renamed |as |left |kept )"
)
"""What a clause that gives a key with a value another one begins with."""
_STATES = re.compile(r"(?:(?<!goes) to(?: be)?|[=:>→]|as|say|read|run|use)\s*$")
"""How its beginning ends where a value follows, and no description."""
_ALSO = rf"(?!(?:copy|move|rename|add|append|map|link|compare|convert|remove)\b)(?:the )?[\w-]+(?:['’]s)? {{0}}{_TO}"
"""Such a clause behind another one, as in "and server port to 80"."""
_TERSE = (
    rf"{ASKING}(?:the )?{{0}} (?!(?:too|also|likewise|as|either|instead|alone|same)\b)"
    r"(?=[^\s,;]+(?:[.!]?$|[,;]\s| and ))"
)
"""How a clause begins that is a key and a word, its value."""
_REMOVES = ASKING + r"(?:remove|delete|drop|unset|omit|erase|get rid of) "
_REMOVED = (
    rf"(?:(?:also|then) )?(?:of )?(?:the )?{{0}}{_NOUN}"
    r"(?=[.!]?$|[,;.]\s|,?\s+(?:and|but|please|too|as well|entirely)\b)"
)
_RENAMES, _RENAMED = ASKING + r"rename ", rf"(?:the )?{{0}}{_NOUN} (?:to|as|into) "
_NAME = re.compile(r"""(?:\\?["'`])?([\w.-]*\w)(?:\\?["'`])?[.!]?$""")
_ADDS = ASKING + rf"add (?:an? |the )?(?:(?:new |environment )?(?:{NOUNS}) (?:named |called )?(?=[\w.-]+: \S))?"
_PAIR = r"([\w.-]+)(?:: | ?= ?)(?=\S)"
_PLACES = re.compile(r"\s(?:to|after|before|below|above|if|in|under|for|instead|please|unless|when|at|from)\s", re.I)
"""Behind such a word stands where something goes, perhaps, and no value."""
_OTHER = re.compile(
    rf"{ASKING}(?:(?:set|change|update|replace) \S+.* (?:to|by|with)\s|(?:add|remove|delete|drop|rename) (?:the )?\w"
    r"|(?:the )?[\w.-]+(?: to |\s?=\s?)\S|the (?:[\w.-]+ ){1,5}to \S|\S+ (?:by|with) \S+[.!]?$)",
    re.IGNORECASE,
)
"""How a clause begins that says something else, of a key that is none yet, perhaps."""
_DOES = (
    rf"{ASKING}(?:enable|disable|keep|leave|clear|make|use|turn|switch|replace|increase|decrease|double|put|without|forget"
    r"|bump|raise|lower|reduce"
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
_APPENDING = r"\b(?:add|append)\b.* to "
"""What adds to what is there, and no member."""
_IDLE = re.compile(
    rf"{ASKING}(?:(?:remove|delete|drop|strip|erase|cut|get rid)\b.*\b(?:or|unless|if|from|until|comments?|quotes?)"
    r"|undo|revert|double|halve|increment|decrement|comment|uncomment|copy|move|swap|prefix|suffix|prepend|append"
    r"|translate|capitali[sz]e|(?:upper|lower)case|shorten|sort|reverse|trim|round|convert"
    r"|let\b.* as (?:it|they)|require .* or|add (?:\d+|one|two|three|four|five|another|more|some)"
    r"|(?:increase|decrease|raise|lower|bump|reduce|multiply|divide)\b.* by|do not|don['’]?t|never"
    r"|what|why|how|when|who|should|does|did|is|are|was|were|has|(?:the )?[\w.-]+ (?:was|were|has been|used to))\b"
    rf"|{ASKING}(?:add|append|insert|include) (?:an? |the )?(?!.*(?:\s(?:with|of|as|to|is|set|=)\s|[:=]))\S+"
    r"[.!]?$",
    re.IGNORECASE,
)
"""How a clause begins of which nothing is made."""
_STAYS = (
    r"\b(?:take|cut)\s.* (?:out of|from) .*{0}"
    r"|\b(?:don['’]?t|do not|never|undo|revert|double|halve|increment|decrement)\s.*{0}"
    r"|\bno (?:changes? (?:to|of|in) (?:the )?{0}|(?:the )?{0}{1} changes?)\b"
    r"|{0}{1} (?:is|must|should|shall|can|may)(?: not|n't| never| stay| remain)"
    r"|\b(?:increase|decrease|raise|lower|bump|reduce|multiply|divide)\b.*{0}.* by \b"
    r"|\b(?:leave|keep|except|except for|but) (?:the )?(?:(?:key|field|value|setting|property) )?{0}"
    r"|\b(?:add|append)\b.* to (?:the )?{0}"
    r"|\b(?:remove|delete|drop|strip|erase|cut)\b.+ from (?:the )?{0}|\breplace\b.*\b(?:by|with)\b.* in (?:the )?{0}"
    r"|\bin (?:the )?{0},? replace\b"
)
"""A clause that does not give a key another value, or one that is to be computed."""
_CONDITION = re.compile(rf"{ASKING}(?:if|when|unless|in case|once|whenever|provided)\b", re.IGNORECASE)
"""How a condition begins, which governs the clause behind it."""
_HEDGE = re.compile(
    r"\b(?:maybe|perhaps|at some point|(?:we|i|you) (?:might|could|would not|wouldn['’]?t|should not|shouldn['’]?t))\b",
    re.I,
)
"""What makes a wish of a clause, and no instruction."""
_LEAVES = re.compile(
    rf"[\s,]*{ASKING}(?:(?:leave(?! out)|keep)\b(?!.*(?:\d| (?:for|at|to|as) (?!(?:it|they|now|is|are)\b)))"
    r"|no changes?\b|(?:the )?[\w.-]+(?: [\w.-]+)? (?:(?:can )?(?:stays?|remains?)|is fine|are fine|as is)\b"
    r"|(?:do not|don['’]?t|never) (?:touch|change|edit)\b)(?!.* (?:and|but|except|other than|only) )",
    re.IGNORECASE,
)
"""How a clause begins that asks for nothing."""


class _Clause(NamedTuple):
    """A part of an instruction: what it does to a key (set, terse, remove, rename, other), or add; where it stands."""

    kind: str
    key: str
    start: int
    end: int


@dataclass(frozen=True)
class Said:
    """What an instruction says of the keys of a record: the values that some get, those that go, the names that others
    get; what is `new`; of each other key that may change the clauses that a model is to read, `rest` all of these and
    `adding` those that may add a key.
    `unread` are the parts of it that nothing comes of. Keys, names and values are JSON, clauses are not."""

    spoken: Mapping[str, Sequence[str]]
    values: Mapping[str, str]
    removals: Collection[str]
    renames: Mapping[str, str]
    new: Mapping[str, str]
    rest: str
    adding: tuple[str, ...]
    unread: tuple[str, ...]


def said_of(members: Mapping[str, str], instruction: str) -> Said:
    """What an instruction says of the members of a record, JSON by JSON."""
    values, renames, new = dict[str, str](), dict[str, str](), dict[str, str]()
    removals, rest, unread, is_governed = set[str](), list[str](), list[str](), False
    instruction, inside = hidden(instruction, map(json.loads, members))
    for one in _clauses(instruction, members):
        text = instruction[one.start : one.end]
        condition = _CONDITION.match(text)
        if condition or is_governed or _HEDGE.search(text):
            unread.append(text)
            is_governed = bool(condition) and "," not in text.rstrip(" ,")
        elif one.kind == "set" and (setting := setting_of(one.key, members[one.key], text)):
            is_described = not _STATES.search(setting[0])
            behind = text[setting.end() :].translate(inside)
            value, beside = stated(one.key, members[one.key], behind, described=is_described)
            is_other = not was_there(setting["was"] or "", members[one.key]) or (
                (value or "").startswith('"') and runs_on_to(members, members[one.key], behind)
            )
            if (
                value is None
                or is_other
                or stays(one.key, text)
                or _is_part(one.key, members[one.key], text, value, setting[0])
            ):
                unread.append(text)
            else:
                values[one.key] = value
                unread += [beside] if beside else []
        elif one.kind == "terse":
            word, beside = _terse(one.key, text)
            value = stated(one.key, members[one.key], word.translate(inside)).value or ""
            value = None if value[:1] == '"' != members[one.key][:1] else value or None  # of its kind alone
            values |= {one.key: value} if value is not None else {}
            unread += [text] if value is None else [beside] if beside else []
        elif one.kind == "remove":
            removals.add(one.key)
            form = f"(?:{_REMOVES})?" + _REMOVED.format(_QUOTE + named_by(one.key) + _QUOTE)
            if (gone := re.match(form, text, re.IGNORECASE)) and (beside := asking(text[gone.end() :])):
                unread.append(beside.translate(inside))
        elif one.kind == "rename":
            name = _new_name(one.key, text)
            renames |= {one.key: quoted(name)} if name else {}
            unread += [] if name else [text]
        elif one.kind == "add" and (pair := _pair(text)) and quoted(pair[0]) not in members:
            new[quoted(pair[0])] = plain_of(pair[1].translate(inside))
        elif one.kind == "other" and (made := replaced(members, text, inside) or assigned(members, text, inside)):
            values |= made
        elif _means_nothing(one, text) or is_exchange(members, text):
            unread.append(text)
        elif not _LEAVES.match(text):
            rest.append(text)
    certain = {*values, *removals, *renames}
    spoken = {key: tuple(_spoken_of(key, members, rest)) for key in members if key not in certain}
    spoken = {key: texts for key, texts in spoken.items() if texts}
    read = {text for texts in spoken.values() for text in texts}
    unread += [text for text in rest if text not in read and not is_adding(text)]
    unread = [text for text in unread if not _LEAVES.match(text)]
    spoken = {key: tuple(text.translate(inside) for text in texts) for key, texts in spoken.items()}
    said, adding = ". ".join(rest).translate(inside), tuple(text.translate(inside) for text in rest if is_adding(text))
    return Said(spoken, values, removals, renames, new, said, adding, tuple(text.translate(inside) for text in unread))


def _terse(key: str, text: str) -> tuple[str, str]:
    """The word behind a key, and what stands behind that."""
    found = re.match(
        _TERSE.format(_QUOTE + named_by(key) + _QUOTE) + r"(\S*[^\s.,;!])(.*)", text, re.IGNORECASE | re.DOTALL
    )
    return (found[1], found[2].strip(" ,.;!")) if found else ("", text)


def _means_nothing(one: _Clause, text: str) -> bool:
    """Whether nothing can be made of a clause: it asks, computes, forbids, or says a place or a condition."""
    is_add = one.kind == "add" and re.match(_ADDS + _PAIR, text, re.IGNORECASE)
    return one.kind == "set" or bool(_IDLE.match(text) or is_add)


def _spoken_of(key: str, members: Mapping[str, str], rest: Sequence[str]) -> list[str]:
    """Those of some clauses that speak of a key by its name, or else of it alone by its words or its value's."""
    found, is_one_named = list[str](), any(any(mentions(other, text)) for other in members for text in rest)
    for text in rest:
        named = [other for other in members if any(mentions(other, text))]
        if SWITCHES.match(text) and members[key] not in OPPOSITES:
            is_meant = False
        elif named:
            parts = (rf"{named_by(key)} of (?:the )?{named_by(other)}" for other in members)
            is_part = any(re.search(part, text, re.IGNORECASE) for part in parts)  # of another one's value
            is_meant = key in named and not is_part and not is_of_another(key, members[key], text)
        else:
            scores = {other: words_named(other, text) for other in members}
            by_value = "" if is_one_named or max(scores.values()) else re.sub(r"\b\w\b", "", members[key])
            is_meant = bool(shared(by_value, words_of(text)))
            if scores[key] and scores[key] == max(scores.values()):
                is_meant = not is_of_another(key, members[key], text)
        found += [text] if is_meant else []
    return found


def _is_part(key: str, old: str, text: str, value: str, head: str) -> bool:
    """Whether a clause names a part of a value before the key, as "the nginx image", and its new value lacks it, or one
    of a URL, as "should use https" behind the head."""
    is_scheme = re.fullmatch(r'"(?:https?|ftps?|wss?|ssh|tcp|udp)"', value, re.IGNORECASE)
    if "://" in old and "://" not in value and (is_scheme or head.endswith("use ")):
        return True
    one = next(mentions(key, text), None)
    before = re.search(r"([\w.-]+) $", text[: one.start()]) if one else None
    word = before[1].lower() if before else ""
    return word not in PLAIN_WORDS and word in words_of(old) - words_of(json.loads(key)) and word not in words_of(value)


def _clauses(instruction: str, members: Mapping[str, str]) -> Iterator[_Clause]:
    """Its clauses, in order."""
    cuts = [(0, 0), *(one.span() for one in CUTS.finditer(instruction))]
    cuts = sorted({*cuts, *(one.span() for one in _RUNS_ON.finditer(instruction))}, key=lambda cut: (cut[1], cut[0]))
    last, before = _Clause("other", "", 0, 0), 0
    for start, at in cuts:
        runs_on = bool(start) and not CUTS.match(instruction, start)
        kind, key = _head(instruction, at, members, last, runs_on=runs_on)
        if not kind and start and instruction[start] in ".;" and _is_sentence(instruction, at, members, last):
            kind = "other"
        if at == 0:
            last = _Clause(kind or "other", key, 0, 0)
        elif kind and at > before:
            yield last._replace(end=start)
            last = _Clause(kind, key, at, 0)
        before = at
    yield last._replace(end=len(instruction))


def _head(text: str, at: int, members: Mapping[str, str], last: _Clause, *, runs_on: bool) -> tuple[str, str]:
    """The kind and the key of the clause that begins at a place; two empty texts if none does."""

    def begins(form: str) -> re.Match[str] | None:
        return re.compile(form, re.IGNORECASE).match(text, at)

    ordered, is_other = sorted(members, key=len, reverse=True), False
    if not runs_on and _LEAVES.match(text, at):
        return "other", ""
    for key in ordered:
        named = _QUOTE + named_by(key) + _QUOTE
        for kind, verb, form in (("remove", _REMOVES, _REMOVED), ("rename", _RENAMES, _RENAMED)):
            is_pair = kind == "rename" and re.compile(verb, re.IGNORECASE).match(text, last.start)
            goes_on = at and (last.kind == kind or is_pair)
            if begins(verb + form.format(named)) or (goes_on and begins(form.format(named))):
                return kind, key
        found = begins(_SETTING.format(named, _old(members[key])))
        is_also = found is None and last.kind == "set" and at > 0
        found = begins(_ALSO.format(named)) if is_also else found
        if found and not is_of_another(key, members[key], found[0], also=is_also):
            return "set", key
        is_other |= found is not None
        of_words = last.kind == "set" and members[last.key].startswith('"')
        if not (runs_on or of_words) and begins(_TERSE.format(named)):
            return "terse", key
    says = _SAYS if runs_on else _DOES
    if is_other or any(begins(says.format(named_by(key))) for key in ordered):
        return "other", ""
    if begins(_ADDS + _PAIR * runs_on) or (last.kind == "add" and at and begins(_PAIR)):
        return "add", ""
    return ("other", "") if not runs_on and _OTHER.match(text, at) else ("", "")


def _is_sentence(text: str, at: int, keys: Collection[str], last: _Clause) -> bool:
    """Whether a sentence begins behind a point, and none of a value's: there it has to speak of a key."""
    if any(re.compile(_SAYS.format(named_by(key)), re.IGNORECASE).match(text, at) for key in keys):
        return True
    return bool(_SENTENCE.match(text, at)) and (
        last.kind != "set" or any(any(mentions(key, text[at:])) for key in keys)
    )


def _pair(text: str) -> tuple[str, str] | None:
    """The key and the value that a clause adds; None where it may say where to put them, too."""
    found = re.fullmatch(rf"(?:{_ADDS})?{_PAIR}(.+?)(?:(?<=\S)\.)?", text.strip(), re.IGNORECASE)
    if found is None or _PLACES.search(found[2]):
        return None
    return found[1], found[2]


def _new_name(key: str, text: str) -> str:
    """The name that a clause gives a key; nothing where it is not one word."""
    named = _QUOTE + named_by(key) + _QUOTE
    head = re.match(f"(?:{_RENAMES})?{_RENAMED.format(named)}", text, re.IGNORECASE)
    found = None if head is None else _NAME.match(text, head.end())
    return "" if found is None else found[1]


def setting_of(key: str, old: str, clause: str) -> re.Match[str] | None:
    """How a clause that gives a key another value than its old one begins; None for another one."""
    named = _QUOTE + named_by(key) + _QUOTE
    return re.match(f"{_SETTING.format(named, _old(old))}|{_ALSO.format(named)}", clause, re.IGNORECASE)


def _old(value: str) -> str:
    """The pattern of a value as an instruction says it."""
    return re.escape(value.strip('"')) if len(value) < 100 else r"(?!)"


def stays(key: str, clause: str) -> bool:
    """Whether a clause forbids that a key has another value, or asks for what is none."""
    return bool(re.search(_STAYS.format(named_by(key), _NOUN), clause, re.IGNORECASE))


def is_plain(text: str) -> bool:
    """Whether nothing in a text governs, forbids or renames."""
    other = (
        r"\b(?:if|when|unless|once|whenever|provided|do not|don['’]?t|never|rename|no|not|except|only|swap|copy|move)\b"
    )
    return not (re.search(other, text, re.IGNORECASE) or _HEDGE.search(text))


def is_adding(text: str) -> bool:
    """Whether a text may add a member; not where it adds something to what is there."""
    adds, goes_on = r"\b(?:add|note|insert|include)\b", rf"{_APPENDING}|\sfor\s"
    return bool(re.search(adds, text, re.IGNORECASE)) and not re.search(goes_on, text, re.IGNORECASE)
