"""A tap on a loop: every request that goes through it is watched, whoever submitted it.

The engine's calls (generate, infill, edit, fill, variants) submit requests of their own, several where widths compete
or an answer is mended. With a tap all of them can be drawn or recorded, and none of these calls has to know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from redraft.engine.engine import Engine
from redraft.engine.events import Draft, Event, Finished
from redraft.engine.loop import Listener, Loop
from redraft.engine.request import Request

Opened = Callable[[int, Request], Listener]
"""Who watches a request, from its number in order of their first events."""

KEPT = 2**16
"""So many requests behind the newest, one may still be said to have won: a server's tap sees them without end."""


class View(Loop):
    """The public face of another loop; it has no state of its own."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def submit(self, request: Request, listener: Listener, *, drafts: bool = False, behind: int | None = None) -> int:
        """As the loop's."""
        return self._loop.submit(request, listener, drafts=drafts, behind=behind)

    def abort(self, number: int) -> None:
        """As the loop's."""
        self._loop.abort(number)

    def soon(self, wake: Callable[[], object]) -> None:
        """As the loop's."""
        self._loop.soon(wake)

    def won(self, number: int) -> None:
        """As the loop's."""
        self._loop.won(number)

    def stop(self) -> None:
        """As the loop's."""
        self._loop.stop()

    def turn_until(self, ready: Callable[[], bool]) -> None:
        """As the loop's."""
        self._loop.turn_until(ready)

    def wait_for_room(self) -> None:
        """As the loop's."""
        self._loop.wait_for_room()


class Tap(View):
    """Every request that goes through it is watched, draft by draft; `won` hears which of those that competed did."""

    def __init__(self, loop: Loop, opened: Opened, won: Callable[[int], None] | None = None) -> None:
        super().__init__(loop)
        self._opened, self._won, self._count = opened, won, 0
        self._places: dict[int, list[int]] = {}

    def submit(self, request: Request, listener: Listener, *, drafts: bool = False, behind: int | None = None) -> int:
        """As the loop's; the listener still hears of drafts only if it wants to."""
        watcher: Listener | None = None
        place: list[int] = []

        def listen(event: Event) -> None:
            nonlocal watcher
            try:
                if watcher is None:  # a queue that is full refuses before this, and the same request comes again
                    watcher = self._opened(self._count, request)
                    place.append(self._count)
                    self._count += 1
                watcher(event)
            except Exception as error:  # the loop ends the request, and whoever waits for it hears of the end
                if not isinstance(event, Finished):
                    raise
                event = event if event.error else replace(event, reason="error", error=error)
            if drafts or not isinstance(event, Draft):
                listener(event)

        number = self._loop.submit(request, listen, drafts=True, behind=behind)
        if self._won is not None:
            self._places[number] = place
            self._places.pop(number - KEPT, None)
        return number

    def won(self, number: int) -> None:
        """As the loop's; whoever wants to hear of it does."""
        if self._won is not None and (place := self._places.get(number)):
            self._won(place[0])
        super().won(number)


def seen_through(engine: Engine, loop: View, *, gaps: bool) -> Engine:
    """The same engine on a view of its loop. The vocabulary, which `gaps` need, is read once for both."""
    held = replace(engine, loop=loop)
    if gaps or "vocabulary" in vars(engine):
        held.__dict__["vocabulary"] = engine.vocabulary
    return held
