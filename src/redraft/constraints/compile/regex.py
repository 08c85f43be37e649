"""Regular expressions to automata over UTF-8, through outlines-core.

Two spellings come in: `regex=`, which the whole answer has to match, and a schema's `pattern`, which is ECMA 262 and
may match anywhere in a string. The library speaks Rust's dialect, where classes are Unicode's; ECMA's are translated.
What no automaton can do (look-around, back references, word borders) is refused by name.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import warnings
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from redraft.constraints.compile.automaton import NOWHERE, Dfa, intersect, subtract
from redraft.constraints.compile.limits import (
    DEFAULT_LIMITS,
    TURNS,
    CompileLimits,
    OutOfReachError,
    Turns,
    check_time,
    compiling,
    seconds_left,
)
from redraft.constraints.compile.remembered import remembered
from redraft.constraints.isolated import Helper
from redraft.errors import ConstraintError

warnings.filterwarnings("ignore", "Possible (nested )?set", FutureWarning)  # Python's word for a class of a stranger's
_ECMA_SPACE = r"\t\n\x0B\x0C\r \u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000\uFEFF"
_ECMA_DOT, _RUST_DOT = r"[^\n\r\u2028\u2029]", r"[^\n]"
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": _ECMA_SPACE}
_REFUSED = (
    (re.compile(r"\(\?<?[=!]"), "look-around"),
    (re.compile(r"\\[1-9]|\\k<"), "a back reference"),
    (re.compile(r"\\[bB]"), "a word border"),
)
_REFERENCE = re.compile(r"\\[1-9]")
_BESIDE = "(?:(?<=[{0}])(?{1}[{0}])|(?<![{0}])(?{2}[{0}]))"
_BORDERS = {r"\b": _BESIDE.format(_CLASSES["w"], "!", "="), r"\B": _BESIDE.format(_CLASSES["w"], "=", "!")}
_TOKEN = re.compile(
    r"\\u\{[0-9A-Fa-f]+\}|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|\\c[A-Za-z]|\\[pP]\{[^}]{1,64}\}|\\k<\w+>|\\.|\(\?:|\(\?<\w+>"
    r"|\{[0-9]+(?:,[0-9]*)?\}|.",
    re.DOTALL,
)


def whole_match(pattern: str, *, limits: CompileLimits = DEFAULT_LIMITS) -> Dfa:
    """Strings that match a regular expression from end to end, in the dialect of Rust's regex crate.

    Raises ConstraintError for what is no regular expression, one that no automaton can be made of, or over the limits.
    """
    if (at := _closes_early(pattern)) is not None:
        raise ConstraintError(f"regex {pattern!r:.200} closes at {at} a group that it has not opened")
    found = _compile(pattern, "regex")
    if found.is_empty:
        anchor = _anchor(pattern)
        raise ConstraintError(f"regex {pattern!r:.200} matches no text at all{': ' * bool(anchor) + anchor}")
    if len(found) > limits.states:
        raise ConstraintError(
            f"regex {pattern!r:.80} needs {len(found)} states, over {limits.states}; narrow its counts"
        )
    return found


def _outside_classes(pattern: str) -> Iterator[tuple[int, str]]:
    """Each character outside of classes, or escape, and where it stands. In one walk: a pattern is a stranger's, and of
    a regular expression for them it could ask any time."""
    inside, i = 0, 0
    while i < len(pattern):
        one = pattern[i : i + 2] if pattern[i] == "\\" else pattern[i]
        if one == "[":
            inside += 1
            i += pattern.startswith("^", i + 1)
            i += pattern.startswith("]", i + 1)  # the first in a class is a character
        elif inside:
            inside -= one == "]"
        else:
            yield i, one
        i += len(one)


def _closes_early(pattern: str) -> int | None:
    """Where a bracket closes no group of the pattern's own; it would close the one that is put around it."""
    depth = 0
    for at, one in _outside_classes(pattern):
        depth += (one == "(") - (one == ")")
        if depth < 0:
            return at
    return None


def irregular(pattern: str) -> str:
    """What a pattern has that no automaton can keep; an empty text if there is nothing."""
    check_time()
    if (parts := _look_ahead(pattern)) is not None:
        return irregular(parts[1]) or irregular("^" + parts[2])
    plain = re.sub(r"\\\\", "", pattern)
    return next((what for refused, what in _REFUSED if refused.search(plain)), "")


