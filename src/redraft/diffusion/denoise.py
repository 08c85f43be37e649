"""The denoise loop. It is the specification: faster loops are tested against it, step by step, on one tape of noise.

             tokens ──────────────┐                                        ┌──► accepted samples ─┐
                                  ▼                                        │                      ▼
    canvas ─ soft embedding ─► denoiser ─► logits ─► stats ─► accept ──────┤                   tokens ─► next canvas
                                             ▲         │                   └──► fresh noise ──────┘        ▲
                                        temperature    ├──► soft embedding ────────────────────────────────┤
                                                       └──► argmax: the draft ─► halt? ────────────────────┘

Every decision of a step depends on small per-position readings. The model is one protocol, so a sampler can be tested
with a lookup table as the model. Policies are values: to combine two rules, pass both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, runtime_checkable

import torch

from redraft.config import GenerationConfig
from redraft.diffusion.accept import Accept, EntropyBound
from redraft.diffusion.canvas import Canvas
from redraft.diffusion.halt import Halt, StableAndConfident
from redraft.diffusion.noise import Noise, SeededNoise
from redraft.diffusion.plan import Plan, Whole
from redraft.diffusion.schedule import LinearTemperature, Schedule
from redraft.diffusion.shaping import Shaping
from redraft.diffusion.stats import Condition, Soften, Stats, read_logits
from redraft.errors import RequestError
from redraft.shapes import Float, Int, Tensor

IMPOSSIBLE = -1e9
"""Log-probability of every other token where one is pinned."""


@runtime_checkable
class Softener(Protocol):
    """The model's part in a step besides logits."""

    def soften(self, probabilities: Float[Tensor, "canvas vocab"]) -> Float[Tensor, "canvas hidden"]:
        """Soft embedding of a distribution."""

    @property
    def dtype(self) -> torch.dtype:
        """The parameter dtype, to which the reference rounds logits before feeding them back."""


@runtime_checkable
class Denoiser(Softener, Protocol):
    """A model with a fixed prefix, as the loop sees it."""

    def denoise(
        self, tokens: Int[Tensor, "canvas"], soft: Float[Tensor, "canvas hidden"] | None
    ) -> Float[Tensor, "canvas vocab"]:
        """Logits of every position, float32."""


@dataclass(frozen=True)
class Policy:
    """How a canvas is denoised. `max_steps` caps the steps and, with the reference's schedule, sets the cooling.

    `shaping` changes the model's distribution before anything is read; `plan` decides which positions of a canvas
    finish together. With `draw` a constrained canvas becomes, at its last step, a valid text drawn in proportion to its
    probability, instead of the likeliest text.
    """

    schedule: Schedule = LinearTemperature()
    accept: Accept = EntropyBound()
    halt: Halt = StableAndConfident()
    max_steps: int = 48
    shaping: Shaping = Shaping()
    plan: Plan = Whole()
    draw: bool = False

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise RequestError(f"max_steps is {self.max_steps}; it must be at least 1")
        plain = self.plan == Whole() and self.shaping.top_k is None and self.shaping.top_p == 1
        if self.draw and not plain:
            raise RequestError("draw is True; leave out top_k, top_p, temperature 0 and the preset flow")


def reference_policy(config: GenerationConfig) -> Policy:
    """transformers' rules with a checkpoint's own settings (model spec 3): the preset `reference`."""
    return Policy(
        LinearTemperature(config.t_min, config.t_max),
        EntropyBound(config.entropy_bound),
        StableAndConfident(config.stability_threshold, config.confidence_threshold),
        config.max_denoising_steps,
    )


def settle(
    denoiser: Denoiser, canvas: Canvas, policy: Policy, noise: Noise, condition: Condition | None = None
) -> Iterator[Canvas]:
    """Yields the canvas after every step, up to the one that settles or meets the step cap, whose draft is the block.

    With the plan `Flow`, up to the first canvas with finished positions. `condition` conditions each step's
    distributions on a constraint.
    """
    while not policy.plan.released(canvas, policy.max_steps):
        logits = denoiser.denoise(canvas.tokens, canvas.soft)
        canvas = step(canvas, logits, denoiser, policy, noise, condition)
        yield canvas


def step(
    canvas: Canvas,
    logits: Float[Tensor, "canvas vocab"],
    model: Softener,
    policy: Policy,
    noise: Noise,
    condition: Condition | None = None,
) -> Canvas:
    """The canvas after one step: a pure function of the canvas, its logits and the noise at this address.

    Noise comes from the whole vocabulary, even with a condition: the canvas is evidence for the model and need not be
    valid.
    """
    return updated(canvas, _read(canvas, logits, model, policy, noise, condition), logits.shape[-1], policy, noise)


