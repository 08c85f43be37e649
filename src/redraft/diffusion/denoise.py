"""The denoise loop. It is the specification: faster loops are tested against it, step by step, on one tape of noise.

             tokens ──────────────┐                                        ┌──► accepted samples ─┐
                                  ▼                                        │                      ▼
    canvas ─ soft embedding ─► denoiser ─► logits ─► stats ─► accept ──────┤                   tokens ─► next canvas
                                             ▲         │                   └──► fresh noise ──────┘        ▲
                                        temperature    ├──► soft embedding ────────────────────────────────┤
                                                       └──► argmax: the draft ─► halt? ────────────────────┘

Everything a step decides comes from small per-position readings; the model is seen through one protocol, so a sampler
can be tested with a lookup table for a model. Policies are values: combine by passing two, never by naming a third.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from redraft.config import GenerationConfig
from redraft.diffusion.accept import Accept, EntropyBound
from redraft.diffusion.canvas import Canvas
from redraft.diffusion.halt import Halt, StableAndConfident
from redraft.diffusion.noise import Noise
from redraft.diffusion.schedule import LinearTemperature, Schedule
from redraft.diffusion.shaping import Shaping
from redraft.diffusion.stats import Stats, read_logits
from redraft.errors import RequestError
from redraft.shapes import Float, Int, Tensor


@runtime_checkable
class Softener(Protocol):
    """What a step needs of a model beside its logits."""

    def soften(self, probabilities: Float[Tensor, "canvas vocab"]) -> Float[Tensor, "canvas hidden"]:
        """Soft embedding of a distribution."""

    @property
    def dtype(self) -> torch.dtype:
        """The parameter dtype, to which the reference rounds logits before feeding them back."""


@runtime_checkable
class Denoiser(Softener, Protocol):
    """A model behind a fixed prefix, as the loop sees it."""

    def denoise(
        self, tokens: Int[Tensor, "canvas"], soft: Float[Tensor, "canvas hidden"] | None
    ) -> Float[Tensor, "canvas vocab"]:
        """Logits of every position, float32."""


@dataclass(frozen=True)
class Policy:
    """How a canvas is denoised. `max_steps` caps the steps and, with the reference's schedule, sets the cooling.

    `shaping` is what the caller changes about the model's distribution before anything is read.
    """

    schedule: Schedule = LinearTemperature()
    accept: Accept = EntropyBound()
    halt: Halt = StableAndConfident()
    max_steps: int = 48
    shaping: Shaping = Shaping()

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise RequestError(f"max_steps is {self.max_steps}; it must be at least 1")


def reference_policy(config: GenerationConfig) -> Policy:
    """transformers' rules with a checkpoint's own settings (model spec 3): the preset `reference`."""
    return Policy(
        LinearTemperature(config.t_min, config.t_max),
        EntropyBound(config.entropy_bound),
        StableAndConfident(config.stability_threshold, config.confidence_threshold),
        config.max_denoising_steps,
    )


def settle(denoiser: Denoiser, canvas: Canvas, policy: Policy, noise: Noise) -> Iterator[Canvas]:
    """Every canvas after a step, up to and including the one that settles or meets the step cap. Emit its draft."""
    while not canvas.settled and canvas.step < policy.max_steps:
        logits = denoiser.denoise(canvas.tokens, canvas.soft)
        canvas = step(canvas, logits, denoiser, policy, noise)
        yield canvas


def step(
    canvas: Canvas, logits: Float[Tensor, "canvas vocab"], model: Softener, policy: Policy, noise: Noise
) -> Canvas:
    """The canvas after one step: a pure function of the canvas, its logits and the noise at this address."""
    number = canvas.step + 1
    stats = _read(canvas, logits, model, policy, noise)
    accepted = policy.accept(stats, canvas.pinned, canvas.drafts)
    random = noise.tokens(canvas.block, number, canvas.width, logits.shape[-1]).to(logits.device)
    tokens, draft = torch.where(accepted, stats.sample, random), stats.argmax
    if canvas.pinned is not None:
        # Pins are written last, so no policy can move one.
        tokens = torch.where(canvas.pinned, canvas.tokens, tokens)
    memory = max(policy.halt.memory, policy.accept.needs.drafts)
    return replace(
        canvas,
        step=number,
        tokens=tokens,
        draft=draft,
        soft=stats.soft,
        drafts=(*canvas.drafts, draft)[-memory:] if memory else (),
        entropy=stats.entropy,
        accepted=accepted,
        settled=policy.halt(stats, canvas.drafts),
    )


def _read(
    canvas: Canvas, logits: Float[Tensor, "canvas vocab"], model: Softener, policy: Policy, noise: Noise
) -> Stats:
    """Everything this step needs to know of the logits."""
    shaping, number = policy.shaping, canvas.step + 1
    stats = read_logits(
        shaping.biased(logits),
        policy.schedule.temperature(number, policy.max_steps) * shaping.temperature,
        lambda p: noise.sample(canvas.block, number, shaping.narrowed(p)).to(p.device),
        model.soften,
        model.dtype,
        top=policy.accept.needs.top,
    )
    if canvas.pinned is None:
        return stats
    # A pin reads as its token, and certain: a rule that waited for the model to agree with it could wait for ever.
    argmax, entropy = torch.where(canvas.pinned, canvas.tokens, stats.argmax), stats.entropy
    return replace(stats, argmax=argmax, entropy=entropy.masked_fill(canvas.pinned, 0.0))
