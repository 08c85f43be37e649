"""What the routes share: the engine, the settings, and who may come in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Literal

from redraft.errors import RedraftError
from redraft.operations.engine import Engine
from redraft.server.metrics import Metrics
from redraft.server.refusal import Refusal
from redraft.server.settings import Settings
from redraft.server.voice import Marks, marks_of

Phase = Literal["loading", "ready", "draining", "failed"]


class Service:
    """One server's state. Everything but `ready` and `progress` runs on the event loop."""

    def __init__(self, settings: Settings, seen: Callable[[Engine], Engine] = lambda engine: engine) -> None:
        """`seen` is how requests are to see the engine."""
        self.settings, self.metrics, self._seen = settings, Metrics(), seen
        self.phase: Phase = "loading"
        self.done, self.total = 0, 0
        self.failure: RedraftError | None = None
        self._engine: Engine | None = None
        self._marks: Marks | None = None
        self._under_way: Counter[int | None] = Counter()

    def ready(self, engine: Engine) -> None:
        """The model is loaded and its loop turns."""
        self._engine, self._marks = self._seen(engine), marks_of(engine.text)
        self.metrics.watch(engine)
        if self.phase == "loading":
            self.phase = "ready"

    def progress(self, done: int, total: int) -> None:
        """Elements loaded, and in all."""
        self.done, self.total = done, total

    def drain(self) -> None:
        """Take no new requests."""
        self.phase = "draining"

    @property
    def engine(self) -> Engine:
        """The engine. Raises Refusal while there is none."""
        if self._engine is None:
            share = f" ({self.done / self.total:.0%})" if self.total else ""
            raise Refusal(503, f"the model is loading{share}; try again soon", code="loading", retry_sec=2)
        return self._engine

    @property
    def marks(self) -> Marks:
        """The marks of the engine's tokenizer."""
        assert self._marks is not None, "asked for before the engine"
        return self._marks

    @property
    def under_way(self) -> int:
        """Answers on their way, all keys together."""
        return self._under_way.total()

    def enter(self, answers: int, key: int | None) -> ExitStack:
        """Room for some answers, until it is closed. Raises Refusal if there is none."""
        limits = self.settings.limits
        if self.phase == "draining":
            raise Refusal(503, "the server is stopping; ask another one", code="draining", retry_sec=5)
        if answers > limits.choices:
            raise Refusal(400, f"{answers} answers were asked for at once; at most {limits.choices}", param="n")
        if self._under_way[key] + answers > limits.per_key:
            message = f"{self._under_way[key]} answers are under way for this client, at most {limits.per_key}; wait"
            raise Refusal(429, message, code="rate_limit_exceeded", retry_sec=1)
        if self.under_way + answers > limits.in_flight:
            message = f"{self.under_way} answers are under way, at most {limits.in_flight}; try again soon"
            raise Refusal(503, message, code="queue_full", retry_sec=1)
        room = ExitStack()
        room.callback(self._under_way.subtract, {key: answers})
        self._under_way[key] += answers
        return room

    def check_name(self, name: str | None) -> None:
        """Raise Refusal for a model that this server does not have."""
        names = self.settings.names
        if name is not None and name not in names and "*" not in names:
            known = ", ".join(names)
            message = f"the model {name!r} does not exist; this server has {known}"
            raise Refusal(404, message, param="model", code="model_not_found")
