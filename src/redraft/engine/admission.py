"""Which requests may run: the ledger is asked at submission, at each turn, and when memory runs out."""

from __future__ import annotations

from collections.abc import Callable

from redraft.engine.memory import Ledger
from redraft.engine.runner import Runner
from redraft.engine.scheduler import Batch, Scheduler
from redraft.engine.sequence import Sequence
from redraft.errors import RunError

_LESS = "shorten the request, give the engine fewer at a time (max_running), or load the model in fewer bits"


class Admission:
    """Between the scheduler's queue and the runner. Prefixes have what the ledger leaves."""

    def __init__(self, scheduler: Scheduler, runner: Runner, ledger: Ledger) -> None:
        self.scheduler, self.runner, self.ledger = scheduler, runner, ledger
        scheduler.max_rows = ledger.max_rows

    def check(self, sequence: Sequence) -> None:
        """Raise RequestError, with what would fit, for a request that never will."""
        request = sequence.request
        self.ledger.check(self.runner.demand(sequence, self.ledger), len(request.prompt), request.max_tokens)

    def admit(self, then: Callable[[Sequence], None], fail: Callable[[Sequence, Exception], None]) -> None:
        """Open what fits, and do `then` with each; `fail` takes those that cannot be opened, each for itself."""
        for one in self.scheduler.admit(self._fits):
            try:
                if self.runner.open(one, self.scheduler.running.values()):
                    then(one)
                else:
                    self._put_back(one)
            except Exception as error:  # whatever opening it met is its own failure alone
                fail(one, error)
        self._bound_prefixes()

    def leave(self, sequence: Sequence) -> None:
        """A request has ended: there may be memory for others now, and forwards may be as wide as before."""
        self.ledger.leave(sequence.number)
        if not self.scheduler.running:
            self.scheduler.max_rows = self.ledger.max_rows
        for other in self.scheduler.running.values():
            other.starved = False

    def narrow(self, batch: Batch) -> None:
        """Memory ran out in this forward: the next ones have half its rows, until nothing runs."""
        least = min(piece.rows for piece in batch)
        self.scheduler.max_rows = max(least, sum(piece.rows for piece in batch) // 2)

    def starved(self) -> tuple[list[Sequence], RunError]:
        """The request that gives way where there is memory for no running one: the youngest; and its error."""
        found = [one for one in self.scheduler.running.values() if one.starved]
        return found[-1:], RunError(f"memory ran out while the request was running; {_LESS}")

    def _fits(self, sequence: Sequence) -> bool:
        """Whether there is memory for a sequence beside the running ones; if so, it is entered in the ledger."""
        demand = self.runner.demand(sequence, self.ledger)
        running = self.scheduler.running.values()
        self.ledger.standing = self.runner.idle(running)
        if not self.ledger.fits(demand):
            self.runner.give_way(running)
            self.ledger.standing = 0
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
            raise RunError(f"memory ran out before the request began; {_LESS}")
        self.ledger.memory = self.ledger.taken
        self.scheduler.postpone(sequence)
