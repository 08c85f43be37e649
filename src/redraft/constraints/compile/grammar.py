"""Context-free grammars in a small part of Lark's notation, followed to a depth.

    start: expr
    expr: term ("+" term)*           // sequences, | alternatives, ( ) groups, * + ? {2,5} repetitions
    term: /[0-9]{1,3}/ | "(" expr ")"

Text in quotes is JSON's, what stands between slashes is a regular expression (Rust's dialect, `\\/` for a slash), and
an `i` behind either ignores case. A
rule may be open inside itself up to a depth, a lesser one where the automaton is too large; deeper than that it has no
texts, so what cannot be written without going deeper is left out of the language. That makes it regular, and everything
that holds for a schema holds for it.

A grammar in llama.cpp's notation, GBNF (`root ::= "a" | [0-9]+`), is written in Lark's first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from redraft.constraints.compile.automaton import Dfa
from redraft.constraints.compile.builder import Builder, Part
from redraft.constraints.compile.limits import (
    DEFAULT_LIMITS,
    CompileLimits,
    OutOfReachError,
    TimeLimitError,
    check_time,
    compiling,
    time_limit,
)
from redraft.constraints.compile.regex import whole_match
from redraft.errors import ConstraintError

DEPTH = 4
GBNF_CHARS = 8192
"""Most characters of a grammar in GBNF: its translation takes time that grows with their square."""

_LEXEME = re.compile(
    r"""(?P<space>[ \t\r\n]+|//[^\n]*)|(?P<rule>[A-Za-z_]\w*[ \t]*:)|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<text>"(?:[^"\\\n]|\\.)*"(?:i\b)?)|(?P<regex>/(?:[^/\\\n]|\\.)+/(?:[imsux]+\b)?)|(?P<mark>[|()*+?]|\{\d{1,4}(?:,\d{0,4})?\})"""
)

_LITERAL = re.compile(r'"(?:[^"\\]|\\(?:.|\Z))*(?:"|\Z)|\[(?:[^\]\\]|\\(?:.|\Z))*(?:\]|\Z)|#[^\r\n]*', re.S)
"""Texts, classes and comments of GBNF; the end of the grammar ends one that is open."""
_CODE = re.compile(r"\\(?:(x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8})|.)", re.S)
"""A character by its number, or another escape."""
_ITEM = re.compile(r"\\(?:(x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8})|(.))|(.)", re.S)
"""One character of a class."""

_REPEATS: Mapping[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True)
class Node:
    """One piece of a rule: "text", "regex" or "name" with its word; of other pieces "all", "any" or the mark of a
    repetition."""

    kind: str
    word: str = ""
    parts: tuple[Node, ...] = ()


def compile_grammar(grammar: str, *, depth: int = DEPTH, limits: CompileLimits = DEFAULT_LIMITS) -> Dfa:
    """The texts of a grammar's rule `start`. Raises ConstraintError for rules that cannot be read or have no texts."""
    rules = read_grammar(grammar)
    with time_limit(limits):
        found = _deepest(rules, depth, limits)
    if found.is_empty:
        raise ConstraintError(f"no text satisfies the grammar to a depth of {depth}; give its recursion a way out")
    return found


