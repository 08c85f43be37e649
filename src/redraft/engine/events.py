"""The events of a running request: drafts while a canvas is denoised, a block when it has settled, and the end.

A request that reads its prompt tells of it first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from redraft.engine.request import FinishReason, Logprobs
from redraft.errors import refuse_nan


@dataclass(frozen=True)
class Draft:
    """A canvas after one step. Lists run over its positions; `changed` marks readings that differ from the step before.

    `step` counts from 1; on a canvas that flows it counts on from block to block. `entropy` is in nats. A draft may
    still change in every position. With a language, `forced` marks tokens that are not the model's own argmax. Raises
    RunError for NaN.
    """

    block: int
    step: int
    tokens: list[int]
    changed: list[bool]
    accepted: list[bool]
    entropy: list[float]
    forced: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        refuse_nan(self.entropy)


@dataclass(frozen=True)
class Block:
    """A settled canvas, or what has left one that flows, cut at its end token and at the request's limit. It is final.

    Per token: `entropy` at the last step, in nats; `settled_at`, the step since which the token has not changed;
    `changes`, how often it changed after the first step; `logprobs` and `log_mass` as in `Generation`. `steps` counts
    the block's denoising steps, `rows` the canvas rows that these tokens took in them. `settled` is False where the
    step cap or a deadline ended it. `cached` are the prompt's tokens that came from kept prefixes, whatever that has
    to do with the block: no answer depends on it, so no comparison does. Raises RunError for NaN.
    """

    block: int
    tokens: list[int]
    entropy: list[float]
    settled_at: list[int]
    changes: list[int]
    steps: int
    settled: bool
    logprobs: list[Logprobs] = field(default_factory=list)
    log_mass: list[float] = field(default_factory=list)
    rows: int = 0
    cached: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        refuse_nan(self.entropy)


@dataclass(frozen=True)
class PromptRead:
    """Per prompt token but the first: (token id, log-probability) of the token and then of the likeliest ones in its
    place, behind those before it, in the causal mode at temperature 1. Raises RunError for NaN."""

    logprobs: list[Logprobs]

    def __post_init__(self) -> None:
        refuse_nan(row[0][1] for row in self.logprobs)


@dataclass(frozen=True)
class Finished:
    """The last event of a request. `commits` counts the blocks that were encoded, `error` is the cause of an "error".

    `end` are the log-probabilities of the end token of a request that reads its prompt, if it drew one.
    """

    reason: FinishReason
    commits: int
    error: BaseException | None = None
    end: Logprobs = ()


Event = Draft | PromptRead | Block | Finished
