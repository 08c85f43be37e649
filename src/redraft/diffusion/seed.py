"""The first canvas of a request: given tokens and pins in place of noise.

    pins    (position, token): fixed at every step; the model sees them, no policy changes them
    given   (position, token): shown at the first step, free afterwards
    other positions            noise

The network does not see which positions are pinned. It infers the noise level from the canvas, and many pins look like
a canvas that is almost done. So a canvas with pins takes at least LEAST_STEPS steps: its first guess is never its
answer. The halting rule judges the open positions alone.
"""

from __future__ import annotations

import torch

from redraft.diffusion.canvas import Canvas, fresh
from redraft.diffusion.noise import START, Noise
from redraft.options import SeedCanvas as SeedCanvas

LEAST_STEPS = 2


def seeded(noise: Noise, width: int, vocab: int, seed: SeedCanvas | None) -> Canvas:
    """The first canvas of a request before its first step."""
    if seed is None or not (seed.pins or seed.given):
        return fresh(noise, 0, width, vocab)
    tokens, pinned = noise.tokens(0, START, width, vocab), torch.zeros(width, dtype=torch.bool)
    for position, token in (*seed.given, *seed.pins):
        tokens[position] = token
    pinned[[position for position, _ in seed.pins]] = True
    return fresh(noise, 0, width, vocab, seed=tokens, pinned=pinned if seed.pins else None)
