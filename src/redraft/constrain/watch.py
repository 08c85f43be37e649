"""Limits of compiling a constraint, and the clock that every part of it checks.

A clock is not an argument, because much of what is compiled is kept by its arguments and must be found under them
whatever the time. It belongs to the context that compiles: `watching` starts one, within which `look` raises when time
is up, and `naming` says which part is to blame.
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


@dataclass
class _Watch:
    until: float
    seconds: float
    part: str = "the constraint"


_WATCH: ContextVar[_Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watching(limits: Limits) -> Iterator[None]:
    """Within this, `look` raises as soon as the limit in time is over. An outer clock goes on and may be the first."""
    outer, until = _WATCH.get(), time.monotonic() + limits.seconds
    token = _WATCH.set(outer if outer is not None and outer.until <= until else _Watch(until, limits.seconds))
    try:
        yield
    finally:
        _WATCH.reset(token)


@contextmanager
def naming(part: str) -> Iterator[None]:
    """Within this, it is that part which takes the time."""
    watch = _WATCH.get()
    if watch is None:
        yield
        return
    outer, watch.part = watch.part, part
    yield
    watch.part = outer  # not if it fails: the innermost part is the one to name


def blamed() -> str:
    """The part that is being compiled."""
    watch = _WATCH.get()
    return "the constraint" if watch is None else watch.part


def look() -> None:
    """Raise ConstraintError, naming the part, if the time that is watched is over."""
    watch = _WATCH.get()
    if watch is not None and time.monotonic() > watch.until:
        raise ConstraintError(
            f"{watch.part} takes over {watch.seconds:g} seconds to compile; narrow its lengths, counts or depth"
        )


def seconds_left(most: float) -> float:
    """How long something may take that cannot be interrupted from here. Raises ConstraintError if that is no time."""
    look()
    watch = _WATCH.get()
    return most if watch is None else min(most, max(0.01, watch.until - time.monotonic()))
