"""A run that ends by the clock: as many steps as a time holds, with the rate falling over the last of them."""

from __future__ import annotations

import time
from collections import deque

from msgspec.structs import replace

from redraft.tune.recipe import Recipe

FLAT = 0.55
"""The share of the time after which the rate falls, as nano was trained."""
RECENT = 50  # steps by which the time of one is told
UNKNOWN = 10**9  # steps, while none has been timed


class Clock:
    """Chooses the last step of a run, once, when `FLAT` of its `seconds` is over. By that step and by how many before
    it the rate fell, a recipe repeats the run: `steps` and `decay_steps`.

    Until then the recipe that it gives has more steps than any time holds.
    """

    def __init__(self, recipe: Recipe, seconds: float) -> None:
        self._seconds, self._began = seconds, time.monotonic()
        self._ends = deque([self._began], maxlen=RECENT)
        self._is_chosen = False
        train = replace(recipe.train, steps=UNKNOWN, decay_steps=recipe.train.decay_steps or 1)
        self.recipe = replace(recipe, train=train)

    def after(self, step: int) -> int:
        """Which step is the last, as far as is known behind `step` of them; from `FLAT` of the time on it stays."""
        train, now = self.recipe.train, time.monotonic()
        if self._is_chosen:
            return train.encode_steps + train.steps
        each = max(1e-6, (now - self._ends[0]) / len(self._ends))
        self._ends.append(now)
        left = max(1, round((self._began + self._seconds - now) / each))
        if now - self._began >= FLAT * self._seconds:
            train = replace(train, steps=step + left - train.encode_steps, decay_steps=left)
            self.recipe, self._is_chosen = replace(self.recipe, train=train), True
        return step + left
