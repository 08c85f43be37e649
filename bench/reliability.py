"""Calibration: how often guesses of a probability came true.

Of guesses with probability 0.8 four in five should be right. The expected calibration error (Naeini et al., 2015) is
how far from that they are on average, here over bins of equal count: most probabilities of a model that knows its task
lie near 1, where bins of equal width would hold all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

BINS = 10
COLDEST, WARMEST = 0.05, 20.0


@dataclass(frozen=True)
class Guess:
    """The probability that was reported, and whether it came true."""

    probability: float
    right: bool


@dataclass(frozen=True)
class Bin:
    """Guesses of about one probability: how many, what was reported on average, and the share that came true."""

    count: int
    told: float
    right: float


def reliability(guesses: Sequence[Guess], bins: int = BINS) -> list[Bin]:
    """Guesses in bins of equal count, the least probable first; fewer bins if there are not enough guesses."""
    ordered = sorted(guesses, key=lambda guess: guess.probability)
    cuts = [len(ordered) * i // bins for i in range(bins + 1)]
    parts = [ordered[low:high] for low, high in itertools.pairwise(cuts) if high > low]
    return [
        Bin(len(part), sum(one.probability for one in part) / len(part), sum(one.right for one in part) / len(part))
        for part in parts
    ]


def calibration_error(guesses: Sequence[Guess], bins: int = BINS) -> float:
    """The expected calibration error, from 0 to 1."""
    found = reliability(guesses, bins)
    return sum(one.count * abs(one.told - one.right) for one in found) / max(1, len(guesses))


def surprise(guesses: Sequence[Guess]) -> float:
    """Mean nats by which the outcomes surprise one who believes the probabilities: lower is better, and honest."""
    least = 1e-9  # a certainty that was wrong is not worth infinitely much
    nats = [-math.log(max(least, one.probability if one.right else 1 - one.probability)) for one in guesses]
    return sum(nats) / max(1, len(nats))


def fitted(guesses_at: Callable[[float], Sequence[Guess]]) -> float:
    """The temperature at which guesses surprise least, to a hundredth; surprise has one valley."""
    low, high = math.log(COLDEST), math.log(WARMEST)
    while high - low > 0.01:
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if surprise(guesses_at(math.exp(left))) <= surprise(guesses_at(math.exp(right))):
            high = right
        else:
            low = left
    return math.exp((low + high) / 2)
