"""Which sampled tokens a step keeps; every other open position gets a fresh random token.

Acceptance has no memory: a position kept at one step is judged again at the next and may be renoised. The model's
belief about it stays in the soft embedding. Pinned positions are neither judged nor do they spend the budget.

Rules of published samplers for masked models are acceptance rules here: a token that they would unmask for good is kept
for one step. Each rule keeps at least one open position. Otherwise the next step would read a canvas of pure noise, and
the progress of the step would be in the soft embedding alone.

c is the probability of a position's likeliest token, after the temperature. A rule keeps the sample, which is that
token with probability c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, Protocol, runtime_checkable

import torch

from redraft.diffusion.stats import Stats
from redraft.errors import RequestError
from redraft.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Needs:
    """Inputs of a rule beyond argmax, sample and entropy: `top`, the two largest probabilities; a number of earlier
    `drafts`."""

    top: bool = False
    drafts: int = 0

    def __or__(self, other: Needs) -> Needs:
        return Needs(self.top or other.top, max(self.drafts, other.drafts))


@runtime_checkable
class Accept(Protocol):
    """An acceptance rule."""

    @property
    def needs(self) -> Needs:
        """The rule's inputs."""

    def __call__(self, stats: Stats, drafts: Sequence[Int[Tensor, "canvas"]] = ()) -> Bool[Tensor, "canvas"]:
        """True where the sample is kept, from this step's readings and the drafts of earlier steps, oldest first."""


@dataclass(frozen=True)
class EntropyBound:
    """Keep the most certain positions while the entropy (`Stats.cost`) spent before each stays within `bound` nats.

    Ben-Hamu et al., "Accelerated sampling by entropy bounded unmasking" (arXiv 2505.24857), as the reference applies
    it (model spec 3.3): in ascending order of entropy the k-th is kept iff cumsum_k - H_k <= bound, so at least one
    always is. The sum bounds the error of sampling the kept positions independently of each other.
    """

    needs: ClassVar[Needs] = Needs()
    bound: float = 0.1

    def __post_init__(self) -> None:
        if not self.bound > 0:
            raise RequestError(f"entropy_bound is {self.bound}; it must be above 0 (nats for the whole canvas)")

    def __call__(self, stats: Stats, drafts: Sequence[Int[Tensor, "canvas"]] = ()) -> Bool[Tensor, "canvas"]:
        # In this form, because it rounds as the reference does.
        return _surest_first(stats, stats.cost, lambda spent: spent.cumsum(-1) - spent <= self.bound)


@dataclass(frozen=True)
class Confidence:
    """Keep every position with c >= threshold.

    Fast-dLLM's threshold form (Wu et al., arXiv 2505.22618, section 3.3; 0.9 there). It looks at each position alone,
    so the risk of a step grows with the number of positions that just pass.
    """

    needs: ClassVar[Needs] = Needs(top=True)
    threshold: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise RequestError(f"the confidence threshold is {self.threshold}; it must be above 0 and at most 1")

    def __call__(self, stats: Stats, drafts: Sequence[Int[Tensor, "canvas"]] = ()) -> Bool[Tensor, "canvas"]:
        return _surest_first(stats, -stats.confidence, lambda doubt: doubt <= -self.threshold)


@dataclass(frozen=True)
class Factor:
    """Keep the n most confident positions, for the largest n with (n + 1)(1 - c_n) < factor.

    Fast-dLLM's factor form (arXiv 2505.22618, after its theorem 1): if n positions are all at least that certain,
    the likeliest tokens of each are together the likeliest sequence. c_n is the n-th largest confidence.
    """

    needs: ClassVar[Needs] = Needs(top=True)
    factor: float = 0.75

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise RequestError(f"the confidence factor is {self.factor}; it must be above 0")

    def __call__(self, stats: Stats, drafts: Sequence[Int[Tensor, "canvas"]] = ()) -> Bool[Tensor, "canvas"]:
        size = torch.arange(1, stats.confidence.shape[0] + 1, device=stats.confidence.device)
        return _surest_first(stats, 1 - stats.confidence, lambda doubt: (size + 1) * doubt < self.factor)


