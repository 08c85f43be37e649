"""A line of a key and its value, as files of settings have it, and what an instruction's words mean of such lines."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redraft.operations.formats import Number, loads

MOST_NAME = 100  # characters of a key or value whose words are compared with those of an instruction
SHORT = ("Inc", "Ltd", "Corp", "Co", "Jr", "Sr", "St")
CUTS = re.compile("".join(rf"(?<!\b{word})" for word in SHORT) + r"[.;]\s+(?:and\s+)?|,?\s+(?:and|but)\s+|,\s+", re.I)
"""Where a clause of an instruction ends, perhaps; the point behind some words is no sentence's."""
SHORTENED = re.compile(rf"\b(?:{'|'.join(SHORT)})(?=\.(?!\w))")
LEAST_SHARED = 4
"""Letters of a word that stand for it, as "debug" for "debugging"."""

TEXT = r'"(?:[^"\\]|\\.)*"'
KEYED = re.compile(
    rf"(?P<lead>[ \t]*(?:- +|export )?)(?P<key>{TEXT}|[A-Za-z_][\w.-]*)"
    r"(?P<sep>[ \t]*[:=](?![:=])[ \t]*)(?P<rest>\S.*|)",
    re.ASCII,
)
_QUOTED = re.compile(rf"{TEXT}|'[^'\\]*'")
_COMMENT = re.compile(r"[ \t](?:#|//)")
_BARE_KEY = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_PLAIN = re.compile(r"""[^\s"'{}\[\],#;&*!|>%@`](?:[^"'{}\[\]#;]*[^\s"'{}\[\]#;,])?""")
"""Values without quotes, of which no file of settings makes anything else."""
_WORD = re.compile(r"[\w./:@%+=?,-]*", re.ASCII)
"""Those that also a shell leaves as they are."""
OPENS = re.compile(rf"\[[^\[\]{{}}]*\]|(?:{TEXT}[ \t]*:[ \t]*)?[{{\[]|[\w.-]+:")
_LITERAL = re.compile(r"""(?!["'#;])(?!.*\s[#;])\S(?:.*[^\s\\])?""")
"""Texts that can be the rest of a line, where all of it is one."""
_SEVERAL = re.compile(
    r".*\s(?:[A-Za-z_]\w*=|&&|\|\|?|[<>]).*"
    r"|-?\d[\d.]*\s+(?:[.~]{0,2}/\S.*|[a-z][\w.-]*\s(?:.*\s)?(?:--?[A-Za-z]|[.~]{0,2}/\w|\S+[./:]\w).*"
    r"|(?:env|exec|nohup|sudo|time|(?:ba|z)?sh|node|np[mx]|yarn|pnpm|bun|deno|python[\d.]*|uv|uvicorn|gunicorn|flask|java"
    r"|ruby|rails|bundle|php|go|cargo|dotnet|docker|podman|make|redraft)\s+\S.*)",
    re.DOTALL | re.ASCII,
)
"""Behind `KEY=`, what a shell reads more of than one value: other settings, and a command."""
_PERHAPS = re.compile(
    r"-?\d[\d.]*\s+(?!(?:to|per|of|or|and|in|at|on|by|x|o|an?|the|days?|hours?|h|min(?:utes?)?|s(?:ec(?:onds?)?)?|[kmgt]i?b"
    r"|items?|ms|mins|hrs|weeks?|months?|years?|times|percent|[ap]m|requests?|users?|frames|inches|px|km)\b)[a-z][\w.-]*\s+\S.*",
    re.DOTALL | re.ASCII,
)
"""Behind a key in capitals, what is a command or else is left, which is named."""
_OPENED = re.compile(r"[ \t]*(?:- +|export )?[A-Za-z_][\w.-]*(?:[ \t]*=[ \t]*(?=[`$])|=)(`|\$\(|\{(?=\S))", re.ASCII)
_IS_PATH = re.compile(r"[\w.%]:?\\+\w|[A-Za-z]:/|[=:]\s*\\+(?:\w|$)|%\\$")
_NOT_ON = re.compile(r"[ \t]*(?:[#;]|//|(?:- +)?[\w.-]+:[ \t])|[^#;]*\s[#;]\s")
"""Comments, and YAML, in which a backslash at the end of a line says nothing."""
_CLOSED = {"`": "`", "$(": ")", "{": "}"}
NEXT_LINE = "\n"
_OF_SHELL = re.compile(r"[A-Z_][A-Z0-9_]*|[a-z_][a-z0-9_]*", re.ASCII)
"""Its names; those of systemd's units and of Java's properties look otherwise."""
_COMMANDED = re.compile(r"\s(?:&&|\|\|)\s+[a-z.~/]")
"""A value behind which a shell's command follows, whatever the key."""
_OCTAL = re.compile(r"0[0-7]{3,4}", re.ASCII)
"""The rights of a file."""
NUMBER = r"-?(?:0|[1-9]\d*)(?:\.\d+)?"


