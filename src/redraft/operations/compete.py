"""Several requests with one prompt, run side by side: results as they finish, the least certain dropped early.

    first ──► prompt encoded ──► canvas ──► step 1 ──► step 2 ──┬──► … ──► result
    second ─────── waits for it ─► canvas ──► step 1 ──► step 2 ─┼──► … ──► result
    third  ─────── waits for it ─► canvas ──► step 1 ──► step 2 ─┴──✕
                                                        judged here, once all have come so far

Which are dropped depends only on what each canvas read at the step of judgement, not on which of them a busy engine ran
first. So a seed gives the same result in any batch.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from redraft.engine.answer import Answer
from redraft.engine.events import Block, Draft, Event, Finished
from redraft.engine.job import Job
from redraft.engine.request import Generation, ResolvedRequest
from redraft.errors import RequestError

if TYPE_CHECKING:
    from redraft.engine.engine import Engine

Doubt = Callable[[int, Sequence[float]], float]
"""How unsure a runner is, from its number and the entropy of every position of its first canvas; lower is better."""


@dataclass(frozen=True)
class Drop:
    """After `steps` steps of the first canvas only the `keep` least doubtful go on."""

    keep: int
    steps: int = 2

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise RequestError(f"keep is {self.keep}; at least 1 must go on")
        if self.steps < 1:
            raise RequestError(f"the step of judgement is {self.steps}; it must be at least 1")


@dataclass(frozen=True)
class Result:
    """One that was not dropped: its place among the requests, its answer, its doubt at the step of judgement, and its
    number in the loop."""

    place: int
    done: Generation
    doubt: float
    number: int


@dataclass
class _Runner(Job):
    doubt: float | None = None


@dataclass
class _Race:
    """The books of a race. Listeners write them from whoever turns the loop; `finished` is what they hand over."""

    runners: list[_Runner]
    drop: Drop
    doubt: Doubt
    finished: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    dropped: frozenset[int] | None = None

    def start(self, place: int) -> None:
        """Queue one runner, behind the first."""
        behind = self.runners[0].number if place else None
        self.runners[place].start(partial(self.hear, place), drafts=True, behind=behind)
        if place in (self.dropped or ()):  # it was judged before it knew its number
            self.runners[place].abort()

    def hear(self, place: int, event: Event) -> None:
        """One event of one runner."""
        runner = self.runners[place]
        if runner.doubt is None:
            if isinstance(event, Finished):  # it never had a canvas to judge
                self._judge(place, float("inf"))
            elif isinstance(event, Block) or (isinstance(event, Draft) and event.step == self.drop.steps):
                self._judge(place, self.doubt(place, event.entropy))
        runner.hear(event)
        if isinstance(event, Finished):
            self.finished.put(place)

    def _judge(self, place: int, doubt: float) -> None:
        self.runners[place].doubt = doubt
        doubts = [runner.doubt for runner in self.runners]
        if any(one is None for one in doubts):
            return
        order = sorted(range(len(doubts)), key=lambda at: (doubts[at], at))
        self.dropped = frozenset(order[self.drop.keep :])
        for at in self.dropped:
            self.runners[at].abort()


def race(engine: Engine, requests: Sequence[ResolvedRequest], doubt: Doubt, drop: Drop | None = None) -> Iterator[Result]:
    """Results in the order in which they finish. Without `drop` nobody is dropped. Closing it aborts the rest.

    The requests should have one prompt, which is then encoded once. Raises RunError if one of them fails.
    """
    drop = drop or Drop(max(1, len(requests)))
    runners = [_Runner(engine.loop, Answer(engine.text, request)) for request in requests]
    books = _Race(runners, drop, doubt)
    try:
        for place in range(len(runners)):
            books.start(place)
        left, early = len(requests), list[int]()
        while left:
            engine.loop.turn_until(lambda: not books.finished.empty())
            early.append(books.finished.get())
            left -= 1
            if books.dropped is not None:  # before the judgement nobody can tell whose result counts
                yield from (_result(runners[place], place) for place in early if place not in books.dropped)
                early = []
    finally:
        for runner in runners:
            runner.abort()


def _result(runner: _Runner, place: int) -> Result:
    done = runner.result()
    assert runner.doubt is not None
    return Result(place, done, runner.doubt, runner.number)
