"""Keys and values, as files of settings have them, edited as one record.

A model of single records was taught `{"host":"localhost","port":8080}`, on one line. Files have the same on many lines,
as JSON, TOML, YAML, INI or environment variables write it. So it is shown the members of such lines as one record, and
what it changes is written back into their lines; all other lines stay as they are, byte for byte. Where the file is
read by its format's own parser, that has to find what was meant, and nothing else changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from redraft.operations.edit_clauses import is_plain, said_of, stays
from redraft.operations.edit_language import REMOVING
from redraft.operations.edit_member import (
    CUTS,
    KEYED,
    NEXT_LINE,
    OPENS,
    TEXT,
    Member,
    above,
    alike,
    going_on,
    hidden,
    is_text,
    member_of,
    members_meant,
    quoted,
    shared,
    words_of,
)
from redraft.operations.edit_names import mentions, named_by
from redraft.operations.edit_wording import are_loud, plainly, spread
from redraft.operations.formats import JSONS, is_as_meant, judge_of, loads, read

MOST_MEMBERS = 8
"""Members of a record that nano was taught to change. Of more it is shown those that an instruction speaks of."""
MOST_CHARACTERS, MOST_LINES, MOST_LINE, MOST_SAID = 2**14, 500, 1000, 500
"""Characters of lines, how many these are, and characters of one and of an instruction: more is no record."""

_NAMED = re.compile(rf"[ \t]*(?:- +)*(?:export )?({TEXT}|[A-Za-z_][\w.-]*)[ \t]*[:=]", re.ASCII)
_FIXED = re.compile(rf"(?:#|;|//).*|{OPENS.pattern}|(?:{TEXT}|-?\d[\d.]*|[}}\]]),?|-\s.*|---|<<:.*")
"""Lines between members: comments, sections, the brackets and elements of lists. So is a member of another kind."""
_PLAIN = rf'(?:{TEXT}|[^",{{}}\[\]])'
_NESTED = rf"[\[{{](?:{_PLAIN}|,|[\[{{](?:{_PLAIN}|,)*[\]}}])*[\]}}]"
_PIECE = re.compile(rf"(?:{_PLAIN}|{_NESTED})+,?")
"""A member of an object on one line, with the comma behind it; also one that is a list or an object."""
_ADDS = frozenset(("add", "insert", "include"))
"""Words behind which a new key is none that another one had before."""
_PLACE = re.compile(r"(?:in|of|under|for|from) (?:the )?([\w.-]+)(?: (?:section|block|service|table|group))?", re.I)
"""Where a member lies, said behind its value."""
_SURROGATE = re.compile("[\ud800-\udfff]")


_AND_IT = re.compile(
    r"\brename\b.{1,300}?(?:\band|[,;.]) (?:then |also )?((?:set|change|make|update|give|put|turn)"
    r" it(?:s (?:value|default|content)s?)?\b[^;]*[^\s.,;!?])",
    re.I,
)
"""What else is to be done with a renamed member, which is not."""


@dataclass(frozen=True)
class Record:
    """Lines, or the pieces of one, of which some are members; the model is to see those that are `shown`.

    `names` are the keys of all lines, `said` the words of the instruction; `joint` stands between the lines.
    """

    lines: tuple[str | Member, ...]
    shown: Mapping[int, Member]
    names: frozenset[str]
    said: frozenset[str]
    joint: str

    @property
    def text(self) -> str:
        """The members that are shown, as JSON on one line."""
        return "{" + ",".join(f"{key}:{value}" for key, value in self._members.items()) + "}"

    @property
    def _members(self) -> dict[str, str]:
        """Their keys, as they are shown, and their values, both as JSON."""
        return {quoted(self._as_shown(one.name)): one.json for one in self.shown.values()}

    def asked(self, instruction: str) -> str:
        """An instruction in the words that a model of records was taught."""
        return plainly(self.lines, self.shown, instruction)

    @property
    def _is_loud(self) -> bool:
        return are_loud(self.shown.values())

    def _as_shown(self, name: str) -> str:
        return name.lower() if self._is_loud else name

    def after(self, answer: str, before: str = "", behind: str = "") -> str | None:
        """The lines with what the answer, such a record, has changed. None if it cannot be written so, with these texts
        before and behind the lines.

        Where the instruction names a key, of the record or a new one, members that it does not speak of stay.
        """
        try:
            found = loads(answer)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or any(isinstance(value, dict | list) for value in found.values()):
            return None
        if any(_SURROGATE.search(str(one)) for pair in found.items() for one in pair):
            return None
        if self._is_loud:
            found = {name.upper(): value for name, value in found.items()}
        lines = self._joined(self.lines)
        frames = [(before, behind)]
        frames += [] if self._is_json and not lines.startswith("{") else [("", "")]  # one object of several
        frames += [("[lines]\n", "")] if self._is_ini else []
        judged = next(((judge, at) for at in frames if (judge := judge_of(at[0] + lines + at[1])) is not None), None)
        if judged is None and self._is_shell and self._is_open:
            return None
        name = "" if judged is None else judged[0][0]
        careful = judged is None and not self._is_shell  # then values change alone, and texts are in quotes
        for bare in (False,) if careful else (True, False):  # text without quotes first, where there is any
            is_literal = not careful and self._is_literal and name != "TOML"
            made = self._changed(found, bare=bare, commas=name in JSONS or not self.joint, literal=is_literal)
            new = None if made is None else self._joined(made.lines)
            if made is None or new is None or (careful and (made.gone or len(made.lines) != len(self.lines))):
                continue
            if judged is None:
                return new
            (_, old), (front, back) = judged
            texts = name == "TOML" and self._is_shell and any(type(one) is str for one in made.wanted.values())
            if texts and not any(isinstance(one, str) for one in old.values()) and read("INI", front + lines + back):
                return None  # as systemd has them, without a text: they may be of either, and only one has quotes
            if is_as_meant(name, old, front + new + back, made.wanted, made.gone):
                return new
        return None

    def left_out(self, asked: str, answer: str) -> tuple[str, ...]:
        """The keys that an instruction speaks of, and that the answer has as they were, and in quotes the parts of it
        that nothing comes of."""
        members = self._members
        said = said_of(members, spread(members, asked))
        over = {i: words_of(" ".join(above(self.lines, i))) for i in self.shown}
        at = {
            word for i, one in self.shown.items() if quoted(self._as_shown(one.name)) in said.values for word in over[i]
        }
        parts = [part for part in said.unread if not ((place := _PLACE.fullmatch(part)) and words_of(place[1]) <= at)]
        unread, found, was = tuple(f'"{text.strip(" ,.;")}"' for text in parts), loads(answer), loads(self.text)
        named = {json.loads(key) for key in members if any(mentions(key, said.rest)) and not stays(key, said.rest)}
        same = {name for name in named if name in found and found[name] == was[name]}
        so = {name for name in same if re.search(rf"\b(?:to|=|:|be) {re.escape(str(was[name]))}(?!\w)", said.rest)}
        changed = {key for key in members if found.get(json.loads(key)) != was[json.loads(key)]}
        same |= {json.loads(key) for key, value in said.values.items() if value != members[key] and key not in changed}
        same |= {name for name in map(json.loads, (*said.renames, *said.removals)) if name in found}
        if found.keys() <= was.keys():
            read = {text for key in changed for text in said.spoken.get(key, ())}
            idle = {text for key, texts in said.spoken.items() for text in texts if json.loads(key) not in named}
            unread += tuple(f'"{text.strip(" ,.;")}"' for text in sorted((idle | {*said.adding}) - read))
        plain, inside = hidden(asked)
        more = _AND_IT.search(plain) if said.renames else None
        if more and not any((one := more[1].translate(inside)) in text or text.strip('"') in one for text in unread):
            unread += (f'"{more[1].translate(inside)}"',)
        return *(one.name for one in self.shown.values() if self._as_shown(one.name) in same - so), *unread

    def guesses(self, asked: str, answer: str) -> tuple[str, ...]:
        """The keys whose values, or whose being there at all, the answer has from a model and not from a clause that
        is certain."""
        said, found, was = said_of(self._members, spread(self._members, asked)), loads(answer), loads(self.text)
        certain = {*said.values, *said.removals, *said.renames, *said.new, *said.renames.values()}
        changed = [name for name in {**was, **found} if was.get(name, was) != found.get(name, was)]
        names = {self._as_shown(one.name): one.name for one in self.shown.values()}
        return tuple(names.get(name, name) for name in changed if quoted(name) not in certain)

    @property
    def _is_json(self) -> bool:
        return all(one.is_quoted and one.sep.strip() == ":" for one in self.shown.values())

    @property
    def _is_ini(self) -> bool:
        """Whether it may be read as a section of INI: also settings of Python, and environment variables."""
        pairs = all("=" in one.sep and not one.is_quoted and not one.lead for one in self.shown.values())
        return pairs and not self._is_open

    @property
    def _is_open(self) -> bool:
        """Whether a text in quotes may go on behind a line."""
        others = (line for line in self.lines if isinstance(line, str) and not line.lstrip().startswith("#"))
        return any(line.count(quote) % 2 for line in others for quote in "\"'")

    @property
    def _is_shell(self) -> bool:
        return all(one.sep == "=" for one in self.shown.values())

    @property
    def _is_literal(self) -> bool:
        """Whether texts have no quotes, as in services and Java's properties, where these would be a part of them."""
        members = [line for line in self.lines if isinstance(line, Member)]
        heads = [line for line in self.lines if isinstance(line, str) and re.match(r"\[[^\[\]]+\]\s*$", line)]
        grouped = bool(heads) or any("." in one.name for one in members)
        is_plain = all("=" in one.sep and (one.is_bare or not is_text(one)) for one in members)
        return grouped and is_plain and any(one.is_bare for one in members)

    def _changed(self, found: Mapping[str, Any], *, bare: bool, commas: bool, literal: bool) -> _Change | None:
        members = [*self.shown.values()]
        names = {one.name for one in members}
        new, kept = [name for name in found if name not in names], set[str]()
        spoken = [name for name in new if (words := words_of(name)) and words <= self.said]
        if spoken or any(shared(name, self.said) for name in names):
            new, kept = spoken, {one.name for one in members if not one.meant(self.said)}
        if not new and not REMOVING.search(" ".join(self.said)):
            kept |= names - found.keys()
        gone = [one.name for one in members if one.name not in found and one.name not in kept]
        renamed = {} if _ADDS & self.said else _renamed(members, found, gone, new)
        if not self.names.isdisjoint(new):  # also of a line that is not shown
            return None
        mostly = bare and not any(one.is_quoted or (is_text(one) and not one.is_bare) for one in members)
        lines, wanted = list[str | Member](), dict[str, Any]()
        for i, line in enumerate(self.lines):
            one = self.shown.get(i)
            if one is None or one.name in kept:
                lines.append(line)
            elif (name := renamed.get(one.name, one.name)) in found:
                value = alike(found[name], one.value)
                same = type(value) is type(one.value) and value == one.value
                called = one if name == one.name else one.called(name)
                own = mostly or (bare and one.is_bare)
                made = called if same or called is None else called.of(value, bare=own, literal=literal)
                if made is None:
                    return None
                lines.append(made)
                wanted |= {} if same and name == one.name else {name: value}
            elif commas and not one.has_comma:  # the last of an object: the one above is the last now
                _end_above(lines)
        for name in () if renamed else new:
            if not self._add(lines, name, found[name], bare=mostly, commas=commas, literal=literal):
                return None
            wanted[name] = found[name]
        return _Change(tuple(lines), wanted, {*gone})

    def _add(
        self, lines: list[str | Member], name: str, value: Any, *, bare: bool, commas: bool, literal: bool
    ) -> bool:
        """Put a new member, written as the one above it, into its place; False if there is none."""
        at = self._place(lines)
        last = None if at is None else lines[at]
        called = last.called(name) if isinstance(last, Member) else None
        made = None if called is None else called.of(value, bare=bare, literal=literal)
        if at is None or made is None or not isinstance(last, Member):
            return False
        made = replace(made, end=re.sub(r"[ \t]*(?:#|//).*", "", made.end))
        if commas:
            made, lines[at] = made.ending(comma=last.has_comma), last.ending(comma=True)
        lines.insert(at + 1, made)
        return True

    def _place(self, lines: list[str | Member]) -> int | None:
        """The line behind which a new member goes: the last one of the block that the instruction names, or of the
        only one, or of the outermost. None if none of these is one alone."""
        last, opened, blocks = dict[tuple[int, int], int](), dict[int, int](), dict[tuple[int, int], str]()
        for i, line in enumerate(lines):
            if isinstance(line, Member):
                depth = len(line.lead) if self.joint else 0
                above = max((at for width, at in opened.items() if width < depth or not width), default=-1)
                last[depth, above] = i
                blocks[depth, above] = str(lines[above]) if above >= 0 else ""
            elif OPENS.fullmatch(line.strip()):
                opened[len(line) - len(line.lstrip())] = i
        named = [block for block, line in blocks.items() if shared(line, self.said)]
        outer = [block for block in blocks if block[0] == min(depth for depth, _ in blocks)]
        chosen = next((some for some in ([*blocks], named, outer) if len(some) == 1), None)
        return None if chosen is None else last[chosen[0]]

    def _joined(self, lines: Sequence[str | Member]) -> str:
        """The lines as text."""
        first, own = lines[1] if len(lines) > 1 else None, self.lines[1] if len(self.lines) > 1 else None
        if not self.joint and isinstance(first, Member) and isinstance(own, Member):
            lines = [lines[0], replace(first, lead=own.lead), *lines[2:]]  # where the first was, perhaps
        return self.joint.join(line if isinstance(line, str) else line.line for line in lines)


