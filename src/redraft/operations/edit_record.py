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
from types import MappingProxyType
from typing import Any

from redraft.operations.formats import JSONS, Number, is_as_meant, judge_of, loads

MOST_MEMBERS = 8
"""Members of a record that nano was taught to change. Of more it is shown those that an instruction speaks of."""
MOST_CHARACTERS, MOST_LINES, MOST_LINE, MOST_SAID = 2**14, 500, 1000, 500
"""Characters of lines, how many these are, and characters of one and of an instruction: more is no record."""
MOST_NAME = 100  # characters of a key or value whose words are compared with those of an instruction
LEAST_SHARED = 4
"""Letters of a word that stand for it, as "debug" for "debugging"."""

_TEXT = r'"(?:[^"\\]|\\.)*"'
_KEYED = re.compile(
    rf"(?P<lead>[ \t]*(?:- +|export )?)(?P<key>{_TEXT}|[A-Za-z_][\w.-]*)(?P<sep>[ \t]*[:=][ \t]*)(?P<rest>\S.*|)",
    re.ASCII,
)
_NAMED = re.compile(rf"[ \t]*(?:- +)*(?:export )?({_TEXT}|[A-Za-z_][\w.-]*)[ \t]*[:=]", re.ASCII)
_QUOTED = re.compile(rf"{_TEXT}|'[^'\\]*'")
_COMMENT = re.compile(r"[ \t](?:#|//)")
_BARE_KEY = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_PLAIN = re.compile(r"""[^\s"'{}\[\],#;&*!|>%@`](?:[^"'{}\[\]#;]*[^\s"'{}\[\]#;,])?""")
"""Values without quotes, of which no file of settings makes anything else."""
_WORD = re.compile(r"[\w./:@%+-]*", re.ASCII)
"""Those that also a shell leaves as they are."""
_OPENS = re.compile(rf"\[[^\[\]{{}}]*\]|(?:{_TEXT}[ \t]*:[ \t]*)?[{{\[]|[\w.-]+:")
_FIXED = re.compile(rf"(?:#|;|//).*|{_OPENS.pattern}|(?:{_TEXT}|-?\d[\d.]*|[}}\]]),?|-\s.*|---|<<:.*")
"""Lines between members: comments, sections, the brackets and elements of lists. So is a member of another kind."""
_PIECE = re.compile(rf'(?:{_TEXT}|[^",{{}}\[\]])+,?')
"""A member of an object on one line, with the comma behind it."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", re.ASCII)


@dataclass(frozen=True)
class _Member:
    """A line of a key and its value. `is_bare` where the value is text without quotes. Behind the value may stand a
    comma and a comment, `end`."""

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
        is_plain = isinstance(self.value, str) and not isinstance(self.value, Number)
        return json.dumps(self.value, ensure_ascii=False) if is_plain else self.written

    @property
    def is_quoted(self) -> bool:
        return self.key.startswith('"')

    @property
    def has_comma(self) -> bool:
        return self.end.lstrip().startswith(",")

    def ending(self, *, comma: bool) -> _Member:
        """With or without a comma behind it."""
        end = self.end.replace(",", "", 1) if self.has_comma else self.end
        return replace(self, end="," + end if comma else end)

    def of(self, value: Any, *, bare: bool) -> _Member | None:
        """With another value, written as this one is; None if it cannot be."""
        is_shell, is_line = self.sep == "=", isinstance(value, str) and value.isprintable()
        if isinstance(value, Number):
            written = str(value)
        elif is_line and bare and (_WORD if is_shell else _PLAIN).fullmatch(value):
            written = value
        elif value is None and "=" in self.sep:  # which has no null
            written = "" if bare else '""'
        elif is_line and self.written.startswith("'") and not {*value} & {"'", "\\"}:
            written = f"'{value}'"
        else:
            written = json.dumps(value, ensure_ascii=False)
        if is_shell and re.search(r"[$`\\!]", written):
            return None
        return replace(self, value=value, written=written, is_bare=written == value)

    def called(self, name: str) -> _Member | None:
        """With another key, written as this one is; None if it cannot be."""
        if not self.is_quoted:
            return replace(self, key=name) if _BARE_KEY.fullmatch(name) else None
        return replace(self, key=json.dumps(name, ensure_ascii=False))

    def meant(self, said: frozenset[str]) -> int:
        """How much an instruction's words speak of it: the key counts more than the value."""
        return 4 * _shared(self.name, said) + _shared(re.sub(r"\b\w\b", "", str(self.value)), said)


