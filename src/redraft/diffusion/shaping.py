"""A caller's changes to the model's distribution: bias, temperature, top-k and top-p.

    logits ──► + bias ──► ÷ (schedule's temperature · factor) ──► p ──► argmax, entropy, soft embedding
                                                                  └──► top-k ──► top-p ──► the sample

Bias and temperature act on every reading. top-k and top-p act on the sample alone: the draft, acceptance and the soft
embedding are read off the whole distribution. The answer is the draft, so top-k and top-p change it only through the
sampled tokens that the network reads at the next steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from redraft.errors import RequestError
from redraft.shapes import Float, Tensor

FORBIDDEN = -1e4
"""Logit of a token that may not be drawn: its probability is exactly 0, and 0·log 0 is no NaN."""

COLDEST, HOTTEST, MOST_BIAS = 0.01, 10.0, 100.0

FEW = 1024
"""Tokens ranked for top_p; all tokens are sorted only if these do not reach it, because a full sort is slow."""
PARTS = 16  # of a canvas, where more than FEW are ranked: ranks take several times the memory of the logits


def forbid(logits: Float[Tensor, "rows vocab"], tokens: Iterable[int]) -> None:
    """Forbid tokens in place."""
    logits.index_fill_(
        -1, torch.tensor(sorted(tokens), dtype=torch.int64).to(logits.device, non_blocking=True), FORBIDDEN
    )


@dataclass(frozen=True)
class Shaping:
    """Changes to a distribution. The default changes nothing, bit for bit.

    temperature   factor on the schedule's temperature
    top_k         sample from this many of the likeliest tokens; None for all
    top_p         sample from the likeliest tokens that reach this probability together, after top_k; 1 for all
    bias          (token id, nats) added to the logits of every position
    forbidden     tokens that are neither read nor sampled
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    bias: tuple[tuple[int, float], ...] = ()
    forbidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not COLDEST <= self.temperature <= HOTTEST:
            raise RequestError(
                f"temperature is {self.temperature}; it multiplies the schedule's and must be 0 (sample the likeliest "
                f"token) or from {COLDEST} to {HOTTEST:g}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise RequestError(f"top_k is {self.top_k}; it must be at least 1 (leave it out for no limit)")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        for token, nats in self.bias:
            if not -MOST_BIAS <= nats <= MOST_BIAS:
                raise RequestError(
                    f"logit_bias of token {token} is {nats}; it must be from -{MOST_BIAS:g} to {MOST_BIAS:g}"
                )

    @property
    def is_plain(self) -> bool:
        """Whether a sample is drawn from all of the model's own distribution, or is its likeliest token."""
        return not self.bias and not self.forbidden and (self.top_k == 1 or (self.top_k is None and self.top_p == 1))

    def biased(self, logits: Float[Tensor, "canvas vocab"]) -> Float[Tensor, "canvas vocab"]:
        """The logits with bias and forbidden tokens."""
        if not self.bias and not self.forbidden:
            return logits
        changes = [*self.bias, *((token, FORBIDDEN) for token in self.forbidden)]
        ids, nats = (torch.tensor(column).to(logits.device, non_blocking=True) for column in zip(*changes, strict=True))
        return logits + torch.zeros_like(logits[0]).index_add(0, ids, nats.to(logits.dtype))

    def narrowed(self, p: Float[Tensor, "canvas vocab"]) -> Float[Tensor, "canvas vocab"]:
        """The probabilities that a sample is drawn from; rows need not sum to 1. Of tokens with equal probability at
        the limit of top_k any may be kept."""
        if self.top_k is None and self.top_p == 1:
            return p
        kept, count = torch.zeros_like(p), min(self.top_k or FEW, p.shape[-1])
        few = p.topk(count) if count <= FEW else None
        if few and self.top_k is None and bool((few.values.sum(-1) < self.top_p * p.sum(-1)).any()):
            few = None
        rows = len(p) if few else -(-len(p) // PARTS)
        for part, narrow in zip(p.split(rows), kept.split(rows), strict=True):
            likeliest, ids = few or (part.topk(count) if self.top_k else part.sort(-1, descending=True))
            whole = likeliest if self.top_k else part
            outside = likeliest.cumsum(-1) - likeliest >= self.top_p * whole.sum(-1, keepdim=True)
            outside[:, 0] = False
            narrow.scatter_(-1, ids, likeliest.masked_fill(outside, 0))
        return kept