@dataclass(frozen=True)
class _Change:
    """Lines, the keys with another value than before, or new, and the keys that are gone."""

    lines: tuple[str | Member, ...]
    wanted: Mapping[str, Any]
    gone: set[str]


def too_large(text: str, instruction: str) -> str:
    """Why lines are no record, where they or an instruction are too long for one; else empty."""
    if len(instruction) > MOST_SAID:
        return f"the instruction has {len(instruction)} characters; at most {MOST_SAID}: say less of it at a time"
    if (lines := text.count("\n") + 1) > MOST_LINES or len(text) > MOST_CHARACTERS:
        most = f"at most {MOST_LINES} and {MOST_CHARACTERS} are edited by an instruction"
        return f"the {lines} lines have {len(text)} characters; {most}: give some of them, as FILE:8-20"
    return ""


def record_of(text: str, instruction: str, most: int = MOST_MEMBERS) -> Record | None:
    """The record that lines are, or that an object on one line is, of which at most so many members are shown; None for
    lines of another kind, and where the instruction leaves open which of two members of one name it means."""
    if len(text) > MOST_CHARACTERS or len(instruction) > MOST_SAID or _SURROGATE.search(text):
        return None
    joint = "\r\n" if "\r" in text else "\n"
    parts = text.split(joint)
    if len(parts) > MOST_LINES or any("\n" in part or "\r" in part or len(part) > MOST_LINE for part in parts):
        return None
    if len(parts) == 1 and text.startswith("{") and text.endswith("}"):
        parts, joint = ["{", *_pieces(text), "}"], ""
        if "".join(parts) != text:
            return None
    lines, is_ini, end = list[str | Member](), False, ""
    for i, part in enumerate(parts):
        is_behind, end, bare = end, going_on(part, end), part.strip()
        if end not in ("", NEXT_LINE) and not is_behind and all(going_on(one, end) for one in parts[i + 1 :]):
            end = ""  # which nothing ends, so it is a sign of the value's
        member = None if is_behind else member_of(part)
        if member is None and bare and not (is_behind or is_ini or _FIXED.fullmatch(bare) or KEYED.fullmatch(part)):
            is_ini = read("JSON", text) is None and read("INI", text) is not None
            if not is_ini:  # which has keys without values, and values that go on in the next line
                return None
        lines.append(part if member is None else member)
    said = words_of(instruction)
    members = members_meant(lines, instruction)
    if len(members) > most:
        likely = sorted(members, key=lambda i: -members[i].meant(said))[:most]
        members = {i: members[i] for i in sorted(likely)}
    if not members:
        return None
    if any(_SURROGATE.search(f"{one.name}{one.value}") for one in members.values()):
        return None
    names = {found[1].strip('"') for part in parts if (found := _NAMED.match(part))}
    return Record(tuple(lines), MappingProxyType(members), frozenset(names), said, joint)


