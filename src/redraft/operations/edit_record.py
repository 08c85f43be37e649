"""Keys and values, as files of settings have them, edited as one record.

A model of single records was taught `{"host":"localhost","port":8080}`, on one line. Files have the same on many lines,
as JSON, TOML, YAML, INI or environment variables write it. So it is shown the members of such lines as one record, and
what it changes is written back into their lines; all other lines stay as they are, byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

MOST_MEMBERS = 8
"""Members of a record that nano was taught to change. Of more it is shown those that an instruction speaks of."""
MOST_CHARACTERS = 2**16
LEAST_SHARED = 4
"""Letters of a word that stand for it, as "debug" for "debugging"."""

_TEXT = r'"(?:[^"\\]|\\.)*"'
_MEMBER = re.compile(
    rf"(?P<lead>[ \t]*(?:export )?)(?P<key>{_TEXT}|[^\W\d][\w.-]*)(?P<sep>[ \t]*[:=][ \t]*)(?P<value>\S.*)"
)
_BARE_KEY = re.compile(r"[^\W\d][\w.-]*")
_PLAIN = re.compile(r"""[^\s"'{}\[\],#;&*!|>%@`](?:[^"'{}\[\]#;]*[^\s"'{}\[\]#;,])?""")
"""Values without quotes, of which no file of settings makes anything else."""
_FIXED = re.compile(
    rf"(?:#|;|//).*|\[[^\[\]{{}}]*\]|(?:{_TEXT}[ \t]*:[ \t]*)?[{{\[]|(?:{_TEXT}|-?\d[\d.]*|[}}\]]),?|[\w.-]+:|-\s.*|---"
)
"""Lines between members: comments, sections, the brackets and elements of lists. So is a member of another kind."""
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?")
_PIECE = re.compile(rf'(?:{_TEXT}|[^",{{}}\[\]])+,?')
"""A member of an object on one line, with the comma behind it."""


class _Number(str):
    """A number as it is written: 1.10 is not 1.1 in a file of versions."""

    __slots__ = ()


@dataclass(frozen=True)
class _Member:
    """A line of a key and its value. `is_bare` where the value is text without quotes."""

    lead: str
    key: str
    sep: str
    value: Any
    written: str
    end: str
    is_bare: bool

    @property
    def line(self) -> str:
        return f"{self.lead}{self.key}{self.sep}{self.written}{self.end}"

    @property
    def name(self) -> str:
        return str(json.loads(self.key)) if self.is_quoted else self.key

    @property
    def json(self) -> str:
        return json.dumps(self.value, ensure_ascii=False) if self.is_bare else self.written

    @property
    def is_quoted(self) -> bool:
        return self.key.startswith('"')

    def ending(self, *, comma: bool) -> _Member:
        """With or without a comma behind it."""
        return replace(self, end=("," if comma else "") + self.end.replace(",", ""))

    def of(self, value: Any, *, bare: bool) -> _Member:
        """With another value, written as this one is."""
        if isinstance(value, _Number):
            written = str(value)
        elif isinstance(value, str) and bare and _PLAIN.fullmatch(value):
            written = value
        elif value is None and "=" in self.sep:  # which has no null
            written = "" if bare else '""'
        else:
            written = json.dumps(value, ensure_ascii=False)
        return replace(self, value=value, written=written)

    def called(self, name: str) -> _Member:
        """With another key, written as this one is."""
        return replace(self, key=json.dumps(name, ensure_ascii=False) if self.is_quoted else name)

    def meant(self, said: frozenset[str]) -> int:
        """How much an instruction's words speak of it: the key counts more than the value."""
        return 4 * _shared(self.name, said) + _shared(re.sub(r"\b\w\b", "", str(self.value)), said)


@dataclass(frozen=True)
class Record:
    """Lines, or the pieces of one, of which some are members; the model is to see those that are `shown`.

    `said` are the words of the instruction, `lead` is the indentation of the first line.
    """

    lines: tuple[str | _Member, ...]
    shown: Mapping[int, _Member]
    said: frozenset[str]
    lead: str
    joint: str

    @property
    def text(self) -> str:
        """The members that are shown, as JSON on one line."""
        parts = (f"{json.dumps(one.name, ensure_ascii=False)}:{one.json}" for one in self.shown.values())
        return "{" + ",".join(parts) + "}"

    def after(self, answer: str) -> str | None:
        """The lines with what the answer, such a record, has changed. None if it cannot be written so.

        Where the instruction names a key, of the record or a new one, members that it does not speak of stay.
        """
        try:
            found = _loads(answer)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or any(isinstance(value, dict | list) for value in found.values()):
            return None
        members = [*self.shown.values()]
        names = {one.name for one in members}
        new, kept = [name for name in found if name not in names], set[str]()
        spoken = [name for name in new if _words(name) <= self.said]
        if spoken or any(_shared(name, self.said) for name in names):
            new, kept = spoken, {one.name for one in members if not one.meant(self.said)}
        if not all(members[0].is_quoted or _BARE_KEY.fullmatch(name) for name in new):
            return None
        gone = [one.name for one in members if one.name not in found and one.name not in kept]
        renamed = dict(zip(gone, new, strict=True)) if len(gone) == len(new) == 1 else {}
        bare = not any(one.is_quoted or (type(one.value) is str and not one.is_bare) for one in members)
        lines = list[str | _Member]()
        for i, line in enumerate(self.lines):
            one = self.shown.get(i)
            if one is None or one.name in kept:
                lines.append(line)
            elif (name := renamed.get(one.name, one.name)) in found:
                called = one if name == one.name else one.called(name)
                value = _alike(found[name], one.value)
                same = type(value) is type(one.value) and value == one.value
                lines.append(called if same else called.of(value, bare=bare or one.is_bare))
            elif "," not in one.end:  # the last of an object: the one above is the last now
                _end_above(lines)
        last = replace(members[-1], lead=(self.lead if max(self.shown) == 0 else "") + members[-1].lead)
        for name in () if renamed else new:
            _add(lines, last.called(name).of(found[name], bare=bare))
        if not self.joint and len(lines) > 1 and isinstance(lines[1], _Member):  # where the first was, perhaps
            lines[1] = replace(lines[1], lead=self.lines[1].lead if isinstance(self.lines[1], _Member) else "")
        return self.joint.join(line if isinstance(line, str) else line.line for line in lines)


def record_of(text: str, instruction: str, lead: str = "") -> Record | None:
    """The record that lines are, of which the first is indented by `lead`, or one line is; None for lines of another
    kind, and where two members that the instruction may mean have one name."""
    if len(text) > MOST_CHARACTERS:
        return None
    parts, joint = text.split("\n"), "\n"
    if len(parts) == 1 and text.startswith("{") and text.endswith("}"):
        pieces = [found[0] for found in _PIECE.finditer(text, 1, len(text) - 1)]
        parts, joint = ["{", *pieces, "}"], ""
        if "".join(parts) != text:
            return None
    lines = list[str | _Member]()
    for part in parts:
        member = _member(part)
        bare = part.strip()
        if member is None and bare and not (_FIXED.fullmatch(bare) or _MEMBER.fullmatch(part)):
            return None
        lines.append(part if member is None else member)
    members, said = {i: line for i, line in enumerate(lines) if isinstance(line, _Member)}, _words(instruction)
    if len(members) > MOST_MEMBERS:
        likely = sorted(members, key=lambda i: -members[i].meant(said))[:MOST_MEMBERS]
        members = {i: members[i] for i in sorted(likely)}
    names = {one.name for one in members.values()}
    if not members or len(names) < len(members):
        return None
    return Record(tuple(lines), MappingProxyType(members), said, lead, joint)


def is_json(text: str | bytes) -> bool:
    """Whether a text is one value of JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _member(line: str) -> _Member | None:
    body = line.rstrip(" \t\r").removesuffix(",").rstrip(" \t")
    found = _MEMBER.fullmatch(body)
    if found is None:
        return None
    key, written, is_bare = found["key"], found["value"], False
    try:
        json.loads(key if key.startswith('"') else "0")
        value = _loads(written)
    except (ValueError, RecursionError):
        if key.startswith('"') or not _PLAIN.fullmatch(written):
            return None
        value, is_bare = written, True
    if isinstance(value, dict | list):
        return None
    return _Member(found["lead"], key, found["sep"], value, written, line[len(body) :], is_bare)


def _loads(text: str) -> Any:
    """JSON, its numbers as they are written. Raises ValueError and RecursionError."""
    return json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=int)  # int("NaN") is a ValueError


def _alike(value: Any, before: Any) -> Any:
    """A number as text where it was text, and text of a number as a number where it was one."""
    if isinstance(value, _Number) and type(before) is str:
        return str(value)
    if isinstance(value, str) and isinstance(before, _Number) and _NUMBER.fullmatch(value):
        return _Number(value)
    return value


def _words(text: str) -> frozenset[str]:
    """Its words in small letters, those within names apart."""
    return frozenset(word.lower() for word in re.findall(r"[^\W\d_]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)))


def _shared(text: str, said: frozenset[str]) -> int:
    """How many words of a text were said, perhaps as the beginning of another or the other way round."""
    return sum(
        any(word == other or (word[:LEAST_SHARED] == other[:LEAST_SHARED] and _begins(word, other)) for other in said)
        for word in _words(text)
    )


def _begins(one: str, other: str) -> bool:
    return min(len(one), len(other)) >= LEAST_SHARED and (one.startswith(other) or other.startswith(one))


def _end_above(lines: list[str | _Member]) -> None:
    """Take the comma from the last line that is not blank."""
    for i in range(len(lines) - 1, -1, -1):
        line = lines[i]
        if isinstance(line, _Member):
            lines[i] = line.ending(comma=False)
        elif not line.strip():
            continue
        elif line.rstrip().endswith(("},", "],")):
            lines[i] = line.replace(",", "")
        return


def _add(lines: list[str | _Member], made: _Member) -> None:
    """Put a member behind the last one."""
    at = max((i for i, line in enumerate(lines) if isinstance(line, _Member)), default=0)
    before = lines[at]
    if isinstance(before, _Member) and made.is_quoted:
        made = made.ending(comma="," in before.end)
        lines[at] = before.ending(comma=True)
    lines.insert(at + 1, made)
