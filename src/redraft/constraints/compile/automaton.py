"""Finite automata over bytes, and the few operations that languages are put together with.

    Parts: literal, bytes, a whole Dfa ─► then / either / repeat ─► Builder.finish ─► Dfa ─► intersect, subtract

A `Builder` holds a nondeterministic automaton in pieces: whole tables of moves, joined by empty moves. It is made
deterministic once, at the end. A part of a language that has no strings is None: what is joined to it has none either,
and what is chosen against it stays, so a recursion that was cut off at its depth takes with it only what needed it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from redraft.constraints.compile.limits import DEFAULT_LIMITS, Limits, check_time, part_compiled
from redraft.errors import ConstraintError

Ints = NDArray[np.int32]
State = TypeVar("State", bound=Hashable)

NOWHERE = -1


MOST_PAIRS = 4 * DEFAULT_LIMITS.states
"""States of two automata in one, before those that lead nowhere are taken out."""


@dataclass(frozen=True, eq=False)
class Dfa:
    """A deterministic automaton; it starts in state 0. Bytes of one class move every state alike.

    table     [states, classes], the next state or NOWHERE
    class_of  [256], the class of each byte
    accepts   [states], whether the string may end there
    """

    table: Ints
    class_of: Ints
    accepts: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.table)

    @property
    def is_empty(self) -> bool:
        """Whether it accepts nothing at all. Every state of a trimmed automaton leads somewhere."""
        return not bool(self.accepts.any())

    def step(self, state: int, text: bytes) -> int:
        """The state after some bytes, or NOWHERE."""
        for byte in text:
            if state == NOWHERE:
                break
            state = int(self.table[state, self.class_of[byte]])
        return state

    def matches(self, text: bytes) -> bool:
        """Whether the whole text is in the language."""
        end = self.step(0, text)
        return end != NOWHERE and bool(self.accepts[end])

    def to_end(self) -> Ints:
        """Fewest bytes from each state to an accepting one; a large number where there is no way."""
        source, label = np.nonzero(self.table != NOWHERE)
        return distance(source, self.table[source, label], self.accepts, len(self))

    def trimmed(self) -> Dfa:
        """Without the states that no accepted string passes through."""
        alive = self.to_end() < FAR
        order = np.full(len(self), NOWHERE, dtype=np.int32)
        reached = reach(self.table, alive)
        if not len(reached):
            return EMPTY
        order[reached] = np.arange(len(reached))
        table = self.table[reached]
        return Dfa(
            np.where(table == NOWHERE, NOWHERE, order[table]).astype(np.int32), self.class_of, self.accepts[reached]
        )


FAR = 2**30
EMPTY = Dfa(np.full((1, 1), NOWHERE, np.int32), np.zeros(256, np.int32), np.zeros(1, np.bool_))


def reach(table: Ints, alive: NDArray[np.bool_]) -> NDArray[np.int64]:
    """States among `alive` that can be reached from state 0, breadth first."""
    if not alive[0]:
        return np.empty(0, dtype=np.int64)
    seen = np.zeros(len(table), dtype=np.bool_)
    seen[0] = True
    found, frontier = [np.zeros(1, np.int64)], np.zeros(1, np.int64)
    while len(frontier):
        following = np.unique(table[frontier])
        following = following[following != NOWHERE]
        frontier = following[alive[following] & ~seen[following]].astype(np.int64)
        seen[frontier] = True
        found.append(frontier)
    return np.concatenate(found)


def distance(source: NDArray[np.integer], target: NDArray[np.integer], ends: NDArray[np.bool_], count: int) -> Ints:
    """Fewest edges from each of `count` states to one of `ends`, or FAR."""
    check_time()
    pairs = np.unique(target.astype(np.int64) * count + source)
    into, starts = pairs % count, np.searchsorted(pairs // count, np.arange(count + 1))
    found = np.full(count, FAR, dtype=np.int32)
    found[ends] = 0
    frontier, steps = np.flatnonzero(ends), 0
    while len(frontier):
        steps += 1
        before = np.unique(into[ranges(starts[frontier], starts[frontier + 1])])
        frontier = before[found[before] == FAR]
        found[frontier] = steps
    return found


def ranges(begins: NDArray[np.integer], ends: NDArray[np.integer]) -> NDArray[np.int64]:
    """All integers of several half-open ranges, one range after another."""
    sizes = ends - begins
    offsets = np.cumsum(sizes) - sizes
    return np.asarray(np.arange(int(sizes.sum())) + np.repeat(begins - offsets, sizes))


def explore(
    start: State,
    alphabet: Sequence[bytes],
    move: Callable[[State, int], State | None],
    accepts: Callable[[State], bool],
) -> Dfa:
    """The automaton of a rule: `move(state, i)` is the state after any byte of alphabet[i], None for nowhere."""
    class_of = np.full(256, len(alphabet), dtype=np.int32)
    for label, members in enumerate(alphabet):
        class_of[list(members)] = label
    numbers, rows, states = {start: 0}, [], [start]
    for state in states:
        check_time()
        row = [NOWHERE] * (len(alphabet) + 1)
        for label in range(len(alphabet)):
            following = move(state, label)
            if following is not None:
                if following not in numbers:
                    numbers[following] = len(states)
                    states.append(following)
                row[label] = numbers[following]
        rows.append(row)
    return Dfa(np.array(rows, np.int32), class_of, np.array([accepts(state) for state in states], np.bool_)).trimmed()


def intersect(left: Dfa, right: Dfa) -> Dfa:
    """Strings of both languages. Raises ConstraintError if their automata multiply beyond MOST_PAIRS."""
    return _product(left, right, both=True)


def subtract(left: Dfa, right: Dfa) -> Dfa:
    """Strings of the left language that are not of the right one. Raises ConstraintError as `intersect` does."""
    return _product(left, right, both=False)


def _product(left: Dfa, right: Dfa, *, both: bool) -> Dfa:
    """Pairs of states, a level of them at a time; the right one is its own dead state where `both` is false."""
    joint, class_of = np.unique(np.stack([left.class_of, right.class_of]), axis=1, return_inverse=True)
    dead = len(right)  # NOWHERE of the right automaton as a state, from which nothing is in its language
    table_right = np.vstack([right.table, np.full((1, right.table.shape[1]), NOWHERE, np.int32)])
    table_right = np.where(table_right == NOWHERE, dead, table_right)
    accepts_right = np.append(right.accepts, False)
    known = np.zeros(1, dtype=np.int64)
    rows, frontier = [], known
    while len(frontier):
        check_time()
        a, b = np.divmod(frontier, dead + 1)
        next_a, next_b = left.table[a][:, joint[0]].astype(np.int64), table_right[b][:, joint[1]]
        lost = (next_a == NOWHERE) | (both & (next_b == dead))
        keys = np.where(lost, NOWHERE, next_a * (dead + 1) + next_b)
        rows.append(keys)
        fresh = np.setdiff1d(keys[keys != NOWHERE], known)
        known, frontier = np.concatenate([known, fresh]), fresh
        if len(known) > MOST_PAIRS:
            raise ConstraintError(
                f"{part_compiled()} has two conditions that need over {MOST_PAIRS} states together; narrow lengths or"
                " counts"
            )
    keys = np.concatenate(rows)
    order = np.argsort(known)
    places = order[np.clip(np.searchsorted(known[order], keys), 0, len(known) - 1)]
    a, b = np.divmod(known, dead + 1)
    accepts = left.accepts[a] & (accepts_right[b] if both else ~accepts_right[b])
    table = np.where(keys == NOWHERE, NOWHERE, places).astype(np.int32)
    return Dfa(table, class_of.reshape(-1).astype(np.int32), accepts).trimmed()


Part = tuple[int, int] | None
"""The first and the last state of a piece of a language under construction; None if no string is in it."""


@dataclass
class Builder:
    """A language under construction. Each part has one way in and one way out; each may be used once."""

    limits: Limits = DEFAULT_LIMITS
    blocks: list[Dfa] = field(default_factory=list)
    empties: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0

    def literal(self, text: bytes) -> Part:
        """Exactly these bytes."""
        present = sorted(set(text))
        class_of = np.full(256, len(present), np.int32)
        class_of[present] = np.arange(len(present))
        table = np.full((len(text) + 1, len(present) + 1), NOWHERE, np.int32)
        table[np.arange(len(text)), class_of[list(text)]] = np.arange(1, len(text) + 1)
        first = self._place(Dfa(table, class_of, np.zeros(len(text) + 1, np.bool_)))
        return first, first + len(text)

    def embed(self, dfa: Dfa) -> Part:
        """The strings that an automaton accepts."""
        if dfa.is_empty:
            return None
        first, last = self._place(dfa), self.state()
        self.empties += [(first + int(state), last) for state in np.flatnonzero(dfa.accepts)]
        return first, last

    def then(self, *parts: Part) -> Part:
        """One after another."""
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts):
            return None
        if not whole:
            return self.literal(b"")
        self.empties += [(before[1], after[0]) for before, after in pairwise(whole)]
        return whole[0][0], whole[-1][1]

    def either(self, parts: Iterable[Part]) -> Part:
        """Any one of them."""
        found = [part for part in parts if part is not None]
        if len(found) <= 1:
            return found[0] if found else None
        first, last = self.state(), self.state()
        self.empties += [(first, part[0]) for part in found] + [(part[1], last) for part in found]
        return first, last

    def maybe(self, part: Part) -> Part:
        """It or nothing."""
        return self.either([part, self.literal(b"")])

    def repeat(self, make: Callable[[], Part], low: int, high: int | None) -> Part:
        """`low` to `high` of what `make` gives, one after another; without end if `high` is None."""
        parts = [make() for _ in range(low)]
        if high is None:
            loop = make()
            if loop is not None:
                first, last = self.state(), self.state()
                self.empties += [(first, loop[0]), (loop[1], first), (first, last)]
                parts.append((first, last))
            return self.then(*parts)
        tail: Part = self.literal(b"")
        for _ in range(high - low):
            tail = self.maybe(self.then(make(), tail))
        return self.then(*parts, tail)

    def state(self) -> int:
        """A state of its own, to be linked by hand where sequences and choices do not do."""
        return self._place(EMPTY)

    def link(self, source: int, target: int) -> None:
        """An empty move."""
        self.empties.append((source, target))

    def finish(self, part: Part) -> Dfa:
        """The deterministic automaton of a part. Raises ConstraintError where it passes the limits."""
        if part is None:
            return EMPTY
        return _Determiniser(self, *part).run().trimmed()

    def check(self, states: int) -> None:
        """Raise ConstraintError if this many states are over the limits, or the time limit has passed."""
        if states > self.limits.states:
            raise ConstraintError(
                f"{part_compiled()} needs over {self.limits.states} states; narrow its lengths, counts or depth"
            )
        check_time()

    def _place(self, block: Dfa) -> int:
        first = self.count
        self.blocks.append(block)
        self.count += len(block)
        self.check(self.count // 4)  # a quarter, because most of these states go when it is made deterministic
        return first


def any_of(texts: Iterable[str]) -> Dfa:
    """One of some texts."""
    build = Builder()
    return build.finish(build.either([build.literal(text.encode()) for text in texts]))


_UNSEEN = -2


class _Determiniser:
    """The subset construction. Sets hold only states that have moves of their own, so most have one member."""

    def __init__(self, builder: Builder, first: int, last: int) -> None:
        self.builder, self.first, self.last = builder, first, last
        maps, which = np.unique(np.stack([block.class_of for block in builder.blocks]), axis=0, return_inverse=True)
        joint, class_of = np.unique(maps, axis=1, return_inverse=True)
        self.class_of = class_of.reshape(-1).astype(np.int32)
        self.table = np.full((builder.count, joint.shape[1]), NOWHERE, np.int32)
        begin = 0
        for block, row in zip(builder.blocks, which.reshape(-1), strict=True):
            own = block.table[:, joint[row]]
            self.table[begin : begin + len(block)] = np.where(own == NOWHERE, NOWHERE, own + begin)
            begin += len(block)
        self.moves = (self.table != NOWHERE).any(1)
        self.moves[last] = True
        self.number_of = np.full(builder.count + 1, _UNSEEN, np.int32)
        self.number_of[NOWHERE] = NOWHERE
        self.after: dict[int, list[int]] = {}
        for source, target in builder.empties:
            self.after.setdefault(source, []).append(target)
        self.closed: dict[int, tuple[int, ...]] = {}
        self.numbers: dict[tuple[int, ...], int] = {}
        self.queue: deque[tuple[int, ...]] = deque()

    def run(self) -> Dfa:
        """The automaton whose states are the sets that can be reached."""
        self._number(self._closure(self.first))
        rows = []
        while self.queue:
            members = self.queue.popleft()
            rows.append(self._row(members))
            self.builder.check(len(self.numbers))
        accepts = np.array([self.last in members for members in self.numbers], np.bool_)
        return Dfa(np.array(rows, np.int32), self.class_of, accepts)

    def _row(self, members: tuple[int, ...]) -> Ints:
        if len(members) == 1:
            targets = self.table[members[0]]
            row = self.number_of[targets]  # the last entry stands for NOWHERE, which is -1
            if (row == _UNSEEN).any():
                for target in np.unique(targets[row == _UNSEEN]):
                    self.number_of[target] = self._number(self._closure(int(target)))
                row = self.number_of[targets]
            return np.asarray(row)
        known: dict[tuple[int, ...], int] = {}
        found = []
        for column in zip(*self.table[list(members)].tolist(), strict=True):
            if column not in known:
                known[column] = self._number(self._join(column))
            found.append(known[column])
        return np.array(found, np.int32)

    def _join(self, targets: tuple[int, ...]) -> tuple[int, ...]:
        reached = {target for target in targets if target != NOWHERE}
        return tuple(sorted({state for target in reached for state in self._closure(target)}))

    def _number(self, members: tuple[int, ...]) -> int:
        if not members:
            return NOWHERE
        if members not in self.numbers:
            self.numbers[members] = len(self.numbers)
            self.queue.append(members)
        return self.numbers[members]

    def _closure(self, state: int) -> tuple[int, ...]:
        """The states that empty moves lead to, itself among them, of those that matter."""
        if state not in self.closed:
            seen, stack = {state}, [state]
            while stack:
                fresh = [target for target in self.after.get(stack.pop(), ()) if target not in seen]
                seen.update(fresh)
                stack += fresh
            self.closed[state] = tuple(sorted(at for at in seen if self.moves[at]))
        return self.closed[state]
