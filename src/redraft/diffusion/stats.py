"""A step's readings of the model's distribution at every position; nothing as wide as the vocabulary is kept.

From logits [canvas, vocab] one reading gives the argmax, one sample, the entropy and the soft embedding that conditions
the next step; and the two largest probabilities, if a rule needs them. At a vocabulary of 262,144 the probabilities of
one canvas are 268 MB in float32; they exist only inside `read_logits`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from redraft.shapes import Bool, Float, Int, Tensor

Sample = Callable[[Float[Tensor, "canvas vocab"]], Int[Tensor, "canvas"]]  # draws from probabilities
Soften = Callable[[Float[Tensor, "canvas vocab"]], Float[Tensor, "canvas hidden"]]  # from probabilities


@runtime_checkable
class Conditioned(Protocol):
    """A canvas's distributions, given that its text satisfies a constraint (made by `constraints`)."""

    @property
    def draft(self) -> Int[Tensor, "canvas"]:
        """The likeliest valid text of the canvas, as a whole."""

    def draw(self, uniform: Float[Tensor, "canvas"]) -> Int[Tensor, "canvas"]:
        """A valid text in proportion to its probability, by a number in [0, 1) for each position."""

    @property
    def doubt(self) -> float:
        """-log of the draft's probability among all valid texts, up to its end token, in nats; 0 is certain."""

    @property
    def fixed(self) -> int:
        """How many of the first positions are pinned to the draft from now on; 0 where all of it is weighed at once."""

    def shifted(self) -> Float[Tensor, "canvas vocab"]:
        """Log-probabilities of the conditioned distributions, position by position."""

    def finished(self) -> Int[Tensor, "canvas"] | None:
        """The likeliest valid text that ends the answer within the canvas; None if there is none."""

    def forced(self) -> list[bool]:
        """Per position, whether the draft differs from the argmax of the model alone."""

    def log_mass(self, tokens: Sequence[int]) -> list[float]:
        """Of each token, log of the probability that the model gave to all that the language allowed behind the tokens
        before it."""


Condition = Callable[[Float[Tensor, "canvas vocab"]], Conditioned]  # from log-probabilities


@dataclass(frozen=True)
class Stats:
    """Readings of one step, all of the temperature-scaled distribution.

    `entropy` is in nats. `top`, if a rule asked for it, are each position's two largest probabilities. `pinned`
    positions read as their token, with an entropy of 0. With a language, `conditioned` are the conditioned
    distributions, which all else is read from, and `own` is the entropy of the model's before conditioning; `top` is no
    surer than either of the two.
    """

    argmax: Int[Tensor, "canvas"]
    sample: Int[Tensor, "canvas"]
    entropy: Float[Tensor, "canvas"]
    soft: Float[Tensor, "canvas hidden"]
    top: Float[Tensor, "canvas 2"] | None = None
    pinned: Bool[Tensor, "canvas"] | None = None
    conditioned: Conditioned | None = None
    own: Float[Tensor, "canvas"] | None = None

    def landed(self) -> Stats:
        """The same with what the rules read copied to the host at once. float32 holds every token id exactly."""
        if self.argmax.device.type == "cpu":
            return self
        top = () if self.top is None else self.top.unbind(-1)
        own = () if self.own is None else (self.own,)
        parts = (self.argmax, self.sample, self.entropy, *top, *own)
        argmax, sample, entropy, *rest = torch.stack([part.float() for part in parts]).cpu()
        return replace(
            self,
            argmax=argmax.long(),
            sample=sample.long(),
            entropy=entropy,
            top=torch.stack(rest[:2], -1) if top else None,
            own=rest[len(top)] if own else None,
        )

    def part(self, rows: slice) -> Stats:
        """The readings of some positions: of one canvas among several, or those that a halting rule judges."""
        top = None if self.top is None else self.top[rows]
        pinned = None if self.pinned is None else self.pinned[rows]
        read = (self.argmax[rows], self.sample[rows], self.entropy[rows], self.soft[rows], top)
        return Stats(*read, pinned=pinned, conditioned=self.conditioned)

    @property
    def cost(self) -> Float[Tensor, "canvas"]:
        """Cost in nats of accepting a position's sample: its entropy; with a constraint the larger of both entropies.

        A position that only the constraint makes certain may be part of two readings, one of which is wrong. If
        accepted, the network would read it as evidence for both.
        """
        return self.entropy if self.own is None else torch.maximum(self.entropy, self.own)

    @property
    def open_entropy(self) -> Float[Tensor, "open"]:
        """Entropy of the positions that are not pinned."""
        return self.entropy if self.pinned is None else self.entropy[~self.pinned]

    @property
    def confidence(self) -> Float[Tensor, "canvas"]:
        """Probability of the likeliest token."""
        assert self.top is not None, "a rule that reads confidences must say so in its needs"
        return self.top[:, 0]

    @property
    def margin(self) -> Float[Tensor, "canvas"]:
        """Lead of the likeliest token over the second, in probability."""
        assert self.top is not None, "a rule that reads margins must say so in its needs"
        return self.top[:, 0] - self.top[:, 1]


def read_logits(
    logits: Float[Tensor, "canvas vocab"],
    temperature: float | Float[Tensor, "canvas 1"],
    sample: Sample,
    soften: Soften,
    feedback: torch.dtype = torch.float32,
    *,
    top: bool = False,
    condition: Condition | None = None,
) -> Stats:
    """Divide by the temperature and read off everything the step needs (model spec 3.1-3.3).

    The temperature is one for all positions or one for each. `sample` draws from probabilities, `soften` makes the soft
    embedding. `feedback` is the dtype that the reference rounds the scaled logits to before they condition the next
    step: its parameter dtype. In bfloat16 that coarsens them visibly (steps of 0.5 near 75), so it is part of the rule.

    With a `condition` everything is read off the conditioned distributions, and the argmax is the likeliest text that
    satisfies it, not the likeliest token of each position. Only the soft embedding is of the model's own distribution:
    the next step has to see where the model doubts the constrained draft.
    """
    scaled = logits / temperature
    # What is fed back is softened before there are other tensors of this size: they would all be in memory at once.
    soft = None if feedback == torch.float32 else soften(torch.softmax(scaled.to(feedback).float(), dim=-1))
    # Not log_p.exp(): an exponential that underflows takes ten times as long, and a softmax takes none.
    p = torch.softmax(scaled, dim=-1)
    soft = soften(p) if soft is None else soft
    log_p = torch.log_softmax(scaled, dim=-1)
    conditioned, own = None if condition is None else condition(log_p), None
    two = p.topk(2).values if top else None
    if conditioned is not None:
        own = -(p * log_p).sum(-1)
        scaled = log_p = conditioned.shifted()
        p = torch.softmax(scaled, dim=-1)
        two = None if two is None else _less_sure(two, p.topk(2).values)
    entropy = -(p * log_p).sum(-1)
    argmax = scaled.argmax(-1) if conditioned is None else conditioned.draft
    del scaled, log_p  # drawing makes as much again
    return Stats(argmax, sample(p), entropy, soft, two, conditioned=conditioned, own=own)


def _less_sure(a: Float[Tensor, "canvas 2"], b: Float[Tensor, "canvas 2"]) -> Float[Tensor, "canvas 2"]:
    """Of two readings of the two largest probabilities, the smaller first and the larger second one."""
    return torch.stack([torch.minimum(a[:, 0], b[:, 0]), torch.maximum(a[:, 1], b[:, 1])], -1)
