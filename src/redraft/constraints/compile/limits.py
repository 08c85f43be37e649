"""Limits of compiling a constraint, and the clock that every part of it checks.

A clock is not an argument, because much of what is compiled is kept by its arguments and must be found under them
whatever the time. It belongs to the context that compiles: `time_limit` starts one, within which `check_time` raises
when time is up, and `compiling` says which part is being compiled.

Compiling is Python, of which one thread runs at a time. So it takes turns (`turn`): the next slice goes to the caller
that has had the least, and of its constraints to the one that has had the least, so that a small one waits for no large
one. A caller's large ones are compiled one after another, since together they would take memory together and none would
end while others come; for the same reason its next one begins only while few of its own have begun. One for which a
process of its own works steps `aside`: such a process has turns of its own. The clock of one that waits stands still;
but where the caller's answer has a deadline (`UNTIL`), waiting ends then, and where the caller has left (`GONE`),
compiling does. Other work of one request takes turns in the same way (`PREPARING`, `READING`).
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field

from redraft.errors import BusyError, ConstraintError, DeadlineError
from redraft.interrupts import Held


@dataclass(frozen=True)
class CompileLimits:
    """What a constraint may cost to compile before it is refused: states of its automaton, and seconds."""

    states: int = 50_000
    seconds: float = 9.0


DEFAULT_LIMITS = CompileLimits()


class OutOfReachError(ConstraintError):
    """No automaton of a bounded size is known for it. A schema may still be held from left to right."""


class TimeLimitError(OutOfReachError):
    """Compiling took longer than it may. On a quieter machine it may not."""


SLICE_SEC = 0.05
LARGE_SEC = 0.5
"""A constraint that has had so much is a large one."""
LOOK_UP_SEC = 1.0
MOST_PER_CALLER, MOST_BEGUN = 256, 16
"""Constraints of one caller that may be compiled or wait for it, and how many of them may have begun: what has begun
takes memory until it ends."""

CALLER: ContextVar[Hashable] = ContextVar("caller", default=None)
"""Who asks, where there are several; None is never too many."""

UNTIL: ContextVar[float | None] = ContextVar("until", default=None)
"""When the caller stops waiting for the answer, as `time.monotonic` counts."""

GONE: ContextVar[threading.Event | None] = ContextVar("gone", default=None)
"""Set when the caller has left."""


@dataclass(eq=False)
class Turn:
    """A constraint that is being compiled, or other work: seconds that it has had and that it has waited for. Of a
    caller's the smallest of a `size` comes first. `found` is for those who want the same, once it is `over`."""

    caller: Hashable
    name: str
    chosen: threading.Condition
    size: int = 0
    counted: bool = True
    found: object = None
    had: float = 0.0
    waited: float = 0.0
    began: float = 0.0
    aside: bool = False
    wanted: bool = False  # by another caller, too
    over: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event | None = field(default_factory=GONE.get)