def widest_search(pattern: str) -> Dfa:
    """All that any validator may take for a match, to be taken away where a pattern must not match: to some, a dot is
    \\r, U+2028 and U+2029, too."""
    return ecma_search(pattern, _RUST_DOT)


def ecma_search(pattern: str, dot: str = _ECMA_DOT) -> Dfa:
    """Strings in which an ECMA 262 pattern matches somewhere, as JSON Schema's `pattern` means it."""
    if what := irregular(pattern):
        raise OutOfReachError(f"pattern {pattern!r:.200} has {what}, which no automaton can keep; write it without")
    if (parts := _look_ahead(pattern)) is not None:
        sign, ahead, rest = parts
        other = _RUST_DOT if dot == _ECMA_DOT else _ECMA_DOT
        branches = _branches(ahead, dot if sign == "=" else other)
        begun = (branch if branch[:1] == ["^"] else ["^", *branch] for branch in branches)
        seen = _compile("|".join(_anchored(branch, pattern) for branch in begun), "pattern", pattern)
        return (intersect if sign == "=" else subtract)(ecma_search("^" + rest, dot), seen)
    return _compile("|".join(_anchored(branch, pattern) for branch in _branches(pattern, dot)), "pattern", pattern)


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


@remembered
def _compile(pattern: str, name: str, shown: str | None = None) -> Dfa:
    # The library searches as Rust does, first alternative first, and forgets what a match has made unnecessary: of a|ab
    # it would keep a. A match that ends in a byte that nothing else ends in is never early; that byte is taken off
    # again, and no text may hold it.
    try:
        with compiling(f"{name} {shown or pattern!r:.80}"):
            table, ends = _run(rf"(?:{pattern})\x00")
    except ValueError as error:
        reason: object = error
        if what := irregular(shown or pattern):
            reason = f"it has {what}; write it without"
        elif name == "regex" and (anchor := _anchor(pattern)):
            reason = anchor
        elif "building NFA" in str(error):
            reason = _misspelt(shown or pattern) or "it is not in the syntax of Rust's regex crate, or counts too far"
        raise OutOfReachError(f"{name} {shown or pattern!r:.200} cannot be made into an automaton: {reason}") from None
    accepts = np.isin(table[:, 0], ends)
    table[:, 0] = NOWHERE
    weights = np.random.default_rng(0).integers(0, 2**63, len(table), dtype=np.uint64)
    sums = np.zeros(256, np.uint64)  # bytes that move every state alike have equal ones
    for i in range(0, len(table), _CHUNK):
        sums += weights[i : i + _CHUNK] @ table[i : i + _CHUNK].astype(np.uint64)
    _, member, class_of = np.unique(sums, return_index=True, return_inverse=True)
    return Dfa(table[:, member], class_of.reshape(-1).astype(np.int32), accepts).trimmed()


def _anchor(pattern: str) -> str:
    """What to do about an anchor, which the library takes for an end ahead of the text's; an empty text if there is
    none."""
    found = any(one in ("^", "$", r"\A", r"\z", r"\Z") for _, one in _outside_classes(pattern))
    return "the whole text has to match anyway: leave ^, $, \\A, \\z and \\Z out" if found else ""


MOST_NAMED = 500
"""Characters of a pattern whose mistake is named."""


def _misspelt(pattern: str) -> str | None:
    """What Python finds wrong with how a short pattern is written, and where; the library says only that something is.
    Python takes milliseconds for some classes."""
    if len(pattern) > MOST_NAMED:
        return None
    try:
        re.compile(pattern)
    except re.error as error:
        return str(error)
    except (OverflowError, RecursionError, ValueError, Warning):  # a count of thousands of digits is the third
        return None
    return None


