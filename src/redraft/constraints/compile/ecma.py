"""A schema's `pattern`, which is ECMA 262 and may match anywhere in a string, in the dialect of Rust's regex crate.

Classes are Unicode's there; ECMA's are spelt out. A look-ahead at the beginning becomes an intersection, or is taken
away; anchors inside outermost groups belong to these groups' alternatives.
"""

from __future__ import annotations

import re

from redraft.constraints.compile.automaton import Dfa, intersect, subtract
from redraft.constraints.compile.limits import OutOfReachError, check_time
from redraft.constraints.compile.regex import REFUSED, compiled, refused_in

_ECMA_SPACE = r"\t\n\x0B\x0C\r \u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000\uFEFF"
_ECMA_DOT, _RUST_DOT = r"[^\n\r\u2028\u2029]", r"[^\n]"
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": _ECMA_SPACE}
_REFERENCE = re.compile(r"\\[1-9]")
_BESIDE = "(?:(?<=[{0}])(?{1}[{0}])|(?<![{0}])(?{2}[{0}]))"
_BORDERS = {r"\b": _BESIDE.format(_CLASSES["w"], "!", "="), r"\B": _BESIDE.format(_CLASSES["w"], "=", "!")}
_TOKEN = re.compile(
    r"\\u\{[0-9A-Fa-f]+\}|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|\\c[A-Za-z]|\\[pP]\{[^}]{1,64}\}|\\k<\w+>|\\.|\(\?:|\(\?<\w+>"
    r"|\{[0-9]+(?:,[0-9]*)?\}|.",
    re.DOTALL,
)

MOST_OPENED = 8
"""Groups in each other that are opened for the anchors inside them: each is gone through anew."""


class IrregularError(OutOfReachError):
    """A pattern that the validator reads and no automaton can keep."""


def irregular(pattern: str) -> str:
    """What an ECMA pattern has that no automaton can keep; an empty text if there is nothing."""
    check_time()
    if (parts := _look_ahead(pattern)) is not None:
        return irregular(parts[1]) or irregular("^" + parts[2])
    return refused_in(pattern)


def widest_search(pattern: str) -> Dfa:
    """All that any validator may take for a match, to be taken away where a pattern must not match: to some, a dot is
    \\r, U+2028 and U+2029, too."""
    return ecma_search(pattern, _RUST_DOT)


def ecma_search(pattern: str, dot: str = _ECMA_DOT) -> Dfa:
    """Strings in which an ECMA 262 pattern matches somewhere, as JSON Schema's `pattern` means it."""
    if what := irregular(pattern):
        raise IrregularError(f"pattern {pattern!r:.200} has {what}, which no automaton can keep; write it without")
    if (parts := _look_ahead(pattern)) is not None:
        sign, ahead, rest = parts
        other = _RUST_DOT if dot == _ECMA_DOT else _ECMA_DOT
        branches = _branches(ahead, dot if sign == "=" else other)
        begun = (branch if branch[:1] == ["^"] else ["^", *branch] for branch in branches)
        seen = compiled("|".join(_anchored(branch, pattern) for branch in begun), "pattern", pattern)
        return (intersect if sign == "=" else subtract)(ecma_search("^" + rest, dot), seen)
    return compiled("|".join(_anchored(branch, pattern) for branch in _branches(pattern, dot)), "pattern", pattern)


def _look_ahead(pattern: str) -> tuple[str, str, str] | None:
    """The sign, the inside and what follows of a look-ahead at the beginning of a pattern of one alternative, as
    pydantic has it for decimals; None if there is none."""
    if not pattern.startswith(("^(?=", "^(?!")):
        return None
    depth, inside, at, parts = 0, False, 1, list[str]()
    for token in _TOKEN.findall(pattern[1:]):
        at += len(token)
        depth += 0 if inside else token.startswith("(") - (token == ")")
        inside = token != "]" if inside else token == "["
        if token == "|" and depth == 0 and not inside:
            return None
        if token == ")" and depth == 0 and not parts:
            parts = [pattern[3], pattern[4 : at - 1], pattern[at:]]
    return (parts[0], parts[1], parts[2]) if parts else None


def _branches(pattern: str, dot: str = _ECMA_DOT) -> list[list[str]]:
    """The pattern's outermost alternatives, each as its tokens in Rust's spelling."""
    found: list[list[str]] = [[]]
    depth, inside, counts = 0, False, 0
    for token in _TOKEN.findall(pattern):
        check_time()
        if inside:
            inside = token != "]"
            before = found[-1][-1]
            if not inside and before in ("[", "[^"):  # empty to ECMA, and to others a class that holds it
                raise OutOfReachError(
                    rf"pattern {pattern!r:.200} has [], which is read in two ways; write \] or [\s\S]"
                )
            if token == "-" and before.endswith("-") and not before.endswith(r"\-"):  # Rust takes away what follows
                raise OutOfReachError(
                    rf"pattern {pattern!r:.200} has -- in a class, which is read in two ways; write \-"
                )
            found[-1][-1] += _in_class(token)
            continue
        counts = counts + 1 if token in ("*", "+", "?") or (token[0] == "{" != token) else 0
        if counts > 2 or (counts == 2 and token != "?"):  # Rust counts what is counted, ECMA has no such thing
            raise OutOfReachError(
                f"pattern {pattern!r:.200} counts a part twice; write (?:a{{2}}){{3}} for a{{2}}{{3}}"
            )
        depth += token.startswith("(") - (token == ")")
        inside = token == "["
        if token == "|" and depth == 0:
            found.append([])
        else:
            found[-1].append(dot if token == "." else _outside(token))
    return [one for branch in found for one in _opened(branch)]


