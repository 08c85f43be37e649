"""Languages put together from pieces, and made deterministic.

    literal, a whole Dfa ─► then / either / repeat / link ─► Builder.finish ─► Dfa

A `Builder` holds a nondeterministic automaton in pieces: whole tables of moves, joined by empty moves. It is made
deterministic once, at the end. A part of a language that has no strings is None: what is joined to it has none either,
and what is chosen against it stays, so a recursion that was cut off at its depth takes with it only what needed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from redraft.constraints.compile.automaton import EMPTY, NOWHERE, Dfa, Ints, ranges
from redraft.constraints.compile.limits import DEFAULT_LIMITS, CompileLimits, OutOfReachError, check_time, part_compiled
from redraft.constraints.compile.remembered import remembered

Part = tuple[int, int] | None
"""The first and the last state of a piece of a language under construction; None if no string is in it."""


@dataclass
class Builder:
    """A language under construction. Each part has one way in and one way out; each may be used once.

    blocks     automata with the number of their first state, each without states that lead nowhere
    literals   texts with the number of their first state; a text has a state per byte and one more

    With `most_members`, sets of states that are made one have no more of them together.
    """

    limits: CompileLimits = DEFAULT_LIMITS
    blocks: list[tuple[int, Dfa]] = field(default_factory=list)
    literals: list[tuple[int, bytes]] = field(default_factory=list)
    empties: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0
    most_members: int | None = None

    def literal(self, text: bytes) -> tuple[int, int]:
        """Exactly these bytes."""
        first = self._room(len(text) + 1)
        self.literals.append((first, text))
        return first, first + len(text)

    def embed(self, dfa: Dfa) -> Part:
        """The strings that an automaton accepts."""
        if dfa.is_empty:
            return None
        first = self._room(len(dfa))
        last = self.state()
        self.blocks.append((first, dfa))
        self.empties += [(first + state, last) for state in np.flatnonzero(dfa.accepts).tolist()]
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
        return self._room(1)

    def link(self, source: int, target: int) -> None:
        """An empty move."""
        self.empties.append((source, target))

    def finish(self, part: Part) -> Dfa:
        """The deterministic automaton of a part. Raises ConstraintError where it passes the limits."""
        if part is None:
            return EMPTY
        return _Determiniser(self, *part).run()

    def check(self, states: int) -> None:
        """Raise ConstraintError if this many states are over the limits, or the time limit has passed."""
        if states > self.limits.states:
            raise OutOfReachError(
                f"{part_compiled()} needs over {self.limits.states} states; narrow its lengths, counts or depth"
            )
        check_time()

    def _room(self, states: int) -> int:
        """Numbers for so many states; returns the first."""
        first = self.count
        self.count += states
        self.check(self.count // 4)  # a quarter, because some of these states go when it is made deterministic
        return first


def any_of(texts: Iterable[str]) -> Dfa:
    """One of some texts."""
    return _any_of(tuple(texts))


@remembered
def _any_of(texts: tuple[str, ...]) -> Dfa:
    build = Builder()
    return build.finish(build.either([build.literal(text.encode()) for text in texts]))


_UNSEEN = -2
PEELINGS = 8
_AT_ONCE = 1 << 22
"""Moves that are looked at together: 4 bytes each."""


class _Determiniser:
    """The subset construction, a level of sets at a time. Sets hold only states that have moves of their own, so most
    have one member, and those are worked on together.

    table      [states, classes], the moves of all pieces      number_of  of each state, the number of what empty moves
    after      where empty moves lead                                     from it reach; _UNSEEN where not yet asked for
    """

    def __init__(self, builder: Builder, first: int, last: int) -> None:
        self.builder, self.last = builder, last
        self.class_of, self.table = _joined_tables(builder)
        self.moves = (self.table != NOWHERE).any(1)
        self.moves[last] = True
        self.after = _useful_empties(builder, last)
        self.plain = self.moves.copy()
        self.plain[list(self.after)] = False
        self.number_of = np.full(builder.count + 1, _UNSEEN, np.int32)
        self.number_of[NOWHERE] = NOWHERE
        self.single = np.full(builder.count, _UNSEEN, np.int32)
        self.numbers: dict[tuple[int, ...], int] = {}
        self.matters = self.moves.tobytes()
        self.closed: dict[int, tuple[int, ...]] = {}
        self.searched: dict[int, tuple[int, ...]] = {}
        self.count = self.members = 0
        self.fresh_single: list[NDArray[np.integer]] = []
        self.fresh_joint: list[tuple[int, ...]] = []
        self.marks = np.random.default_rng(0).integers(0, 2**63, builder.count + 1, dtype=np.uint64)
        self.marks[NOWHERE] = 0
        self.first = self._number(self._closure(first))

    def run(self) -> Dfa:
        """The automaton whose states are the sets that can be reached."""
        if self.first == NOWHERE:
            return EMPTY
        numbers, rows, ends = [], [], []
        # All that some byte leads to at once, reached or not: from level to level most states would come one at a time.
        self._numbered(_targets(self.builder))
        while self.fresh_single or self.fresh_joint:
            singles = np.concatenate([np.empty(0, np.int64), *self.fresh_single]).astype(np.int64)
            joints, self.fresh_single, self.fresh_joint = self.fresh_joint, [], []
            if len(singles):
                numbers.append(self.single[singles])
                rows.append(self._numbered(self.table[singles]))
                ends.append(singles == self.last)
            for part in _chunks(joints, _AT_ONCE // self.table.shape[1]):
                check_time()
                numbers.append(np.array([self.numbers[members] for members in part], np.int32))
                rows.append(self._joint_rows(part))
                ends.append(np.array([self.last in members for members in part]))
            self.builder.check(self.count)
        order = np.argsort(np.concatenate(numbers))
        table, accepts = np.concatenate(rows)[order], np.concatenate(ends)[order].astype(np.bool_)
        reached = _reached(table)
        if not reached.all():
            place = np.append(np.cumsum(reached) - 1, NOWHERE).astype(np.int32)  # the last is where NOWHERE stays
            table, accepts = place.take(table[reached]), accepts[reached]
        return Dfa(table, self.class_of, accepts)

    def _numbered(self, targets: Ints) -> Ints:
        """The numbers of what is reached with empty moves from single states, [.., classes]."""
        found = self.number_of.take(targets)  # the last entry stands for NOWHERE, which is -1
        if (found == _UNSEEN).any():
            unseen = np.unique(targets[found == _UNSEEN])
            plain = unseen[self.plain[unseen]]
            self._number_plain(plain)
            self.number_of[plain] = self.single[plain]
            for state in unseen[~self.plain[unseen]].tolist():
                self.number_of[state] = self._number(self._closure(state))
            found = self.number_of.take(targets)
        return found

    def _joint_rows(self, sets: list[tuple[int, ...]]) -> Ints:
        """The moves of sets of several states: most classes of bytes move at most one member, or all to one place."""
        sizes = np.array([len(members) for members in sets])
        starts = np.cumsum(sizes) - sizes
        moves = self.table[np.concatenate([np.array(members) for members in sets])]
        top = np.maximum.reduceat(moves, starts)
        low = np.minimum.reduceat(np.where(moves == NOWHERE, np.iinfo(np.int32).max, moves), starts)
        agreed = (top == NOWHERE) | (top == low)
        rows = self._numbered(np.where(agreed, top, NOWHERE))
        where, label = np.nonzero(~agreed)
        if len(where):
            keys = np.add.reduceat(self.marks[moves], starts)[where, label]
            _, one, which = np.unique(keys, return_index=True, return_inverse=True)
            joined = [
                self._join(moves[starts[where[i]] : starts[where[i]] + sizes[where[i]], label[i]].tolist()) for i in one
            ]
            rows[where, label] = np.array(joined, np.int32)[which.reshape(-1)]
        return rows

    def _join(self, targets: Iterable[int]) -> int:
        check_time()
        reached = {target for target in targets if target != NOWHERE}
        return self._number(tuple(sorted({state for target in reached for state in self._closure(target)})))

    def _number(self, members: tuple[int, ...]) -> int:
        if not members:
            return NOWHERE
        if len(members) == 1:
            if self.single[members[0]] == _UNSEEN:
                self._number_plain(np.array(members))
            return int(self.single[members[0]])
        if members not in self.numbers:
            self.members += len(members)
            if self.builder.most_members is not None and self.members > self.builder.most_members:
                raise OutOfReachError(f"{part_compiled()} repeats itself too often; shorten it")
            self.numbers[members] = self.count
            self.count += 1
            self.fresh_joint.append(members)
        return self.numbers[members]

    def _number_plain(self, states: NDArray[np.integer]) -> None:
        """Give numbers to those single states that have none."""
        fresh = states[self.single[states] == _UNSEEN]
        self.single[fresh] = np.arange(self.count, self.count + len(fresh))
        self.count += len(fresh)
        self.fresh_single.append(fresh)

    def _closure(self, state: int) -> tuple[int, ...]:
        """The states that empty moves lead to, itself among them, of those that matter."""
        if state not in self.closed:
            following = self.after.get(state, ())
            if len(following) == 1:  # the ends of a piece all lead to one place
                self.closed[state] = self._behind(following[0])
                if self.matters[state]:
                    self.closed[state] = tuple(sorted({state, *self.closed[state]}))
            else:
                self.closed[state] = self._behind(state)
        return self.closed[state]

    def _behind(self, state: int) -> tuple[int, ...]:
        if state not in self.searched:
            check_time()
            seen, stack = {state}, [state]
            while stack:
                fresh = [target for target in self.after.get(stack.pop(), ()) if target not in seen]
                seen.update(fresh)
                stack += fresh
            self.searched[state] = tuple(sorted(at for at in seen if self.matters[at]))
        return self.searched[state]


def _targets(builder: Builder) -> Ints:
    """The states that moves of the pieces lead to."""
    inside = [first + np.flatnonzero(_moves_into(block.table, len(block))) for first, block in builder.blocks]
    spelt = [np.arange(first + 1, first + 1 + len(text)) for first, text in builder.literals]
    return np.concatenate([np.empty(0, np.int64), *inside, *spelt]).astype(np.int32)


def _reached(table: Ints) -> NDArray[np.bool_]:
    """The first state and those that some kept state leads to. States that nothing leads to are removed in at most
    PEELINGS rounds, so a few may stay."""
    into = _moves_into(table, len(table))
    into[0] += 1
    alive = np.ones(len(table), np.bool_)
    for _ in range(PEELINGS):
        dead = np.flatnonzero(alive & (into == 0))
        if not len(dead):
            break
        alive[dead] = False
        into -= _moves_into(table[dead], len(table))
    return alive


def _moves_into(rows: Ints, states: int) -> NDArray[np.integer]:
    """How many moves lead into each of so many states."""
    return np.bincount(rows.reshape(-1) + 1, minlength=states + 1)[1:]


def _joined_tables(builder: Builder) -> tuple[Ints, Ints]:
    """The classes of bytes that all pieces of a language under construction share, and the moves of all its states."""
    letters = np.zeros(256, np.int64)
    used = sorted(set().union(*(text for _, text in builder.literals)))
    letters[used] = np.arange(1, len(used) + 1)
    class_of = np.unique(letters, return_inverse=True)[1].reshape(-1)
    known = dict.fromkeys([block.class_of.tobytes() for _, block in builder.blocks])
    for data in known:
        pairs = class_of * 257 + np.frombuffer(data, np.int32)
        class_of = np.unique(pairs, return_inverse=True)[1].reshape(-1)
    _, member = np.unique(class_of, return_index=True)
    table = np.full((builder.count, len(member)), NOWHERE, np.int32)
    for first, block in builder.blocks:
        own = block.table.take(block.class_of[member], axis=1)
        np.add(own, first, out=table[first : first + len(block)], where=own != NOWHERE)
    if builder.literals:
        text = np.frombuffer(b"".join(text for _, text in builder.literals), np.uint8)
        sizes = np.array([len(text) for _, text in builder.literals])
        begins = np.array([first for first, _ in builder.literals])
        states = ranges(begins, begins + sizes)
        table[states, class_of[text]] = states + 1
    return class_of.astype(np.int32), table


def _useful_empties(builder: Builder, last: int) -> dict[int, list[int]]:
    """The empty moves but for those into pieces that lead to no end. Within a piece every state leads on."""
    pieces = [*(first for first, _ in builder.blocks), *(first for first, _ in builder.literals)]
    sizes = [*(len(block) for _, block in builder.blocks), *(len(text) + 1 for _, text in builder.literals)]
    piece_of = np.arange(builder.count)
    for begin, size in zip(pieces, sizes, strict=True):
        piece_of[begin : begin + size] = begin
    empties = np.array(builder.empties, np.int64).reshape(-1, 2)
    into: dict[int, list[int]] = {}
    for source, target in {*zip(*piece_of[empties].T.tolist(), strict=True)}:
        into.setdefault(target, []).append(source)
    first = int(piece_of[last])
    alive, stack = {first}, [first]
    while stack:
        fresh = [piece for piece in into.get(stack.pop(), ()) if piece not in alive]
        alive.update(fresh)
        stack += fresh
    useful = np.zeros(builder.count, np.bool_)
    useful[list(alive)] = True
    after: dict[int, list[int]] = {}
    for source, target in empties[useful[piece_of[empties[:, 1]]]].tolist():
        after.setdefault(source, []).append(target)
    return after


def _chunks(sets: list[tuple[int, ...]], most: int) -> Iterator[list[tuple[int, ...]]]:
    """Sets in parts of about so many members."""
    part: list[tuple[int, ...]] = []
    size = 0
    for members in sets:
        part.append(members)
        size += len(members)
        if size >= most:
            yield part
            part, size = [], 0
    if part:
        yield part
