"""Regular expressions to automata over UTF-8, through outlines-core.

Two spellings come in: `regex=`, which the whole answer has to match, and a schema's `pattern`, which is ECMA 262 and
may match anywhere in a string. The library speaks Rust's dialect, where classes are Unicode's; ECMA's are translated. What
no automaton can do (look-around, back references, word borders) is refused by name.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from redraft.constrain.automaton import NOWHERE, Dfa
from redraft.errors import ConstraintError

_ECMA_SPACE = r"\t\n\x0B\x0C\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}"
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": _ECMA_SPACE}
_REFUSED = (
    (re.compile(r"\(\?<?[=!]"), "look-around"),
    (re.compile(r"\\[1-9]|\\k<"), "a back reference"),
    (re.compile(r"\\[bB]"), "a word border"),
)
_TOKEN = re.compile(
    r"\\u\{[0-9A-Fa-f]+\}|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|\\c[A-Za-z]|\\[pP]\{[^}]*\}|\\.|\(\?:|\(\?<\w+>|.",
    re.DOTALL,
)


def whole_match(pattern: str, *, name: str = "regex") -> Dfa:
    """Strings that match a regular expression from end to end, in the dialect of Rust's regex crate.

    Raises ConstraintError for what is no regular expression, or one that no automaton can be made of.
    """
    found = _compile(pattern, name)
    if found.is_empty:
        raise ConstraintError(f"{name} {pattern!r} matches no text at all")
    return found


def ecma_search(pattern: str) -> Dfa:
    """Strings in which an ECMA 262 pattern matches somewhere, as JSON Schema's `pattern` means it."""
    for refused, what in _REFUSED:
        if refused.search(re.sub(r"\\\\", "", pattern)):
            raise ConstraintError(f"pattern {pattern!r} has {what}, which no automaton can keep; write it without")
    return _compile("|".join(_anchored(branch, pattern) for branch in _branches(pattern)), "pattern", pattern)


@lru_cache(maxsize=256)
def _compile(pattern: str, name: str, shown: str | None = None) -> Dfa:
    from outlines_core import Index, Vocabulary

    # The library searches as Rust does, first alternative first, and forgets what a match has made unnecessary: of a|ab
    # it would keep a. A match that ends in a byte that nothing else ends in is never early; that byte is taken off
    # again, and no text may hold it.
    try:
        index = Index(rf"(?:{pattern})\x00", Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)}))
    except ValueError as error:
        reason = str(error).replace("\n", " ")[:200]
        raise ConstraintError(f"{name} {shown or pattern!r} cannot be made into an automaton: {reason}") from None
    moves = index.get_transitions()
    states = [index.get_initial_state()]
    states += [state for state in {*moves, *index.get_final_states()} if state != states[0]]
    number = {state: i for i, state in enumerate(states)}
    table = np.full((len(states), 256), NOWHERE, np.int32)
    for state, row in moves.items():
        for byte, target in row.items():
            if byte < 256:
                table[number[state], byte] = number[target]
    final = [number[state] for state in index.get_final_states()]
    accepts = np.isin(table[:, 0], final)
    table[:, 0] = NOWHERE
    columns, class_of = np.unique(table, axis=1, return_inverse=True)
    return Dfa(columns.astype(np.int32), class_of.reshape(-1).astype(np.int32), accepts).trimmed()


def _branches(pattern: str) -> list[list[str]]:
    """The pattern's outermost alternatives, each as its tokens in Rust's spelling."""
    found: list[list[str]] = [[]]
    depth, inside = 0, False
    for token in _TOKEN.findall(pattern):
        if inside:
            inside = token != "]"
            found[-1][-1] += _in_class(token)
            continue
        depth += token.startswith("(") - (token == ")")
        inside = token == "["
        if token == "|" and depth == 0:
            found.append([])
        else:
            found[-1].append(_outside(token))
    return found


def _anchored(tokens: list[str], pattern: str) -> str:
    """One alternative with anything before and behind it, but for where it is anchored."""
    begins, ends = tokens[:1] == ["^"], tokens[-1:] == ["$"]
    body = tokens[begins : len(tokens) - ends]
    if {"^", "$"} & set(body):
        raise ConstraintError(
            f"pattern {pattern!r} has ^ or $ inside it; an anchor can only begin or end a whole alternative"
        )
    return ("" if begins else "(?s:.*)") + "(?:" + "".join(body) + ")" + ("" if ends else "(?s:.*)")


def _outside(token: str) -> str:
    if token == ".":
        return r"[^\n\r\x{2028}\x{2029}]"
    if len(token) == 2 and token[0] == "\\" and token[1].lower() in _CLASSES:
        return f"[{'^' if token[1].isupper() else ''}{_CLASSES[token[1].lower()]}]"
    return _escape(token)


def _in_class(token: str) -> str:
    if token in ("[", "&", "~"):  # Rust reads these as operators on sets
        return "\\" + token
    if len(token) == 2 and token[0] == "\\" and token[1].lower() in _CLASSES:
        members = _CLASSES[token[1].lower()]
        return f"[^{members}]" if token[1].isupper() else members
    return r"\x08" if token == r"\b" else _escape(token)


def _escape(token: str) -> str:
    """One escape of ECMA in Rust's spelling; everything else as it is."""
    if token.startswith(r"\u") and token[2:3] != "{":
        return rf"\x{{{token[2:]}}}"
    if token.startswith(r"\c"):
        return rf"\x{{{ord(token[2].upper()) - 64:X}}}"
    if token == r"\0":
        return r"\x00"
    if len(token) == 2 and token[0] == "\\" and token[1].isalpha() and token[1] not in "fnrtv":
        raise ConstraintError(f"{token} in a pattern is no escape that is known; write the character itself")
    return "(?P<" + token[3:] if token.startswith("(?<") else token
