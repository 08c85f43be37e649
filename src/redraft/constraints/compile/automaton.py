"""Deterministic finite automata over bytes: what they accept, their intersection and difference."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from redraft.constraints.compile.limits import DEFAULT_LIMITS, OutOfReachError, check_time, part_compiled

Ints = NDArray[np.int32]
State = TypeVar("State", bound=Hashable)

NOWHERE = -1


MOST_SMALL = 400
"""States of an automaton that is made minimal: most have far fewer, and it takes a round for each step to the end."""
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
    def num_bytes(self) -> int:
        """Bytes of its arrays."""
        return int(self.table.nbytes + self.class_of.nbytes + self.accepts.nbytes)

    @property
    def is_empty(self) -> bool:
        """Whether it accepts nothing at all. Every state of a trimmed automaton leads somewhere."""
        return not bool(self.accepts.any())

    def is_within(self, most: int) -> bool:
        """Whether no string has more than so many bytes. Every state of a trimmed automaton leads somewhere."""
        # States that none leads to are taken away, a level for each byte: never those of a loop.
        source, label = np.nonzero(self.table != NOWHERE)
        edges = np.unique(source * len(self) + self.table[source, label])
        source, target = np.divmod(edges, len(self))
        leading = np.bincount(target, minlength=len(self))
        begins = np.searchsorted(source, np.arange(len(self) + 1))
        level, size, gone = np.flatnonzero(leading == 0), 0, 0
        while len(level) and size <= most:
            check_time()
            size, gone = size + 1, gone + len(level)
            following = target[ranges(begins[level], begins[level + 1])]
            np.subtract.at(leading, following, 1)
            level = np.unique(following[leading[following] == 0])
        return gone == len(self)

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

    @property
    def sole(self) -> bytes | None:
        """The one text that it accepts; None if there are none or several. It has to be trimmed."""
        bytes_of = np.bincount(self.class_of, minlength=self.table.shape[1])
        ways = np.where(self.table != NOWHERE, bytes_of, 0).sum(axis=1) + self.accepts
        if not len(self) or (ways != 1).any():
            return None
        text, state = bytearray(), 0
        while not self.accepts[state]:
            label = int(np.flatnonzero(self.table[state] != NOWHERE)[0])
            text.append(int(np.flatnonzero(self.class_of == label)[0]))
            state = int(self.table[state, label])
        return bytes(text)

    def to_end(self) -> Ints:
        """Fewest bytes from each state to an accepting one; a large number where there is no way."""
        source, label = np.nonzero(self.table != NOWHERE)
        target = self.table[source, label]
        order = np.argsort(target, kind="stable")
        return distance(source[order], target[order], self.accepts, len(self))

    def trimmed(self) -> Dfa:
        """Without the states that no accepted string passes through."""
        return self.reached(self.to_end() < FAR)

    def minimal(self) -> Dfa:
        """The fewest states for the same language; for small automata that are put into many places."""
        block, count = self.accepts.astype(np.int64), 0
        while True:
            moved = np.where(self.table == NOWHERE, NOWHERE, block[self.table])
            _, first, block = np.unique(np.c_[block, moved], axis=0, return_index=True, return_inverse=True)
            if len(first) == count:
                break
            block, count = block.reshape(-1), len(first)
        order = np.argsort(first)  # the start stays state 0
        place = np.append(np.argsort(order), NOWHERE).astype(np.int32)
        return Dfa(place[moved[first[order]]], self.class_of, self.accepts[first[order]])

    def reached(self, alive: NDArray[np.bool_]) -> Dfa:
        """Without the states that the start does not lead to through those that are `alive`."""
        kept = reach(self.table, alive)
        if not len(kept):
            return EMPTY
        place = np.full(len(self) + 1, NOWHERE, dtype=np.int32)  # the last entry stands for NOWHERE, which is -1
        place[kept] = np.arange(len(kept))
        return Dfa(place[self.table[kept]], self.class_of, self.accepts[kept])


FAR = 2**30
EMPTY = Dfa(np.full((1, 1), NOWHERE, np.int32), np.zeros(256, np.int32), np.zeros(1, np.bool_))


class Compiled(NamedTuple):
    """The automaton of a source, whether a validator has to check answers all the same, and the keywords of a schema
    that are ignored: JSON pointers, each perhaps with the keyword that was meant."""

    dfa: Dfa
    checked: bool = False
    ignored: tuple[str, ...] = ()


def reach(table: Ints, alive: NDArray[np.bool_]) -> NDArray[np.int64]:
    """States among `alive` that can be reached from state 0, breadth first."""
    if not alive[0]:
        return np.empty(0, dtype=np.int64)
    found, frontier = [np.zeros(1, np.int64)], np.zeros(1, np.int64)
    unseen = np.append(alive, False)  # the last entry stands for NOWHERE, which is -1
    unseen[0] = False
    while len(frontier):
        following = table[frontier].reshape(-1)
        frontier = np.unique(following[unseen[following]]).astype(np.int64)
        unseen[frontier] = False
        found.append(frontier)
    return np.concatenate(found)


def distance(source: NDArray[np.integer], target: NDArray[np.integer], ends: NDArray[np.bool_], count: int) -> Ints:
    """Fewest edges from each of `count` states to one of `ends`, or FAR. The edges are sorted by target."""
    check_time()
    starts = np.searchsorted(target, np.arange(count + 1))
    found = np.full(count, FAR, dtype=np.int32)
    found[ends] = 0
    frontier, steps = np.flatnonzero(ends), 0
    while len(frontier):
        steps += 1
        before = source[ranges(starts[frontier], starts[frontier + 1])]
        found[before[found[before] == FAR]] = steps
        frontier = np.flatnonzero(found == steps)
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
    found = Dfa(np.array(rows, np.int32), class_of, np.array([accepts(state) for state in states], np.bool_)).trimmed()
    return found.minimal() if len(found) < MOST_SMALL else found


def intersect(left: Dfa, right: Dfa, most: int = MOST_PAIRS) -> Dfa:
    """Strings of both languages. Raises OutOfReachError if their automata have over `most` states together."""
    return _product(left, right, most, both=True)


def subtract(left: Dfa, right: Dfa) -> Dfa:
    """Strings of the left language that are not of the right one. Raises OutOfReachError as `intersect` does."""
    return _product(left, right, MOST_PAIRS, both=False)


def _product(left: Dfa, right: Dfa, most: int, *, both: bool) -> Dfa:
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
        if len(known) > most:
            raise OutOfReachError(
                f"{part_compiled()} has two conditions that need over {most} states together; narrow lengths or counts"
            )
    keys = np.concatenate(rows)
    order = np.argsort(known)
    places = order[np.clip(np.searchsorted(known[order], keys), 0, len(known) - 1)]
    a, b = np.divmod(known, dead + 1)
    accepts = left.accepts[a] & (accepts_right[b] if both else ~accepts_right[b])
    table = np.where(keys == NOWHERE, NOWHERE, places).astype(np.int32)
    return Dfa(table, class_of.reshape(-1).astype(np.int32), accepts).trimmed()