def updated(canvas: Canvas, stats: Stats, vocab: int, policy: Policy, noise: Noise) -> Canvas:
    """The canvas after a step, from its readings: of `read_logits`, or as a stream (engine/reading.py)."""
    number, age = canvas.step + 1, None if canvas.age is None else canvas.age + 1
    accepted = policy.accept(stats, canvas.drafts)
    random = noise.tokens(canvas.block, number, canvas.width, vocab, canvas.origin)
    # At top_k 1 there is nothing to draw. A constraint's draft is another thing: the likeliest text as a whole.
    sample = stats.argmax if policy.shaping.top_k == 1 and stats.conditioned is None else stats.sample
    tokens, draft = torch.where(accepted, sample, random), stats.argmax
    settled = policy.halt(stats, canvas.drafts)
    if policy.draw and stats.conditioned is not None and (settled or number >= policy.max_steps):
        assert isinstance(noise, SeededNoise), "a tape has no numbers to draw a text by"
        draft = stats.conditioned.draw(noise.uniform(canvas.block, number, canvas.width, canvas.origin)).cpu()
    pinned = canvas.pinned
    if pinned is not None:
        # Pins are written last, so no policy can move one.
        tokens = torch.where(pinned, canvas.tokens, tokens)
    if stats.conditioned is not None and (fixed := stats.conditioned.fixed):
        pinned = torch.zeros(canvas.width, dtype=torch.bool) if pinned is None else pinned.clone()
        pinned[:fixed], tokens[:fixed] = True, draft[:fixed]
    changed = (draft != canvas.draft) | (canvas.changes < 0)
    memory = max(policy.halt.memory, policy.accept.needs.drafts, policy.plan.memory)
    return replace(
        canvas,
        step=number,
        tokens=tokens,
        draft=draft,
        settled_at=torch.where(changed, number if age is None else age, canvas.settled_at),
        changes=canvas.changes + changed,
        soft=stats.soft,
        drafts=(*canvas.drafts, draft)[-memory:] if memory else (),
        entropy=stats.entropy,
        accepted=accepted,
        pinned=pinned,
        settled=settled,
        age=age,
        conditioned=stats.conditioned,
    )


def temperature(policy: Policy, steps: int | Int[Tensor, "canvas"]) -> float | Float[Tensor, "canvas 1"]:
    """The divisor of a step's logits. `steps` is its number, from 1: one for all positions, or one for each.

    Steps beyond the cap, which occur if the rules change on the way (engine/pace.py), have the last temperature.
    """
    if isinstance(steps, int):
        last = min(steps, policy.max_steps)
        return policy.schedule.temperature(last, policy.max_steps) * policy.shaping.temperature
    table = torch.tensor(_temperatures(policy))
    return (table[(steps - 1).clamp(max=policy.max_steps - 1)] * policy.shaping.temperature).unsqueeze(-1)


@lru_cache(maxsize=64)
def _temperatures(policy: Policy) -> tuple[float, ...]:
    return tuple(policy.schedule.temperature(number, policy.max_steps) for number in range(1, policy.max_steps + 1))


def _read(
    canvas: Canvas,
    logits: Float[Tensor, "canvas vocab"],
    model: Softener,
    policy: Policy,
    noise: Noise,
    condition: Condition | None,
) -> Stats:
    """The readings of this step's logits, shaped by the caller and with pins in force."""
    shaping, number, needs, device = policy.shaping, canvas.step + 1, policy.accept.needs, logits.device
    cooled = temperature(policy, number if canvas.age is None else canvas.age + 1)
    on_device = canvas
    if canvas.pinned is not None:
        tokens, pinned = (x.to(device, non_blocking=True) for x in (canvas.tokens, canvas.pinned))
        on_device = replace(canvas, tokens=tokens, pinned=pinned)
    stats = read_logits(
        shaping.biased(logits),
        cooled if isinstance(cooled, float) else cooled.to(device, non_blocking=True),
        lambda p: noise.sample(canvas.block, number, shaping.narrowed(p), canvas.origin).to(p.device),
        _fed_back(on_device, model),
        model.dtype,
        top=needs.top,
        condition=None if condition is None else lambda log_p: condition(_pinned(on_device, log_p)),
    ).landed()
    if canvas.pinned is None:
        return stats
    # A pin reads as its token with certainty: a rule that waits for the model to agree with it could wait for ever.
    argmax, entropy = torch.where(canvas.pinned, canvas.tokens, stats.argmax), stats.entropy
    return replace(stats, argmax=argmax, entropy=entropy.masked_fill(canvas.pinned, 0.0), pinned=canvas.pinned)


def _pinned(canvas: Canvas, log_p: Float[Tensor, "canvas vocab"]) -> Float[Tensor, "canvas vocab"]:
    """Log-probabilities with pinned positions certain of their token, so that the constraint fits around them."""
    if canvas.pinned is None:
        return log_p
    certain = torch.full_like(log_p, IMPOSSIBLE).scatter_(-1, canvas.tokens.unsqueeze(-1), 0.0)
    return torch.where(canvas.pinned.unsqueeze(-1), certain, log_p)


def _fed_back(canvas: Canvas, model: Softener) -> Soften:
    """The function from a distribution to the next step's soft embedding; a pinned position feeds back its token."""
    pinned = canvas.pinned
    if pinned is None:
        return model.soften

    def soften(p: Float[Tensor, "canvas vocab"]) -> Float[Tensor, "canvas hidden"]:
        certain = torch.zeros_like(p).scatter_(-1, canvas.tokens.unsqueeze(-1), 1.0)
        return model.soften(torch.where(pinned.unsqueeze(-1), certain, p))

    return soften
