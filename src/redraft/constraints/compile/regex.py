"""Regular expressions to automata over UTF-8, through outlines-core.

The library speaks Rust's dialect, and so does `regex=`; a schema's `pattern` is brought into it by `ecma`. What no
automaton can do (look-around, back references, word borders) is refused by name.
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

from redraft.constraints.compile.automaton import NOWHERE, Dfa
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
REFUSED = (
    (re.compile(r"\(\?<?[=!]"), "look-around"),
    (re.compile(r"\\[1-9]|\\k<"), "a back reference"),
    (re.compile(r"\\[bB]"), "a word border"),
)


def whole_match(pattern: str, *, limits: CompileLimits = DEFAULT_LIMITS) -> Dfa:
    """Strings that match a regular expression from end to end, in the dialect of Rust's regex crate.

    Raises ConstraintError for what is no regular expression, one that no automaton can be made of, or over the limits.
    """
    if (at := _closes_early(pattern)) is not None:
        raise ConstraintError(f"regex {pattern!r:.200} closes at {at} a group that it has not opened")
    found = compiled(pattern, "regex")
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


def refused_in(pattern: str) -> str:
    """What a pattern has that no automaton can keep; an empty text if there is nothing."""
    plain = re.sub(r"\\\\", "", pattern)
    return next((what for refused, what in REFUSED if refused.search(plain)), "")


@remembered
def compiled(pattern: str, name: str, shown: str | None = None) -> Dfa:
    # The library searches as Rust does, first alternative first, and forgets what a match has made unnecessary: of a|ab
    # it would keep a. A match that ends in a byte that nothing else ends in is never early; that byte is taken off
    # again, and no text may hold it.
    try:
        with compiling(f"{name} {shown or pattern!r:.80}"):
            table, ends = _run(rf"(?:{pattern})\x00")
    except ValueError as error:
        reason: object = error
        if what := refused_in(shown or pattern):
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