_IN_QUOTES = re.compile(r"""(?<![\w\\])(["'`])(?=\S)(?:(?!\1).)*[^\s\\]\1(?!\w)|(?<!\w)“[^“”]+”""")
_SIGNS = 0xE000
"""The first of the characters that stand for nothing by themselves."""


@dataclass(frozen=True)
class Member:
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
        return quoted(self.value) if is_plain else self.written

    @property
    def is_quoted(self) -> bool:
        return self.key.startswith('"')

    @property
    def has_comma(self) -> bool:
        return self.end.lstrip().startswith(",")

    def ending(self, *, comma: bool) -> Member:
        """With or without a comma behind it."""
        end = self.end.replace(",", "", 1) if self.has_comma else self.end
        return replace(self, end="," + end if comma else end)

    def of(self, value: Any, *, bare: bool, literal: bool = False) -> Member | None:
        """With another value, written as this one is, or all of the rest of its line if texts are `literal`; None if it
        cannot be."""
        if literal and isinstance(value, str) and _LITERAL.fullmatch(value) and value.isprintable():
            return replace(self, value=value, written=value, is_bare=True)
        is_shell = self.sep == "=" and "." not in self.key  # a dotted one is of Java's properties, without quotes
        is_line = isinstance(value, str) and value.isprintable()
        if isinstance(value, Number):
            written = str(value)
        elif is_line and bare and (_WORD if is_shell else _PLAIN).fullmatch(value):
            written = value
        elif value is None and "=" in self.sep:  # which has no null, nor TOML an empty number or date
            if not (bare or (is_shell and self.key.isupper()) or self.written.startswith(('"', "'"))):
                return None
            written = "" if bare else '""'
        elif is_line and self.written.startswith("'") and not {*value} & {"'", "\\"}:
            written = f"'{value}'"
        else:
            written = json.dumps(value, ensure_ascii=False)
        if is_shell and re.search(r"[$`\\!]", written):
            return None
        return replace(self, value=value, written=written, is_bare=written == value)

    def called(self, name: str) -> Member | None:
        """With another key, written as this one is; None if it cannot be."""
        if not self.is_quoted:
            return replace(self, key=name) if _BARE_KEY.fullmatch(name) else None
        return replace(self, key=quoted(name))

    def meant(self, said: frozenset[str]) -> int:
        """How much an instruction's words speak of it: the key counts more than the value."""
        return 4 * shared(self.name, said) + shared(re.sub(r"\b\w\b", "", str(self.value)), said)


def going_on(line: str, end: str) -> str:
    """The sign that ends a value which goes on behind a line, as by a backslash or in backticks; empty if none does.
    Where one from above goes on, `end` ends it."""
    if end not in ("", NEXT_LINE):
        return "" if end in re.sub(r"[{(][^{}()]*[})]", "", line) else end
    is_odd = (len(line) - len(line.rstrip("\\"))) % 2 and not _NOT_ON.match(line)
    if is_odd and (re.search(r"[^=\s]\s+\\$", line) or not _IS_PATH.search(line)):  # C:\tmp\ ends there
        return NEXT_LINE
    found = _OPENED.match(line)
    return _CLOSED[found[1]] if found and _CLOSED[found[1]] not in line[found.end() :] else ""


