"""Limits of compiling a constraint, and the clock that every part of it checks.

A clock is not an argument, because much of what is compiled is kept by its arguments and must be found under them
whatever the time. It belongs to the context that compiles: `time_limit` starts one, within which `check_time` raises
when time is up, and `compiling` says which part is being compiled.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from redraft.errors import ConstraintError


@dataclass(frozen=True)
class Limits:
    """What a constraint may cost to compile before it is refused: states of its automaton, and seconds."""

    states: int = 50_000
    seconds: float = 10.0


DEFAULT_LIMITS = Limits()


class OutOfReachError(ConstraintError):
    """No automaton of a bounded size is known for it. A schema may still be held from left to right."""


class TimeLimitError(OutOfReachError):
    """Compiling took longer than it may. On a quieter machine it may not."""


@dataclass
class _Clock:
    until: float
    seconds: float
    part: str = "the constraint"


_CLOCK: ContextVar[_Clock | None] = ContextVar("clock", default=None)


@contextmanager
def time_limit(limits: Limits) -> Iterator[None]:
    """Within this, `check_time` raises once the time is up. An outer clock goes on and may be the first."""
    outer, until = _CLOCK.get(), time.monotonic() + limits.seconds
    token = _CLOCK.set(outer if outer is not None and outer.until <= until else _Clock(until, limits.seconds))
    try:
        yield
    finally:
        _CLOCK.reset(token)


@contextmanager
def compiling(part: str) -> Iterator[None]:
    """Within this, it is that part which takes the time."""
    clock = _CLOCK.get()
    if clock is None:
        yield
        return
    outer, clock.part = clock.part, part
    yield
    clock.part = outer  # not if it fails: the innermost part is the one to name


def part_compiled() -> str:
    """The part that is being compiled."""
    clock = _CLOCK.get()
    return "the constraint" if clock is None else clock.part


def check_time() -> None:
    """Raise ConstraintError, naming the part, if the time limit has passed."""
    clock = _CLOCK.get()
    if clock is not None and time.monotonic() > clock.until:
        raise TimeLimitError(
            f"{clock.part} takes over {clock.seconds:g} seconds to compile; narrow its lengths, counts or depth"
        )


def seconds_left(most: float) -> float:
    """How long something may take that cannot be interrupted from here. Raises ConstraintError if that is no time."""
    check_time()
    clock = _CLOCK.get()
    return most if clock is None else min(most, max(0.01, clock.until - time.monotonic()))
