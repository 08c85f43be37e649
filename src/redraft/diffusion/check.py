"""A finished block, verified from left to right by the causal mode of the same weights before it is emitted.

A draft's positions were decided side by side; read causally, each token must follow from those before it. The longest
beginning that does so is kept and encoded, the rest is denoised anew behind it (after S2D2, arXiv 2603.25702: block
drafter and block-size-1 verifier are one model). The first token is never judged, so every check lets something
through.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from redraft.errors import RequestError
from redraft.shapes import Float, Int, Tensor


@dataclass(frozen=True)
class CausalCheck:
    """A token passes if its causal probability is at least `least` times that of the likeliest token there."""

    least: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1:
            raise RequestError(f"the check's share is {self.least}; it must be above 0 and at most 1")

    def passing(self, logits: Float[Tensor, "rows vocab"], tokens: Int[Tensor, "rows"]) -> int:
        """How many of the first tokens pass, at least 1; row i of `logits` says what follows token i."""
        ahead, said = logits[:-1], tokens[1:].unsqueeze(-1).to(logits.device)
        behind = ahead.max(-1).values - ahead.gather(-1, said).squeeze(-1)
        passes = behind <= -torch.log(torch.tensor(self.least, device=logits.device))
        return 1 + int(passes.cumprod(0).sum())
