"""Steps whose distribution is read as a stream: no logits are kept (`model/head.py`).

A vocabulary of 262,144 makes 268 MB of logits for one canvas, and several passes over them; a stream reads the same
from one pass over the table. It reads what the sampler rules read of the distribution itself, so a step whose logits
somebody changes, keeps or holds to a language goes the plain way. The plain twin is `runner.run_alone`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from redraft.diffusion.canvas import Canvas
from redraft.diffusion.denoise import taken, temperature
from redraft.diffusion.noise import SeededNoise
from redraft.diffusion.shaping import Shaping
from redraft.diffusion.stats import Stats
from redraft.engine.causal import CausalLane
from redraft.engine.lane import Lane
from redraft.model.gemma import DiffusionGemma
from redraft.model.head import LONG, Head, Reading, read_head
from redraft.shapes import Float, Tensor


@dataclass(frozen=True)
class Due:
    """A lane whose canvas takes its step now, and the hidden states of its rows."""

    lane: Lane
    hidden: Float[Tensor, "canvas hidden"]


def due(model: DiffusionGemma, lane: Lane | CausalLane, hidden: Float[Tensor, "some hidden"]) -> Due | None:
    """The lane's step if it can be read as a stream, None if it goes by its logits."""
    if model.config.vocab_size < LONG or not isinstance(lane, Lane) or not isinstance(lane.noise, SeededNoise):
        return None
    policy, request = lane.policy, lane.request
    changed = policy.shaping != Shaping(temperature=policy.shaping.temperature) or lane.ends_held_back > 0
    kept = request.logprobs is not None or lane.goal is not None or policy.accept.needs.drifts > 0
    if changed or kept or lane.checking or lane.canvas.pinned is not None:
        return None
    return Due(lane, hidden)


def take_steps(model: DiffusionGemma, steps: Sequence[Due]) -> list[Canvas]:
    """Every lane's canvas after its step, from one pass over the table for all of them."""
    if not steps:
        return []
    head = Head(model.table, model.config.logit_cap, model.dtype)
    reading = read_head(
        torch.cat([one.hidden for one in steps]),
        head,
        torch.cat([_temperature(one) for one in steps]),
        torch.cat([_uniform(one) for one in steps]),
        model.kernels.head,
    )
    found, start = [], 0
    for one in steps:
        rows = slice(start, start + one.hidden.shape[0])
        stats = _stats(reading, rows, model.embed_scale)
        found.append(taken(one.lane.canvas, stats, model.config.vocab_size, one.lane.policy, one.lane.noise))
        start = rows.stop
    return found


def _temperature(one: Due) -> Float[Tensor, "canvas 1"]:
    canvas = one.lane.canvas
    cooled = temperature(one.lane.policy, canvas.step + 1 if canvas.age is None else canvas.age + 1)
    blank = torch.ones(canvas.width, 1, device=one.hidden.device)
    return blank * cooled


def _uniform(one: Due) -> Float[Tensor, "canvas"]:
    noise, canvas = one.lane.noise, one.lane.canvas
    assert isinstance(noise, SeededNoise)
    return noise.uniform(canvas.block, canvas.step + 1, canvas.width, canvas.origin).to(one.hidden.device)


def _stats(reading: Reading, rows: slice, scale: float) -> Stats:
    return Stats(
        argmax=reading.argmax[rows],
        sample=reading.sample[rows],
        entropy=reading.entropy[rows],
        soft=reading.soft[rows] * scale,
        top=reading.top[rows],
    )
