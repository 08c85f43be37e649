"""Bounds on what clients may take, and the count of answers under way."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass

from redraft.errors import RequestError
from redraft.server.http.errors import ApiError


@dataclass(frozen=True)
class Limits:
    """Bounds on what one request, one key and all of them together may take.

    body_bytes       of a request's body
    image_body_bytes the same, where the model takes images
    choices          answers to one request: prompts times n
    constraint_bytes of a schema, expression or list of choices
    per_key          answers under way for one API key; beyond it 429
    in_flight        answers under way in all; beyond it 503
    request_sec      seconds an answer may take; then the best canvas so far is the answer
    stall_sec        seconds a reader may take for one piece of a stream before it is dropped
    quiet_sec        seconds between the comments of a stream
    drain_sec        seconds that answers under way get when the server stops
    """

    body_bytes: int = 4 * 2**20
    image_body_bytes: int = 32 * 2**20
    choices: int = 64
    constraint_bytes: int = 64 * 2**10
    per_key: int = 256
    in_flight: int = 1024
    request_sec: float = 600.0
    stall_sec: float = 30.0
    quiet_sec: float = 10.0
    drain_sec: float = 30.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise RequestError(f"{name} is {value}; it must be above 0")


class Admission:
    """Answers under way, per API key. It runs on the event loop alone."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._under_way: Counter[int | None] = Counter()

    @property
    def under_way(self) -> int:
        """Answers on their way, all keys together."""
        return self._under_way.total()

    def enter(self, answers: int, key: int | None) -> ExitStack:
        """Count answers of a key until the stack is closed. Raises ApiError for more than the limits allow."""
        limits, own = self.limits, self._under_way[key]
        if answers > limits.choices:
            raise ApiError(400, f"{answers} answers were requested at once; at most {limits.choices}", param="n")
        if own + answers > limits.per_key:
            message = f"{own} answers are under way for this client, at most {limits.per_key}; wait"
            raise ApiError(429, message, code="rate_limit_exceeded", retry_sec=1)
        if self.under_way + answers > limits.in_flight:
            message = f"{self.under_way} answers are under way, at most {limits.in_flight}; try again soon"
            raise ApiError(503, message, code="queue_full", retry_sec=1)
        room = ExitStack()
        room.callback(self._under_way.subtract, {key: answers})
        self._under_way[key] += answers
        return room
