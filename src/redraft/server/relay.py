"""The engine's own calls (infill, edit) as a stream: their canvases while they settle, then what came of them.

    {"type": "request", "index", "width", "gap"}    a canvas is begun; its first `gap` positions are new text
    {"type": "draft", "index", …}                   a step of it, as everywhere
    {"type": "over", "index", "finish"}             it is done, or "aborted": others were better
    {"type": "finished", …}                         the result

Of drafts only the newest of each canvas waits, so a slow reader sees fewer and nothing piles up.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from redraft.engine.engine import Engine
from redraft.engine.events import Draft, Event, Finished
from redraft.engine.frames import Frames
from redraft.engine.loop import Listener
from redraft.engine.request import Request
from redraft.engine.tap import Tap
from redraft.server.leash import Leash, on_thread
from redraft.server.replies import Json
from redraft.server.stream import Chunks

Work = Callable[[Engine], Mapping[str, Any]]


class Relay:
    """From the engine's thread to the event loop's."""

    def __init__(self, engine: Engine) -> None:
        self._frames = Frames(engine.text, engine.config.generation.eos_token_ids)
        self._here, self._wake, self._lock = asyncio.get_running_loop(), asyncio.Event(), threading.Lock()
        self._told: deque[Json | int] = deque()
        self._drafts: dict[int, Draft] = {}

    def opened(self, index: int, request: Request) -> Listener:
        """A canvas is begun: tell it, and listen."""
        pinned = [] if request.seed_canvas is None else [place for place, _ in request.seed_canvas.pins]
        gap = min(pinned, default=request.width)
        self._tell({"type": "request", "index": index, "width": request.width, "gap": gap})

        def listen(event: Event) -> None:
            if isinstance(event, Draft):
                with self._lock:
                    waits = index in self._drafts
                    self._drafts[index] = event
                if not waits:
                    self._tell(index)
            elif isinstance(event, Finished):
                self._tell({"type": "over", "index": index, "finish": event.reason})

        return listen

    def over(self, running: asyncio.Future[Any]) -> None:
        """The work is done. What it raised, once nobody waits for it, is nobody's concern."""
        if not running.cancelled():
            running.exception()
        self._wake.set()

    def next(self) -> Json | None:
        """The next chunk, None if there is none now."""
        with self._lock:
            if not self._told:
                return None
            told = self._told.popleft()
            if not isinstance(told, int):
                return told
            draft = self._drafts.pop(told)
        return {"type": "draft"} | self._frames.of(told, draft)

    async def wait(self, quiet_sec: float) -> bool:
        """Whether there may be more; False after that long."""
        try:
            await asyncio.wait_for(self._wake.wait(), quiet_sec)
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    def _tell(self, told: Json | int) -> None:
        with self._lock:
            self._told.append(told)
        self._here.call_soon_threadsafe(self._wake.set)


async def relayed(engine: Engine, leash: Leash, work: Work, *, quiet_sec: float) -> Chunks:
    """Everything that is told of some work, and its result. Raises what the work does."""
    relay = Relay(engine)
    running = asyncio.ensure_future(on_thread(engine, Tap(leash, relay.opened), work))
    running.add_done_callback(relay.over)
    try:
        while True:
            if (told := relay.next()) is not None:
                yield told
            elif running.done():
                break
            elif not await relay.wait(quiet_sec):
                yield None
        yield {"type": "finished", **await running}
    finally:
        leash.cut()