def _run(pattern: str) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The moves [states, 256] of a pattern's automaton, which begins at state 0, and its final states. Raises
    ValueError.

    The library can neither be interrupted nor given a bound on memory, and a short pattern can ask for 2^20 states. So
    processes of their own run it. What takes longer than MOMENT_SEC, or is likely to, goes to a second one, while other
    constraints are compiled here.
    """
    question = json.dumps([pattern, MOST_STATES]).encode()
    answer = None
    if not _is_heavy(pattern):
        answer = _ask(_QUICK, _QUICK_TURNS, question, min(MOMENT_SEC, seconds_left(float(MOST_SECONDS))))
    if answer is None:
        answer = _ask(_SLOW, _SLOW_TURNS, question, seconds_left(float(MOST_SECONDS)))
    if answer is None:
        check_time()
        raise ValueError(f"it needs over {MOST_SECONDS} seconds or {MOST_BYTES >> 20} MiB; narrow its counts")
    said, finals, packed = json.loads(answer)
    if said is not None:
        raise ValueError("a part of it matches no text at all" if "Found no transitions" in said else said[:200])
    if packed is None:
        raise ValueError(f"it needs {finals} states, over {MOST_STATES}; narrow its counts")
    table = np.frombuffer(zlib.decompress(base64.b64decode(packed)), np.int32)
    return table.reshape(-1, 256).copy(), np.array(finals, np.int32)


def _is_heavy(pattern: str) -> bool:
    """Whether a pattern counts far beside a class of many characters, each of which has automata of its own."""
    counts = sum(int(high) for high in re.findall(r"\{(?:\d{0,6},)?(\d{1,6})\}", pattern))
    return counts > MOST_COUNTED and re.search(r"\\[wWpPdDsSbB]|(?<!\\)\.|\[\^", pattern) is not None


def _ask(helper: Helper, turns: Turns, question: bytes, seconds: float) -> bytes | None:
    """The answer of a process, which one thread at a time may ask: a program may compile on several without a turn."""
    with turns.turn(str(threading.get_ident()), counted=False):
        return helper.ask(question, seconds)


MOST_SECONDS, MOST_BYTES, MOST_STATES = 10, 1 << 29, DEFAULT_LIMITS.states
MOMENT_SEC = 0.5
MOST_COUNTED = 200
"""Repeats of a pattern beyond which it is no matter of a moment, perhaps."""
_CHUNK = 4096

_AUTOMATON = """
import array, base64, zlib
from outlines_core import Index, Vocabulary
def answer(asked):
    pattern, most = asked
    try:
        index = Index(pattern, Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)}))
    except ValueError as error:
        return [" ".join(str(error).split()), 0, None]
    transitions, start, final = index.get_transitions(), index.get_initial_state(), index.get_final_states()
    if len(transitions) > most:
        return [None, len(transitions), None]
    numbers = {state: number for number, state in enumerate([start, *({*transitions, *final} - {start})])}
    found = array.array("i", [-1]) * (256 * len(numbers))
    for state, row in transitions.items():
        at = 256 * numbers[state]
        for byte, target in row.items():
            if byte < 256:
                found[at + byte] = numbers[target]
    packed = base64.b64encode(zlib.compress(found.tobytes(), 1)).decode()
    return [None, [*map(numbers.get, final)], packed]
"""
_QUICK, _SLOW = (Helper(_AUTOMATON, "outlines_core", MOST_SECONDS, MOST_BYTES) for _ in range(2))
_QUICK_TURNS, _SLOW_TURNS = Turns(), Turns(around=TURNS)
"""The quick one holds up other constraints for half a second at most, so nothing steps aside for it."""


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
    return found


def _anchored(tokens: list[str], pattern: str) -> str:
    """One alternative with anything before and behind it, but for where it is anchored."""
    begins, ends = tokens[:1] == ["^"], tokens[-1:] == ["$"]
    body = tokens[begins : len(tokens) - ends]
    if {"^", "$"} & set(body):
        raise OutOfReachError(
            f"pattern {pattern!r:.200} has ^ or $ inside it; an anchor can only begin or end a whole alternative"
        )
    return ("" if begins else "(?s:.*)") + "(?:" + "".join(body) + ")" + ("" if ends else "(?s:.*)")


def for_rust(pattern: str) -> str:
    """An ECMA 262 pattern as Rust's fancy-regex reads it, if it has a dot or what no automaton can keep; another one as
    it is, since jsonschema-rs brings its classes into Rust's form by itself. Raises OutOfReachError for an unknown
    escape."""
    if "." not in pattern and not any(refused.search(pattern) for refused, _ in _REFUSED):
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