def member_of(line: str) -> Member | None:
    """The key and the value of a line, if it has one value that is no list or object; else None."""
    found = KEYED.fullmatch(line)
    if found is None or ("=" in found["sep"] and going_on(line, "")):
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
        if written and (not _PLAIN.fullmatch(written) or " = " in written):  # `port: int = 8080` is code
            return None
        is_exported = "export" in found["lead"]
        is_named = is_exported or _OF_SHELL.fullmatch(key) or (key.isidentifier() and _COMMANDED.search(written))
        is_shell = found["sep"] == "=" and is_named
        is_several = _SEVERAL.fullmatch(written) or (key.isupper() and _PERHAPS.fullmatch(written))
        if is_shell and (is_several or (is_exported and " " in written)):
            return None
        value, is_bare = written, True
    if isinstance(value, dict | list):
        return None
    return Member(found["lead"], key, found["sep"], value, written, rest[len(written) :], is_bare)


def members_meant(lines: Sequence[str | Member], instruction: str) -> dict[int, Member]:
    """The members by their lines, without those that an instruction's words do not mean although they name their keys:
    what lies in another section than the one that it names, and of several with one name all but the one that lies
    under what it names, or has the value that it names. None of these if it leaves open which; of names that differ in
    case and signs alone, as max_retries and maxRetries, the one that it spells as it is."""
    instruction, _ = hidden(instruction)
    said, clauses = words_of(instruction), CUTS.split(instruction)
    found, heads, unread = dict[str, list[tuple[int, Member]]](), set[str](), dict[str, str]()
    for i, line in enumerate(lines):
        if isinstance(line, Member):
            found.setdefault(line.name, []).append((i, line))
        else:
            bare = re.sub(r"[ \t]#.*", "", line).strip()
            keyed, opens = KEYED.fullmatch(line), OPENS.fullmatch(bare) or bare.startswith("- ")
            heads |= words_of(bare[:MOST_NAME] if opens else keyed["key"] if keyed else "")
            if keyed or opens:
                unread[(keyed["key"] if keyed else bare).strip('[]{}:" ').lower()] = line
    chosen = dict[int, Member]()
    for name, some in found.items():
        own = " ".join(clause for clause in clauses if shared(name, words_of(clause)))
        where = next((at for at in (_places_said(own), _places_said(instruction)) if heads & at), _places_said(own))
        sections = heads & where
        if shared(name, said) and (len(some) > 1 or sections):
            named = sections - words_of(name)
            inside = [len(words_of(" ".join(above(lines, i))) & named) for i, _ in some]
            best = [one for one, score in zip(some, inside, strict=True) if score == max(inside)]
            if max(inside) == 0 and named:
                best = []
            elif len(best) > 1:
                values = [shared(re.sub(r"\b\w\b", "", str(one.value)), where) for _, one in best]
                best = [one for one, score in zip(best, values, strict=True) if score == max(values) > 0]
            some = best
        chosen |= dict(some) if len(some) == 1 else {}
    alike = Counter(_loose(one.name) for one in chosen.values())
    heads_of = ((re.split(r" to |=", clause)[0], clause) for clause in clauses)  # without new values; "Assign 5 to a"
    ahead = " ".join(head if any(shared(name, words_of(head)) for name in found) else own for head, own in heads_of)
    spelled = {one.name: ahead if shared(one.name, words_of(ahead)) else instruction for one in chosen.values()}
    kept = {
        i: one for i, one in chosen.items() if alike[_loose(one.name)] == 1 or _is_spelled(one.name, spelled[one.name])
    }
    if meant := [words_of(key) for key in unread if key and _is_spelled(key, instruction.lower())]:
        # PORTS=[80, 90] is meant, which nothing here reads, and no DB_PORTS.
        beside = "\n".join(unread.values())
        stated = {i for i, one in kept.items() if _is_stated(one, instruction) and not _is_stated(one, beside)}
        kept = {i: one for i, one in kept.items() if i in stated or not any(_has_more(one, key, said) for key in meant)}
    alike = Counter(_loose(one.name) for one in kept.values())
    return {i: one for i, one in sorted(kept.items()) if alike[_loose(one.name)] == 1}


def _loose(name: str) -> str:
    """A name as instructions say it, in any case and with any signs between its words."""
    return re.sub(r"[\W_]+", "", name).lower()


