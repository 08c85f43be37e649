"""The temperature of each denoising step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from redraft.errors import RequestError


@runtime_checkable
class Schedule(Protocol):
    """Temperature by step."""

    def temperature(self, step: int, max_steps: int) -> float:
        """The divisor of the logits of `step`, counted from 1."""


@dataclass(frozen=True)
class LinearTemperature:
    """From `t_max` at the first step towards `t_min`, which it does not reach (model spec 3.2).

    The reference's rule: the step cap sets the cooling rate, so a run capped at 12 steps cools four times as fast as
    one capped at 48.
    """

    t_min: float = 0.4
    t_max: float = 0.8

    def __post_init__(self) -> None:
        if not 0 < self.t_min <= self.t_max:
            raise RequestError(f"temperatures are t_min {self.t_min}, t_max {self.t_max}; 0 < t_min <= t_max must hold")

    def temperature(self, step: int, max_steps: int) -> float:
        """t_min + (t_max - t_min)·remaining/max_steps, with the reference's float32 roundings."""
        remaining = np.float32(max_steps - step + 1) / np.float32(max_steps)
        return float(np.float32(self.t_min) + np.float32(self.t_max - self.t_min) * remaining)


@dataclass(frozen=True)
class FixedCooling:
    """`LinearTemperature` for a cap of `steps`, whatever the real cap.

    The cap then only cuts a run short, as vLLM's `diffusion_max_steps` does; with the reference's rule a lower cap also
    cools faster. Steps beyond `steps` have the last temperature.
    """

    t_min: float = 0.4
    t_max: float = 0.8
    steps: int = 48

    def __post_init__(self) -> None:
        LinearTemperature(self.t_min, self.t_max)
        if self.steps < 1:
            raise RequestError(f"the cooling takes {self.steps} steps; it must be at least 1")

    def temperature(self, step: int, max_steps: int) -> float:
        """The reference's temperature at this step of a run capped at `steps`."""
        return LinearTemperature(self.t_min, self.t_max).temperature(min(step, self.steps), self.steps)


@dataclass(frozen=True)
class LateStart:
    """Another schedule without its first `skipped` steps: for a canvas that does not start as noise."""

    schedule: Schedule
    skipped: int

    def temperature(self, step: int, max_steps: int) -> float:
        """The other schedule's temperature `skipped` steps later, with a cap that is higher by `skipped`."""
        return self.schedule.temperature(step + self.skipped, max_steps + self.skipped)