def _renamed(
    members: Sequence[Member], found: Mapping[str, Any], gone: Sequence[str], new: Sequence[str]
) -> dict[str, str]:
    """The new names of members: each stands where the one did that it was, and has its value, or none is removed."""
    keys, at, renamed = [*found], 0, dict[str, str]()
    for one in members:
        if one.name in found:
            at = keys.index(one.name) + 1
        elif (
            one.name in gone
            and (name := keys[at] if at < len(keys) else "") in new
            and (len(gone) == len(new) or alike(found[name], one.value) == one.value)
        ):
            renamed[one.name], at = name, at + 1
    return renamed if [*renamed.values()] == [*new] else {}


def turns_of(text: str, instruction: str) -> list[str]:
    """An instruction in parts, each about one of several members of one name: "the server port to 1" and "the database
    port to 2"; whole if it speaks of no name twice."""
    names = [one.name for line in text.splitlines()[:MOST_LINES] if (one := member_of(line[:MOST_LINE])) is not None]
    doubled = {name for name in names if names.count(name) > 1} if len(instruction) <= MOST_SAID else set()
    masked, inside = hidden(instruction)
    setting = "|".join(rf"{named_by(quoted(name))}(?=(?: to|\s?=|:| should be| is) ?\S)" for name in sorted(doubled))
    if not doubled or not is_plain(masked) or len(places := [*re.finditer(setting, masked, re.IGNORECASE)]) < 2:
        return [instruction]
    parts, begun = list[str](), 0
    for before, behind in pairwise(places):
        cuts = [*CUTS.finditer(masked, before.end(), behind.start())]
        if cuts and before[0].lower() == behind[0].lower():
            parts.append(masked[begun : cuts[-1].start()].translate(inside))
            begun = cuts[-1].end()
    return [*parts, masked[begun:].translate(inside)]


def _pieces(text: str) -> Iterator[str]:
    """What stands between the braces of an object on one line, a member each, as far as it is one."""
    at = 1
    while found := _PIECE.match(text, at, len(text) - 1):
        yield found[0]
        at = found.end()


def _end_above(lines: list[str | Member]) -> None:
    """Take the comma from the last line that is neither blank nor a comment."""
    for i in range(len(lines) - 1, -1, -1):
        line = lines[i]
        if isinstance(line, Member):
            lines[i] = line.ending(comma=False)
        elif not line.strip() or line.lstrip().startswith(("#", "//", ";")):
            continue
        elif line.rstrip().endswith(","):
            lines[i] = line.rstrip()[:-1] + line[len(line.rstrip()) :]
        return
