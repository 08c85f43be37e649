"""The canvas: positions denoised together, as one frozen record per step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from redraft.diffusion.noise import START, Noise
from redraft.diffusion.stats import Conditioned
from redraft.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Canvas:
    """A canvas between two steps. soft and conditioned are on the model's device, all else on the host.

    block     number of the block, from 0               step       steps taken
    tokens    input of the next forward: accepted samples, pins, and noise elsewhere
    draft     argmax of the last logits, which is emitted; before the first step the start tokens
    settled_at    the step of each position since which its draft is unchanged
    changes   how often each position's draft has changed; -1 before its first step
    soft      soft embedding of the last distribution; None before the first step
    drafts    the last drafts, oldest first, the current one last; as many as the rules look back on
    entropy   nats per position at the last step        accepted   positions whose sample was kept at the last step
    pinned    positions held fixed; None if there are none
    settled   whether the halting rule ended the canvas at the last step
    origin    index of the first position in the block; above 0 only after a flowing canvas has slid
    age       steps that each position has taken; None while all have taken `step`. It never rises along the canvas
    conditioned   the last distributions, conditioned on the constraint's language; None without a constraint
    """

    block: int
    step: int
    tokens: Int[Tensor, "canvas"]
    draft: Int[Tensor, "canvas"]
    settled_at: Int[Tensor, "canvas"]
    changes: Int[Tensor, "canvas"]
    soft: Float[Tensor, "canvas hidden"] | None = None
    drafts: tuple[Int[Tensor, "canvas"], ...] = ()
    entropy: Float[Tensor, "canvas"] | None = None
    accepted: Bool[Tensor, "canvas"] | None = None
    pinned: Bool[Tensor, "canvas"] | None = None
    settled: bool = False
    origin: int = 0
    age: Int[Tensor, "canvas"] | None = None
    conditioned: Conditioned | None = None

    @property
    def width(self) -> int:
        """Number of positions."""
        return self.tokens.shape[0]

    @property
    def oldest(self) -> int:
        """Steps that the first position has taken."""
        return self.step if self.age is None else int(self.age[0])

    @property
    def changed(self) -> Bool[Tensor, "canvas"]:
        """Positions whose draft changed at the last step; all positions at their first step."""
        return self.settled_at == (self.step if self.age is None else self.age)


def fresh(
    noise: Noise,
    block: int,
    width: int,
    vocab: int,
    *,
    seed: Int[Tensor, "canvas"] | None = None,
    pinned: Bool[Tensor, "canvas"] | None = None,
) -> Canvas:
    """A canvas before its first step: noise, or a seed canvas (`seeded`), whose pinned tokens stay."""
    tokens = noise.tokens(block, START, width, vocab) if seed is None else seed
    assert tokens.shape[0] == width, f"the seed canvas has {tokens.shape[0]} tokens, and this canvas {width} positions"
    return Canvas(block, 0, tokens, tokens, torch.zeros_like(tokens), torch.full_like(tokens, -1), pinned=pinned)


def narrow(canvas: Canvas, width: int) -> Canvas:
    """The first `width` positions of a canvas between two steps. Noise is addressed by position, so theirs stays."""
    if width >= canvas.width:
        return canvas
    return _each(canvas, lambda value, _: value[:width])


def slide(canvas: Canvas, gone: int, width: int, noise: Noise, vocab: int) -> Canvas:
    """The canvas without its first `gone` positions, filled at its end with fresh positions up to `width`.

    Positions that stay keep their state. A fresh position has the start noise of its address, an exactly zero soft
    embedding and no earlier draft.
    """
    kept = canvas.width - gone
    more = max(0, width - kept)
    origin = canvas.origin + gone
    start = noise.tokens(canvas.block, START, more, vocab, origin + kept)
    age = torch.full_like(canvas.tokens, canvas.step) if canvas.age is None else canvas.age

    def moved(value: Tensor, filler: float | int) -> Tensor:
        return torch.cat([value[gone:], value.new_full((more, *value.shape[1:]), filler)])

    slid = _each(replace(canvas, age=age, origin=origin, settled=False, conditioned=None), moved)
    return replace(slid, tokens=torch.cat([canvas.tokens[gone:], start]), draft=torch.cat([canvas.draft[gone:], start]))


NOTHING = -1
"""Placeholder for an absent draft; it equals no token."""

_FILLERS: dict[str, float] = {
    "tokens": NOTHING,
    "draft": NOTHING,
    "settled_at": 0,
    "changes": -1,
    "soft": 0.0,
    "entropy": torch.inf,
    "accepted": False,
    "pinned": False,
    "age": 0,
}


def _each(canvas: Canvas, change: Callable[[Tensor, float | int], Tensor]) -> Canvas:
    """`change` applied to every field with a value per position; its second argument is the filler of new positions."""
    changed: dict[str, Any] = {
        name: change(value, filler) for name, filler in _FILLERS.items() if (value := getattr(canvas, name)) is not None
    }
    return replace(canvas, drafts=tuple(change(draft, NOTHING) for draft in canvas.drafts), **changed)