@dataclass(frozen=True)
class Frechet:
    """Keep the n most confident positions, for the largest n with (1-c_1) + .. + (1-c_n) + (1-c_n) < 1 - margin.

    Fast-dLLM++ (Kasa et al., arXiv 2606.02955), by the formula of the authors' README: the Fréchet lower bound
    sum(c) - (n - 1) on the probability that all n are right exceeds that of an alternative, 1 - c_n, by `margin`.
    With equal confidences this is `Factor(1 - margin)`, otherwise it keeps at least as many. The condition can only
    turn false as n grows, so it is a prefix.
    """

    needs: ClassVar[Needs] = Needs(top=True)
    margin: float = 0.25

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise RequestError(f"the Frechet margin is {self.margin}; it must be from 0 to below 1")

    def __call__(self, stats: Stats, drafts: Sequence[Int[Tensor, "canvas"]] = ()) -> Bool[Tensor, "canvas"]:
        allowed = 1 - self.margin
        return _surest_first(stats, 1 - stats.confidence, lambda doubt: doubt.cumsum(-1) + doubt < allowed)


@dataclass(frozen=True)
class Margin:
    """Keep every position whose likeliest token leads the second by at least `threshold` in probability.

    The gap is from Prophet (Li et al., arXiv 2508.19982), which takes it between logits, averages it over positions and
    uses it to stop. This variant takes it between probabilities and judges each position alone.
    """

    needs: ClassVar[Needs] = Needs(top=True)
    threshold: float = 0.8

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise RequestError(f"the margin threshold is {self.threshold}; it must be above 0 and at most 1")

    def __call__(self, stats: Stats, drafts: Sequence[Int[Tensor, "canvas"]] = ()) -> Bool[Tensor, "canvas"]:
        return _surest_first(stats, -stats.margin, lambda doubt: doubt <= -self.threshold)


@dataclass(frozen=True)
class Gate:
    """Of the positions that `rule` keeps, those whose draft is unchanged since each of the last `steps` steps.

    Stability over time as a condition, as in LESS (arXiv 2606.16908: the top token persists). The rule judges unstable
    positions too, and a rule with a budget spends it on them. If no position is left, as in the first `steps` steps of
    every canvas, the position of the lowest cost is kept.
    """

    steps: int
    rule: Accept

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise RequestError(f"the stability gate looks back {self.steps} steps; it must be at least 1")

    @property
    def needs(self) -> Needs:
        """The rule's needs, and as many drafts as the gate looks back on."""
        return self.rule.needs | Needs(drafts=self.steps)

    def __call__(self, stats: Stats, drafts: Sequence[Int[Tensor, "canvas"]] = ()) -> Bool[Tensor, "canvas"]:
        surest = _surest_first(stats, stats.cost, lambda doubt: torch.zeros_like(doubt, dtype=torch.bool))
        if len(drafts) < self.steps:
            return surest
        mask = self.rule(stats, drafts)
        for draft in drafts[-self.steps :]:
            mask = mask & (draft == stats.argmax)
        return torch.where(mask.any(), mask, surest)


@dataclass(frozen=True)
class AnyOf:
    """Keep what at least one of `rules` keeps."""

    rules: tuple[Accept, ...]

    def __post_init__(self) -> None:
        if not self.rules:
            raise RequestError("AnyOf has no rules; pass at least one")

    @property
    def needs(self) -> Needs:
        """What any of the rules needs."""
        return reduce(Needs.__or__, (rule.needs for rule in self.rules))

    def __call__(self, stats: Stats, drafts: Sequence[Int[Tensor, "canvas"]] = ()) -> Bool[Tensor, "canvas"]:
        return reduce(torch.logical_or, (rule(stats, drafts) for rule in self.rules))


def _surest_first(
    stats: Stats, doubt: Float[Tensor, "canvas"], keep: Callable[[Tensor], Tensor]
) -> Bool[Tensor, "canvas"]:
    """`keep` applied to the open positions in ascending order of doubt; the first is always kept."""
    pinned = stats.pinned
    ordered, order = torch.sort(doubt if pinned is None else doubt.masked_fill(pinned, torch.inf), stable=True)
    kept = keep(ordered)
    kept[0] = True
    mask = torch.zeros_like(kept).scatter_(0, order, kept)
    return mask if pinned is None else mask & ~pinned
