"""Randomness is an argument, never a global.

A canvas needs three kinds of draws: random tokens to start from, one sample per position from the model's
distribution, and random tokens for the positions that were not accepted.

    SeededNoise   a pure function of (request seed, block, step, position): a canvas gets the same draws alone and
                  in any batch
    TapeNoise     recorded draws, so that two loops can be compared decision by decision

SeededNoise is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), a counter-based
generator: no state to carry, every number addressable. A sample is one uniform per position read against the cumulated
probabilities, so a step draws 256 numbers where Gumbel noise over a 262k vocabulary would draw 67 million.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from redraft.errors import RequestError
from redraft.shapes import Float, Int, Tensor

START = 0
"""The step number of the draws that fill a fresh canvas; denoising steps count from 1."""

_STEPS_AT_ONCE = 16
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@runtime_checkable
class Noise(Protocol):
    """Draws of one request at a `block` and `step`. `origin` is the first position, counted from the block's start."""

    def tokens(self, block: int, step: int, width: int, vocab: int, origin: int = 0) -> Int[Tensor, "canvas"]:
        """Uniformly random token ids: the start of a canvas (step START) or the renoise of a step."""

    def sample(
        self, block: int, step: int, probabilities: Float[Tensor, "canvas vocab"], origin: int = 0
    ) -> Int[Tensor, "canvas"]:
        """One token per position, drawn from `probabilities`."""


@dataclass(frozen=True)
class SeededNoise:
    """Noise addressed by (seed, block, step, position). Seeds are integers of 64 bits."""

    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise RequestError(f"seed is {self.seed}; it must be an integer from 0 to 2^64-1")

    def tokens(self, block: int, step: int, width: int, vocab: int, origin: int = 0) -> Int[Tensor, "canvas"]:
        """Random ids by multiply-and-shift: each id's share differs from 1/vocab by less than 2^-32."""
        words = _words(self.seed, block, step, width, origin)[0]
        return torch.from_numpy(((words * np.uint64(vocab)) >> _HALF).astype(np.int64))

    def sample(
        self, block: int, step: int, probabilities: Float[Tensor, "canvas vocab"], origin: int = 0
    ) -> Int[Tensor, "canvas"]:
        """`drawn` by each position's uniform."""
        uniform = self.uniform(block, step, probabilities.shape[0], origin)
        return drawn(probabilities, uniform.to(probabilities.device, non_blocking=True))

    def uniform(self, block: int, step: int, width: int, origin: int = 0) -> Float[Tensor, "canvas"]:
        """Each position's number in [0, 1), which picks its sample."""
        words = _words(self.seed, block, step, width, origin)[1]
        # The largest words round up to 1, which no cumulated probability exceeds.
        below_one = np.minimum(words.astype(np.float32) / np.float32(2**32), np.nextafter(np.float32(1), np.float32(0)))
        return torch.from_numpy(below_one)


@dataclass(frozen=True)
class TapeNoise:
    """Replays recorded draws: `tape[block, step]` is (sampled tokens, random tokens); START holds the canvas twice."""

    tape: Mapping[tuple[int, int], tuple[Int[Tensor, "canvas"], Int[Tensor, "canvas"]]]

    def tokens(self, block: int, step: int, width: int, vocab: int, origin: int = 0) -> Int[Tensor, "canvas"]:
        """The recorded random tokens of that step."""
        return self._at(block, step)[1][origin : origin + width]

    def sample(
        self, block: int, step: int, probabilities: Float[Tensor, "canvas vocab"], origin: int = 0
    ) -> Int[Tensor, "canvas"]:
        """The recorded samples of that step, whatever the probabilities."""
        return self._at(block, step)[0][origin : origin + probabilities.shape[0]]

    def _at(self, block: int, step: int) -> tuple[Tensor, Tensor]:
        if (block, step) not in self.tape:
            raise RequestError(f"the noise tape ends before block {block}, step {step}; record a longer one")
        return self.tape[block, step]


def drawn(probabilities: Float[Tensor, "canvas vocab"], uniform: Float[Tensor, "canvas"]) -> Int[Tensor, "canvas"]:
    """Inverse transform: the first id whose cumulated probability exceeds the position's uniform."""
    cumulated = probabilities.cumsum(-1)
    # Scaled by the last entry, because float32 sums of a row of probabilities end near 1, not at it.
    threshold = (uniform * cumulated[:, -1]).unsqueeze(-1)
    return torch.searchsorted(cumulated, threshold, right=True).squeeze(-1).clamp_(max=probabilities.shape[-1] - 1)


def philox(key: int, counters: np.ndarray) -> np.ndarray:
    """Philox4x32-10: four 32-bit words (held in uint64) for every counter row [n, 4] under a 64-bit key."""
    c0, c1, c2, c3 = (counters[:, i].astype(np.uint64) for i in range(4))
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ np.uint64(k0), p1 & _LOW, (p0 >> _HALF) ^ c3 ^ np.uint64(k1), p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3])


def _words(seed: int, block: int, step: int, width: int, origin: int = 0) -> np.ndarray:
    """The four words of each position from `origin` on at (block, step), [4, width]."""
    return _chunk(seed, block, step // _STEPS_AT_ONCE, width, origin)[:, step % _STEPS_AT_ONCE]


@lru_cache(maxsize=256)
def _chunk(seed: int, block: int, chunk: int, width: int, origin: int) -> np.ndarray:
    """Words of several steps at once, [4, steps, width]: ten rounds cost the same for 16 steps as for one."""
    steps = chunk * _STEPS_AT_ONCE + np.arange(_STEPS_AT_ONCE)
    counters = np.zeros((_STEPS_AT_ONCE, width, 4), dtype=np.uint64)
    counters[..., 0] = np.arange(origin, origin + width)
    counters[..., 1] = steps[:, None]
    counters[..., 2] = block
    return philox(seed, counters.reshape(-1, 4)).reshape(4, _STEPS_AT_ONCE, width)
