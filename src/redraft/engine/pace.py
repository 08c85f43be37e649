"""Keeping an answer within a target time: which notch of the dial the rest of it may use, decided after every step.

The passes still to come are predicted from the steps that canvases took when the dial was measured, and their time from
this request's passes so far. The effort falls as far as needed at once. It rises one notch at a time, and only if half
the time that is left would do, so that a noisy clock does not make it swing. It never falls below the request's floor:
a target that the floor cannot keep is missed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from redraft.diffusion.denoise import Policy
from redraft.engine.dial import Notch

_NEW = 0.3
"""Weight of the latest pass in the running mean of what a pass lasts."""


@dataclass(frozen=True)
class Pace:
    """A time to keep and the notches that may be used for it, cheapest first, each with its policy.

    `step_sec` is what a pass is taken to last before the first has been timed.
    """

    notches: tuple[Notch, ...]
    policies: tuple[Policy, ...]
    target_sec: float
    step_sec: float

    def first(self, elapsed: float = 0.0) -> int:
        """The notch to begin with, before it is known how many canvases there will be: the best that one may take."""
        return self._highest(0, 1, self.target_sec - elapsed, self.step_sec)

    def after(self, at: int, steps: int, canvases: int, elapsed: float, step_sec: float) -> int:
        """The notch to go on with, from notch `at` after `steps` steps of a canvas, `canvases` of which may be left."""
        left = self.target_sec - elapsed
        if self._needs(at, steps, canvases, step_sec) > left:
            return min(at, self._highest(steps, canvases, left, step_sec))
        higher = min(at + 1, len(self.notches) - 1)
        return higher if self._needs(higher, steps, canvases, step_sec) <= left / 2 else at

    def _highest(self, steps: int, canvases: int, left: float, step_sec: float) -> int:
        fitting = [i for i in range(len(self.notches)) if self._needs(i, steps, canvases, step_sec) <= left]
        return fitting[-1] if fitting else 0

    def _needs(self, at: int, steps: int, canvases: int, step_sec: float) -> float:
        notch = self.notches[at]
        return (notch.steps_left(steps) + (canvases - 1) * notch.steps_left(0)) * step_sec


@dataclass(frozen=True)
class Timing:
    """One request's pace by the clock. `last` is when its last pass ended, None before the first, which is not timed:
    it holds the wait in the queue and the prompt."""

    pace: Pace
    clock: Callable[[], float]
    began: float
    at: int
    last: float | None = None
    step_sec: float | None = None

    @property
    def policy(self) -> Policy:
        """The rules of the next step."""
        return self.pace.policies[self.at]

    def after(self, steps: int, canvases: int) -> Timing:
        """The timing after a pass has ended; the canvas has taken `steps` steps, and `canvases` may be left."""
        now = self.clock()
        step_sec = self.pace.step_sec if self.step_sec is None else self.step_sec
        if self.last is not None:
            step_sec = (1 - _NEW) * step_sec + _NEW * (now - self.last)
        at = self.pace.after(self.at, steps, canvases, now - self.began, step_sec)
        return replace(self, at=at, last=now, step_sec=step_sec)
