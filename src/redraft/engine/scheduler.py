"""Which rows go into the next forward. Of a sequence it reads counts; it touches no tensor, no model and no clock.

The unit of work is the row. A sequence asks for rows in one of two phases:

    PREFILL   its next prompt chunk; the last chunk brings the first canvas along (pass fusion)
    DENOISE   its canvas, and before it, when a block has just settled, the block to commit

Chunks are cut at multiples of PREFILL_CHUNK from the start of a prompt, or beside an image that is there
(`images/prompt.py`), never by what happens to fit, so that a request's forwards are the same whatever runs beside it.
`pick` takes from what is ready, up to `max_rows`; the oldest sequence always goes, so every turn comes: where a forward
has room for one canvas, behind all before it. On a processor, where a forward takes as long as it has rows, several
callers go by `Shares`, so that one's short answers do not wait for another's long ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from redraft.engine.sequence import Sequence
from redraft.errors import BusyError, RequestError


@dataclass(frozen=True)
class Piece:
    """Rows of one sequence in one forward: `encode` causal ones, then `canvas` bidirectional ones (0: none yet)."""

    sequence: Sequence
    encode: int
    canvas: int

    @property
    def rows(self) -> int:
        """Rows in all."""
        return self.encode + self.canvas

    @property
    def extra(self) -> int:
        """Rows that its constraint takes as long as, about."""
        return self.sequence.extra if self.canvas or not self.sequence.width else 0

    @property
    def cost(self) -> int:
        """Both."""
        return self.rows + self.extra


Batch = tuple[Piece, ...]


def piece_of(sequence: Sequence) -> Piece:
    """Its rows in the next forward: a prompt chunk, or the canvas behind the last chunk, a commit or nothing."""
    if (chunk := sequence.prompt_chunk) < sequence.prompt_left:
        return Piece(sequence, chunk, 0)
    return Piece(sequence, sequence.prompt_left + sequence.commit_rows, sequence.width)


def pick(ready: list[Sequence], max_rows: int) -> Batch:
    """The oldest, then callers by turns: each one's first sequence before anybody's second. A caller's sequences are
    ordered by rows, and so are those of one turn, so that a short request never waits for long ones; among equals
    canvases come before prompt chunks, then the oldest. `ready` are in order of arrival; whatever their step, for
    nothing in the network encodes it. Their constraints together take no longer than `max_rows` rows, either: who comes
    meanwhile waits for all of them."""
    seen = Counter(one.caller for one in ready[:1])
    turns: list[tuple[int, Sequence]] = []
    shortest = sorted(ready[1:], key=lambda one: (piece_of(one).rows, bool(one.prompt_left)))
    for one in shortest:
        turns.append((seen[one.caller], one))
        seen[one.caller] += 1
    turns.sort(key=lambda turn: turn[0])
    chosen: list[Piece] = []
    left = extra = max_rows
    for piece in map(piece_of, [*ready[:1], *(one for _, one in turns)]):
        if chosen and (piece.rows > left or piece.extra > extra):
            continue
        chosen.append(piece)
        left, extra = left - piece.rows, max(0, extra - piece.extra)
    return tuple(chosen)


class Shares:
    """Rows by turns among callers. In a forward each takes rows until it has its share, and what the last piece takes
    beyond it is a debt that the next forwards pay off: deficit round robin (Shreedhar and Varghese, 1995) with debts in
    place of savings. A share is `least` rows, or as many as the least that some caller's first piece has: callers who
    ask for the same stay together. What a constraint takes on the host counts as rows, and those of a forward together
    take no longer than its rows may.

    With a share of 64 rows, forward by forward, once both have had a turn:

        A has a canvas of 256, B one of 64:    A B    B    B    B    A B …   A pays off what it took
        A has eight of 16, B one of 16:        AAAA B    AAAA B …
    """

    def __init__(self, least: int) -> None:
        self.least = least
        self._debts: dict[object, int] = {}

    def pick(self, ready: list[Sequence], max_rows: int) -> Batch:
        """The next forward of sequences of several callers, in order of arrival."""
        lines: dict[object, list[Piece]] = {}
        for one in ready:
            lines.setdefault(one.caller, []).append(piece_of(one))
        for line in lines.values():
            line[1:] = sorted(line[1:], key=lambda piece: (piece.cost, bool(piece.sequence.prompt_left)))
        share = max(self.least, min(line[0].cost for line in lines.values()))
        debts = {caller: self._debts.get(caller, 0) - share for caller in lines}
        waited = max(0, min(debts.values()))  # where all are in debt, time passes until one is not
        chosen: list[Piece] = []
        left = extra = max_rows
        for caller in sorted(lines, key=lambda caller: (debts[caller], lines[caller][0].cost)):
            debts[caller] -= waited
            taken = 0
            for piece in lines[caller] if debts[caller] <= 0 else ():
                if taken < share and ((piece.rows <= left and piece.extra <= extra) or not chosen):
                    chosen.append(piece)
                    taken, left, extra = taken + piece.cost, left - piece.rows, max(0, extra - piece.extra)
            if taken:  # who gets nothing goes first the next time; who needs little saves up one share
                debts[caller] = max(debts[caller] + taken, -share)
        self._debts = debts
        return tuple(chosen)


KEPT = 8
"""One place in so many is for callers that have none running."""


class Scheduler:
    """The queue and the running sequences, by number. Two bounds: rows per forward, requests at a time. With a `share`
    of rows callers go by `Shares`, otherwise by turns in a forward as full as it can be."""

    def __init__(self, *, max_rows: int, max_running: int, max_waiting: int, share: int | None = None) -> None:
        for name, value in (("max_rows", max_rows), ("max_running", max_running), ("max_waiting", max_waiting)):
            if type(value) is not int or value < 1:
                raise RequestError(f"{name} is {value!r}; it must be an integer of at least 1")
        self.max_rows, self.max_running, self.max_waiting = max_rows, max_running, max_waiting
        self.waiting: dict[int, Sequence] = {}
        self.running: dict[int, Sequence] = {}
        self._shares = None if share is None else Shares(share)

    def check_room(self, arrived: int) -> None:
        """Raise BusyError if the queue, with `arrived` requests on their way to it, is full."""
        waiting = len(self.waiting) + arrived
        if waiting >= self.max_waiting:
            raise BusyError(f"{waiting} requests are waiting, the most this engine queues; try again later")

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        assert sequence.number not in self.waiting, f"request {sequence.number} is queued already"
        assert sequence.number not in self.running, f"request {sequence.number} is running already"
        self.waiting[sequence.number] = sequence

    def admit(self, fits: Callable[[Sequence], bool] = lambda _: True) -> list[Sequence]:
        """Move sequences from the queue to the running ones as far as there is room; returns them. Next is the oldest
        of the caller that has the fewest running. If it does not fit it waits, and so do all others. The last places
        are for callers that have none running, so that no caller's many choices hold up another's one."""
        joined = []
        while self.waiting and len(self.running) < self.max_running:
            one = self._first()
            few = self.max_running - len(self.running) <= self.max_running // KEPT
            if (few and any(other.caller == one.caller for other in self.running.values())) or not fits(one):
                break
            self.running[one.number] = self.waiting.pop(one.number)
            joined.append(one)
        return joined

    def _first(self) -> Sequence:
        oldest: dict[object, Sequence] = {}
        for one in self.waiting.values():
            oldest.setdefault(one.caller, one)
        running = Counter(one.caller for one in self.running.values())
        return min(oldest.values(), key=lambda one: running[one.caller])

    def postpone(self, sequence: Sequence) -> None:
        """Put a running sequence back, before all that wait."""
        del self.running[sequence.number]
        self.waiting = {sequence.number: sequence, **self.waiting}

    def next(self) -> Batch:
        """The next forward. Empty when nothing is ready."""
        ready = [one for one in self.running.values() if not one.waits]
        if self._shares is not None and len({one.caller for one in ready}) > 1:
            return self._shares.pick(ready, self.max_rows)
        return pick(ready, self.max_rows)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, finished or aborted, running or not."""
        self.waiting.pop(sequence.number, None)
        self.running.pop(sequence.number, None)

    def check(self) -> None:
        """Raise AssertionError if the books contradict themselves."""
        assert not self.waiting.keys() & self.running.keys(), "a request both waits and runs"
        assert len(self.running) <= self.max_running
        assert len(self.waiting) <= self.max_waiting
        for number, one in (*self.waiting.items(), *self.running.items()):
            assert one.number == number
            assert one.prompt_left >= 0
            assert one.width >= 0
            assert not (one.prompt_left and (one.step or one.commit_rows)), (
                f"request {number} denoises before its prompt is read"
            )
