"""What a text has for a field by the field's name: `email` is one of its addresses, `url` one of its links.

A model that reads "The mailbox office@graystone.net belongs to Winifred." has then no word to be misled by. Other names
say less than they seem to: a `ticket` may be a class, a `phone` a thing, and many order numbers have no digit.
"""

from __future__ import annotations

import re

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_LOCAL = r"A-Za-z0-9.!#$%&'*+/=?^_`{|}~-"
_MAIL = re.compile(rf"(?<![\w{_LOCAL}])[{_LOCAL}]+@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{{2,}}(?![\w@-]|\.\w)")
_SPELT = re.compile(
    r"[＠﹫]|%40|[\[(]\s?at\s?[\])]|\b(?:dot|punkt|punto|ponto|point|arroba|arobase|klammeraffe)\b", re.I
)
"""What may be of an address that is written in another way."""
_LINK = re.compile(r"(?:\bhttps?://|\bwww\.)[!#-;=?-~]*[A-Za-z0-9/)_~#=&%-]", re.I)
_ELSEWHERE = re.compile(r"://|\b[\w-]+\.[a-z]{2,}\b", re.I)
"""What may be a link of another form."""
MOST_VALUES, MOST_CHARACTERS = 64, 2**12
"""Values of a text, and characters of it: of a longer one a name says nothing."""


def named_values(name: str, text: str) -> list[str]:
    """The values that a text has for a field of such a name; none where the name says nothing of how they look, or
    where the text has none, many, or perhaps one that is written in another way."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if len(text) > MOST_CHARACTERS or {"or", "and"} & {*words}:
        return []
    found = list[str]()
    if "".join(words).endswith(("email", "emailaddress")):
        found = [one.lstrip("'") for one in _MAIL.findall(text)]
        if len(found) < text.count("@") or _SPELT.search(_MAIL.sub(" ", text)):
            return []
    elif words[-1:] == ["url"]:
        links = (one.removesuffix("'s") for one in _LINK.findall(text))
        found = [one[: len(one) - max(0, one.count(")") - one.count("("))] for one in links]
        if _ELSEWHERE.search(_MAIL.sub(" ", _LINK.sub(" ", text))) or not text.isascii():
            return []
    found = [*dict.fromkeys(found)]
    return found if len(found) <= MOST_VALUES else []