@dataclass(frozen=True)
class Record:
    """Lines, or the pieces of one, of which some are members; the model is to see those that are `shown`.

    `names` are the keys of all lines, `said` the words of the instruction; `joint` stands between the lines.
    """

    lines: tuple[str | _Member, ...]
    shown: Mapping[int, _Member]
    names: frozenset[str]
    said: frozenset[str]
    joint: str

    @property
    def text(self) -> str:
        """The members that are shown, as JSON on one line."""
        parts = (f"{json.dumps(one.name, ensure_ascii=False)}:{one.json}" for one in self.shown.values())
        return "{" + ",".join(parts) + "}"

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
        lines = self._joined(self.lines)
        frames = [
            (before, behind),
            *([] if self._is_json else [("", "")]),
            *([("[lines]\n", "")] if self._is_ini else []),
        ]
        judged = next(((judge, at) for at in frames if (judge := judge_of(at[0] + lines + at[1])) is not None), None)
        if judged is None and self._is_shell and self._is_open:
            return None
        name = "" if judged is None else judged[0][0]
        careful = judged is None and not self._is_shell  # then values change alone, and texts are in quotes
        for bare in (False,) if careful else (True, False):  # text without quotes first, where there is any
            made = self._changed(found, bare=bare, commas=name in JSONS or not self.joint)
            new = None if made is None else self._joined(made.lines)
            if made is None or new is None or (careful and (made.gone or len(made.lines) != len(self.lines))):
                continue
            if judged is None:
                return new
            (_, old), (front, back) = judged
            if is_as_meant(name, old, front + new + back, made.wanted, made.gone):
                return new
        return None

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

    def _changed(self, found: Mapping[str, Any], *, bare: bool, commas: bool) -> _Change | None:
        members = [*self.shown.values()]
        names = {one.name for one in members}
        new, kept = [name for name in found if name not in names], set[str]()
        spoken = [name for name in new if (words := _words(name)) and words <= self.said]
        if spoken or any(_shared(name, self.said) for name in names):
            new, kept = spoken, {one.name for one in members if not one.meant(self.said)}
        gone = [one.name for one in members if one.name not in found and one.name not in kept]
        renamed = dict(zip(gone, new, strict=True)) if len(gone) == len(new) == 1 else {}
        if not self.names.isdisjoint(new):  # also of a line that is not shown
            return None
        mostly = bare and not any(one.is_quoted or (_is_text(one) and not one.is_bare) for one in members)
        lines, wanted = list[str | _Member](), dict[str, Any]()
        for i, line in enumerate(self.lines):
            one = self.shown.get(i)
            if one is None or one.name in kept:
                lines.append(line)
            elif (name := renamed.get(one.name, one.name)) in found:
                value = _alike(found[name], one.value)
                same = type(value) is type(one.value) and value == one.value
                called = one if name == one.name else one.called(name)
                made = called if same or called is None else called.of(value, bare=mostly or (bare and one.is_bare))
                if made is None:
                    return None
                lines.append(made)
                wanted |= {} if same and name == one.name else {name: value}
            elif commas and not one.has_comma:  # the last of an object: the one above is the last now
                _end_above(lines)
        for name in () if renamed else new:
            if not self._add(lines, name, found[name], bare=mostly, commas=commas):
                return None
            wanted[name] = found[name]
        return _Change(tuple(lines), wanted, {*gone})

    def _add(self, lines: list[str | _Member], name: str, value: Any, *, bare: bool, commas: bool) -> bool:
        """Put a new member, written as the one above it, into its place; False if there is none."""
        at = self._place(lines)
        last = None if at is None else lines[at]
        called = last.called(name) if isinstance(last, _Member) else None
        made = None if called is None else called.of(value, bare=bare)
        if at is None or made is None or not isinstance(last, _Member):
            return False
        made = replace(made, end=re.sub(r"[ \t]*(?:#|//).*", "", made.end))
        if commas:
            made, lines[at] = made.ending(comma=last.has_comma), last.ending(comma=True)
        lines.insert(at + 1, made)
        return True

    def _place(self, lines: list[str | _Member]) -> int | None:
        """The line behind which a new member goes: the last one of the block that the instruction names, or of the
        only one, or of the outermost. None if none of these is one alone."""
        last, opened, blocks = dict[tuple[int, int], int](), dict[int, int](), dict[tuple[int, int], str]()
        for i, line in enumerate(lines):
            if isinstance(line, _Member):
                depth = len(line.lead) if self.joint else 0
                above = max((at for width, at in opened.items() if width < depth or not width), default=-1)
                last[depth, above] = i
                blocks[depth, above] = str(lines[above]) if above >= 0 else ""
            elif _OPENS.fullmatch(line.strip()):
                opened[len(line) - len(line.lstrip())] = i
        named = [block for block, line in blocks.items() if _shared(line, self.said)]
        outer = [block for block in blocks if block[0] == min(depth for depth, _ in blocks)]
        chosen = next((some for some in ([*blocks], named, outer) if len(some) == 1), None)
        return None if chosen is None else last[chosen[0]]

    def _joined(self, lines: Sequence[str | _Member]) -> str:
        """The lines as text."""
        first, own = lines[1] if len(lines) > 1 else None, self.lines[1] if len(self.lines) > 1 else None
        if not self.joint and isinstance(first, _Member) and isinstance(own, _Member):
            lines = [lines[0], replace(first, lead=own.lead), *lines[2:]]  # where the first was, perhaps
        return self.joint.join(line if isinstance(line, str) else line.line for line in lines)


