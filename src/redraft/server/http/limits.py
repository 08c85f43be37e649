"""Bounds on what clients may take, and the count of answers under way."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass

from redraft.errors import RequestError
from redraft.server.http.errors import ApiError
from redraft.server.limits import BOUNDS

BODIES, BODIES_OF_ONE = 2**29, 2**28
"""Bytes that the bodies of requests under way have, of all together and of one caller's. Each takes three times its
bytes, seven if it has an emoji: a body is there as it came, as text and as what the text says."""
LONG_BODY = 2**16
"""Bytes from which a body counts among these."""
HEAD_BYTES, HEAD_LINES = 64 * 2**10, 128
"""Of a request: its path, its query and its headers; the first, its headers and the empty one."""
REFUSALS = 50
"""Of one caller at once, and then in a second: the event loop makes them while the engine's thread waits for Python."""
WAITS = "waits"
"""In the state of a request whose refusal waits: its connection may give way to another."""
MOST_CALLERS = 4096
"""Whose last refusals are remembered, before those of a second ago are forgotten."""


def body_too_large(limit: int) -> ApiError:
    """What a longer body gets."""
    return ApiError(413, f"the body is larger than {limit} bytes; send less", code="body_too_large")


def head_too_long() -> ApiError:
    """What a longer head gets, from the parser or behind it."""
    return ApiError(
        431, f"path and headers have over {HEAD_BYTES} bytes or {HEAD_LINES} lines; send less", code="head_too_large"
    )


def no_http(why: str) -> ApiError:
    """What is no request gets."""
    return ApiError(400, f"what was sent is no request of HTTP/1.1: {why:.200}", code="no_http")


def trailers_too_long() -> ApiError:
    """What those of a chunked body get, and what stands between its chunks."""
    said = f"between or behind the body's chunks stand over {HEAD_BYTES} bytes or {HEAD_LINES} lines; send less"
    return ApiError(400, said, code="trailers_too_large")


def too_many_pieces(most: int, size: int) -> ApiError:
    """What a body gets that comes in small chunks or packets."""
    said = f"the body comes in over {most} pieces and one for each {size} bytes; send larger chunks"
    return ApiError(400, said, code="body_in_pieces")


@dataclass(frozen=True)
class ServerLimits:
    """Bounds on what one request, one key and all of them together may take.

    body_bytes       of a request's body
    image_body_bytes the same, where the model takes images
    choices          answers to one request: prompts times n
    per_key          answers under way for one API key; beyond it 429
    in_flight        answers under way in all; beyond it 503
    request_sec      seconds an answer may take; then the best canvas so far is the answer
    connections      open at a time, less where the system allows fewer
    per_address      of these, of one address
    stall_sec        seconds a reader may take for one piece of a stream before it is dropped
    quiet_sec        seconds between the comments of a stream
    drain_sec        seconds that answers under way get when the server stops
    """

    body_bytes: int = int(BOUNDS["body"].most)
    image_body_bytes: int = int(BOUNDS["image_body"].most)
    choices: int = int(BOUNDS["answers"].most)
    per_key: int = 256
    in_flight: int = 1024
    request_sec: float = 600.0
    connections: int = 2048
    per_address: int = 1536
    stall_sec: float = 30.0
    quiet_sec: float = 10.0
    drain_sec: float = 30.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise RequestError(f"{name} is {value}; it must be above 0")


class Bodies:
    """Bytes of the bodies of requests under way, of each caller. It runs on the event loop alone."""

    def __init__(self) -> None:
        self._held = Counter[object]()

    def add(self, caller: object, size: int, read: int) -> None:
        """Count `size` more bytes of a body of which `read` have come by now.

        Raises ApiError where it is a long one and there are too many.
        """
        self._held[caller] += size
        if read > LONG_BODY and (self._held.total() > BODIES or self._held[caller] > BODIES_OF_ONE):
            raise ApiError(503, "too many large bodies are under way; try again soon", code="queue_full", retry_sec=1)

    def drop(self, caller: object, read: int) -> None:
        """One is done with; a caller that has none left is forgotten."""
        self._held -= Counter({caller: read})


class Refusals:
    """When refusals leave: REFUSALS of a caller at once, the others at that many a second (a leaky bucket)."""

    def __init__(self) -> None:
        self._due: dict[object, float] = {}  # when each caller's last one leaves

    def wait_sec(self, caller: object) -> float:
        """How long the next one waits, and count it. A second at most: clients that hang up do not wait for theirs, and
        others of their address shall not do so for them."""
        now = time.monotonic()
        if len(self._due) > MOST_CALLERS:
            self._due = {caller: due for caller, due in self._due.items() if due > now - 1}
        due = max(self._due.get(caller, 0.0), now - 1) + 1 / REFUSALS
        self._due[caller] = min(due, now + 1)
        return max(0.0, self._due[caller] - now)


class Entrance:
    """Answers under way, per API key. It runs on the event loop alone."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self._under_way: Counter[int | None] = Counter()

    @property
    def under_way(self) -> int:
        """Answers on their way, all keys together."""
        return self._under_way.total()

    def check(self, answers: int) -> None:
        """Raise ApiError for more answers than one request may have: before its prompts are tokenized, too."""
        if answers > self.limits.choices:
            most = self.limits.choices
            raise ApiError(400, f"{answers} answers were requested at once; at most {most}", param="n")

    def enter(self, answers: int, key: int | None) -> ExitStack:
        """Count answers of a key until the stack is closed. Raises ApiError for more than the limits allow."""
        limits, own = self.limits, self._under_way[key]
        self.check(answers)
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
