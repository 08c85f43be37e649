"""Which positions of a canvas finish together, and which canvas follows.

    Whole    all of them, when the halting rule is met; the next canvas is a new block         (the reference)
    Flow     also the first positions once they no longer change; the canvas slides over the text

         ┌─────── canvas ───────┐                      age of its positions, in steps
    step │ Once upon a t?m% the#│                      3 3 3 3 3 3 3 3
         └──────┬───────────────┘
         Once upon  ┌─────── canvas ───────┐
         → prefix   │ a t?m% the# … … … …  │           3 3 3 3 0 0 0 0
                    └──────────────────────┘

A sliding canvas has no ramp-up for text that it already covers, and settled positions do not wait for the last few.
Positions that enter later are younger: the temperature and the cap of each follow its own age. This needs no training,
because every canvas after the first starts in the middle of a text anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from redraft.diffusion.canvas import Canvas, fresh, slide
from redraft.diffusion.noise import Noise
from redraft.errors import RequestError
from redraft.shapes import Bool, Tensor


@runtime_checkable
class Plan(Protocol):
    """Decides which positions leave a canvas after a step, and which canvas follows."""

    @property
    def memory(self) -> int:
        """Number of drafts to keep for the plan, the last one included."""

    def released(self, canvas: Canvas, max_steps: int) -> int:
        """How many of the first positions are finished."""

    def following(self, canvas: Canvas, released: int, width: int, noise: Noise, vocab: int) -> Canvas:
        """The canvas that follows, `width` wide, when the first `released` positions have left."""


@dataclass(frozen=True)
class Whole:
    """A canvas finishes as a whole, when it has settled or met the step cap; a new block of noise follows."""

    @property
    def memory(self) -> int:
        return 0

    def released(self, canvas: Canvas, max_steps: int) -> int:
        """All positions or none."""
        return canvas.width if canvas.settled or canvas.step >= max_steps else 0

    def following(self, canvas: Canvas, released: int, width: int, noise: Noise, vocab: int) -> Canvas:
        return fresh(noise, canvas.block + 1, width, vocab)


@dataclass(frozen=True)
class Flow:
    """Positions leave from the front once their draft is unchanged for `steady` steps, with an entropy below `nats`.

    Fewer than `least` positions wait for more, because every departure is a commit and moves every row. Positions that
    have reached the step cap leave in any case, and a settled canvas leaves as a whole. New positions at the end are
    noise; steps are counted on, so every address of the noise is used once.
    """

    steady: int = 1
    nats: float = 0.005
    least: int = 4

    def __post_init__(self) -> None:
        if self.steady < 0:
            raise RequestError(f"steady is {self.steady}; it must be 0 or more steps")
        if not self.nats > 0:
            raise RequestError(f"nats is {self.nats}; it must be above 0 (entropy of a position that may leave)")
        if self.least < 1:
            raise RequestError(f"least is {self.least}; it must be at least 1 (positions that leave together)")

    @property
    def memory(self) -> int:
        """The last draft and those it is compared with."""
        return self.steady + 1

    def released(self, canvas: Canvas, max_steps: int) -> int:
        """The longest beginning that no longer changes or is at the step cap, if it is long enough."""
        if canvas.settled or canvas.step == 0:
            return canvas.width if canvas.settled else 0
        leaving = self._still(canvas)
        if canvas.oldest >= max_steps:
            old = torch.full_like(leaving, True) if canvas.age is None else canvas.age >= max_steps
            return _leading(leaving | old)
        found = _leading(leaving)
        return found if found >= min(self.least, canvas.width) else 0

    def following(self, canvas: Canvas, released: int, width: int, noise: Noise, vocab: int) -> Canvas:
        """The same canvas, moved forward."""
        return slide(canvas, released, width, noise, vocab)

    def _still(self, canvas: Canvas) -> Bool[Tensor, "canvas"]:
        assert canvas.entropy is not None
        still = canvas.entropy < self.nats
        if len(canvas.drafts) <= self.steady:
            return torch.zeros_like(still)
        for draft in canvas.drafts[-self.steady - 1 : -1]:
            still = still & (draft == canvas.draft)
        return still


def _leading(mask: Bool[Tensor, "canvas"]) -> int:
    """How many positions from the first on are True without a break."""
    return int(mask.cumprod(0).sum())
