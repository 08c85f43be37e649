"""A decision: how likely each of some answers is, read from one step and without writing any.

The prompt is encoded, a canvas of noise is denoised once, and of its distributions the exact probability of every
choice is read: of all ways to spell it in tokens, with the end behind it. What is told is each choice's share of all of
them. Several canvases of other noise are averaged. Shares are the model's own and are not calibrated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from redraft.cache import Prefix
from redraft.constrain.language import ready
from redraft.constrain.sources import choices_source
from redraft.diffusion.canvas import fresh
from redraft.diffusion.noise import SeededNoise
from redraft.engine.request import Request
from redraft.engine.scheduler import PREFILL_CHUNK
from redraft.errors import RequestError

if TYPE_CHECKING:
    from redraft.engine.engine import Engine

MOST_CANVASES = 64


@dataclass(frozen=True)
class Decision:
    """Shares of the choices, which sum to 1, in their order; `log_mass` is the log of what they had together."""

    shares: dict[str, float]
    log_mass: float

    @property
    def best(self) -> str:
        """The likeliest choice; of equal ones the first."""
        return max(self.shares, key=self.shares.__getitem__)

    @property
    def mean(self) -> float:
        """The expected value of choices that are numbers. Raises RequestError if one is not."""
        try:
            return sum(float(choice) * share for choice, share in self.shares.items())
        except ValueError:
            raise RequestError(f"choices {list(self.shares)[:5]} are not all numbers; a mean needs numbers") from None


@torch.inference_mode()
def decide(engine: Engine, request: Request, choices: Sequence[str], *, canvases: int = 1) -> Decision:
    """The shares of some choices as answers to a request's prompt. Raises RequestError for choices that do not fit."""
    if not 1 <= canvases <= MOST_CANVASES:
        raise RequestError(f"canvases is {canvases}; it must be from 1 to {MOST_CANVASES}")
    choices_source(choices)  # refuses what is no list of texts
    kept = list(dict.fromkeys(choices))
    goals = [ready(choices_source([choice]), engine.vocabulary).start(request.width) for choice in kept]
    totals = torch.zeros(len(kept), dtype=torch.float64)
    for number in range(canvases):
        log_p = _read(engine, replace(request, seed=(request.seed + number) % 2**64))
        totals += torch.tensor([goal(log_p).log_total for goal in goals], dtype=torch.float64)
    # Averaged as logarithms: one canvas that all but rules a choice out is not outvoted by its neighbours' noise.
    mean = totals / canvases
    shares = torch.softmax(mean, 0).tolist()
    return Decision(dict(zip(kept, shares, strict=True)), min(0.0, float(torch.logsumexp(mean, 0))))


def _read(engine: Engine, request: Request) -> torch.Tensor:
    """Log-probabilities of a canvas at its first step, not cooled: the schedule is for settling, not for shares."""
    model = engine.model
    prefix = Prefix(model.config.layers, room=len(request.prompt), dtype=model.dtype, device=model.device)
    for chunk in torch.tensor(request.prompt, device=model.device).split(PREFILL_CHUNK):
        model.encode(chunk, prefix)
    canvas = fresh(SeededNoise(request.seed), 0, request.width, request.vocab, device=model.device)
    logits = request.policy.shaping.biased(model.denoise(canvas.tokens, None, prefix))
    return torch.log_softmax(logits / request.policy.shaping.temperature, dim=-1)