def _deepest(rules: Mapping[str, Node], depth: int, limits: CompileLimits) -> Dfa:
    """The language with rules open inside themselves up to `depth` times, or half as often where it is too large."""
    builder = Builder(limits)
    try:
        return builder.finish(_Grammar(rules, builder, depth).part(Node("name", "start"), ()))
    except OutOfReachError as error:
        if not depth or isinstance(error, TimeLimitError):
            raise
        return _deepest(rules, depth // 2, limits)


def read_grammar(grammar: str, *, may_be_gbnf: bool = True) -> Mapping[str, Node]:
    """The rules by name. Raises ConstraintError naming the line."""
    tokens: list[tuple[str, str, int]] = []
    at, line = 0, 1
    while at < len(grammar):
        check_time()
        match = _LEXEME.match(grammar, at)
        if match is None and may_be_gbnf and "::=" in grammar:
            return read_grammar(_of_gbnf(grammar), may_be_gbnf=False)
        if match is None:
            raise ConstraintError(f"grammar, line {line}: {grammar[at : at + 20]!r} cannot be read")
        if match.lastgroup != "space":
            tokens.append((str(match.lastgroup), match[0], line))
        at, line = match.end(), line + match[0].count("\n")
    rules = _Reader(tokens).rules()
    if "start" not in rules:
        raise ConstraintError(f"the grammar has no rule start; its rules are {', '.join(rules) or 'none'}")
    return rules


def _of_gbnf(grammar: str) -> str:
    """The same grammar in Lark's notation. Raises ConstraintError."""
    if len(grammar) > GBNF_CHARS:
        raise ConstraintError(f"the grammar has {len(grammar)} characters; in GBNF {GBNF_CHARS} are read, shorten it")
    from llguidance.gbnf_to_lark import gbnf_to_lark  # imported here: every start would pay for it

    plain = _LITERAL.sub(_plain, grammar)
    try:
        found = gbnf_to_lark(plain)
    except Exception as error:  # the library raises bare ones, and whatever a torn grammar leads to
        raise ConstraintError(f"the grammar cannot be read as GBNF ({str(error) or type(error).__name__})") from None
    return "\n".join(line for line in found.split("\n") if not line.startswith("%llguidance"))


def _plain(literal: re.Match[str]) -> str:
    """A text, class or comment without what the library misreads, or Rust behind it."""
    found = literal[0]
    if found[0] == "[" and found[-1] == "]" and len(found) > len("[]"):
        return _class(found[1:-1])
    return _CODE.sub(_in_text, found) if found[0] == '"' else found


def _class(inside: str) -> str:
    """A class of characters as Rust has it: `[+--]` is a range in GBNF, and there a difference of classes."""
    negated, found, at = "^" * inside.startswith("^"), list[str](), 0
    items = [_item(match) for match in _ITEM.finditer(inside, len(negated))]
    while at < len(items):
        is_range = at + 2 < len(items) and items[at + 1] == ("-", True)
        low, high = items[at][0], items[at + 2 * is_range][0]
        at += 3 if is_range else 1
        if high < low or (is_range and max(len(low), len(high)) > 1):
            raise ConstraintError(f"the grammar has [{inside:.100}], where {low!r} to {high!r} is no range")
        found.append(_escaped(low) + (f"-{_escaped(high)}" if high != low else ""))
    return f"[{negated}{''.join(found)}]"


def _item(match: re.Match[str]) -> tuple[str, bool]:
    """A character of a class, or a class within it as `\\d`, and whether it stands there without an escape."""
    if match[3]:
        return match[3], True
    if match[1]:
        return _numbered(match), False
    escape = match[2]
    return {"n": "\n", "r": "\r", "t": "\t"}.get(escape, f"\\{escape}" if escape.isalnum() else escape), False


def _escaped(char: str) -> str:
    return char if len(char) > 1 or char.isalnum() or ord(char) > 0x7F else f"\\x{ord(char):02x}"


def _in_text(match: re.Match[str]) -> str:
    """An escape of a text: a character by its number as itself, for the library drops the number's zeros."""
    if match[1] is None:
        return match[0][1:] if match[0][1:] in ("[", "]") else match[0]
    char = _numbered(match)
    if char.isalnum() or ord(char) > 0x7F:
        return char
    if " " <= char <= "~" or char in "\n\r\t":
        return json.dumps(char)[1:-1]
    raise ConstraintError(f"the grammar has {match[0]}, a control character, in a text; write it in brackets")


def _numbered(match: re.Match[str]) -> str:
    """The character of a number. Raises ConstraintError."""
    code = int(match[1][1:], 16)
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        raise ConstraintError(f"the grammar has {match[0]}, which is no character")
    return chr(code)


class _Reader:
    """A reader by recursive descent, a method a level."""

    def __init__(self, tokens: list[tuple[str, str, int]]) -> None:
        self.tokens, self.at = [*tokens, ("end", "the end", tokens[-1][2] if tokens else 1)], 0

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while self.tokens[self.at][0] != "end":
            kind, word, line = self._take()
            if self._begins_rule(self.at - 1):
                kind, word, line = self._take()
            name = word.rstrip(": \t")
            if kind != "rule" or name in found:
                raise ConstraintError(
                    f"grammar, line {line}: {word!r}; a rule must begin here, and only once by a name"
                )
            found[name] = self._choice()
        return found

    def _take(self) -> tuple[str, str, int]:
        self.at += 1
        return self.tokens[self.at - 1]

    def _choice(self) -> Node:
        parts = [self._sequence()]
        while self.tokens[self.at][1] == "|" and self.tokens[self.at][0] == "mark":
            self._take()
            parts.append(self._sequence())
        return Node("any", parts=tuple(parts))

    def _sequence(self) -> Node:
        parts = []
        while self.tokens[self.at][0] in ("name", "text", "regex") or self.tokens[self.at][:2] == ("mark", "("):
            part = self._atom()
            while self._repeats():
                part = Node(self._take()[1], parts=(part,))
            parts.append(part)
        kind, word, line = self.tokens[self.at]
        if kind == "mark" and word not in "|)" and not self._begins_rule(self.at):
            raise ConstraintError(f"grammar, line {line}: {word!r} repeats nothing")
        return Node("all", parts=tuple(parts))

    def _begins_rule(self, at: int) -> bool:
        """Whether a `?` stands in front of a rule's name: Lark leaves its branch out of trees, and no text changes."""
        _, word, line = self.tokens[at]
        return word == "?" and self.tokens[at + 1][::2] == ("rule", line)

    def _repeats(self) -> bool:
        """Whether what was taken last is repeated: by a mark of its own line, for `?` may begin the next rule's."""
        kind, word, line = self.tokens[self.at]
        return kind == "mark" and word[0] in "*+?{" and line == self.tokens[self.at - 1][2]

    def _atom(self) -> Node:
        kind, word, line = self._take()
        if kind == "mark":
            inner = self._choice()
            if self._take()[:2] != ("mark", ")"):
                raise ConstraintError(f"grammar, line {line}: this bracket is never closed")
            return inner
        return Node(kind, word)


@dataclass(frozen=True)
class _Grammar:
    rules: Mapping[str, Node]
    builder: Builder
    depth: int

    def part(self, node: Node, open_rules: tuple[str, ...]) -> Part:
        """The texts of one piece, inside the rules that are open."""
        build = self.builder
        if node.kind == "text":
            text = _unquoted(node.word.removesuffix("i"))
            is_exact = node.word[-1] == '"'
            return build.literal(text.encode()) if is_exact else build.embed(whole_match(f"(?i:{re.escape(text)})"))
        if node.kind == "regex":
            pattern, _, flags = node.word[1:].rpartition("/")
            pattern = pattern.replace(r"\/", "/") + "\n" * ("x" in flags)  # a comment may end it
            return build.embed(whole_match(f"(?{flags}:{pattern})" if flags else pattern))
        if node.kind == "name":
            if node.word not in self.rules:
                raise ConstraintError(f"the grammar has no rule {node.word!r}; its rules are {', '.join(self.rules)}")
            if open_rules.count(node.word) > self.depth:
                return None
            check_time()
            with compiling(f"the grammar's rule {node.word!r}"):
                return self.part(self.rules[node.word], (*open_rules, node.word))
        if node.kind[0] in "*+?{":
            low, high = _REPEATS.get(node.kind) or _bounds(node.kind)
            return build.repeat(lambda: self.part(node.parts[0], open_rules), low, high)
        parts = [self.part(inner, open_rules) for inner in node.parts]
        return build.then(*parts) if node.kind == "all" else build.either(parts)


def _bounds(mark: str) -> tuple[int, int | None]:
    """The least and the most of `{3}`, `{2,}` or `{2,5}`. Raises ConstraintError."""
    low, comma, high = mark.strip("{}").partition(",")
    if max(len(low), len(high)) > 9:
        raise ConstraintError(f"the grammar repeats something {mark:.30}… times; that is more than any answer has")
    least, most = int(low), (int(high) if high else None) if comma else int(low)
    if most is not None and most < least:
        raise ConstraintError(f"the grammar repeats something {mark} times; the second number must not be less")
    return least, most


def _unquoted(word: str) -> str:
    try:
        text = str(json.loads(word))
        text.encode()
        return text
    except ValueError as error:
        raise ConstraintError(f"the grammar's {word} is no JSON string ({error})") from None