class Turns:
    """Work by turns: as much at a time as there are `places`, of which a caller has at most `share`. Next is the caller
    who has had least. `most` is how many a caller may have under way, and `begun` how many of these may have begun.
    What waits here within a turn of those `around` steps aside there, where its clock stands still."""

    def __init__(
        self,
        most: int = MOST_PER_CALLER,
        around: Turns | None = None,
        places: int = 1,
        share: int | None = None,
        begun: int = MOST_PER_CALLER,
    ) -> None:
        self._most, self._around, self._places, self._share = most, around, places, share or places
        self._most_begun = begun
        self._mine: ContextVar[Turn | None] = ContextVar("turn", default=None)
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # its places are held by threads that it has not got

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._turns: list[Turn] = []
        self._now: list[Turn] = []
        self._had = defaultdict[Hashable, float](float)  # by each caller since it last had none

    @property
    def mine(self) -> Turn | None:
        """The turn that this context has."""
        return self._mine.get()

    @contextmanager
    def turn(self, name: str, *, counted: bool = True, size: int = 0) -> Iterator[Turn]:
        """Within this it is compiled; but if another compiled the same until now, this has waited for it, and gives its
        turn, which is over. Raises BusyError for one too many, if it is `counted`, and DeadlineError, here or as it
        compiles, for one that waits for longer than its caller."""
        mine = Turn(CALLER.get(), name, threading.Condition(self._lock), size, counted)
        with ExitStack() as around:
            around.enter_context(self._aside_around())
            token = None
            try:
                with self._lock:
                    same = next((one for one in self._turns if one.name == name), None)
                    if same is None:
                        several = sum(one.counted and one.caller == mine.caller for one in self._turns)
                        if counted and mine.caller is not None and several >= self._most:
                            said = f"{self._most} constraints of this client are compiled or wait to be; wait for them"
                            raise BusyError(said)
                        self._turns.append(mine)
                    elif same.caller != mine.caller:
                        same.wanted = True
                        self._choose()
                if same is not None:
                    _await(same.over)
                    around.close()
                    yield same
                    return
                token = self._mine.set(mine)
                with self._lock:
                    self._wait(mine)
                if self._around is not None and (outer := self._around.mine) is not None:
                    outer.waited += mine.waited
                yield mine
            finally:  # before it waits to go on around this
                if token is not None:
                    self._mine.reset(token)
                self._end(mine)

    def _aside_around(self) -> AbstractContextManager[None]:
        return nullcontext() if self._around is None else self._around.aside()

    def _end(self, mine: Turn) -> None:
        with Held(), self._lock:
            if mine not in self._turns:  # it had found the same, or this is a fork
                return
            self._turns.remove(mine)
            mine.over.set()
            self._leave(mine, aside=mine.aside)
            if all(one.caller != mine.caller for one in self._turns):
                self._had.pop(mine.caller, None)

    def give_way(self, mine: Turn) -> None:
        """Let others go first that have had less, if it has had its slice."""
        if not mine.aside and time.monotonic() - mine.began >= SLICE_SEC:
            self._change(mine, aside=False)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Within this the turn is others': something else works for this, or is waited for."""
        mine = self.mine
        if mine is None or mine.aside:
            with self._aside_around():
                yield
            return
        self._change(mine, aside=True)
        try:
            yield
        finally:
            self._change(mine, aside=False)

    def _change(self, mine: Turn, *, aside: bool) -> None:
        with self._lock:
            self._leave(mine, aside=aside)
            if not aside:
                self._wait(mine)

    def _leave(self, mine: Turn, *, aside: bool) -> None:
        if mine in self._now:
            spent = time.monotonic() - mine.began
            mine.had += spent
            self._had[mine.caller] += spent
            self._now.remove(mine)
        mine.aside = aside
        self._choose()

    def _wait(self, mine: Turn) -> None:
        began = time.monotonic()
        there = mine.chosen.wait_for(lambda: is_gone() or self._next() is mine, _left())
        if is_gone() or not there:
            raise _late()
        mine.began = time.monotonic()
        mine.waited += mine.began - began
        self._now.append(mine)
        self._choose()  # another, where there is more room

    def _choose(self) -> None:
        """Wake those whose turn it is, and those whose caller has left. To wake all would cost the square of their
        number."""
        if (following := self._next()) is not None:
            following.chosen.notify()
        for one in self._turns:
            if one.gone is not None and one.gone.is_set():
                one.chosen.notify()

    def _next(self) -> Turn | None:
        """Whose turn it is, if there is room: the first of the caller's large ones, if it has no small one."""
        if len(self._now) >= self._places:
            return None
        held = Counter(one.caller for one in self._now)
        waiting = [
            one for one in self._turns if not one.aside and one not in self._now and held[one.caller] < self._share
        ]
        begun = Counter(one.caller for one in self._turns if one.counted and one.had and one.caller is not None)
        free = [one for one in waiting if one.had or one.wanted or not one.counted]
        waiting = free + [one for one in waiting if one not in free and begun[one.caller] < self._most_begun]
        return min(waiting, key=lambda one: (self._had[one.caller], min(one.had, LARGE_SEC), one.size), default=None)


def _left() -> float | None:
    until = UNTIL.get()
    return None if until is None else max(0.0, until - time.monotonic())


def _await(over: threading.Event) -> None:
    """Wait for the turn of another. Looks up each second, since nothing wakes one whose caller has left."""
    while not is_gone() and (left := _left()) != 0.0:
        if over.wait(LOOK_UP_SEC if left is None else min(LOOK_UP_SEC, left)):
            return
    raise _late()


def _late() -> DeadlineError:
    return DeadlineError("the time was up while it waited for the turns of others")


def is_gone() -> bool:
    """Whether the caller has left."""
    gone = GONE.get()
    return gone is not None and gone.is_set()


PREPARING = Turns(places=2)
"""Requests whose templates, tokens and options are read. What waits for something else meanwhile steps aside."""
TURNS = Turns(around=PREPARING, begun=MOST_BEGUN)
QUICK_JUDGES, JUDGES = Turns(around=TURNS), Turns(128, TURNS)
"""Values that a process of its own judges, and those for which that takes long: one of each at a time."""
GRAMMARS = Turns(around=TURNS)
"""Schemas of which such a process makes grammars."""
READING = Turns()
"""Forwards that are in no batch of the engine's loop."""


def _time() -> float:
    """The clock, which stands still for one that waits for its turn."""
    turn = TURNS.mine
    return time.monotonic() - (0.0 if turn is None else turn.waited)


@dataclass
class _Clock:
    until: float
    seconds: float
    part: str = "the constraint"


_CLOCK: ContextVar[_Clock | None] = ContextVar("clock", default=None)


@contextmanager
def time_limit(limits: CompileLimits) -> Iterator[None]:
    """Within this, `check_time` raises once the time is up. An outer clock goes on and may be the first."""
    outer, until = _CLOCK.get(), _time() + limits.seconds
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
    """Raise ConstraintError, naming the part, if the time limit has passed; DeadlineError if the caller has left."""
    clock, turn = _CLOCK.get(), TURNS.mine
    if is_gone():
        raise _late()
    if turn is not None:
        TURNS.give_way(turn)
    if clock is not None and _time() > clock.until:
        raise TimeLimitError(
            f"{clock.part} takes over {clock.seconds:g} seconds to compile; narrow its lengths, counts or depth"
        )


def seconds_left(most: float) -> float:
    """How long something may take that cannot be interrupted from here. Raises ConstraintError if that is no time."""
    check_time()
    clock = _CLOCK.get()
    return most if clock is None else min(most, max(0.01, clock.until - _time()))
