"""The keys of a record as an instruction names them, and whether a name there means another thing's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from redraft.operations.edit_member import shared, words_of

ASKING = r"(?:(?:please|then|also|and|now|only|just|but|(?:can|could|would|will) you|i want to|let['’]s) )*"
NOUNS = "field|key|line|entry|setting|variable|option|member|property|script|flag|label|header|parameter|dependency"
"""What a key is called."""
PLAIN_WORDS = words_of(
    "the a an my our your its their this that these both all any no new old current existing default actual"
    " overall main general of in for to on off and or then also please now just only with by as at is be from"
    " value key field variable setting option property parameter entry line named called set change update edit"
    " make put switch bump upgrade downgrade adjust modify raise lower increase decrease remove delete drop unset"
    " omit erase rename replace use enable disable turn clear empty forget reset correct take leave keep without"
    " out rid add note double halve mode flag feature support again everywhere here too server app application"
    " service project package global file config move point activate deactivate"
)
"""Words before a key that name no other thing."""
_NAME_LIKE = re.compile(r"(?<![\w.-])[A-Za-z]\w*(?:[_.]\w+|[a-z][A-Z]\w*)+(?![\w-])")
"""A word that is written as keys are."""
OPPOSITES = {
    word: (other, is_on)
    for on, off in (
        *(("true", "false"), ("1", "0"), ('"True"', '"False"')),
        *(('"yes"', '"no"'), ('"on"', '"off"'), ('"Yes"', '"No"'), ('"On"', '"Off"')),
    )
    for word, other, is_on in ((on, off, True), (off, on, False))
}
"""Values in the form of JSON, what each is not, and whether it is on."""
SWITCHES = re.compile(rf"{ASKING}(?:enable|disable|turn|(?:de)?activate)\b", re.IGNORECASE)
"""How a clause begins that turns something on or off, by a key's name."""
SPOKEN = frozenset(("to", "from", "set", "and", "change", "make", "use", "remove", "add", "by", "with", "is", "the"))
"""Keys that are words of instructions: meant where they stand in quotes or before a sign."""


def mentions(key: str, text: str) -> Iterator[re.Match[str]]:
    """Where a key stands in a text, with spaces for its underscores, perhaps."""
    return re.finditer(named_by(key), text, re.IGNORECASE)


def named_by(key: str) -> str:
    """The pattern of a key, as JSON, in an instruction: with spaces between its words, perhaps."""
    plain = json.loads(key)
    if not re.search(r"\w", plain):
        return "(?!)"
    parts = re.sub(r"(?<=[a-z\d])(?=[A-Z])", "\0", plain)
    spaced = re.sub(r"(?:\\[_-]|_)+", r"[\\s_-]+", re.escape(parts)).replace("\\\0", r"\s?").replace("\0", r"\s?")
    name = rf"(?<![\w.-]){spaced}(?![\w-])"
    return rf"(?:(?<=[\"'`]){name}|{name}(?=\s?[=:]))" if plain.lower() in SPOKEN else name


def words_named(key: str, text: str) -> int:
    """How many words of a key a text says, not counting those of other names, as of REDIS_HOST for HOST."""
    name = json.loads(key)

    def plainly(found: re.Match[str]) -> str:
        return found[0] if words_of(found[0]) <= words_of(name) else ""

    return shared(name, words_of(_NAME_LIKE.sub(plainly, text)))


def is_of_another(key: str, value: str, text: str, *, also: bool = False) -> bool:
    """Whether a word before a key, wherever a text names it, says that it is another thing's: "the redis port". Its
    first word is a verb, unless it is what is `also` set."""
    words = words_of(f"{json.loads(key)} {value}")
    found = [*mentions(key, text)]
    if not found:
        own = "|".join(re.escape(word) for word in words_of(json.loads(key)) if len(word) > 1)
        found = [*re.finditer(rf"(?<!\w)(?:{own})(?!\w)", text, re.IGNORECASE)] if own else []
    for one in found:
        before = re.search(r"([\w.-]+?)(?:['’]s)?(?: (?:of|in) (?:the )?|[\s\"'`]+)$", text[: one.start()])
        word = before[1].lower() if before and (before.start() or also) else "the"
        behind = re.match(r"\s+([a-z]+)", text[one.end() :], re.IGNORECASE) if SWITCHES.match(text) else None
        if behind and behind[1].lower() not in PLAIN_WORDS | words:
            continue
        if word in PLAIN_WORDS or word.isdigit() or shared(word, words):
            return False
    return bool(found)
