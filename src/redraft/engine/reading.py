"""One reading for all canvases of a forward, from which each then takes its step by its own rules.

With a vocabulary of 262,144 the logits of one canvas take 268 MB, and a step reads them several times. Such a one is
read as a stream, in one pass over the embedding table (`model/head.py`). Only what the sampler rules need is read
together; a canvas whose logits are changed, kept or held to a language is read alone. The twin is `runner.run_alone`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import accumulate
from typing import TypeGuard

import torch

from redraft.diffusion.denoise import temperature
from redraft.diffusion.noise import SeededNoise, drawn
from redraft.diffusion.stats import Stats, read_logits
from redraft.engine.request import ResolvedRequest
from redraft.engine.sequence import CanvasSequence, Sequence
from redraft.model.gemma import DiffusionGemma
from redraft.model.head import LONG, Head, Reading, read_head
from redraft.shapes import Float, Tensor

NUMBERS = 256 * LONG
"""Logits in memory at once where they are read as they are."""


def streams(model: DiffusionGemma) -> bool:
    """Whether the model's vocabulary is read as a stream."""
    return model.config.vocab_size >= LONG


def shares_reading(one: Sequence) -> TypeGuard[CanvasSequence]:
    """Whether a sequence's canvas is read with those of others; if not, alone, from its own logits."""
    if not isinstance(one, CanvasSequence) or not isinstance(one.noise, SeededNoise):
        return False
    policy, request = one.policy, one.request
    changed = not policy.shaping.is_plain or one.ends_held_back > 0
    kept = request.logprobs is not None or one.goal is not None
    return not (changed or kept or one.canvas.pinned is not None)


def may_read_alone(request: ResolvedRequest) -> bool:
    """Whether a request's canvases may ever be read alone; a causal one is, if its prompt's logits are wanted."""
    if request.causal:
        return request.read_prompt
    changed = not request.policy.shaping.is_plain or request.min_tokens > 0
    return changed or request.logprobs is not None or request.language is not None or request.seed_canvas is not None


def read_together(
    model: DiffusionGemma, sequences: list[CanvasSequence], hidden: list[Float[Tensor, "_ hidden"]]
) -> list[Stats]:
    """The readings of every sequence's canvas, from the hidden states of its rows."""
    rows = torch.cat(hidden)
    temperatures, uniform = torch.cat([draws(one) for one in sequences], -1).to(rows.device, non_blocking=True)
    read: Reading | Stats
    if streams(model):
        head = Head(model.table, model.config.logit_cap, model.dtype)
        read = read_head(rows, head, temperatures[:, None], uniform, model.kernels.head)
    else:
        logits, sample = model.logits(rows), partial(drawn, uniform=uniform)
        top = any(one.policy.accept.needs.top for one in sequences)
        read = read_logits(logits, temperatures[:, None], sample, model.soften, model.dtype, top=top)
    ends = [0, *accumulate(map(len, hidden))]
    return parted(model, read, map(slice, ends, ends[1:]))


def parted(model: DiffusionGemma, read: Reading | Stats, canvases: Iterable[slice]) -> list[Stats]:
    """One reading cut into those of its canvases: one small copy to the host for all."""
    soft = read.soft * model.embed_scale if isinstance(read, Reading) else read.soft
    stats = Stats(read.argmax, read.sample, read.entropy, soft, read.top).landed()
    return [stats.part(rows) for rows in canvases]


def draws(one: CanvasSequence) -> Float[Tensor, "2 canvas"]:
    """Per position, the temperature of the next step and the uniform number that picks its sample."""
    noise, canvas = one.noise, one.canvas
    assert isinstance(noise, SeededNoise)
    cooled = temperature(one.policy, canvas.step + 1 if canvas.age is None else canvas.age + 1)
    uniform = noise.uniform(canvas.block, canvas.step + 1, canvas.width, canvas.origin)
    return torch.stack([torch.full_like(uniform, cooled) if isinstance(cooled, float) else cooled[:, 0], uniform])
