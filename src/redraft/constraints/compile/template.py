"""Texts with holes: what stands around them is given, what goes in them is typed.

    port = {{port: int(1..65535)}}
    mode = "{{mode: enum(fast|safe)}}"
    name = "{{name: string(1..20)}}"

A hole is `{{name: kind}}`, or `{{name}}` alone where the kind is given beside the template. Kinds, with the characters
or values they may have in brackets:

    string(a..b)      characters of one line without quotes and backslashes      int(a..b)      an integer
    line(a..b)        any characters of one line                                 number(a..b)   a decimal
    code(a..b)        any characters                                             bool, date, time, uuid, email
    identifier(a..b)  a letter or underscore, then letters, digits, underscores  enum(a|b|c)    one of some texts
    regex(...)        what the expression matches

Types' names in the short form of a schema (str, text, integer, float, boolean) do as well.
A hole whose name comes twice is two holes. Holes grow and shrink with what fits them: the text around moves.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

from redraft.constraints.compile.automaton import NOWHERE, Compiled, Dfa, explore, intersect
from redraft.constraints.compile.builder import Builder, Part, any_of
from redraft.constraints.compile.keywords import FORMATS
from redraft.constraints.compile.limits import CompileLimits
from redraft.constraints.compile.regex import whole_match
from redraft.constraints.compile.schema import compile_schema
from redraft.constraints.compile.stated import stated_choice
from redraft.constraints.compile.values import number, text_of
from redraft.constraints.compile.verbatim import as_text, formatted_in, integers_in, numbers_in, parts_of
from redraft.constraints.language import Source
from redraft.constraints.places import Span
from redraft.constraints.validation import Problem, check_depth, contradictions, schema_problems
from redraft.errors import ConstraintError, did_you_mean
from redraft.prompts import CLOCK

# Nothing is given back, so that a text takes as long as it is long. A kind goes up to the first }}.
# A name begins with a letter; behind it come word characters and all beyond ASCII, such as marks, of which letters of
# many languages are made.
_NAME = r"[^\W\d](?:\w|[^\x00-\x7f\s])*+"
_HOLE = re.compile(rf"\{{\{{\s*+(?P<name>{_NAME})\s*+(?::(?P<kind>(?:(?!\}}\}}).)*+))?+\}}\}}", re.DOTALL)
_UNCLOSED = re.compile(
    rf"\{{\{{\s*+{_NAME}\s*+(?::(?:(?!\}}\}}|\{{\{{\s*+[^\W\d]).)*+)?+(?:\{{\{{\s*+[^\W\d]|\Z)", re.DOTALL
)
_KIND = re.compile(r"(?P<word>[a-z]+)(?:\((?P<inside>.*)\))?", re.DOTALL)
_RANGE = re.compile(r"(-?[0-9.]*?)\.\.(-?[0-9.]*)")


@dataclass(frozen=True)
class Hole:
    """A place to fill, by name, with the texts that may go there.

    `schema` is what a validator still has to read of the value; None if the texts are all there is to it.
    """

    name: str
    dfa: Dfa
    schema: Any = None
    checked: bool = False


@dataclass(frozen=True)
class Template:
    """Literal texts and holes, in turn; it begins and ends with a literal, which may be empty."""

    text: str
    literals: tuple[str, ...]
    holes: tuple[Hole, ...]
    verbatim: str = ""

    def source(self) -> Source:
        """The language of the filled texts."""

        def compile_it(limits: CompileLimits) -> Compiled:
            build = Builder(limits)
            parts: list[Part] = [build.literal(self.literals[0].encode())]
            before: Hole | None = None  # the holes so far that no text stands behind
            for hole, literal in zip(self.holes, self.literals[1:], strict=True):
                dfa = hole.dfa if before is None else _joined(before, hole, limits)
                before = None if literal else Hole(hole.name, dfa)
                if literal or hole is self.holes[-1]:
                    parts += [build.embed(dfa), build.literal(literal.encode())]
            return Compiled(build.finish(build.then(*parts)))

        digest = hashlib.sha256()
        for hole in self.holes:
            for array in (hole.dfa.table, hole.dfa.class_of, hole.dfa.accepts):
                digest.update(repr(array.shape).encode() + array.tobytes())
        return Source("template", self.text, compile_it, (digest.hexdigest(),), self.verbatim)

    @property
    def bare(self) -> str:
        """The text with its holes' names alone, as a prompt shows it."""
        names = (f"{{{{{hole.name}}}}}" for hole in self.holes)
        return "".join(part for pair in zip(self.literals, (*names, ""), strict=True) for part in pair)

    def values(self, filled: str) -> list[tuple[str, str]]:
        """(name, text) of each hole in a filled text; of several readings, each hole as long as can be, in order."""
        return [(hole.name, text) for hole, text, _ in self._filled(filled)]

    def spans(self, filled: str) -> list[Span]:
        """Where each of these stands, in characters."""
        return [(start, start + len(text)) for _, text, start in self._filled(filled)]

    @property
    def checked(self) -> bool:
        """Whether some hole has a schema of which a part is only read by a validator."""
        return any(hole.checked for hole in self.holes)

    def problems(self, filled: str) -> list[Problem]:
        """What a validator has to say against the values of holes with a schema, and where in the filled text."""
        found = []
        for hole, text, start in self._filled(filled):
            if hole.schema is None:
                continue
            for one in (schema_problems if hole.checked else contradictions)(hole.schema, text):
                begin, end = one.span or (0, len(text))
                found.append(Problem(f"hole {hole.name!r}, {one.reason}", (start + begin, start + end)))
        return found

    def _filled(self, filled: str) -> list[tuple[Hole, str, int]]:
        """Each hole with its text and where that begins, in characters. Raises ConstraintError for other texts."""
        data = filled.encode()
        if not data.startswith(self.literals[0].encode()):
            raise ConstraintError("the text does not begin as the template does")
        found = self._read(data, len(self.literals[0].encode()), 0, set())
        if found is None:
            raise ConstraintError("the text is no filling of the template")
        return [
            (hole, data[a:b].decode(), len(data[:a].decode())) for hole, (a, b) in zip(self.holes, found, strict=True)
        ]

    def _read(self, data: bytes, at: int, number: int, failed: set[tuple[int, int]]) -> list[Span] | None:
        """Spans of the holes from `number` on, if they can begin at `at`; dead ends are remembered."""
        if number == len(self.holes):
            return [] if at == len(data) else None
        if (at, number) in failed:
            return None
        literal = self.literals[number + 1].encode()
        for end in reversed(list(_ends(self.holes[number].dfa, data, at))):
            if data.startswith(literal, end):
                rest = self._read(data, end + len(literal), number + 1, failed)
                if rest is not None:
                    return [(at, end), *rest]
        failed.add((at, number))
        return None


