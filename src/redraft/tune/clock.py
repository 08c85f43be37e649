"""A run that ends by the clock: as many steps as a time holds, with the rate falling over the last of them."""

from __future__ import annotations

import time
from bisect import bisect_left

from msgspec.structs import replace

from redraft.tune.recipe import Recipe

FLAT = 0.55
"""The share of the time after which the rate falls, as nano was trained."""
UNKNOWN = 10**9  # steps, while none has been timed


class Clock:
    """Chooses the last step of a run, once, when `FLAT` of its `seconds` is over. By that step and by how many before
    it the rate fell, a recipe repeats the run: `steps` and `decay_steps`.

    Until then the recipe that it gives has more steps than any time holds.
    """

    def __init__(self, recipe: Recipe, seconds: float) -> None:
        self._seconds, self._began = seconds, time.monotonic()
        self._ends = list[float]()
        self._is_chosen = False
        train = replace(recipe.train, steps=UNKNOWN, decay_steps=recipe.train.decay_steps or 1)
        self.recipe = replace(recipe, train=train)

    def after(self, step: int) -> int:
        """Which step is the last, as far as is known behind `step` of them; from `FLAT` of the time on it stays."""
        train, now = self.recipe.train, time.monotonic()
        if self._is_chosen:
            return train.encode_steps + train.steps
        self._ends.append(now)
        # Of the later half of the time, in which no model is loaded any more and a probe counts by its share.
        first = max(0, bisect_left(self._ends, (self._began + now) / 2) - 1)
        count = len(self._ends) - 1 - first
        since, count = (self._ends[first], count) if count else (self._began, 1)
        left = max(1, round((self._began + self._seconds - now) * count / max(1e-6, now - since)))
        if now - self._began >= FLAT * self._seconds:
            train = replace(train, steps=step + left - train.encode_steps, decay_steps=left)
            self.recipe, self._is_chosen = replace(self.recipe, train=train), True
        return step + left
