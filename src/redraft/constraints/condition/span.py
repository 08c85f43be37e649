"""A language for the first positions of a canvas only: a gap, with pinned text behind it that is not in the language.

The gap is filled by exactly so many tokens, so where it ends is known, and nothing of what is pinned behind it can be
taken for part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from redraft.constraints.condition.projection import OnceProjection, Projected
from redraft.constraints.language import Language
from redraft.errors import ConstraintError
from redraft.model.gpu.automata import ConditionKernels
from redraft.shapes import Float, Int, Tensor


@dataclass(frozen=True, eq=False)
class SpanLanguage(Language):
    """Canvases whose first `width` tokens are a text of the language; the others may be anything."""

    width: int

    def start(self, max_tokens: int, min_tokens: int = 0, kernels: ConditionKernels | None = None) -> SpanProjection:
        """The constraint on the canvas. Raises ConstraintError if the language has no text of so many tokens."""
        found = SpanProjection(self.layout, 0, self.width, self.width, kernels=kernels)
        found.check()
        return found

    def holds(self, tokens: Sequence[int]) -> bool:
        """Whether the first tokens of an answer are a text of the language."""
        return super().holds(tokens[: self.width])


@dataclass(frozen=True)
class SpanProjection(OnceProjection):
    """What conditions the first `left` positions and leaves those behind them alone."""

    def __call__(self, log_p: Float[Tensor, "canvas vocab"]) -> SpanProjected:  # type: ignore[override]
        """Condition the span. Raises ConstraintError if nothing is left of the language."""
        return SpanProjected(super().__call__(log_p[: self.left]), log_p[self.left :])

    def check_pins(self, width: int, pins: Sequence[tuple[int, int]]) -> None:
        """Raise ConstraintError if the span cannot hold those of the pins that stand in it."""
        super().check_pins(self.left, [(position, token) for position, token in pins if position < self.left])

    def check(self) -> None:
        """Raise ConstraintError if the language has no text of just so many tokens."""
        if not self.allowed(0)[self.state]:
            raise ConstraintError(f"no text of {self.left} tokens is what was asked for; allow other lengths")


@dataclass(frozen=True)
class SpanProjected:
    """What came of a canvas: the span conditioned, the rest as it was."""

    span: Projected
    rest: Float[Tensor, "rest vocab"]
    fixed: ClassVar = 0  # no position

    @property
    def draft(self) -> Int[Tensor, "canvas"]:
        """The likeliest valid span, and the likeliest token at each other position."""
        return torch.cat([self.span.draft, self.rest.argmax(-1)])

    def draw(self, uniform: Float[Tensor, "canvas"]) -> Int[Tensor, "canvas"]:
        """The span drawn by the first of these numbers, the rest as in `draft`."""
        return torch.cat([self.span.draw(uniform[: len(self.span.log_p)]), self.rest.argmax(-1)])

    @property
    def doubt(self) -> float:
        """Nats that the draft is short of certain, in the span and behind it."""
        return self.span.doubt - float(self.rest.amax(-1).sum())

    def shifted(self) -> Float[Tensor, "canvas vocab"]:
        """Log-probabilities, in the span conditioned ones."""
        return torch.cat([self.span.shifted(), self.rest])

    def finished(self) -> Int[Tensor, "canvas"] | None:
        """As `draft`: the span ends where it ends."""
        return self.draft

    def forced(self) -> list[bool]:
        """Whether the draft is another token than the model's likeliest; never behind the span."""
        return [*self.span.forced(), *[False] * len(self.rest)]

    def log_mass(self, tokens: Sequence[int]) -> list[float]:
        """Log of the probability of what was allowed at each of the first positions; 0 behind the span."""
        inside = tokens[: len(self.span.log_p)]
        return [*self.span.log_mass(inside), *[0.0] * (len(tokens) - len(inside))]
