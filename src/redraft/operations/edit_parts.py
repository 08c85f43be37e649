"""What a clause replaces: a value, or a part of one.

    Replace http by https in the url          url: "http://a" -> "https://a"
    Set LEVEL to debug                        Environment="LEVEL=info" -> "LEVEL=debug"

What would change several members is none, nor is a name in a number's place, or a value that runs on to another key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from redraft.operations.edit_member import quoted
from redraft.operations.edit_names import ASKING, mentions, named_by
from redraft.operations.edit_values import plain_of, stated

_REPLACING = re.compile(
    rf"{ASKING}(?:in (?:the )?(.+?),? )?(?:replace )?(.+?) (?:by|with) (.+?)(?: (?:in|for) (?:the )?(.+?))?[.!]?",
    re.IGNORECASE,
)
"""What a clause that replaces a value, or a part of one, says."""
_ASSIGNING = re.compile(
    rf"{ASKING}(?:set|change|update|put|make) (?:the )?([A-Za-z_][\w.-]*) (?:from \S+ )?to ([^\s,;\"'&]+?)[.!]?",
    re.IGNORECASE,
)


def replaced(members: Mapping[str, str], instruction: str, inside: Mapping[int, str]) -> dict[str, str]:
    """The value that a clause replaces, or replaces a part of, where there is one alone; `inside` are its quotes."""
    found = _REPLACING.fullmatch(instruction.strip())
    if found is None:
        return {}
    old, new = (found[group].translate(inside).strip("\"'`“”") for group in (2, 3))
    place = found[1] or found[4]
    part, changed = re.compile(rf"(?<![\w]){re.escape(old)}(?!\w)"), dict[str, str]()
    for key, value in members.items():
        if place and not any(one.end() == len(place) for one in mentions(key, place)):
            continue
        if value.startswith('"') and part.search(text := json.loads(value)):
            into = stated(key, quoted(old), new).value or ""
            is_whole = not into.startswith('"') or (text == old and new in ("null", "true", "false"))
            changed[key] = (into or value) if is_whole else quoted(json.loads(into).join(part.split(text)))
        elif value == old:
            changed[key] = plain_of(new)
    return changed if len(changed) == 1 else {}


def assigned(members: Mapping[str, str], text: str, inside: Mapping[int, str]) -> dict[str, str]:
    """The value in which one alone has a `NAME=` that a clause sets, as in Environment="LEVEL=info" PORT=80."""
    found = _ASSIGNING.fullmatch(text.strip())
    if found is None or any(re.fullmatch(named_by(key), found[1], re.IGNORECASE) for key in members):
        return {}
    new = found[2].translate(inside).strip("\"'`“”")
    if re.search(r"\s", new):  # which would be several
        return {}
    form = re.compile(rf"(?<![\w.-]){re.escape(found[1])}=[^\s\"';&,]+")
    texts = {key: json.loads(value) for key, value in members.items() if value.startswith('"')}
    changed = {key: form.sub(lambda _: f"{found[1]}={new}", old) for key, old in texts.items() if form.search(old)}
    return {key: quoted(made) for key, made in changed.items()} if len(changed) == 1 else {}


def is_exchange(members: Mapping[str, str], text: str) -> bool:
    """Whether a clause replaces a key, and no value: a name takes no number's or version's place."""
    found = _REPLACING.fullmatch(text.strip())
    if found is None:
        return False
    keys = [key for key in members if re.fullmatch(named_by(key), found[2].strip("\"'`"), re.IGNORECASE)]
    return any(re.match(r'"?[\^~<>=v]*\d', members[key]) and not re.match(r"[\^~<>=v]*\d", found[3]) for key in keys)


def was_there(was: str, old: str) -> bool:
    """Whether what a clause says was there is the old value, as JSON, or a part of it; also where it says nothing."""
    was, old = was.strip("\"'` ").lower(), old.strip('"').lower()
    ends = r"(?<![\w.]){}(?![\w])(?!\.\d)"
    return not was or any(re.search(ends.format(re.escape(one)), two) for one, two in ((was, old), (old, was)))


def runs_on_to(members: Mapping[str, str], old: str, text: str) -> bool:
    """Whether behind a value in place of a word another key stands, as in "prod and port 81"."""
    if text[:1] in "\"'`“" or re.search(r"\s", old):
        return False
    keys = "|".join(map(named_by, members))
    return bool(re.search(rf"(?:,|\band) (?:the )?(?:{keys}) \S", text, re.IGNORECASE))
