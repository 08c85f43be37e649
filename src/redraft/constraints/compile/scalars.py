"""What a schema says of a string or a number by itself, as the language of its texts, and whether that is all it says.

What would take too many states, or no automaton can keep, is left to the validator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial, reduce

from redraft.constraints.compile.automaton import EMPTY, Dfa, intersect
from redraft.constraints.compile.ecma import IrregularError, ecma_search
from redraft.constraints.compile.keywords import FORMATS, VALIDATED_FORMATS
from redraft.constraints.compile.limits import CompileLimits, OutOfReachError, TimeLimitError
from redraft.constraints.compile.merge import Schema, exact, tightest
from redraft.constraints.compile.regex import whole_match
from redraft.constraints.compile.values import (
    FEW_PLACES,
    MOST_DIGITS,
    MOST_WHOLE,
    digits_of,
    multiple,
    number,
    places_of,
    text_of,
)
from redraft.errors import ConstraintError

MOST_COUNTED, MOST_DIVISOR = 1000, 9999


def text_language(plain: Schema, limits: CompileLimits) -> tuple[Dfa, bool]:
    """The texts of a string, and whether a validator has to look at them all the same. Raises OutOfReachError for a
    least length that cannot be counted."""
    low, high = plain.get("minLength", 0), plain.get("maxLength")
    if low > MOST_COUNTED:
        raise OutOfReachError(f"minLength is {low}; lengths are counted up to {MOST_COUNTED}: lower it")
    if high is not None and high < low:
        return EMPTY, False
    looks, inexact = list[Dfa](), False
    for name in plain.get("formats", []):
        inexact |= name not in FORMATS and name in VALIDATED_FORMATS
        looks += [whole_match(FORMATS[name])] if name in FORMATS else []
    for pattern in plain.get("patterns", []):
        try:
            looks.append(ecma_search(pattern))
        except IrregularError:
            inexact = True
    found = reduce(intersect, sorted(looks, key=len)) if looks else None
    if high is not None and found is not None and found.is_within(min(high, MOST_COUNTED)):
        high = None
    if high is not None and high > MOST_COUNTED:
        inexact, high = True, None
    if found is None:
        return text_of(low, high), inexact
    if high is None:
        return intersect(found, text_of(low)), inexact
    found, is_whole = _narrowed(intersect(found, text_of(low)), text_of(low, high), limits)
    return found, inexact or not is_whole


def number_language(plain: Schema, limits: CompileLimits, *, whole: bool, large: bool) -> tuple[Dfa, bool]:
    """The texts of a number, and whether a validator has to look at them all the same; of fewer digits if not `large`,
    for half the states."""
    multiples = [*map(exact, plain.get("multiples", []))]
    for of in multiples:
        if of <= 0:
            raise ConstraintError(f"multipleOf is {of}; it must be above 0")
    low, _, high, _ = tightest(plain)
    spelt = [*multiples, *(bound for bound in (low, high) if bound is not None)]
    is_short = all(places_of(one) < FEW_PLACES for one in spelt)  # else there may be none of so few between two of them
    sizes = [(MOST_DIGITS, FEW_PLACES if is_short and not large else MOST_DIGITS - 1)]
    if large and all(of == of.to_integral_value() for of in multiples):
        sizes.insert(0, (MOST_WHOLE, MOST_DIGITS - 1))
    found = list[tuple[Dfa, bool]]()
    for most, places in sizes:  # fewer digits rather than multiples that are not held; all where they are not either
        found.append(_multiples(plain, multiples, limits, partial(number, whole=whole, most=most, places=places)))
        if not found[-1][1]:
            return found[-1]
    return found[0]


def _multiples(
    plain: Schema, multiples: Sequence[Decimal], limits: CompileLimits, made: Callable[..., Dfa]
) -> tuple[Dfa, bool]:
    low, open_low, high, open_high = tightest(plain)
    found, inexact = made(low, high, open_low=open_low, open_high=open_high), False
    for of in multiples:
        digits, is_whole = len(of.normalize().as_tuple().digits), of == of.to_integral_value()
        is_held = digits <= 4 and Decimal("1e-6") <= of <= MOST_DIVISOR
        # A validator that computes with doubles finds remainders of its own in a long fraction.
        is_held &= is_whole or all(digits_of(bound) <= MOST_DIGITS for bound in (low, high) if bound is not None)
        if is_held:
            found, is_held = _narrowed(found, multiple(of), limits)
        inexact |= not is_held
    return found, inexact


def _narrowed(found: Dfa, by: Dfa, limits: CompileLimits) -> tuple[Dfa, bool]:
    """Strings of both languages, and True; those of the first alone, where both are too many states for a schema."""
    try:
        both = intersect(found, by, limits.states)
    except TimeLimitError:
        raise
    except OutOfReachError:
        return found, False
    return (both, True) if len(both) <= limits.states // 2 else (found, False)
