"""The canvas: positions denoised together, as one frozen record per step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from redraft.diffusion.noise import START, Noise
from redraft.errors import RequestError
from redraft.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Canvas:
    """A canvas between two steps.

    tokens    what the network is shown next: accepted samples, pins, and noise elsewhere
    soft      soft embedding of the last distribution; None before the first step
    draft     argmax reading of the last logits; what is emitted. The start tokens before the first step
    drafts    earlier drafts, oldest first, as many as the halting rule looks back on
    entropy   nats per position at the last step        accepted   positions whose sample was kept at the last step
    pinned    positions held fixed; None if there are none
    """

    block: int
    step: int
    tokens: Int[Tensor, "canvas"]
    draft: Int[Tensor, "canvas"]
    soft: Float[Tensor, "canvas hidden"] | None = None
    drafts: tuple[Int[Tensor, "canvas"], ...] = ()
    entropy: Float[Tensor, "canvas"] | None = None
    accepted: Bool[Tensor, "canvas"] | None = None
    pinned: Bool[Tensor, "canvas"] | None = field(default=None)
    settled: bool = False

    @property
    def width(self) -> int:
        """Number of positions."""
        return self.tokens.shape[0]


def fresh(
    noise: Noise,
    block: int,
    width: int,
    vocab: int,
    *,
    seed: Int[Tensor, "canvas"] | None = None,
    pinned: Bool[Tensor, "canvas"] | None = None,
    device: torch.device | str = "cpu",
) -> Canvas:
    """A canvas before its first step: noise, or a seed canvas given by the caller, whose pinned tokens stay.

    Raises RequestError for a seed canvas of another width or with ids outside the vocabulary, or pins without one.
    """
    if seed is None and pinned is not None:
        raise RequestError("positions are pinned but no seed canvas says which tokens to hold there; pass both")
    tokens = noise.tokens(block, START, width, vocab).to(device)
    if seed is not None:
        if seed.shape[0] != width:
            raise RequestError(f"the seed canvas has {seed.shape[0]} tokens; this canvas has {width} positions")
        if int(seed.min()) < 0 or int(seed.max()) >= vocab:
            raise RequestError(f"the seed canvas holds a token id outside 0..{vocab - 1}")
        tokens = seed.to(device)
    return Canvas(block, 0, tokens, tokens, pinned=pinned)


def narrow(canvas: Canvas, width: int) -> Canvas:
    """The first `width` positions of a canvas between two steps. Noise is addressed by position, so theirs stays."""
    if width >= canvas.width:
        return canvas
    cut = {
        name: value[:width]
        for name in ("tokens", "draft", "soft", "entropy", "accepted", "pinned")
        if (value := getattr(canvas, name)) is not None
    }
    return replace(canvas, drafts=tuple(draft[:width] for draft in canvas.drafts), **cut)
