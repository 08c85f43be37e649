"""What a running request tells: drafts while a canvas is denoised, a block when it has settled, and the end.

One that reads its prompt tells of it first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from redraft.engine.request import FinishReason
from redraft.errors import RunError


@dataclass(frozen=True)
class Draft:
    """A canvas after one step. Lists run over its positions; `changed` marks readings that differ from the step before.

    `step` counts from 1, and on from block to block where the canvas flows. `entropy` is in nats. A draft may still
    change in every position. With a language, `forced` marks readings that are not the model's own likeliest token.
    """

    block: int
    step: int
    tokens: list[int]
    changed: list[bool]
    accepted: list[bool]
    entropy: list[float]
    forced: list[bool] = field(default_factory=list)


@dataclass(frozen=True)
class Block:
    """A settled canvas, or what has left one that flows, cut at its end token and at the request's limit. These tokens
    will not change.

    Per token: `entropy` at the last step, in nats; `settled_at`, the step since which it reads so; `changes`, how often
    its reading changed after the first step; `logprobs`, if asked for, and `log_mass`, with a language, as in
    `Generation`. `rows` counts the canvas rows that these tokens took, one for each of their steps. Raises RunError for
    NaN.
    """

    block: int
    tokens: list[int]
    entropy: list[float]
    settled_at: list[int]
    changes: list[int]
    steps: int
    settled: bool
    logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    log_mass: list[float] = field(default_factory=list)
    rows: int = 0

    def __post_init__(self) -> None:
        if any(map(math.isnan, self.entropy)):
            raise RunError(
                "the network's numbers overflow to NaN, so its tokens mean nothing; check the weights, or use float32"
            )


@dataclass(frozen=True)
class PromptRead:
    """Of each prompt token but the first, how likely it was behind those before it: (token id, log-probability) of
    itself and then of the likeliest ones, in the causal mode's own distribution, at temperature 1."""

    logprobs: list[tuple[tuple[int, float], ...]]


@dataclass(frozen=True)
class Finished:
    """The last event of a request. `error` is what went wrong, where the reason is "error".

    `end` is the log-probabilities of the end token of a request that reads its prompt, if it drew one.
    """

    reason: FinishReason
    commits: int
    error: BaseException | None = None
    end: tuple[tuple[int, float], ...] = ()


Event = Draft | PromptRead | Block | Finished
