"""What a text has for a field by the field's name: e-mail addresses, links, and numbers of things.

    email, contact_mail             the addresses of the text
    url, website                    its links
    order_number, invoice_id        its words with digits, a few of them together: "W88-104", "LX 318"
    phone, fax                      those with five digits and more: "030 5557 210"

A model that reads "What happened to W88-104?" has then no word to be misled by. Names that may mean something else, as
`ticket` and `reference`, say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from redraft.constraints.compile.moments import number_words, words_of

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_MAILS, _LINKS = frozenset(("email", "mail")), frozenset(("url", "link", "website", "homepage", "uri"))
_PHONES = frozenset(("phone", "telephone", "tel", "fax"))
_NUMBER = frozenset(("number", "no", "nr"))
_NUMBERED = frozenset(
    ("order", "invoice", "ticket", "booking", "parcel", "shipment", "case", "tracking", "reference", "claim")
)
"""Things whose `id` is a number. That of a user may be a word."""
_APART = r"\s<>()\[\]{}\"',;:@"
_MAIL = re.compile(rf"(?<![^{_APART}])[^{_APART}]+@(?:[\w-]+\.)+\w+")
_AT = re.compile(r"@|[\[(]\s?at\s?[\])]", re.IGNORECASE)
_LINK = re.compile(r"(?:https?://|www\.)[^\s<>\"]*[^\s<>\"'.,;:!?)\]}]", re.IGNORECASE)
_ENDS, _MARKS = ".,;:!?", ".,;:!?#()[]{}\"'“”‘’*<>"
_PART = re.compile(r"[A-Z/-]{1,5}")
PHONE_DIGITS = 5
MOST_PARTS, MOST_VALUES, MOST_CHARACTERS = 4, 256, 2**12
"""Words of a number, numbers of a text, and characters of it: of a longer one a name says nothing."""


def named_values(name: str, text: str) -> list[str]:
    """The values that a text has for a field of such a name; none where the name says nothing of how they look, or the
    text has none or very many."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or len(text) > MOST_CHARACTERS:
        return []
    *before, last = words
    is_numbered = last == "id" and not _NUMBERED.isdisjoint(before)
    if last in _NUMBER and before:
        is_numbered = number_words().isdisjoint(words_of(text).split())  # "room number seven"
    found = list[str]()
    if last in _MAILS or (last == "address" and not _MAILS.isdisjoint(before)):
        found = _MAIL.findall(text)
        found = found if len(found) == len(_AT.findall(text)) else []  # one may be written in a way of its own
    elif last in _LINKS:
        found = _LINK.findall(text)
    elif last in _PHONES or (before[-1:] == ["phone"] and last in _NUMBER):
        found = [one for one in _numbers(text) if sum(map(str.isdigit, one)) >= PHONE_DIGITS]
    elif is_numbered:
        found = [*_numbers(text)]
    found = [*dict.fromkeys(found)]
    return found if len(found) <= MOST_VALUES else []


def _numbers(text: str) -> Iterator[str]:
    """Words with digits, and a few that stand together: each has a digit, or is of capital letters."""
    for line in text.splitlines():
        run = list[str]()
        for word in line.split():
            bare = word.strip(_MARKS)
            if not (any(map(str.isdigit, bare)) or _PART.fullmatch(bare)):
                run = []
                continue
            run = [*run[1 - MOST_PARTS :], word]
            for i in range(len(run)):
                value = " ".join(run[i:])
                value = value.strip(_MARKS) if ")" not in value[:-1] else value.rstrip(_MARKS)  # "(555) 010-4455"
                if any(map(str.isdigit, value)):
                    yield from (value, "#" + value) if run[i].startswith("#") else (value,)
            if word[-1] in _ENDS:
                run = []
