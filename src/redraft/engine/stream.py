"""Steps whose distribution is read tile by tile, so that the logits are never in memory at once (`model/head.py`).

With a vocabulary of 262,144 the logits of one canvas take 268 MB, and a step reads them several times. A stream reads
the same from one pass over the embedding table. It covers what the sampler rules need; a step whose logits are changed,
kept or held to a language takes the plain path. The plain twin is `runner.run_alone`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

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


def streams(model: DiffusionGemma, lane: Lane | CausalLane) -> bool:
    """Whether the lane's step can be read as a stream; if not, its logits are computed."""
    if model.config.vocab_size < LONG or not isinstance(lane, Lane) or not isinstance(lane.noise, SeededNoise):
        return False
    policy, request = lane.policy, lane.request
    changed = policy.shaping != Shaping(temperature=policy.shaping.temperature) or lane.ends_held_back > 0
    kept = request.logprobs is not None or lane.goal is not None or policy.accept.needs.drifts > 0
    return not (changed or kept or lane.checking or lane.canvas.pinned is not None)


def take_steps(model: DiffusionGemma, steps: Sequence[Due]) -> list[Canvas]:
    """Every lane's canvas after its step, from one pass over the table for all of them."""
    if not steps:
        return []
    head = Head(model.table, model.config.logit_cap, model.dtype)
    hidden = torch.cat([one.hidden for one in steps])
    temperature, uniform = torch.cat([draws(one.lane) for one in steps], -1).to(hidden.device, non_blocking=True)
    reading = read_head(hidden, head, temperature[:, None], uniform, model.kernels.head)
    ends = list(accumulate(one.hidden.shape[0] for one in steps))
    rows = [slice(end - one.hidden.shape[0], end) for end, one in zip(ends, steps, strict=True)]
    return take_read(model, [one.lane for one in steps], reading, rows)


def take_read(model: DiffusionGemma, lanes: Sequence[Lane], reading: Reading, rows: Sequence[slice]) -> list[Canvas]:
    """Every lane's canvas after its step, from its rows of one reading: one small copy to the host for all."""
    soft = reading.soft * model.embed_scale
    stats = Stats(reading.argmax, reading.sample, reading.entropy, soft, reading.top).landed()
    return [
        taken(lane.canvas, stats.part(own), model.config.vocab_size, lane.policy, lane.noise)
        for lane, own in zip(lanes, rows, strict=True)
    ]


def draws(lane: Lane) -> Float[Tensor, "2 canvas"]:
    """Per position, the temperature of the next step and the uniform number that picks its sample."""
    noise, canvas = lane.noise, lane.canvas
    assert isinstance(noise, SeededNoise)
    cooled = temperature(lane.policy, canvas.step + 1 if canvas.age is None else canvas.age + 1)
    uniform = noise.uniform(canvas.block, canvas.step + 1, canvas.width, canvas.origin)
    return torch.stack([(torch.ones(canvas.width, 1) * cooled).squeeze(-1), uniform])
