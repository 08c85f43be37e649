"""The engine's own calls (infill, edit) for one HTTP request: on a thread, and ended together when nobody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from redraft.engine.scope import CancelScope, Observer
from redraft.operations.engine import Engine

T = TypeVar("T")


class Leash:
    """What one HTTP request does with the engine: it can be ended, and nothing is submitted afterwards."""

    def __init__(self, engine: Engine, *observers: Observer) -> None:
        self.scope = CancelScope(*observers, parent=engine.scope)

    def cut(self) -> None:
        """End what runs; its rows are free at the next forward."""
        self.scope.cancel()


async def on_thread(engine: Engine, leash: Leash, work: Callable[[Engine], T]) -> T:
    """Do it beside the event loop, which goes on serving others."""
    return await asyncio.to_thread(lambda: work(engine.within(leash.scope)))
