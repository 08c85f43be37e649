"""How many requests are under way at a server that refuses some: a congestion window, as TCP has it (RFC 5681).

Nothing bounds them until one is refused, or is late because it stood behind others. Each such sign cuts the window, but
only one of a round: those that were sent before the last cut say nothing of it. Each answer widens it, by one a round
from where it was cut. Where it is down to one request, the pause in front of each grows in place of it.

    answers per second   a limiter of 5 a second refuses what is more     the window settles at what passes
    one slot             a queue of 64 makes those at its end late        the window settles at what is in time
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

CUT = 0.7
"""What is left of the window behind a refusal; as in CUBIC (RFC 9438)."""
FIRST_SEC, MOST_SEC = 0.125, 32.0
"""Pauses of those that are refused without a time to wait."""
MOST_STRIKES = 11  # behind which the pause is the longest
FEW = 3
"""Refusals of one request, beyond twice the usual ones, behind which it is no sign for others, if they are answered."""
OVERTAKEN = 1 / 8
"""Of the time that one waits: those sent together come in another order."""
DOUBT, REGAINED = 4, 1 / 64
"""Requests that were late again though they were alone, beyond those answered when they were asked again, behind which
nobody is taken to stand behind others; and how many of these each other answer makes up for, of twice as many."""


@dataclass(eq=False)
class Place:
    """One request on its way, however often it is sent. Times are of `time.monotonic`."""

    sent: float = -math.inf
    answers: int = 0  # of others, when it was sent
    ahead: int = 0  # others that were under way then
    beside: int = 0  # others that were under way when it ended
    lates: int = 0  # how often it was late before
    refusals: int = 0
    at_refusal: int = 0  # answers to others, when it was last refused


class Window:
    """The requests under way at one server, on an event loop."""

    def __init__(self) -> None:
        self.size = math.inf
        self._under_way, self._answers, self._usual = 0, 0, 0.0  # usual: refusals behind which one is answered
        self._latest = self._cut = -math.inf  # latest: when an answered one was sent
        self._strikes, self._until, self._at_cut = 0, -math.inf, 0  # at_cut: answers before the last cut
        self._proven = 1.0  # requests under way when an answered one was sent, of late the most
        self._trust = 0.0  # that who is late stood behind others
        self._turn, self._moved = asyncio.Lock(), asyncio.Event()

    @asynccontextmanager
    async def within(self, place: Place, clock: asyncio.Timeout) -> AsyncIterator[None]:
        """Within this a request is under way. Waiting for it is off its clock."""
        loop = asyncio.get_running_loop()
        until = clock.when()
        left = None if until is None else until - loop.time()
        clock.reschedule(None)
        async with self._turn:  # in the order of their coming
            while (pause := self._until - time.monotonic()) > 0 or self._under_way >= self.size:
                self._moved.clear()
                with suppress(TimeoutError):  # `wait_for` of Python 3.11 may lose that its task is cancelled
                    async with asyncio.timeout(pause if pause > 0 else None):
                        await self._moved.wait()
            place.ahead = self._under_way
            self._under_way += 1
        clock.reschedule(None if left is None else loop.time() + left)
        place.sent, place.answers = time.monotonic(), self._answers
        try:
            yield
            place.ahead = 0  # what is late from now on stood behind nobody
        finally:
            self._under_way -= 1
            place.beside = self._under_way
            self._moved.set()

    def answered(self, place: Place) -> None:
        """One had its answer."""
        self._answers += 1
        self._latest, self._strikes = max(self._latest, place.sent), max(0, self._strikes - 1)
        gained = 1.0 if place.lates else min(REGAINED, max(0.0, -self._trust))
        self._trust = min(DOUBT, self._trust + gained)
        self._usual = max(0.9 * self._usual, place.refusals)
        self._proven = max(0.98 * self._proven, place.ahead + 1)
        self.size += 1 / self.size
        self._moved.set()

    def refused(self, place: Place, *, says_when: bool) -> float:
        """One was refused, since too much is asked: seconds for which it is not to ask again, where the server does not
        say it."""
        now, before = time.monotonic(), place.at_refusal
        place.refusals, place.at_refusal = place.refusals + 1, self._answers
        if place.refusals > FEW + 2 * self._usual and self._answers > before and not self._strikes:  # it alone is
            return _about(min(MOST_SEC, FIRST_SEC * 2.0 ** min(place.refusals - FEW, 9)))
        if place.sent >= self._cut:
            is_shut = self._answers == self._at_cut
            is_least = self.size <= max(1.0, self._proven) or is_shut
            self._strikes, self._at_cut = min(MOST_STRIKES, self._strikes + is_least), self._answers
            self._cut_to(max(self._proven, CUT * min(self.size, self._under_way)))
            self._proven *= 0.9
            if is_shut or not says_when:
                first = FIRST_SEC / 8 if says_when else FIRST_SEC
                self._until = now + _about(min(MOST_SEC, first * 2.0**self._strikes))
        return 0.0

    def broken(self, place: Place) -> None:
        """One broke off at a server that is well: it may have no room for more than those that it left under way."""
        self.size = max(1.0, min(self.size, place.beside))

    def opened(self) -> None:
        """The server has answered something that is of none of these: who is refused by it is so alone."""
        self._strikes, self._until = 0, -math.inf
        self._moved.set()

    def late(self, place: Place) -> int | None:
        """One had no answer in time. If it stood behind others: how many were answered meanwhile, to half of which the
        window is cut. None where one that was sent well after it was answered before, so that it takes long itself, or
        there were no others, or who was asked again alone was mostly late again; then the window opens."""
        overtaken = self._latest > place.sent + OVERTAKEN * (time.monotonic() - place.sent)
        if place.lates and not place.ahead:
            self._trust -= 1
            if -DOUBT - 1 < self._trust <= -DOUBT:
                self._trust, self.size = -2.0 * DOUBT, math.inf
                self._moved.set()
        if overtaken or not place.ahead or self._trust <= -DOUBT:
            return None
        meanwhile = self._answers - place.answers
        if place.sent >= self._cut:
            self._cut_to(meanwhile / 2)
        return meanwhile

    def _cut_to(self, size: float) -> None:
        self.size, self._cut = max(1.0, min(self.size, size)), time.monotonic()


def _about(seconds: float) -> float:
    """A time that differs a little, so that those who wait do not all come back at once."""
    return seconds * random.uniform(0.75, 1.25)