@dataclass(frozen=True)
class _Change:
    """Lines, the keys with another value than before, or new, and the keys that are gone."""

    lines: tuple[str | _Member, ...]
    wanted: Mapping[str, Any]
    gone: set[str]


def record_of(text: str, instruction: str) -> Record | None:
    """The record that lines are, or that an object on one line is; None for lines of another kind, and where the
    instruction leaves open which of two members of one name it means."""
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
    lines = list[str | _Member]()
    for part in parts:
        member, bare = _member(part), part.strip()
        if member is None and bare and not (_FIXED.fullmatch(bare) or _KEYED.fullmatch(part)):
            return None
        lines.append(part if member is None else member)
    said = _words(instruction)
    members = _told_apart(lines, said)
    if len(members) > MOST_MEMBERS:
        likely = sorted(members, key=lambda i: -members[i].meant(said))[:MOST_MEMBERS]
        members = {i: members[i] for i in sorted(likely)}
    if not members:
        return None
    if any(_SURROGATE.search(f"{one.name}{one.value}") for one in members.values()):
        return None
    names = {found[1].strip('"') for part in parts if (found := _NAMED.match(part))}
    return Record(tuple(lines), MappingProxyType(members), frozenset(names), said, joint)


def _told_apart(lines: Sequence[str | _Member], said: frozenset[str]) -> dict[int, _Member]:
    """The members by their lines; of several with one name the one that an instruction's words mean, by what stands
    above it or by its value. None of them if it means none, or leaves open which."""
    found = dict[str, list[tuple[int, _Member]]]()
    for i, line in enumerate(lines):
        if isinstance(line, _Member):
            found.setdefault(line.name, []).append((i, line))
    chosen = dict[int, _Member]()
    for name, some in found.items():
        if len(some) > 1:
            scores = [2 * _shared(" ".join(_above(lines, i)), said) + one.meant(said) for i, one in some]
            best = [one for one, score in zip(some, scores, strict=True) if score == max(scores)]
            some = best if len(best) == 1 and _shared(name, said) else []
        chosen |= dict(some)
    return dict(sorted(chosen.items()))


