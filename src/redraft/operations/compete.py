"""Several requests with one prompt, run side by side: results as they finish, the least certain dropped early.

    first ──► prompt encoded ──► canvas ──► step 1 ──► step 2 ──┬──► … ──► result
    second ─────── waits for it ─► canvas ──► step 1 ──► step 2 ─┼──► … ──► result
    third  ─────── waits for it ─► canvas ──► step 1 ──► step 2 ─┴──✕
                                                        judged here, once all have come so far

Which are dropped depends only on what each canvas read at the step of judgement, not on which of them a busy engine ran
first. So a seed gives the same result in any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from redraft.engine.engine import Core
from redraft.engine.events import Block, Draft, Event, Finished
from redraft.engine.handle import Handle, Inbox
from redraft.engine.request import Generation, ResolvedRequest
from redraft.errors import RequestError

Doubt = Callable[[int, Sequence[float]], float]
"""How unsure a competitor is, from its place and the entropy of every position of its first canvas; lower is better."""


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
    handle."""

    place: int
    done: Generation
    doubt: float
    handle: Handle


def compete(
    engine: Core, requests: Sequence[ResolvedRequest], doubt: Doubt, drop: Drop | None = None
) -> Iterator[Result]:
    """Results in the order in which they finish. Without `drop` none is dropped. Closing it aborts the rest.

    The requests should have one prompt, which is then encoded once. Raises RunError if one of them fails.
    """
    them = _Contest(drop or Drop(max(1, len(requests))), doubt, [None] * len(requests))
    inbox: Inbox[int] = Inbox()
    try:
        for place, request in enumerate(requests):
            first = them.handles[0] if place else None
            them.handles.append(engine.submit(request, drafts=True, behind=first, inbox=inbox, key=place, wait=True))
        running, early = len(requests), list[int]()
        while running:
            place, event = inbox.get(engine.loop)
            them.take(place, event)
            if not isinstance(event, Finished):
                continue
            running -= 1
            early.append(place)
            if them.dropped is not None:  # before the judgement it is open whose result counts
                yield from (them.result(at) for at in early if at not in them.dropped)
                early = []
    finally:
        for handle in them.handles:
            handle.abort()


@dataclass
class _Contest:
    """Those that compete, and what is known of each."""

    drop: Drop
    doubt: Doubt
    doubts: list[float | None]
    handles: list[Handle] = field(default_factory=list)
    errors: dict[int, Exception] = field(default_factory=dict)
    dropped: frozenset[int] | None = None

    def take(self, place: int, event: Event) -> None:
        if self.doubts[place] is None:
            if isinstance(event, Finished):  # it never had a canvas to judge
                self._judge(place, float("inf"))
            elif isinstance(event, Block) or (isinstance(event, Draft) and event.step == self.drop.steps):
                self._judge(place, self.doubt(place, event.entropy))
        handle = self.handles[place]
        try:
            handle.answer.take(event)
        except Exception as error:  # it counts if this one's result does
            self.errors[place] = error
        if handle.answer.stopped or place in self.errors:
            handle.abort()

    def result(self, place: int) -> Result:
        """Of one that has finished. Raises what went wrong with it."""
        if place in self.errors:
            raise self.errors[place]
        doubt, handle = self.doubts[place], self.handles[place]
        assert doubt is not None
        return Result(place, handle.answer.generation(), doubt, handle)

    def _judge(self, place: int, doubt: float) -> None:
        self.doubts[place] = doubt
        known = [one for one in self.doubts if one is not None]
        if len(known) < len(self.doubts):
            return
        order = sorted(range(len(known)), key=lambda at: (known[at], at))
        self.dropped = frozenset(order[self.drop.keep :])
        for at in self.dropped:
            self.handles[at].abort()
