"""An operation (infill, edit) as a stream: its canvases while they settle, then its result.

{"type": "request", "index", "width", "gap"}    a canvas is begun; its first `gap` positions are new text, or
                                                begin with it where a rewritten span has no width
{"type": "draft", "index", …}                   a step of it, as everywhere
{"type": "over", "index", "finish"}             it is done, or "aborted": others were better
{"type": "finished", …}                         the result
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request

from redraft.engine.events import Draft, Event, Finished
from redraft.engine.handle import Inbox
from redraft.engine.request import ResolvedRequest
from redraft.engine.scope import CancelScope, Observer, Submitted
from redraft.operations.engine import Engine
from redraft.server.http.service import service_of
from redraft.server.http.sse import Chunks
from redraft.trace.frames import Frames

DONE = -1


class Follower(Observer):
    """Puts the events of all requests in a scope into one inbox. Requests count up in order of their first events."""

    def __init__(self) -> None:
        self.inbox: Inbox[int] = Inbox(newest_drafts=True)
        self.requests: list[ResolvedRequest] = []
        self._numbers: dict[Submitted, int] = {}

    def event(self, handle: Submitted, event: Event) -> None:
        """On the loop's thread."""
        if handle not in self._numbers:
            self._numbers[handle] = len(self.requests)
            self.requests.append(handle.request)
        self.inbox.put(self._numbers[handle], event)


async def followed(
    request: Request,
    engine: Engine,
    scope: CancelScope,
    follower: Follower,
    work: Callable[[Engine], Mapping[str, Any]],
) -> Chunks:
    """The chunks of some work with an engine in a scope that the follower observes. Raises as the work does."""
    frames = Frames(engine.text, engine.config.generation.eos_token_ids)
    running = asyncio.ensure_future(service_of(request).on_thread(request, work, engine, in_turn=False))

    def over(task: asyncio.Future[Any]) -> None:
        task.cancelled() or task.exception()  # read, so that asyncio does not log it
        follower.inbox.put(DONE, Finished("aborted", 0))

    running.add_done_callback(over)
    begun = 0
    try:
        while True:
            i, event = await follower.inbox.aget()
            if i == DONE:
                break
            if i == begun:
                begun += 1
                one = follower.requests[i]
                pinned = [place for place, _ in one.seed_canvas.pins] if one.seed_canvas else []
                gap = min(pinned, default=one.width)
                yield {"type": "request", "index": i, "width": one.width, "gap": gap}
            if isinstance(event, Draft):
                yield {"type": "draft"} | frames.of(i, event)
            elif isinstance(event, Finished):
                yield {"type": "over", "index": i, "finish": event.reason}
        yield {"type": "finished", **await running}
    finally:
        scope.cancel()
