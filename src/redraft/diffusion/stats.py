"""What a step needs to know of the model's distribution at every position, and nothing wider than the canvas is kept.

From logits [canvas, vocab] one reading gives the argmax, one sample, the entropy and the soft embedding that conditions
the next step; and the two largest probabilities, if a rule asks. At a vocabulary of 262,144 the probabilities of one
canvas are 268 MB in float32; they live inside `read_logits` and die there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from redraft.shapes import Float, Int, Tensor

Sample = Callable[[Float[Tensor, "canvas vocab"]], Int[Tensor, "canvas"]]
Soften = Callable[[Float[Tensor, "canvas vocab"]], Float[Tensor, "canvas hidden"]]


@dataclass(frozen=True)
class Stats:
    """Readings of one step, all of the temperature-scaled distribution.

    `entropy` is in nats. `top` holds each position's two largest probabilities, if a rule asked for them.
    """

    argmax: Int[Tensor, "canvas"]
    sample: Int[Tensor, "canvas"]
    entropy: Float[Tensor, "canvas"]
    soft: Float[Tensor, "canvas hidden"]
    top: Float[Tensor, "canvas 2"] | None = None

    @property
    def confidence(self) -> Float[Tensor, "canvas"]:
        """Probability of the likeliest token."""
        assert self.top is not None, "a rule that reads confidences must say so in its needs"
        return self.top[:, 0]

    @property
    def margin(self) -> Float[Tensor, "canvas"]:
        """How far the likeliest token leads the second."""
        assert self.top is not None, "a rule that reads margins must say so in its needs"
        return self.top[:, 0] - self.top[:, 1]


def read_logits(
    logits: Float[Tensor, "canvas vocab"],
    temperature: float,
    sample: Sample,
    soften: Soften,
    feedback: torch.dtype = torch.float32,
    *,
    top: bool = False,
) -> Stats:
    """Divide by the temperature and read off everything the step needs (model spec 3.1-3.3).

    `feedback` is the dtype the reference rounds the scaled logits to before they condition the next step: its
    parameter dtype. In bfloat16 that coarsens them visibly (steps of 0.5 near 75), so it is part of the rule.
    """
    scaled = logits / temperature
    log_p = torch.log_softmax(scaled, dim=-1)
    p = log_p.exp()
    entropy = -(p * log_p).sum(-1)
    fed_back = p if feedback == torch.float32 else torch.softmax(scaled.to(feedback).float(), dim=-1)
    return Stats(scaled.argmax(-1), sample(p), entropy, soften(fed_back), p.topk(2).values if top else None)
