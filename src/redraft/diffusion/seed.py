"""What a first canvas begins with instead of noise: tokens given, and which of them are pinned.

    pins    (position, token): held at every step; the model sees them, no policy moves them
    given   (position, token): shown at the first step, free from then on
    neither                    noise

The network is not told which positions are pinned. It infers the noise level from the canvas, and many pins read as
"almost done". So a canvas with pins takes at least LEAST_STEPS steps, so that its first guess is never its answer, and
the halting rule judges the open positions alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from redraft.diffusion.canvas import Canvas, fresh
from redraft.diffusion.noise import START, Noise
from redraft.errors import RequestError

LEAST_STEPS = 2


@dataclass(frozen=True)
class SeedCanvas:
    """Tokens of the first canvas, as pairs of a position, counted from 0, and a token id."""

    pins: tuple[tuple[int, int], ...] = ()
    given: tuple[tuple[int, int], ...] = ()

    def check(self, width: int, vocab: int) -> None:
        """Raise RequestError for a position outside the canvas, an id outside the vocabulary, or a contradiction."""
        held: dict[int, int] = {}
        for name, pairs in (("pins", self.pins), ("given", self.given)):
            for position, token in pairs:
                if not 0 <= position < width:
                    raise RequestError(
                        f"seed_canvas.{name} names position {position}; the first canvas has positions 0 to {width - 1}"
                    )
                if not 0 <= token < vocab:
                    raise RequestError(
                        f"seed_canvas.{name} puts token id {token} at position {position}; the vocabulary ends at "
                        f"{vocab - 1}"
                    )
                if held.setdefault(position, token) != token:
                    raise RequestError(
                        f"seed_canvas holds position {position} to token {held[position]} and to {token}; keep one"
                    )

    def reach(self, ends: Iterable[int]) -> int:
        """How long an answer must be for its pins to be part of it: up to the first end token that is pinned itself."""
        if not self.pins:
            return 0
        closing = [position for position, token in self.pins if token in set(ends)]
        return min(closing) if closing else 1 + max(position for position, _ in self.pins)


def seeded(noise: Noise, width: int, vocab: int, seed: SeedCanvas | None) -> Canvas:
    """The first canvas of a request before its first step."""
    if seed is None or not (seed.pins or seed.given):
        return fresh(noise, 0, width, vocab)
    tokens, pinned = noise.tokens(0, START, width, vocab), torch.zeros(width, dtype=torch.bool)
    for position, token in (*seed.given, *seed.pins):
        tokens[position] = token
    pinned[[position for position, _ in seed.pins]] = True
    return fresh(noise, 0, width, vocab, seed=tokens, pinned=pinned if seed.pins else None)
