"""When a canvas has settled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from redraft.diffusion.stats import Stats
from redraft.errors import RequestError
from redraft.shapes import Int, Tensor

OVERSTATED = 4.0
"""Factor by which a sum of entropies overstates a draft's doubt; `bench/constraints.py` counts the right answers."""
STOOD, LENIENT = 2, 10.0
"""A valid draft that is unchanged for STOOD steps is settled; where it is not what will be emitted, if it has less than
LENIENT times the doubt."""


@runtime_checkable
class Halt(Protocol):
    """A stopping rule. `memory` is how many earlier drafts it looks back on."""

    @property
    def memory(self) -> int:
        """Number of earlier drafts to keep for the rule."""

    def __call__(self, stats: Stats, drafts: Sequence[Int[Tensor, "canvas"]]) -> bool:
        """Whether the canvas has settled, from this step's readings and the drafts of the steps before it."""


@dataclass(frozen=True)
class StableAndConfident:
    """The draft equals the last `stability` drafts and the mean entropy is below `confidence` nats (model spec 3.4).

    The mean is that of the open positions: many pins would make any gap look certain. Drafts do not carry over from one
    canvas to the next, so at least stability + 1 steps are taken; 0 drops the test.
    """

    stability: int = 1
    confidence: float = 0.005

    def __post_init__(self) -> None:
        if self.stability < 0:
            raise RequestError(f"stability is {self.stability}; it must be 0 or more steps")
        if not self.confidence > 0:
            raise RequestError(f"confidence is {self.confidence}; it must be above 0 (mean nats per position)")

    @property
    def memory(self) -> int:
        return self.stability

    def __call__(self, stats: Stats, drafts: Sequence[Int[Tensor, "canvas"]]) -> bool:
        unsure = stats.open_entropy
        stable = _stands(stats, drafts, self.stability)
        return stable and (not len(unsure) or float(unsure.mean()) < self.confidence)


@dataclass(frozen=True)
class Sure:
    """The open positions' entropies add up to less than `nats`; no confirming step is needed.

    The draft of a position of entropy H is wrong with a probability of at most H / (2 ln 2) under its own distribution
    (Hellman and Raviv, "Probability of error, equivocation, and the Chernoff bound", 1970). So the whole draft is wrong
    with at most 0.72 `nats`, however positions depend on each other. In a sum, unlike a mean, certain positions cannot
    hide a doubtful one.

    With a constraint the draft's probability among all valid texts is known, and its doubt is judged instead. The limit
    is OVERSTATED times smaller, because entropies add up to far more: a text that may begin one position later is in
    doubt at every position. A valid draft that is unchanged for STOOD steps, each with noise of its own, is settled
    however doubtful: more steps hardly change it (docs/log.md, "Constraints").
    """

    nats: float = 0.2
    standing: float = math.inf
    """Nats of doubt that a valid draft may have which stood."""

    def __post_init__(self) -> None:
        if not self.nats > 0:
            raise RequestError(f"nats is {self.nats}; it must be above 0 (entropy of all open positions together)")

    @property
    def memory(self) -> int:
        """Enough to see that a valid draft has not changed."""
        return STOOD

    def __call__(self, stats: Stats, drafts: Sequence[Int[Tensor, "canvas"]]) -> bool:
        if stats.conditioned is not None:
            certain = self.nats / OVERSTATED
            # One that is read from left to right stands before all of it is decided.
            standing = LENIENT * certain if stats.conditioned.fixed else self.standing
            return stats.conditioned.doubt < (standing if _stands(stats, drafts, STOOD) else certain)
        return float(stats.open_entropy.sum()) < self.nats


@dataclass(frozen=True)
class EitherOf:
    """Settled as soon as one of `rules` is met."""

    rules: tuple[Halt, ...]

    def __post_init__(self) -> None:
        if not self.rules:
            raise RequestError("EitherOf has no rules; pass at least one")

    @property
    def memory(self) -> int:
        return max(rule.memory for rule in self.rules)

    def __call__(self, stats: Stats, drafts: Sequence[Int[Tensor, "canvas"]]) -> bool:
        return any(rule(stats, drafts) for rule in self.rules)


@dataclass(frozen=True)
class UntilEnd:
    """Another rule, applied to the answer alone: positions after the draft's first end token do not count.

    They are never emitted, and could keep a short answer from settling for many steps. Without an end token the whole
    draft counts.
    """

    rule: Halt
    ends: frozenset[int]

    @property
    def memory(self) -> int:
        return self.rule.memory

    def __call__(self, stats: Stats, drafts: Sequence[Int[Tensor, "canvas"]]) -> bool:
        end = first_end(stats.argmax, self.ends)
        if end is None:
            return self.rule(stats, drafts)
        return self.rule(stats.part(slice(end + 1)), [draft[: end + 1] for draft in drafts])


@dataclass(frozen=True)
class AtLeast:
    """Another rule, applied only after `steps` steps."""

    rule: Halt
    steps: int

    @property
    def memory(self) -> int:
        """The rule's memory, and enough to count the steps."""
        return max(self.rule.memory, self.steps - 1)

    def __call__(self, stats: Stats, drafts: Sequence[Int[Tensor, "canvas"]]) -> bool:
        return len(drafts) >= self.steps - 1 and self.rule(stats, drafts)


def for_draws(rule: Halt) -> Halt:
    """A rule for canvases whose text is drawn: a draft that stands says little of what else may be drawn."""
    match rule:
        case Sure():
            return replace(rule, standing=LENIENT * rule.nats / OVERSTATED)
        case EitherOf():
            return replace(rule, rules=tuple(map(for_draws, rule.rules)))
    return rule


def _stands(stats: Stats, drafts: Sequence[Int[Tensor, "canvas"]], steps: int) -> bool:
    """Whether the draft equals that of each of the last `steps` steps."""
    return len(drafts) >= steps and all(torch.equal(stats.argmax, one) for one in drafts[len(drafts) - steps :])


def first_end(draft: Int[Tensor, "canvas"], ends: frozenset[int]) -> int | None:
    """Index of the first end token of a draft, None if there is none."""
    tokens = draft.tolist()
    return min((tokens.index(end) for end in ends.intersection(tokens)), default=None)