def _above(lines: Sequence[str | _Member], at: int) -> Iterator[str]:
    """The lines that a member lies under: of sections, of objects, and of elements of lists."""
    member = lines[at]
    depth = len(member.lead) if isinstance(member, _Member) else 0
    for line in reversed(lines[:at]):
        if isinstance(line, str) and (bare := line.strip()):
            width = len(line) - len(line.lstrip())
            if (width < depth and (_OPENS.fullmatch(bare) or bare.startswith("- "))) or bare.startswith("["):
                yield bare
                depth = width
                if bare.startswith("["):
                    return


def _pieces(text: str) -> Iterator[str]:
    """What stands between the braces of an object on one line, a member each, as far as it is one."""
    at = 1
    while found := _PIECE.match(text, at, len(text) - 1):
        yield found[0]
        at = found.end()


def _member(line: str) -> _Member | None:
    found = _KEYED.fullmatch(line)
    if found is None:
        return None
    key, rest, is_bare = found["key"], found["rest"], False
    if (not rest and "=" not in found["sep"]) or ("- " in found["lead"] and found["sep"] != "="):
        return None
    if quoted := _QUOTED.match(rest):
        written = quoted[0]
    else:
        comment = _COMMENT.search(rest)
        written = rest[: comment.start() if comment else None].rstrip()
        written = written if "=" in found["sep"] else written.removesuffix(",").rstrip()
    end = rest[len(written) :].strip()
    if end.removeprefix(",").lstrip() and not end.removeprefix(",").lstrip().startswith(("#", "//")):
        return None
    try:
        json.loads(key if key.startswith('"') else "0")
        value = written[1:-1] if written.startswith("'") else loads(written)
    except (ValueError, RecursionError):
        if "/*" in written or (key.startswith('"') and found["sep"].strip() == ":" and end.startswith(",")):
            return None
        if written and not _PLAIN.fullmatch(written):
            return None
        value, is_bare = written, True
    if isinstance(value, dict | list):
        return None
    return _Member(found["lead"], key, found["sep"], value, written, rest[len(written) :], is_bare)


def _is_text(one: _Member) -> bool:
    return isinstance(one.value, str) and not isinstance(one.value, Number)


def _alike(value: Any, before: Any) -> Any:
    """A value of the type that was there: a number in place of its text and the other way round, and True where a file
    writes it so."""
    if isinstance(before, str) and not isinstance(before, Number):
        if isinstance(value, bool) and before in ("True", "False"):
            return str(value)
        return str(value) if isinstance(value, Number) else value
    if isinstance(before, bool) and value in ("true", "false"):
        return value == "true"
    if isinstance(value, str) and (before is None or isinstance(before, Number)) and _NUMBER.fullmatch(value):
        return Number(value)
    return value


def _words(text: str) -> frozenset[str]:
    """Its words in small letters, those within names apart."""
    return frozenset(word.lower() for word in re.findall(r"[^\W\d_]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)))


def _shared(text: str, said: frozenset[str]) -> int:
    """How many words of a text were said, perhaps as the beginning of another or the other way round."""
    return sum(word in said or any(_begins(word, other) for other in said) for word in _words(text[:MOST_NAME]))


def _begins(one: str, other: str) -> bool:
    return min(len(one), len(other)) >= LEAST_SHARED and (one.startswith(other) or other.startswith(one))


def _end_above(lines: list[str | _Member]) -> None:
    """Take the comma from the last line that is neither blank nor a comment."""
    for i in range(len(lines) - 1, -1, -1):
        line = lines[i]
        if isinstance(line, _Member):
            lines[i] = line.ending(comma=False)
        elif not line.strip() or line.lstrip().startswith(("#", "//", ";")):
            continue
        elif line.rstrip().endswith(","):
            lines[i] = line.rstrip()[:-1] + line[len(line.rstrip()) :]
        return
