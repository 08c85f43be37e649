"""A trace: the events of every canvas of a run, a line of JSON for each event.

    {"trace": 1, …}                 program, command, model and options
    {"type": "request", …}          a request begins; `index` is its number in the run
    {"type": "draft", …}            a step: the positions that changed, and the entropy of every position
    {"type": "block", …}            a block has settled
    {"type": "finished", …}         the end of the request
    {"type": "taken", …}            of several competing requests this one won

docs/traces.md has every key. A line is written whole or not at all, as soon as the event has happened.
"""

from __future__ import annotations

from typing import Any

import msgspec

VERSION = 1


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line. `options` are the options given to the command."""

    trace: int
    redraft: str
    command: str
    model: str
    taken: str
    options: dict[str, Any]


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """A request: `width` positions a canvas (0: from left to right), at most `max_tokens` tokens after the prompt.

    `ends` are the ids that end an answer.
    """

    index: int
    ms: float
    seed: int
    width: int
    max_tokens: int
    ends: list[int]
    prompt: str
    prompt_tokens: int


class Drafted(msgspec.Struct, frozen=True, kw_only=True, tag="draft"):
    """A step. `positions` changed since the last line, to `tokens` and `ids`; `end` is the position of the first end
    token. `entropy`, in nats, and `accepted` have a value for each position; at `forced` positions the constraint, not
    the model, chose the token."""

    index: int
    ms: float
    block: int
    step: int
    width: int
    end: int | None
    positions: list[int]
    tokens: list[str]
    ids: list[int]
    entropy: list[float]
    accepted: list[int]
    forced: list[int]

    def __post_init__(self) -> None:
        if not len(self.positions) == len(self.tokens) == len(self.ids):
            raise ValueError("positions, tokens and ids are not equally many")
        if not len(self.entropy) == len(self.accepted) == self.width:
            raise ValueError(f"entropy and accepted must have {self.width} values, one a position")
        if any(not 0 <= at < self.width for at in (*self.positions, *self.forced, self.end or 0)):
            raise ValueError(f"a position is not from 0 to {self.width - 1}, the last of the canvas")


class Settled(msgspec.Struct, frozen=True, kw_only=True, tag="block"):
    """A block: its final tokens, their pieces of text, and their values as in `Generation`."""

    index: int
    ms: float
    block: int
    tokens: list[int]
    pieces: list[str]
    entropy: list[float]
    settled_at: list[int]
    changes: list[int]
    steps: int
    settled: bool


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """The end of a request, with its whole text, and the `error` if the reason is "error"."""

    index: int
    ms: float
    finish: str
    text: str
    steps: list[int]
    commits: int
    error: str | None = None


class Taken(msgspec.Struct, frozen=True, kw_only=True, tag="taken"):
    """Of several requests that competed and have ended, the one whose answer was taken."""

    index: int
    ms: float


Line = Begun | Drafted | Settled | Ended | Taken
