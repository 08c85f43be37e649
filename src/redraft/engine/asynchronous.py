"""The engine for asyncio: a thin layer over the same loop.

    engine = AsyncEngine(redraft.load("nano"))
    async for event in engine.events(request): ...
    done = await engine.finish(request)

The loop turns on a thread of its own; an event loop only hears of its events, so nothing here blocks. Cancelling an
`await` or leaving an `async for` aborts the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from redraft.engine.answer import Answer
from redraft.engine.engine import Engine
from redraft.engine.events import Event, Finished
from redraft.engine.request import Generation, Request
from redraft.errors import RunError


class AsyncEngine:
    """An engine for coroutines. It starts the engine's thread; `close` stops it, and requests end with a RunError."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        engine.loop.start()

    async def finish(self, request: Request) -> Generation:
        """Run a checked request to its end."""
        answer = Answer(self.engine.text, request)
        events = self.events(request, drafts=False)
        async for event in events:
            answer.take(event)
            if answer.stopped:
                break
        await events.aclose()
        return answer.done()

    async def events(self, request: Request, *, drafts: bool = True) -> AsyncGenerator[Event, None]:
        """Drafts, blocks and the end of a request. Closing the generator aborts it. Raises RunError after `close`."""
        told: asyncio.Queue[Event] = asyncio.Queue()
        here = asyncio.get_running_loop()

        def listen(event: Event) -> None:
            self.engine.loop.soon(partial(here.call_soon_threadsafe, told.put_nowait, event))

        number = self.engine.loop.submit(request, listen, drafts=drafts)
        try:
            if not self.engine.loop.is_turning:  # asked after submitting: `close` ends what it finds submitted
                raise RunError("the engine's loop has been stopped; make another AsyncEngine, which starts it")
            while True:
                event = await told.get()
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self.engine.loop.abort(number)

    def close(self) -> None:
        """Stop the thread after its current forward. Requests left end with an error."""
        self.engine.loop.stop()