def _opened(tokens: list[str], deep: int = MOST_OPENED) -> list[list[str]]:
    """An alternative that is one group with anchors inside it, as the alternatives of that group, and so up to `deep`
    groups in each other."""
    begins, ends = tokens[:1] == ["^"], tokens[-1:] == ["$"]
    body = tokens[begins : len(tokens) - ends]
    if not deep or not {"^", "$"} & set(body) or not body[0].startswith("(") or body[-1] != ")":
        return [tokens]
    found, depth = list[list[str]]([[]]), 0
    for token in body[1:-1]:
        check_time()
        depth += token.startswith("(") - (token == ")")
        if depth < 0:  # several groups
            return [tokens]
        if token == "|" and depth == 0:
            found.append([])
        else:
            found[-1].append(token)
    edges = ((["^"] * (begins and one[:1] != ["^"]), one, ["$"] * (ends and one[-1:] != ["$"])) for one in found)
    return [one for before, inner, behind in edges for one in _opened([*before, *inner, *behind], deep - 1)]


def _anchored(tokens: list[str], pattern: str) -> str:
    """One alternative with anything before and behind it, but for where it is anchored."""
    begins, ends = tokens[:1] == ["^"], tokens[-1:] == ["$"]
    body = tokens[begins : len(tokens) - ends]
    if {"^", "$"} & set(body):
        raise IrregularError(
            f"pattern {pattern!r:.200} has ^ or $ inside it; an anchor can only begin or end a whole alternative"
        )
    return ("" if begins else "(?s:.*)") + "(?:" + "".join(body) + ")" + ("" if ends else "(?s:.*)")


def for_rust(pattern: str) -> str:
    """An ECMA 262 pattern as Rust's fancy-regex reads it, if it has a dot or what no automaton can keep; another one as
    it is, since jsonschema-rs brings its classes into Rust's form by itself. Raises OutOfReachError for an unknown
    escape."""
    if "." not in pattern and not any(refused.search(pattern) for refused, _ in REFUSED):
        return pattern
    found, names, groups, tokens = list[str](), dict[str, int](), 0, _TOKEN.findall(pattern)
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token == "[":
            end = next((i for i in range(at, len(tokens)) if tokens[i] == "]"), len(tokens))
            if end == len(tokens):
                return pattern  # which is none
            found.append(_class(tokens[at + 1 : end]))
            at = end + 1
            continue
        groups += token.startswith("(?<") or (token == "(" and tokens[at + 1 : at + 2] != ["?"])
        if token.startswith("(?<"):
            names[token[3:-1]], token = groups, "("
        elif token.startswith(r"\k<"):
            if token[3:-1] not in names:
                return pattern  # a reference ahead of its group
            token = rf"\{names[token[3:-1]]}"
        found.append(_ECMA_DOT if token == "." else _BORDERS.get(token) or _outside(token))
        if _REFERENCE.fullmatch(token):  # a digit may follow
            found[-1] = f"(?:{token})"
        at += 1
    return "".join(found)


def _class(tokens: list[str]) -> str:
    """A class of ECMA's, without its brackets. What it says of all but some characters stands in a class of its own,
    since fancy-regex reads none in another."""
    negated, members, others = tokens[:1] == ["^"], "", list[str]()
    tokens = tokens[negated:]
    for before, token, behind in zip(["", *tokens], tokens, [*tokens[1:], ""], strict=False):
        if token in (r"\D", r"\W", r"\S"):
            others.append(_outside(token))
        elif token == "-" and (before == "-" or {before[1:].lower(), behind[1:].lower()} & _CLASSES.keys()):
            members += r"\-"
        elif token == "^":
            members += r"\^"
        else:
            members += _in_class(token)
    if members or not others:
        others.insert(0, f"[{members}]" if members else r"[^\s\S]")
    if negated:
        return rf"(?:(?!{'|'.join(others)})[\s\S])" if len(others) > 1 or not members else f"[^{members}]"
    return f"(?:{'|'.join(others)})" if len(others) > 1 else others[0]


def _outside(token: str) -> str:
    if token in ("{", "}"):  # no count of ECMA's, as {2, 3} is for Rust
        return "\\" + token
    if len(token) == 2 and token[0] == "\\" and token[1].lower() in _CLASSES:
        return f"[{'^' if token[1].isupper() else ''}{_CLASSES[token[1].lower()]}]"
    return _escape(token)


def _in_class(token: str) -> str:
    if token in ("[", "&", "~"):  # Rust reads these as operators on sets
        return "\\" + token
    if len(token) == 2 and token[0] == "\\" and token[1].lower() in _CLASSES:
        members = _CLASSES[token[1].lower()]
        return f"[^{members}]" if token[1].isupper() else members
    return r"\x08" if token == r"\b" else token if token[0] == "(" else _escape(token)


def _escape(token: str) -> str:
    """One escape of ECMA in Rust's spelling; everything else as it is."""
    if token.startswith(r"\c"):
        return rf"\x{ord(token[2].upper()) - 64:02X}"
    if token == r"\0":
        return r"\x00"
    if len(token) == 2 and token[0] == "\\" and token[1].isalpha() and token[1] not in "fnrtv":
        raise OutOfReachError(f"{token} in a pattern is no escape that is known; write the character itself")
    return "(?P<" + token[3:] if token.startswith("(?<") else token
