"""How well a model in training answers: held-out samples through the reference sampler, a few of each source.

A probe shows whether a run makes progress, and which checkpoint to keep; `redraft eval` measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import mean

import torch

from redraft.cache import Prefix
from redraft.diffusion.canvas import fresh
from redraft.diffusion.denoise import Policy, reference_policy, settle
from redraft.diffusion.noise import SeededNoise
from redraft.model.gemma import DiffusionGemma
from redraft.model.rows import SoftTokens
from redraft.shapes import Tensor
from redraft.tasks import Example
from redraft.tune.data import Feed
from redraft.tune.images import Shown, soft_of, tower_of
from redraft.tune.layout import WIDTH_STEP
from redraft.tune.objective import corrupt, losses
from redraft.tune.recipe import ObjectiveRecipe
from redraft.tune.sources import Conversation, Passage, TaskSource


@dataclass(frozen=True)
class _ProbeAnswer:
    """The answer on one canvas, the number of its forwards, and of its tokens up to the end."""

    text: str
    steps: int
    tokens: int


def probe(model: DiffusionGemma, feed: Feed, count: int) -> dict[str, float]:
    """For each source with held-out samples: the share answered exactly, mean forwards, tokens accepted per forward.

    The canvas is the narrowest that the right answer fits; samples that fit no canvas are left out. Plain text has no
    right answer: for it the result is both losses, on the same noise every time.
    """
    policy = reference_policy(feed.base.generation)
    found: dict[str, float] = {}
    for name, source in feed.named():
        replies: list[tuple[bool, _ProbeAnswer]] = []
        samples = source.held_out(count)
        found |= _text_losses(model, feed, name, [sample for sample in samples if isinstance(sample, Passage)])
        for i, sample in enumerate(samples):
            if isinstance(sample, Passage) or (answer := _answer(model, feed, sample, policy, i)) is None:
                continue
            if isinstance(source, TaskSource) and isinstance(sample, Example):
                right = source.task.score(sample, answer.text).exact
            else:
                right = answer.text.strip() == _wanted(sample).strip()
            replies.append((right, answer))
        if replies:
            steps = sum(answer.steps for _, answer in replies)
            found[f"{name} exact"] = sum(right for right, _ in replies) / len(replies)
            found[f"{name} steps"] = steps / len(replies)
            found[f"{name} tokens per forward"] = sum(answer.tokens for _, answer in replies) / steps
    return found


def score(found: dict[str, float]) -> float:
    """What checkpoints are compared by: the mean of the exact shares; without any, the losses of plain text."""
    shares = [value for name, value in found.items() if name.endswith(" exact")]
    lost = [-value for name, value in found.items() if name.endswith(" nats")]
    return mean(shares or lost or [0.0])


@torch.inference_mode()
def _text_losses(model: DiffusionGemma, feed: Feed, name: str, passages: Sequence[Passage]) -> dict[str, float]:
    """Mean nats of the causal mode and of the canvases, on plain noise; nothing without passages."""
    rng, generator = Random(0), torch.Generator().manual_seed(0)
    width = model.config.canvas_length
    batches = feed.pack([feed.row(passage, rng, width) for passage in passages])
    sums = torch.zeros(2, 2, dtype=torch.float64)
    objective = ObjectiveRecipe(leave_one_out=feed.recipe.objective.leave_one_out)
    for batch in batches:
        noisy = corrupt(batch, model.config.vocab_size, generator)
        found = losses(model, batch, noisy, objective)
        assert found.denoise is not None, "every passage has a canvas"
        scored, weight = float(batch.scored.sum()), float(batch.weight.sum())
        sums += torch.tensor([[float(found.encode) * scored, scored], [float(found.denoise) * weight, weight]])
    pairs = zip(("causal", "canvas"), sums.tolist(), strict=True)
    return {f"{name} {mode} nats": lost / count for mode, (lost, count) in pairs if count}


def _wanted(sample: Example | Conversation) -> str:
    if isinstance(sample, Example):
        return sample.answer
    content: str = sample.messages[-1]["content"]
    return content


@dataclass(frozen=True)
class _PrefixDenoiser:
    """A model with one prefix, as the denoise loop's `Denoiser`."""

    model: DiffusionGemma
    prefix: Prefix

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def denoise(self, tokens: Tensor, soft: Tensor | None) -> Tensor:
        return self.model.denoise(tokens, soft, self.prefix)

    def soften(self, probabilities: Tensor) -> Tensor:
        return self.model.soften(probabilities)


@torch.inference_mode()
def _answer(
    model: DiffusionGemma, feed: Feed, sample: Example | Conversation, policy: Policy, seed: int
) -> _ProbeAnswer | None:
    """The answer to a sample on one canvas; None if no canvas is wide enough. A gap has its right length."""
    answer, after = feed.text.encode(_wanted(sample).strip(), bos=False), list[int]()
    prompt, images = _prompt(feed, sample)
    gap = isinstance(sample, Example) and sample.suffix is not None
    if isinstance(sample, Example) and sample.suffix is not None:
        answer, after = feed.text.encode(sample.answer, bos=False), feed.text.encode(sample.suffix, bos=False)
    least = len(answer) + 1 + min(len(after), 2 * WIDTH_STEP)
    width = min(-(-least // WIDTH_STEP) * WIDTH_STEP, model.config.canvas_length)
    if len(answer) >= width or len(prompt) + width > model.config.max_positions:
        return None
    noise = SeededNoise(seed)
    start = fresh(noise, 0, width, model.config.vocab_size)
    if gap:
        tokens, pins = start.tokens.clone(), torch.arange(width) >= len(answer)
        tokens[len(answer) :] = torch.tensor((after + [feed.end] * width)[: width - len(answer)])
        start = fresh(noise, 0, width, model.config.vocab_size, seed=tokens, pinned=pins)
    prefix = Prefix(model.config.layers, room=len(prompt) + width)
    tower = tower_of(model)
    soft = [] if tower is None else [SoftTokens(one.start, soft_of(tower, one.picture)) for one in images]
    model.encode(torch.tensor(prompt), prefix, tuple(soft))
    *_, canvas = settle(_PrefixDenoiser(model, prefix), start, policy, noise)
    draft = canvas.draft.tolist()
    if gap:
        draft = draft[: len(answer)]
    elif feed.end in draft:
        draft = draft[: draft.index(feed.end)]
    return _ProbeAnswer(feed.text.decode(draft), canvas.step, len(draft) + (not gap))


def _prompt(feed: Feed, sample: Example | Conversation) -> tuple[list[int], tuple[Shown, ...]]:
    if isinstance(sample, Conversation):
        return feed.chat(sample.messages[:-1], sample.where)
    return feed.prompt(sample.prompt) if sample.suffix is None else feed.text.encode(sample.prompt, bos=True), ()
