"""Which sampled tokens a step keeps; every other open position gets a fresh random token.

Acceptance has no memory: a position kept at one step is judged again at the next and may be renoised. What the model
believed there lives on in the soft embedding. Pinned positions are outside acceptance: they are neither judged nor
spend its budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from redraft.diffusion.stats import Stats
from redraft.errors import RequestError
from redraft.shapes import Bool, Tensor


@runtime_checkable
class Accept(Protocol):
    """An acceptance rule."""

    def __call__(self, stats: Stats, pinned: Bool[Tensor, "canvas"] | None) -> Bool[Tensor, "canvas"]:
        """True where the sample is kept."""


@dataclass(frozen=True)
class EntropyBound:
    """Keep the most certain positions while the entropy spent before each stays within `bound` nats.

    Ben-Hamu et al., "Accelerated sampling by entropy bounded unmasking" (arXiv 2505.24857), as the reference applies
    it (model spec 3.3): in ascending order of entropy the k-th is kept iff cumsum_k - H_k <= bound, so at least one
    always is. The sum bounds what is lost by sampling the kept positions independently of each other.
    """

    bound: float = 0.1

    def __post_init__(self) -> None:
        if not self.bound > 0:
            raise RequestError(f"entropy_bound is {self.bound}; it must be above 0 (nats for the whole canvas)")

    def __call__(self, stats: Stats, pinned: Bool[Tensor, "canvas"] | None) -> Bool[Tensor, "canvas"]:
        entropy = stats.entropy if pinned is None else stats.entropy.masked_fill(pinned, torch.inf)
        ordered, order = torch.sort(entropy, stable=True)
        kept = ordered.cumsum(-1) - ordered <= self.bound  # literally so, to round as the reference does
        mask = torch.empty_like(kept)
        mask[order] = kept
        return mask if pinned is None else mask & ~pinned