def _has_more(one: Member, key: frozenset[str], said: frozenset[str]) -> bool:
    """Whether a member's name has the words of a key, and others that nobody said."""
    words = words_of(one.name)
    others = [word for word in words if not shared(word, key)]
    return (
        len(key) < len(words) and all(shared(word, words) for word in key) and not any(shared(w, said) for w in others)
    )


def _is_stated(one: Member, text: str) -> bool:
    """Whether a text has a member's value, letter for letter."""
    return re.search(rf"(?<![\w.-]){re.escape(str(one.value))}(?![\w-]|\.\w)", text) is not None


def _is_spelled(name: str, instruction: str) -> bool:
    """Whether an instruction has a name letter for letter."""
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", instruction) is not None


def hidden(text: str, keys: Iterable[str] = ()) -> tuple[str, dict[int, str]]:
    """A text with one sign in place of each of its parts in quotes that are no names of keys, so that no word of these
    is read as one of the instruction's; and the table by which `translate` puts them back."""
    parts, names = dict[int, str](), {words_of(key) for key in keys}

    def sign(found: re.Match[str]) -> str:
        inside = found[0][1:-1]
        if not re.search(r"[\s,;:=]", inside) or words_of(inside) in names:
            return found[0]
        parts[_SIGNS + len(parts)] = found[0]
        return chr(_SIGNS + len(parts) - 1)

    if any(_SIGNS <= ord(char) < _SIGNS + len(text) for char in text):
        return text, {}
    return _IN_QUOTES.sub(sign, text), parts


def _places_said(instruction: str) -> frozenset[str]:
    """The words of an instruction that may name a section or what is there now, and no new value; none if it names an
    exception."""
    if re.search(r"\b(?:except|but|not|other than|everywhere|all)\b", instruction, re.I):
        return frozenset()
    head, *tails = re.split(r" to |=", instruction)
    behind = re.findall(r"\b(?:in|of|for|under|from|at) (?:the )?([\w.-]+)", " ".join(tails))
    return words_of(" ".join([head, *behind]))


def above(lines: Sequence[str | Member], at: int) -> Iterator[str]:
    """The lines that a member lies under: of sections, of objects, and of elements of lists."""
    member = lines[at]
    depth = len(member.lead) if isinstance(member, Member) else 0
    for line in reversed(lines[:at]):
        if isinstance(line, str) and (bare := re.sub(r"[ \t]#.*", "", line).strip()):
            width = len(line) - len(line.lstrip())
            if (width < depth and (OPENS.fullmatch(bare) or bare.startswith("- "))) or bare.startswith("["):
                yield bare
                depth = width
                if bare.startswith("["):
                    return


def is_text(one: Member) -> bool:
    """Whether its value is a text, and no number."""
    return isinstance(one.value, str) and not isinstance(one.value, Number)


def alike(value: Any, before: Any) -> Any:
    """A value of the type that was there: a number in place of its text and the other way round, and True where a file
    writes it so."""
    if isinstance(before, str) and not isinstance(before, Number):
        if isinstance(value, str) and len(value) + 1 == len(before) and _OCTAL.fullmatch(before):
            return f"0{value}" if _OCTAL.fullmatch(f"0{value}") else value
        if isinstance(value, bool) and before in ("True", "False"):
            return str(value)
        return str(value) if isinstance(value, Number) else value
    if isinstance(before, bool) and value in ("true", "false"):
        return value == "true"
    if (
        isinstance(value, str)
        and (before is None or isinstance(before, Number))
        and re.fullmatch(NUMBER, value, re.ASCII)
    ):
        return Number(value)
    return value


def quoted(text: str) -> str:
    """A text as JSON."""
    return json.dumps(text, ensure_ascii=False)


def words_of(text: str) -> frozenset[str]:
    """Its words in small letters, those within names apart."""
    return frozenset(word.lower() for word in re.findall(r"[^\W\d_]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)))


def shared(text: str, said: frozenset[str]) -> int:
    """How many words of a text were said, perhaps as the beginning of another or the other way round."""
    return sum(word in said or any(_begins(word, other) for other in said) for word in words_of(text[:MOST_NAME]))


def _begins(one: str, other: str) -> bool:
    if min(len(one), len(other)) < LEAST_SHARED:
        return f"{one}s" == other or f"{other}s" == one
    return one.startswith(other) or other.startswith(one)