def read_template(text: str, kinds: Mapping[str, Any] | None = None, verbatim: str = "") -> Template:
    """The holes of a text.

    `kinds` types holes by name: a kind as in the text, or a JSON Schema, whose values are written as JSON. Holes of
    `COPIED` kinds and of an enum, and a schema that no validator has to read, hold what the text `verbatim` states, if
    it states something that fits. Raises ConstraintError naming the hole.
    """
    given, used, verbatim = dict(kinds or {}), set(), as_text(verbatim)
    as_text(text, "template")
    if (begun := _UNCLOSED.search(text)) is not None:
        line = text.count("\n", 0, begun.start()) + 1
        raise ConstraintError(
            f"the hole {begun[0][:20]!r} in line {line} of the template is not closed; end it with }}}}"
        )
    literals, holes, at = [], [], 0
    for match in _HOLE.finditer(text):
        name, kind = match["name"], match["kind"] if match["kind"] is None else match["kind"].strip()
        if (kind is None) == (name not in given):
            both = (
                "is typed in the template and beside it"
                if kind
                else f"has no kind; write {{{{{name}: string}}}}, or int"
            )
            raise ConstraintError(f"hole {name!r} {both}")
        used.add(name)
        literals.append(text[at : match.start()])
        holes.append(_hole(name, given[name] if kind is None else kind, verbatim))
        at = match.end()
    for literal in (*literals, text[at:]):
        if misnamed := _MISNAMED.search(literal):
            raise ConstraintError(
                f"the hole {misnamed[0][:60]!r} has a name that is none; give it letters, digits and underscores alone"
            )
    if not holes and (found := _UNMARKED.search(text)):
        raise ConstraintError(f"the template has {found[0]:.60}; write the hole as {{{{{found[1]}: {found[2]}}}}}")
    if not holes:
        raise ConstraintError("the template has no hole; write one as {{name: string}}")
    if set(given) - used:
        names = ", ".join(hole.name for hole in holes)
        raise ConstraintError(f"the template has no hole {sorted(set(given) - used)[0]!r}; it has {names}")
    return Template(text, (*literals, text[at:]), tuple(holes), verbatim)


def _hole(name: str, kind: Any, verbatim: str) -> Hole:
    try:
        check_depth(kind)
        as_text(kind if isinstance(kind, str) else json.dumps(kind, ensure_ascii=False, default=repr), "kind")
        if isinstance(kind, str):
            dfa = _dfa(kind, verbatim)
            word = kind.partition("(")[0]
            stated = COPIED.get(_SAME.get(word, word)) if verbatim else None
            inside = intersect(dfa, stated(verbatim)) if stated else dfa
            return Hole(name, dfa if inside.is_empty else inside)
        found = compile_schema(kind, verbatim=verbatim)
        if found.checked and verbatim:  # of the few texts that are stated, perhaps none satisfies the validator
            found = compile_schema(kind)
        return Hole(name, found.dfa, kind, found.checked)
    except ConstraintError as error:
        raise type(error)(f"hole {name!r}: {error}") from None


