"""Which requests may run: the ledger is asked at submission, at each turn, and when memory runs out."""

from __future__ import annotations

from collections.abc import Iterator

from redraft.engine.memory import Ledger
from redraft.engine.runner import LESS, OUT, Runner
from redraft.engine.scheduler import Batch, Scheduler
from redraft.engine.sequence import Sequence
from redraft.errors import RunError

PATIENCE = 64
"""Forwards that go well before they are widened again; twice as many behind each that was too wide."""


class Admission:
    """Between the scheduler's queue and the runner. Prefixes have what the ledger leaves."""

    def __init__(self, scheduler: Scheduler, runner: Runner, ledger: Ledger) -> None:
        self.scheduler, self.runner, self.ledger = scheduler, runner, ledger
        self._went_well, self._patience = 0, PATIENCE
        scheduler.max_rows = ledger.max_rows

    def check(self, sequence: Sequence) -> None:
        """Raise RequestError, with what would fit, for a request that never will."""
        request = sequence.request
        alone = self.runner.demand(sequence, self.ledger, placed=False)
        self.ledger.check(alone, len(request.prompt), request.max_tokens)

    def admit(self) -> Iterator[tuple[Sequence, Exception | None]]:
        """Open what fits: each that runs now, and with its error each that cannot be opened."""
        for one in self.scheduler.admit(self._fits):
            error: Exception | None = None
            try:
                if not self.runner.open(one, self.scheduler.running.values()):
                    self._put_back(one)
                    continue
                self.ledger.holds(one.number, one.prefix.num_bytes)
            except Exception as failure:  # whatever opening it met is its own failure alone
                error = failure
            yield one, error
        self.ledger.standing = self.runner.idle(self.scheduler.running.values())
        self._bound_prefixes()

    def leave(self, sequence: Sequence) -> None:
        """A request has ended: there may be memory for others now, and forwards may be as wide as before."""
        self.ledger.leave(sequence.number)
        if not self.scheduler.running:
            self.scheduler.max_rows, self._patience = self.ledger.max_rows, PATIENCE
        for other in self.scheduler.running.values():
            other.starved = False

    def narrow(self, batch: Batch) -> None:
        """Memory ran out in this forward: the next ones have half its rows."""
        least = min(piece.rows for piece in batch)
        self.scheduler.max_rows = max(least, sum(piece.rows for piece in batch) // 2)
        self._went_well, self._patience = 0, 2 * self._patience

    def widen(self) -> None:
        """This forward went well. Behind many such, the next ones may have twice as many rows again, and a shortage is
        forgotten."""
        self._went_well += 1
        if self._went_well % self._patience == 0:
            self.scheduler.max_rows = min(2 * self.scheduler.max_rows, self.ledger.max_rows)
            self.ledger.short = None

    def starved(self) -> tuple[list[Sequence], RunError]:
        """The request that gives way where there is memory for no running one: the youngest; and its error."""
        found = [one for one in self.scheduler.running.values() if one.starved]
        return found[-1:], RunError(OUT)

    def _fits(self, sequence: Sequence) -> bool:
        """Whether there is memory for a sequence beside the running ones; if so, it is entered in the ledger. Where
        there is none for a prefix at a place of the graphs, whose room is rounded up, it gets one of its own."""
        running = self.scheduler.running.values()
        self.ledger.standing = self.runner.idle(running)
        for placed in (True, False):
            sequence.placed, demand = placed, self.runner.demand(sequence, self.ledger, placed=placed)
            if not self.ledger.fits(demand):
                self.runner.give_way(running)
                self.ledger.standing = 0
            if self.ledger.fits(demand):
                break
        if self.ledger.running and not self.ledger.fits(demand):
            return False
        self.ledger.enter(sequence.number, demand)
        self._bound_prefixes()
        return True

    def _bound_prefixes(self) -> None:
        if (left := self.ledger.left) is not None:
            self.runner.prefixes.bound(left)

    def _put_back(self, sequence: Sequence) -> None:
        """There was less memory than the ledger took for granted: this one waits until another ends."""
        self.ledger.leave(sequence.number)
        if not self.ledger.running:
            raise RunError(f"memory ran out before the request began; {LESS}")
        self.ledger.short = self.ledger.taken
        self.scheduler.postpone(sequence)
