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

from redraft.engine.events import Draft, Event, Finished
from redraft.engine.scope import Observer, Submitted
from redraft.operations.engine import Engine
from redraft.server.leash import Leash, on_thread
from redraft.server.mail import Mail
from redraft.server.replies import Json
from redraft.server.stream import Chunks
from redraft.trace.frames import Frames

Work = Callable[[Engine], Mapping[str, Any]]


class Relay(Observer):
    """From the engine's thread to the event loop's."""

    def __init__(self, engine: Engine) -> None:
        self._frames = Frames(engine.text, engine.config.generation.eos_token_ids)
        self._mail = Mail[Draft | Json]()
        self._known: dict[Submitted, int] = {}

    def event(self, handle: Submitted, event: Event) -> None:
        """A canvas is begun, drafted or over: tell it."""
        index = self._known.get(handle)
        if index is None:
            index = self._known[handle] = len(self._known)
            request = handle.request
            pinned = [] if request.seed_canvas is None else [place for place, _ in request.seed_canvas.pins]
            gap = min(pinned, default=request.width)
            self._mail.put(index, {"type": "request", "index": index, "width": request.width, "gap": gap})
        if isinstance(event, Draft):
            self._mail.put(index, event)
        elif isinstance(event, Finished):
            self._mail.put(index, {"type": "over", "index": index, "finish": event.reason})

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


async def relayed(engine: Engine, relay: Relay, leash: Leash, work: Work) -> Chunks:
    """Everything that is told of some work, and its result. Raises what the work does."""
    running = asyncio.ensure_future(on_thread(engine, leash, work))
    running.add_done_callback(relay.over)
    try:
        while (told := await relay.next()) is not None:
            yield told
        yield {"type": "finished", **await running}
    finally:
        leash.cut()
