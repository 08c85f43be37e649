"""The texts of JSON's plain values: strings by their characters, numbers by their digits.

Strings are thought of as what they say, a language over UTF-8, and only then written as JSON: `quoted` puts a backslash
before what needs one, in every state at once. Characters that have no short escape are never written, nor is \\u.
Numbers are written without exponent; bounds are compared digit by digit, so they are exact however long.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from redraft.constraints.compile.automaton import NOWHERE, Dfa, explore
from redraft.constraints.compile.remembered import remembered

MOST_DIGITS = 15
"""Decimals of this many digits are told apart by every reader of JSON, whatever numbers it computes with."""
MOST_WHOLE = 20
"""Digits of integers, unless a bound has more: all that 64 bits say. The validator compares integers exactly."""
FEW_PLACES = 6
"""Digits behind the point where a schema would have too many states otherwise."""

TAILS = (bytes(range(0x80, 0x90)), bytes(range(0x90, 0xA0)), bytes(range(0xA0, 0xC0)))
LEADS = (bytes(range(0xC2, 0xE0)), b"\xe0", bytes([*range(0xE1, 0xED), 0xEE, 0xEF]), b"\xed", b"\xf0",
          bytes(range(0xF1, 0xF4)), b"\xf4")  # fmt: skip
# What may follow each lead byte (indices of the three ranges of continuation bytes), and how many more follow that.
FOLLOW = (((0, 1, 2), 0), ((2,), 1), ((0, 1, 2), 1), ((0, 1), 1), ((1, 2), 2), ((0, 1, 2), 2), ((0,), 2))
_SHORT = {0x22: b'"', 0x5C: b"\\", 0x08: b"b", 0x0C: b"f", 0x0A: b"n", 0x0D: b"r", 0x09: b"t"}


@remembered
def text_of(low: int = 0, high: int | None = None) -> Dfa:
    """All texts of `low` to `high` characters (Unicode code points) in UTF-8; without end if `high` is None.

    A state is (characters so far, what the character under way still needs): the count saturates where it no longer
    matters.
    """
    top = low if high is None else high
    alphabet = [bytes(range(0x80)), *TAILS, *LEADS]

    def move(state: tuple[int, int, int], label: int) -> tuple[int, int, int] | None:
        count, lead, more = state
        if label in (1, 2, 3):
            allowed = FOLLOW[lead][0] if lead >= 0 else (0, 1, 2)
            if more == 0 or label - 1 not in allowed:
                return None
            return (_next(count), -1, 0) if more == 1 else (count, -1, more - 1)
        if more or (high is not None and count == high):
            return None
        return (_next(count), -1, 0) if label == 0 else (count, label - 4, FOLLOW[label - 4][1] + 1)

    def _next(count: int) -> int:
        return min(count + 1, top) if high is None else count + 1

    return explore((0, -1, 0), alphabet, move, lambda state: state[2] == 0 and state[0] >= low)


@remembered
def space(*, lines: bool) -> Dfa:
    """White space as people and models write it: none, one space, or with `lines` a line break and an indent."""

    def move(state: int, label: int) -> int | None:
        if state == 0:
            return 1 if label == 0 else 2 if label == 1 and lines else None
        return 2 if state == 2 and label != 1 else None

    return explore(0, [b" ", b"\n", b"\t"], move, lambda _: True)


@remembered
def quoted(text: Dfa) -> Dfa:
    """JSON strings that say a text of the language, quotes included."""
    size, begin, end = len(text), 2 * len(text), 2 * len(text) + 1
    marked = np.arange(256)  # bytes that are treated alike have one number
    marked[0x20:] = np.where(np.isin(marked[0x20:], [0x22, 0x5C, 0x7F, *(short[0] for short in _SHORT.values())]),
                             marked[0x20:], 256)  # fmt: skip
    marked[:0x20] = 257
    _, member, class_of = np.unique(marked * 257 + text.class_of, return_index=True, return_inverse=True)
    class_of = class_of.reshape(-1)
    table = np.full((2 * size + 2, len(member)), NOWHERE, np.int32)
    table[:size] = text.table[:, text.class_of[member]]
    table[:size, np.unique(class_of[:0x20])] = NOWHERE
    table[:size, class_of[[0x22, 0x5C]]] = NOWHERE
    table[begin, class_of[0x22]] = 0
    table[np.flatnonzero(text.accepts), class_of[0x22]] = end
    table[:size, class_of[0x5C]] = size + np.arange(size)
    for byte, short in _SHORT.items():
        table[size : 2 * size, class_of[short[0]]] = text.table[:, text.class_of[byte]]
    accepts = np.arange(len(table)) == end
    order = np.r_[begin, 0:begin, end]  # the start must be state 0
    place = np.argsort(order)
    moved = np.where(table == NOWHERE, NOWHERE, place[table])[order]
    return Dfa(moved.astype(np.int32), class_of.astype(np.int32), accepts[order]).trimmed()


@remembered
def number(
    low: Decimal | None = None,
    high: Decimal | None = None,
    *,
    open_low: bool = False,
    open_high: bool = False,
    whole: bool = False,
    most: int = MOST_WHOLE,
    places: int = MOST_DIGITS - 1,
) -> Dfa:
    """Decimals from `low` to `high`, the ends left out if open; `whole` for integers. Minus zero is never written.

    Integers have up to `most` digits, or one more than a bound; others up to MOST_DIGITS, of which `places` behind the
    point, or as many behind it as a bound that has as many ahead of it.
    """
    bounds = [bound for bound in (low, high) if bound is not None]
    digits = max([most, *(bound.adjusted() + 2 for bound in bounds)])
    behind = [0] * (digits + 1)
    if not whole:
        behind = [min(max(MOST_DIGITS - ahead, 0), places) for ahead in range(digits + 1)]
        for bound in bounds:
            at = max(bound.adjusted(), 0) + 1
            behind[at] = max(behind[at], places_of(bound))
    places = max([places, *map(places_of, bounds)])
    if not whole and any(map(places_of, bounds)):  # then two decimals of so many digits may be one double
        if open_low and low is not None:
            low, open_low = _beyond(low, places, 1)
        if open_high and high is not None:
            high, open_high = _beyond(high, places, -1)
    edge = Decimal(10) ** digits
    low, open_low = (-edge, True) if low is None else (low, open_low)
    high, open_high = (edge, True) if high is None else (high, open_high)
    signs = (
        _Magnitude(low, high, open_low, open_high, behind),
        _Magnitude(high.copy_negate(), low.copy_negate(), open_high, open_low, behind, negative=True),
    )

    def move(state: _Read, label: int) -> _Read | None:
        if label == _MINUS:
            return _Read(sign=1) if state == _Read() else None
        return signs[state.sign].move(state, label)

    return explore(_Read(), _ALPHABET, move, lambda state: signs[state.sign].accepts(state))


def _beyond(bound: Decimal, places: int, sign: int) -> tuple[Decimal, bool]:
    """The first decimal of so many places beyond an open bound that is so as a double, too: what lies less than half a
    step from the bound is read as the bound itself. And whether it is open: a bound that is no double stays as it is.
    """
    here = float(bound)
    beyond = math.nextafter(here, sign * math.inf)
    if math.isinf(here) or math.isinf(beyond):
        return bound, True
    half = (Fraction(here) + Fraction(beyond)) / 2 * 10**places
    whole = math.floor(half) + 1 if sign > 0 else math.ceil(half) - 1
    return Decimal(f"{whole}E-{places}"), False


@remembered
def multiple(of: Decimal) -> Dfa:
    """Decimals that `of` divides, by the remainder of what has been read."""
    places = places_of(of)
    divisor = int(of.scaleb(places))

    def move(state: tuple[int, int], label: int) -> tuple[int, int] | None:
        rest, behind = state
        if label == _MINUS:
            return state if state == (0, -1) else None
        if label == _POINT:
            return (rest, 0) if behind < 0 and places else None
        if behind == places:
            return None
        return (rest * 10 + label) % divisor, behind + (behind >= 0)

    def accepts(state: tuple[int, int]) -> bool:
        rest, behind = state
        return bool(rest * 10 ** (places - max(behind, 0)) % divisor == 0)

    return explore((0, -1), _ALPHABET, move, accepts)


_ALPHABET = [*(bytes([digit]) for digit in b"0123456789"), b".", b"-"]
_POINT, _MINUS = 10, 11


def digits_of(bound: Decimal) -> int:
    """Digits that a decimal has as it is written, ahead of the point and behind it."""
    return max(bound.adjusted(), 0) + 1 + places_of(bound)


def places_of(bound: Decimal) -> int:
    """Digits behind its point."""
    exponent = bound.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


@dataclass(frozen=True)
class _Read:
    """What has been read of a number: sign (1 for minus), digits ahead of the point and behind it (-1 before it), how
    the digits compare with as many first ones of either bound (-1, 0, 1), whether one of them is not zero, and how many
    may still follow behind the point."""

    sign: int = 0
    ahead: int = 0
    behind: int = -1
    low: int = 0
    high: int = 0
    some: bool = False
    left: int = 0


class _Magnitude:
    """The rule of unsigned decimals within bounds, of at most `behind[n]` digits behind the point where n are ahead of
    it; negative bounds bar nothing below and everything above."""

    def __init__(
        self,
        low: Decimal,
        high: Decimal,
        open_low: bool,
        open_high: bool,
        behind: list[int],
        *,
        negative: bool = False,
    ) -> None:
        self.negative, self.behind = negative, behind
        self.any_low = low < 0
        self.none = high < 0 or (negative and high == 0)
        self.low, self.high = _Spelt(low, open_low), _Spelt(high, open_high)

    def move(self, state: _Read, label: int) -> _Read | None:
        """The state after a digit or the point."""
        if self.none:
            return None
        if label == _POINT:
            # A reader that computes with 53 bits rounds a longer fraction, perhaps onto a bound.
            left = self.behind[state.ahead]
            if state.behind >= 0 or state.ahead == 0 or not left:
                return None
            low, high = self.low.by_length(state), self.high.by_length(state, high=True)
            return _Read(state.sign, 0, 0, low, high, state.some, left)
        some = state.some or label > 0
        if state.behind < 0:
            if state.ahead == len(self.behind) - 1 or (state.ahead and not state.some):  # none follows a leading zero
                return None
            low = _compare(state.low, label, self.low.ahead, state.ahead)
            high = _compare(state.high, label, self.high.ahead, state.ahead)
            return _Read(state.sign, state.ahead + 1, -1, low, high, some)
        if not state.left:
            return None
        low = _compare(state.low, label, self.low.behind, state.behind)
        high = _compare(state.high, label, self.high.behind, state.behind)
        # Once both are decided, how many digits there were does not matter.
        return _Read(state.sign, 0, 1 if low and high else state.behind + 1, low, high, some, state.left - 1)

    def accepts(self, state: _Read) -> bool:
        """Whether what has been read is a number between the bounds."""
        if self.none or (state.ahead == 0 and state.behind <= 0) or state.behind == 0:
            return False
        if self.negative and not state.some:
            return False
        low, high = state.low, state.high
        if state.behind < 0:
            low, high = self.low.by_length(state), self.high.by_length(state, high=True)
        low, high = self.low.at_end(low, state.behind), self.high.at_end(high, state.behind)
        above = self.any_low or low > 0 or (low == 0 and not self.low.is_open)
        return above and (high < 0 or (high == 0 and not self.high.is_open))


class _Spelt:
    """A bound's digits ahead of the point and behind it."""

    def __init__(self, bound: Decimal, is_open: bool) -> None:
        ahead, _, behind = f"{bound.copy_abs():f}".partition(".")
        self.ahead, self.behind, self.is_open = ahead, behind.rstrip("0"), is_open

    def by_length(self, state: _Read, *, high: bool = False) -> int:
        """How the digits ahead of the point compare, now that their number is known."""
        longer = state.ahead - len(self.ahead)
        return (longer > 0) - (longer < 0) or (state.high if high else state.low)

    def at_end(self, compared: int, behind: int) -> int:
        """How the whole compares: digits of the bound that were not read make what was read smaller."""
        return compared or -(len(self.behind) > max(behind, 0))


def _compare(before: int, label: int, digits: str, at: int) -> int:
    expected = int(digits[at]) if at < len(digits) else 0
    return before or (label > expected) - (label < expected)


def json_key(value: Any) -> Hashable:
    """What two values have in common if and only if they are one JSON value: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, dict):
        return frozenset((name, json_key(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return ("list", *map(json_key, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ("truth", value) if isinstance(value, bool) else value
    # As a text: numbers can be chosen so that Python's hashes of them are all equal.
    return ("number", str(int(value)) if isinstance(value, int) or value.is_integer() else repr(value))