def _dfa(kind: str, verbatim: str) -> Dfa:
    match = _KIND.fullmatch(kind)
    word, inside = (match["word"], match["inside"]) if match else (kind, None)
    word = _SAME.get(word, word)
    if "|" in kind and "(" not in kind:  # as the short form of a schema has them
        word, inside = "enum", "|".join(one.strip() for one in kind.split("|"))
        if {*inside.split("|")} <= {*_KINDS, *_SAME}:
            raise ConstraintError(f"{kind!r} are kinds; a hole has one")
    if word == "enum" and inside:
        return any_of(stated_choice(inside.split("|"), verbatim))
    if word == "regex" and inside:
        return whole_match(inside)
    if word in _PLAIN and not inside:
        return whole_match(_PLAIN[word])
    if word in ("enum", "regex"):
        raise ConstraintError(
            f"{kind!r} has nothing in it; write {'enum(one|two)' if word == 'enum' else 'regex([a-z]+)'}"
        )
    if word not in _COUNTED and word not in ("int", "number"):
        raise ConstraintError(f"no kind is {kind!r}; known: {', '.join(_KINDS)}{did_you_mean(word, _KINDS)}")
    ends = _range(kind, inside)
    found = _counted(word, *ends) if word in _COUNTED else number(*ends, whole=word == "int")
    if found.is_empty:
        raise ConstraintError(f"nothing fits {kind!r}")
    return found


def _range(kind: str, inside: str | None) -> tuple[Decimal | None, Decimal | None]:
    if not inside:
        return None, None
    if match := _RANGE.fullmatch(inside.strip()):
        with suppress(InvalidOperation):
            low, high = (Decimal(end) if end else None for end in match.groups())
            return low, high
    raise ConstraintError(f"{kind!r} has no range; write it as (1..20), (..20) or (1..)")


def _counted(word: str, low: Decimal | None, high: Decimal | None) -> Dfa:
    low = low or Decimal()
    if not 0 <= low <= 1000 or (high is not None and not low <= high <= 1000):
        ends = f"{low:.4g} to {'any number of' if high is None else f'{high:.4g}'}"
        raise ConstraintError(f"{word} is to have {ends} characters; both must be from 0 to 1000, in order")
    least, most = int(low), None if high is None else int(high)
    found = text_of(least, most)
    letters = _COUNTED[word]
    return found if letters is None else intersect(found, letters())


def _without(*bytes_out: int) -> Dfa:
    return explore(0, [bytes(b for b in range(256) if b not in bytes_out)], lambda _, __: 0, lambda _: True)


def _identifier() -> Dfa:
    letters = bytes(b for b in range(128) if chr(b).isalpha()) + b"_"
    return explore(0, [letters, b"0123456789"], lambda s, label: None if s == 0 and label else 1, lambda s: s > 0)


_COUNTED: Mapping[str, Callable[[], Dfa] | None] = {
    "string": lambda: _without(*b"\n\r\"'\\`"),
    "line": lambda: _without(*b"\n\r"),
    "code": None,
    "identifier": _identifier,
}
_ADDRESSED = {"date": "date", "time": CLOCK, "uuid": "uuid", "email": "email"}
COPIED: Mapping[str, Callable[[str], Dfa]] = {
    **dict.fromkeys(("string", "line"), parts_of),
    "number": numbers_in,
    "int": integers_in,
    **{kind: partial(formatted_in, form=form) for kind, form in _ADDRESSED.items()},
}
"""Kinds of holes into which parts of a text go, or its numbers, dates, times and addresses."""
_PLAIN = {"bool": "true|false", "date": FORMATS["date"], "time": CLOCK[1:-1], "uuid": FORMATS["uuid"],
          "email": FORMATS["email"]}  # fmt: skip
_SAME = {"integer": "int", "float": "number", "boolean": "bool", "str": "string", "text": "line"}
"""Kinds by their names in the short form of a schema."""
_KINDS = (*_COUNTED, "int", "number", "enum", "regex", *_PLAIN)
_MISNAMED = re.compile(rf"\{{\{{\s*+[\w .-]{{1,80}}:\s*+(?:{'|'.join(_KINDS)})(?:\([^{{}}]*\))?+\s*+\}}\}}")
"""What looks like a hole of a known kind and is none."""
_UNMARKED = re.compile(rf"\{{\{{\s*+(\w{{1,40}}) +({'|'.join(_KINDS)})\s*+\}}\}}")
"""A hole as the short form of a schema would have it."""


def _joined(before: Hole, hole: Hole, limits: CompileLimits) -> Dfa:
    """One hole right behind another: where the first ends is everybody's guess, which can take many states."""
    build = Builder(limits)
    try:
        return build.finish(build.then(build.embed(before.dfa), build.embed(hole.dfa)))
    except ConstraintError as error:
        raise ConstraintError(
            f"hole {hole.name!r} is right behind hole {before.name!r}: {error}, or write some text between the two"
        ) from None


def _ends(dfa: Dfa, data: bytes, at: int) -> Iterator[int]:
    """Where a text of the language that begins at `at` may end."""
    state = 0
    for end in range(at, len(data) + 1):
        if dfa.accepts[state]:
            yield end
        state = dfa.step(state, data[end : end + 1])
        if state == NOWHERE:
            return
