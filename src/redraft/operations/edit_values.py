"""The value that a clause states for a key: what stands behind its "to", less what is said beside it.

    Set host to web1 for now.                 "web1", where "localhost" stood
    Set title to Notes for all.               "Notes for all", where "Hi there" stood
    Set port to eighty                        80
    Set port to 3 or 4                        nothing

What stood there says what may: where a text of words stood, words; where one word stood, one, if what follows it
cannot belong to it; where a number stood, a number, or one with its unit.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from redraft.numerals import spelled
from redraft.operations.edit_member import NUMBER, SHORT, quoted

_SPELLED = {spelled(number): str(number) for number in range(101)}
_SWITCHED = dict.fromkeys(("true", "yes", "on", "enabled"), "true") | dict.fromkeys(
    ("false", "no", "off", "disabled"), "false"
)
_BITS = {"1": "true", "0": "false"}
_EMPTY = re.compile(r"(?:an? )?(?:empty(?: string| text| value)?|nothing|blank)", re.IGNORECASE)
_IN_QUOTES = re.compile(r"""\\?(["'`])((?:(?!\\?\1).)+)\\?\1(?=$|[\s.,;!?])|(["'])\3|“([^“”]+)”""")
_SHORTENED = re.compile(rf"\b(?:{'|'.join(SHORT)}|[A-Za-z]\.[A-Za-z])\.$")
_VAGUE = re.compile(
    r"(?:the (?:same|value|next|previous|other|old|default|right|correct|latest|current)|whatever|something|anything"
    r"|it (?:is|was)|either|match (?:the|its)|(?:upper|lower) ?case|twice|half|double|your (?:liking|choice|taste)"
    r"|an? (?:random|better|different|longer|shorter)|one that|about \d+"
    r"|what (?:it|they|you|we)|the (?:name|value|length|number) of"
    r"|(?:higher|lower|more|less|shorter|longer|bigger|smaller|better|nicer|next (?:minor|major|patch|version))$)\b"
)
"""How begins what is none, but says how to find one."""
_BESIDE = (
    r"(?:please|pls|plz|thx|asap|right away|instead(?: of .*)?|for now|from now on"
    r"|as (?:soon as possible|requested|agreed|discussed|asked|planned|well|before)"
    r"|(?:and |but )?not .*|rather than .*|because .*|since .*|so that .*|thanks?(?: you)?"
    r"|\((?:was|not|instead|from) .*\))"
)
_BESIDE_WORDS = re.compile(
    r"(?:(?:,\s*|\s+)(?:please|pls|plz|thx|asap|instead(?: of .*)?|for now"
    r"|as (?:requested|agreed|discussed|asked|planned))"
    rf"|,\s+{_BESIDE}"
    r"|\s\((?:was|not|instead|from) .*\)|\s+(?:in|of|for) (?:the|this) (?:file|config|configuration|settings))[.!]?$",
    re.IGNORECASE,
)
"""What may stand behind a text of words without being of it."""
_HARMLESS = re.compile(
    rf"[\s,.]*(?:{_BESIDE}|now|then|again|too|also|only|(?:it|i|we|you|he|she|they|this|that|which|so) .*"
    r"|the (?:old|previous|former|current) .*|\(.*\)"
    r"|(?:in|of) (?:the|this) (?:file|config|configuration|settings)|in here|here)?[\s.;!?]*",
    re.IGNORECASE,
)
"""Behind a word, what asks for nothing more."""
_GOVERNED = re.compile(
    r",?\s+(?:unless|(?:but|and)\s+only|only\s+(?:if|when|after|before|once|in|on|for|until|while))\b", re.IGNORECASE
)
"""In a value without quotes: a condition."""
_ORDERED = re.compile(
    r"(?:,\s*|\s)and\s+(?:then\s+|also\s+|please\s+)?(?:mark|push|move|make|put|turn|switch|leave|keep|call|let|give"
    r"|cancel|ship|send|restart|reload|run|use|note|tell|bring|update|change|set|remove|delete|add|drop|rename|enable"
    r"|disable|raise|lower|increase|decrease|bump)\s+(?:it|the|this|that|them|him|her|its|their|my|our|me|us)\b",
    re.IGNORECASE,
)
"""In a text of words: another thing to do."""
_CONDITIONAL = re.compile(r"[\s,]*(?:and |but )?(?:only )?(?:if|when|unless|in case|once|provided)\b", re.IGNORECASE)
_BREAKS = re.compile(
    r",?\s+(?:(?:to|as|with|for|in|of|on|at|by|if|from|when|while|until|via|since|because|not|instead|rather|please|now"
    r"|then|again|too|also|only|exactly|temporarily|permanently|everywhere|thanks?|leaving|keeping)\b|[-–—]\s|\()"
    r"|,\s+(?:it|i|we|you|he|she|they|this|that|which|so|the)\b"
    r"|,?\s+(?:and|but)\s(?=.*(?:\sto\s|=)|(?:its|leave|keep|restart|reload|remove|delete|add|drop|do|don['’]?t|then)\b)",
    re.IGNORECASE,
)
"""What begins behind a word that a value is, and does not belong to it."""
_SOON = re.compile(
    r",?\s+(?:right away|tonight|today|ok(?:ay)?|forever|once|this time)"
    r"(?:[.!?]*$|[,\s]+(?:please|thanks?|because|if possible)\b.*)",
    re.IGNORECASE | re.DOTALL,
)
_SOON_AND_MORE = re.compile(
    _SOON.pattern.partition("(?:[.!?]")[0] + r"(?:,?\s+(?:and|but)\s|\s[-–—]\s|\s\("
    r"|[,\s]+(?:only|instead|it|i|we|you|to|as|for|at|if|when|while|until|since)\b).*",
    re.IGNORECASE | re.DOTALL,
)
"""When it is to be so; behind some words the two are one."""
_LEADS = re.compile(
    r"not|never|no|all|only|just|until|by|later|earlier|early|late|quite|mostly|almost|very|so|really|exactly|since",
    re.IGNORECASE,
)
_TAIL = re.compile(
    r"((?:[A-Z]\S* ){0,2}\S*\w)(\s+(?:everywhere|globally|immediately|temporarily|permanently|across the board"
    r"|by default|in production))[.!]?"
)
"""A word, or names, that stand for one, and what belongs to the instruction: it is named."""
_DONE = re.compile(
    r"(?:turned|switched|bumped|increased|decreased|raised|lowered|reduced|doubled|halved|removed|deleted|dropped|renamed"
    r"|changed|replaced|updated|reviewed|adjusted|fixed|checked|corrected|translated|shortened|capitali[sz]ed|moved|copied"
    r"|swapped|reset|cleared|emptied|unset|unchanged|kept|left|added|quoted|(?:un)?commented"
    r"|improved|re(?:worded|written|stored|started|versed)|converted"
    r"|rounded|sorted|gone|in [A-Z][a-z]+"
    r"|(?:much |a bit |slightly )?(?:more|less|shorter|longer|higher|lower|bigger|smaller|larger"
    r"|better|nicer|faster|slower|newer|older|earlier|later)|(?:in )?(?:bold|capitals|upper ?case|lower ?case)|unique"
    r"|correct|different|the same|configurable|conditional|optional|mandatory)\b",
    re.IGNORECASE,
)
"""What describes what is to become of a value, and is none."""
_NO_VALUE = re.compile(r"higher|lower|default|random|any|auto|max|min|same|previous|next|tbd|n/?a|unlimited", re.I)
"""Words that say no number."""
_UNIT = (
    r"[mk]?g|[mcdk]?l|lbs?|oz|cm|mm|km|ft|px|r?em|pt|[mu]?s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?|d|days?"
    r"|wks?|weeks?|months?|years?|[kKMGT]i?[bB]?|[kMG]Hz|bytes?|people|pieces|EUR|USD|GBP|CHF|%"
)
_VERSION = r"v?\d+(?:\.\d+){0,2}(?:[-.][A-Za-z]\w*)*"
_IMAGE = r"(?:[\w.-]+(?::\d+)?/)*[A-Za-z][\w.-]*:"
_FRAMED = tuple(
    (re.compile(old), re.compile(new))
    for old, new in (
        (rf"()\d[\d.,]*(\s?(?:{_UNIT}))", r"(?!0[.,])\d[\d.,]*"),  # 250 g
        (rf"({_IMAGE})\d{{1,5}}()", _VERSION),  # or a port
        (r"((?:\d{1,3}\.){3}\d{1,3}:)\d{1,5}()", r"\d{1,5}"),
        (r"()\d{1,5}(/(?:tcp|udp))", r"\d{1,5}"),
        (rf"({_IMAGE})(?:{_VERSION}|latest)()", rf"{_VERSION}|latest"),
        (r"(v)\d[\w.-]*()", _VERSION.removeprefix("v?")),  # v1.0
        (r"(https?://)[\w.-]+(?::\d+)?(/?)", r"(?:(?:[\w-]+\.)+(?!html?|js|php)[a-z]{2,12}|localhost)(?::\d+)?"),
        (r"()(?:[01]?\d|2[0-3]):[0-5]\d( [A-Z]{3,4})", r"(?:[01]?\d|2[0-3]):[0-5]\d"),  # 14:00 CET
    )
)
"""Values of which a new one may say a part alone, and how it does; the rest stays."""
_CLOCK, _DAY = re.compile(r"\d{1,2}:\d\d(?::\d\d)?"), re.compile(r"\d{4}-\d\d-\d\d")
_UNITS = re.compile(r"\s?[%°€$£]|\s+(?:millisecond|second|minute|hour|day|week|month|year)s?(?!\w)", re.IGNORECASE)


_CODE = re.compile(r"[\d./:@^~=_]")
"""What a version, a host or a path has, in whose place one word stands."""
_TALK = re.compile(r";|\b(?:stays?|remains?|pls|plz|thx|now|exactly|at least|at most|version|gets?)\b", re.IGNORECASE)
"""What no value of a few words has."""


class Stated(NamedTuple):
    """A value, as JSON, or None where none is clear; and what is said behind it that asks for more."""

    value: str | None
    beside: str = ""


def stated(key: str, old: str, text: str, *, described: bool = False) -> Stated:
    """The value that a text states for a key which has an `old` one, both as JSON; the text is all behind the "to", or
    says what it should be, as `described`: there a verb is what is to be done, and a number's or a switch's place gets
    no other word."""
    is_state = re.search(r"status|state|stage|phase", key, re.IGNORECASE)
    if described and not is_state and _DONE.match(text.strip()):
        return Stated(None)
    found = _stated(key, old, text)
    is_amount = re.fullmatch(r'"[€$£]?-?[\d.,]+\s?[%°€$£]?"', found.value or "")
    if described and (found.value or "").startswith('"') and not is_amount and not _IN_QUOTES.match(text.strip()):
        # A name, a figure or a path; or a word where one stood.
        form = r'"(?:[^a-z]|\S*[./:_-]|.*\d|.* -)' if old.startswith('"') else '"[A-Z]'
        is_named = re.match(form, found.value or "")
        is_word = re.fullmatch(r'"[a-z]*"', old) and re.fullmatch(r'"[a-z-]+"', found.value or "")
        return found if old == "null" or is_named or is_word else Stated(None)
    return Stated(None) if _CONDITIONAL.match(found.beside) else found


def _stated(key: str, old: str, text: str) -> Stated:
    said = text.strip()
    if inside := _IN_QUOTES.match(said):
        return Stated(quoted(inside[2] or inside[4] or ""), asking(said[inside.end() :]))
    if not said or _VAGUE.match(said) or _GOVERNED.search(said):
        return Stated(None)
    said = re.sub(r"(?<=[^\W\d_]{3})[!?]+$|(?<=\w)\?$|(?<=\S);$", "", said)
    if re.search(r"[^.]\.$", said) and not _SHORTENED.search(said):
        said = said[:-1]  # the sentence's
    if old.startswith(('"', "[")):
        return _text(json.loads(old) if old.startswith('"') else "A b", said)
    word, behind = re.findall(r"^(\S*?)([,.;:!?]*(?:\s.*)?)$", said, re.DOTALL)[0]
    is_switch, small = old in ("true", "false", "null"), word.lower()
    if _EMPTY.fullmatch(said):
        return Stated(None if old != "null" else '""')
    is_bool = old in ("true", "false")
    found = (_SWITCHED.get(small) if is_switch else None) or ("null" if small in ("null", "none") else None)
    found = found or (_BITS.get(small) if is_bool else None)
    if found is None and not is_bool:
        found = _SPELLED.get(small) or (word if re.fullmatch(NUMBER, word) else None)
        unit = _UNITS.match(behind)
        if found and unit and _has_unit(key, unit[0].strip().lower()):
            percent = unit[0].strip() in "%°€$£"
            return Stated(quoted(word + unit[0]) if percent else found, asking(behind[unit.end() :]))
    if found is not None:
        return Stated(found, asking(behind)) if _ends(behind) else Stated(None)
    if old == "null":
        return _text("", said)
    if share := re.fullmatch(r"-?[\d.,]+\s?[%°€$£]|[€$£]\d[\d.,]*", said):
        is_part = old.startswith("0.") and re.fullmatch(r"\d+(?:\.\d+)?%", said)
        return Stated(f"{float(said[:-1]) / 100:g}" if is_part else quoted(share[0]))
    is_odd = re.match(r"\W*\d", word) or _NO_VALUE.fullmatch(word)
    return Stated(quoted(word), asking(behind)) if _ends(behind) and not is_odd else Stated(None)


def _has_unit(key: str, unit: str) -> bool:
    """Whether a number of a unit is one of a key's: seconds, if its name says no other."""
    ends = re.search(r"(ms|milli|min|hour|day|week|month|year)[a-z]*\W*$", key, re.IGNORECASE)
    return unit in "%°€$£" or unit.startswith(ends[1].lower() if ends else "second")


def _text(old: str, said: str) -> Stated:
    """A text in place of one."""
    if _EMPTY.fullmatch(said):
        return Stated('""')
    if said.lower() in ("true", "false", "null"):
        return Stated(said.lower())
    if whole := _whole(old, said):
        return Stated(quoted(whole))
    if _DAY.fullmatch(old) or _CLOCK.fullmatch(old):  # another form of the same says it in a way that nothing reads
        same = (_DAY if _DAY.fullmatch(old) else _CLOCK).match(said)
        is_alike = same and len(same[0]) == len(old) and _ends(said[same.end() :])
        return Stated(quoted(same[0]), asking(said[same.end() :])) if same and is_alike else Stated(None)
    is_loud = len(old) > 1 and old.isupper() and said.split()[0].rstrip(",").isupper()  # currencies, levels
    if old and not re.search(r"\s", old) and (tail := _TAIL.fullmatch(said)):
        return Stated(quoted(_whole(old, tail[1]) or tail[1]), asking(tail[2]))
    if re.search(r"\s", old) or (re.match(r"[^\W\d_]*[A-Z][^\W\d_]*$", old) and not is_loud):  # of words
        if _ORDERED.search(said):
            return Stated(None)
        while beside := _BESIDE_WORDS.search(said):
            said = said[: beside.start()]
        return Stated(quoted(said))
    word = re.match(r"\S*[^\s,]", said)
    behind = said[word.end() :] if word else ""
    if word and behind and old.lower() in _SWITCHED:  # a word of its kind, or none that is clear
        is_one = word[0].lower() in _SWITCHED and _ends(behind)
        return Stated(quoted(word[0]), asking(behind)) if is_one else Stated(None)
    if word and behind:
        if re.match(r",?\s+or\b", behind, re.IGNORECASE):
            return Stated(None)
        if sentence := re.fullmatch(r"(\S+[\w/])\.(\s+[A-Z].*)", said):
            return Stated(quoted(sentence[1]), asking(sentence[2]))
        is_soon, is_more = _SOON.fullmatch(behind), _SOON_AND_MORE.fullmatch(behind)
        if (is_soon or is_more) and old and not _LEADS.fullmatch(word[0]):
            if not is_soon and re.match("[A-Z][a-z]", word[0]):  # the first word of a title, perhaps
                return Stated(None)
            return Stated(quoted(word[0]), asking(behind))
        if _BREAKS.match(behind) and (old or re.search(r"[\d./:@_-]", word[0])):
            return Stated(quoted(word[0]), asking(behind))
        if _CODE.search(word[0]) and _HARMLESS.fullmatch(behind):
            return Stated(quoted(word[0]))
        is_code = _CODE.search(word[0]) if _CODE.search(old) else re.search(r"\w[./:@]+\w", word[0])
        if is_code or _TALK.search(said) or _ORDERED.search(said):
            return Stated(None)
        while beside := _BESIDE_WORDS.search(said):
            said = said[: beside.start()]
    return Stated(quoted(said))


def _whole(old: str, said: str) -> str:
    """A value of which an instruction says a part alone, with the rest of the old one; empty if it does not."""
    found = next((match for form, new in _FRAMED if (match := form.fullmatch(old)) and new.fullmatch(said)), None)
    return f"{found[1]}{said}{found[2]}" if found else ""


def _ends(behind: str) -> bool:
    """Whether a value may end before a text."""
    return bool(
        _HARMLESS.fullmatch(behind)
        or _BREAKS.match(behind)
        or _SOON.fullmatch(behind)
        or _SOON_AND_MORE.fullmatch(behind)
        or re.match(r",\s(?!no\b)|\.\s+[A-Z]|\s\(|,?\s+(?:and|but|then)\s+(?!-?\d)", behind)
    )


def asking(behind: str) -> str:
    """What is said behind a value, if it asks for more."""
    return "" if _HARMLESS.fullmatch(behind) else behind.strip(" ,.;!?")


def plain_of(text: str) -> str:
    """A value that an instruction states, as JSON: a number, true, false or null as such."""
    if re.fullmatch(f"{NUMBER}|true|false|null", text):
        return text
    return quoted(text[1:-1] if re.fullmatch(r"\"[^\"]+\"|'[^']+'|`[^`]+`|“[^“”]+”", text) else text)
