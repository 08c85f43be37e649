"""Which rows go into the next forward. Counts rows; knows no tensor, no model and no clock.

The unit of work is the row. A request asks for rows in one of two phases:

    PREFILL   its next prompt chunk; the last chunk brings the first canvas along (pass fusion)
    DENOISE   its canvas, and before it, when a block has just settled, the block to commit

Chunks are cut at multiples of PREFILL_CHUNK from the start of a prompt, never by what happens to fit, so that a
request's forwards are the same whatever runs beside it. A `SchedulingPolicy` picks from what is ready, up to
`max_rows`; the oldest request always goes, so every turn comes: where a forward has room for one canvas, behind all
before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol, runtime_checkable

from redraft.errors import BusyError, RequestError

PREFILL_CHUNK = 256
"""Prompt tokens per forward and request: bounds the mask and the activations of a long prompt."""


class Phase(Enum):
    """What a request needs next."""

    PREFILL = "prefill"
    DENOISE = "denoise"


@dataclass(frozen=True)
class Entry:
    """What the scheduler knows of one request. `prompt` counts prompt tokens not yet encoded, `commit` block tokens to
    encode, `width` the rows of its canvas, `step` that canvas's steps.

    A causal request has no canvas (`width` 0) and commits one token per forward. `behind` is the number of a request
    with the same prompt whose encoding this one waits for; None if it runs by itself.
    """

    number: int
    prompt: int
    width: int
    commit: int = 0
    step: int = 0
    behind: int | None = None

    @property
    def phase(self) -> Phase:
        """PREFILL while prompt tokens are left."""
        return Phase.PREFILL if self.prompt else Phase.DENOISE

    def piece(self) -> Piece:
        """Its rows in the next forward: a prompt chunk, or the canvas behind the last chunk, a commit or nothing."""
        if self.prompt > PREFILL_CHUNK:
            return Piece(self.number, PREFILL_CHUNK, 0)
        return Piece(self.number, self.prompt + self.commit, self.width)


@dataclass(frozen=True)
class Piece:
    """Rows of one request in one forward: `encode` causal ones, then `canvas` bidirectional ones (0: none yet)."""

    number: int
    encode: int
    canvas: int

    @property
    def rows(self) -> int:
        """Rows in all."""
        return self.encode + self.canvas


Batch = tuple[Piece, ...]


@runtime_checkable
class SchedulingPolicy(Protocol):
    """Picks the next forward."""

    def __call__(self, entries: Sequence[Entry], max_rows: int) -> Batch:
        """Pieces of some entries, given in order of arrival; at least one if there are any."""


@dataclass(frozen=True)
class Mixed:
    """Canvases first, whatever their step; prompt chunks fill what is left. The default."""

    def __call__(self, entries: Sequence[Entry], max_rows: int) -> Batch:
        ready = sorted(entries, key=lambda entry: entry.phase is Phase.PREFILL)
        oldest = [entry for entry in entries[:1] if entry.phase is Phase.PREFILL]
        return _fill([*oldest, *(entry for entry in ready if entry not in oldest)], max_rows)


@dataclass(frozen=True)
class StepHomogeneous:
    """Only requests at the same denoising step as the oldest; prompts by themselves.

    Some write that a block-diffusion model needs this. It does not: nothing in the network encodes the step. It is
    here to be measured against.
    """

    def __call__(self, entries: Sequence[Entry], max_rows: int) -> Batch:
        if not entries:
            return ()
        first = entries[0]
        alike = [entry for entry in entries if (entry.phase, entry.step) == (first.phase, first.step)]
        return _fill(alike, max_rows)


def _fill(entries: Sequence[Entry], max_rows: int) -> Batch:
    """Pieces in the given order while they fit; the first always does."""
    chosen: list[Piece] = []
    left = max_rows
    for entry in entries:
        piece = entry.piece()
        if chosen and piece.rows > left:
            continue
        chosen.append(piece)
        left -= piece.rows
    return tuple(chosen)


POLICIES: dict[str, SchedulingPolicy] = {"mixed": Mixed(), "step-homogeneous": StepHomogeneous()}


class Scheduler:
    """The queue and the running requests, by number. Two bounds: rows per forward, requests at a time."""

    def __init__(self, *, max_rows: int, max_running: int, max_waiting: int, policy: str = "mixed") -> None:
        if policy not in POLICIES:
            raise RequestError(f"scheduling policy is {policy!r}; known: {', '.join(POLICIES)}")
        for name, value in (("max_rows", max_rows), ("max_running", max_running), ("max_waiting", max_waiting)):
            if type(value) is not int or value < 1:
                raise RequestError(f"{name} is {value!r}; it must be an integer of at least 1")
        self.max_rows, self.max_running, self.max_waiting = max_rows, max_running, max_waiting
        self.policy = POLICIES[policy]
        self.waiting: dict[int, Entry] = {}
        self.running: dict[int, Entry] = {}

    def check_room(self, arrived: int) -> None:
        """Raise BusyError if the queue, with `arrived` requests on their way to it, is full."""
        waiting = len(self.waiting) + arrived
        if waiting >= self.max_waiting:
            raise BusyError(f"{waiting} requests are waiting, the most this engine queues; try again later")

    def add(self, number: int, prompt: int, width: int, *, behind: int | None = None) -> None:
        """Queue a request, maybe behind one with the same prompt."""
        assert number not in self.waiting, f"request {number} is queued already"
        assert number not in self.running, f"request {number} is running already"
        self.waiting[number] = Entry(number, prompt, width, behind=behind)

    def admit(self) -> tuple[int, ...]:
        """Move requests from the queue to the running ones, as far as there is room; returns their numbers."""
        joined = []
        while self.waiting and len(self.running) < self.max_running:
            number = next(iter(self.waiting))
            self.running[number] = self.waiting.pop(number)
            joined.append(number)
        return tuple(joined)

    def skip(self, number: int, tokens: int) -> None:
        """The first `tokens` of a prompt need no encoding: they were found in the prefix cache."""
        self.running[number] = replace(self.running[number], prompt=self.running[number].prompt - tokens)

    def next(self) -> Batch:
        """The next forward. Empty when nothing is ready."""
        return self.policy([entry for entry in self.running.values() if entry.behind is None], self.max_rows)

    def release(self, number: int, prompt: int) -> None:
        """A request that stood behind another goes on by itself; `prompt` tokens are left for it to encode."""
        self.running[number] = replace(self.running[number], prompt=prompt, behind=None)

    def ran(self, piece: Piece, width: int, commit: int = 0) -> None:
        """A piece has been through a forward: its canvas took a step and is `width` now. Or it has settled: `commit`
        rows of its block wait to be encoded, with the first step of another canvas."""
        entry = self.running[piece.number]
        prompt, step = max(0, entry.prompt - piece.encode), 0 if commit else entry.step + (piece.canvas > 0)
        self.running[piece.number] = replace(entry, prompt=prompt, commit=commit, width=width, step=step)

    def remove(self, number: int) -> None:
        """Forget a request, finished or aborted, running or not. Whoever still stood behind it runs by itself."""
        self.waiting.pop(number, None)
        self.running.pop(number, None)
        for entries in (self.waiting, self.running):
            for other, entry in entries.items():
                if entry.behind == number:
                    entries[other] = replace(entry, behind=None)

    def check(self) -> None:
        """Raise AssertionError if the books contradict themselves."""
        assert not self.waiting.keys() & self.running.keys(), "a request both waits and runs"
        assert len(self.running) <= self.max_running
        assert len(self.waiting) <= self.max_waiting
        for number, entry in (*self.waiting.items(), *self.running.items()):
            assert entry.number == number
            assert entry.prompt >= 0
            assert entry.width >= 0
            assert not (entry.prompt and (entry.step or entry.commit)), (
                f"request {number} denoises before its prompt is read"
            )
