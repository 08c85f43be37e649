"""The engine's own calls (infill, edit) as a stream: their canvases while they settle, then what came of them.

{"type": "request", "index", "width", "gap"}    a canvas is begun; its first `gap` positions are new text
{"type": "draft", "index", …}                   a step of it, as everywhere
{"type": "over", "index", "finish"}             it is done, or "aborted": others were better
{"type": "finished", …}                         the result
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from redraft.engine.engine import Engine
from redraft.engine.events import Draft, Event, Finished
from redraft.engine.frames import Frames
from redraft.engine.loop import Listener
from redraft.engine.request import Request
from redraft.engine.tap import Tap
from redraft.server.leash import Leash, on_thread
from redraft.server.mail import Mail
from redraft.server.replies import Json
from redraft.server.stream import Chunks

Work = Callable[[Engine], Mapping[str, Any]]


class Relay:
    """From the engine's thread to the event loop's."""

    def __init__(self, engine: Engine) -> None:
        self._frames = Frames(engine.text, engine.config.generation.eos_token_ids)
        self._mail = Mail[Draft | Json]()

    def opened(self, index: int, request: Request) -> Listener:
        """A canvas is begun: tell it, and listen."""
        pinned = [] if request.seed_canvas is None else [place for place, _ in request.seed_canvas.pins]
        gap = min(pinned, default=request.width)
        self._mail.put(index, {"type": "request", "index": index, "width": request.width, "gap": gap})

        def listen(event: Event) -> None:
            if isinstance(event, Draft):
                self._mail.put(index, event)
            elif isinstance(event, Finished):
                self._mail.put(index, {"type": "over", "index": index, "finish": event.reason})

        return listen

    def over(self, running: asyncio.Future[Any]) -> None:
        """The work is done. What it raised, once nobody waits for it, is nobody's concern."""
        if not running.cancelled():
            running.exception()
        self._mail.put(0, {})

    async def next(self) -> Json | None:
        """The next chunk; None when the work is done and all is told."""
        while (found := self._mail.take()) is None:
            await self._mail.wait()
        i, told = found
        return {"type": "draft"} | self._frames.of(i, told) if isinstance(told, Draft) else told or None


async def relayed(engine: Engine, leash: Leash, work: Work) -> Chunks:
    """Everything that is told of some work, and its result. Raises what the work does."""
    relay = Relay(engine)
    running = asyncio.ensure_future(on_thread(engine, Tap(leash, relay.opened), work))
    running.add_done_callback(relay.over)
    try:
        while (told := await relay.next()) is not None:
            yield told
        yield {"type": "finished", **await running}
    finally:
        leash.cut()
