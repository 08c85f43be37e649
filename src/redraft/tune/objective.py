"""The training objective of block diffusion (model spec 4).

A batch is some clean sequences (prompt, answer) and canvases that stand somewhere in them: every block of an answer,
or a gap in a text. A canvas past the answer's end is filled with end tokens.

    encode    clean sequences, causal, once              → next-token loss; keys and values for the canvases
    corrupt   each open position of a canvas is replaced by a random token with probability t, t ~ U(ε, 1-ε) per canvas
    guess     the canvas without self-conditioning, no gradient, for the canvases whose coin says so (half)
    roll      some of those go on one step of the sampler from the guess, as they would at inference
    own       a share begins as a caller's canvas does, in noise alone, and goes some steps of the sampler from there
    denoise   the canvas, conditioned on the guess or on an exact zero
              → cross-entropy on the scored positions, corrupted or not; where it reads right, its entropy, if wanted

Pinned positions stay clean, feed their token back and are not scored; half of the canvases with pins start from pure
noise everywhere else, as a caller's does.

A canvas weighs as the square root of the positions it is scored on, so that neither a wide canvas of end tokens nor a
gap of three drowns the others. Among canvases alike this is the plain mean over all positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

from redraft.model.gemma import DiffusionGemma
from redraft.shapes import Bool, Float, Int, Tensor
from redraft.tune.context import CanvasContext, CleanContext

EPSILON = 1e-4
_COOLEST, _WARMEST = 0.4, 0.8  # the released sampler's temperatures
_BOUND = 0.1  # nats, the released sampler's entropy bound


@dataclass(frozen=True)
class Batch:
    """Sequences side by side, or behind each other in lines, and canvases in them.

    clean     padded on the right                    told    tokens the causal mode is scored on
    first     where in its line the sequence of each token begins
    owner     the line that a canvas stands in       origin  where in it the canvas's sequence begins
    start     where in it the canvas does; what its sequence has before that is its prefix
    target    what a canvas should become            pinned  positions that are given: clean, and not scored
    content   positions before the fill of end tokens begins, the first end token included; at least 1
    """

    clean: Int[Tensor, "batch tokens"]
    told: Bool[Tensor, "batch tokens"]
    first: Int[Tensor, "batch tokens"]
    owner: Int[Tensor, "canvases"]
    origin: Int[Tensor, "canvases"]
    start: Int[Tensor, "canvases"]
    target: Int[Tensor, "canvases canvas"]
    pinned: Bool[Tensor, "canvases canvas"]
    content: Int[Tensor, "canvases"]

    @property
    def weight(self) -> Float[Tensor, "canvases"]:
        """What each canvas weighs in the loss."""
        return (~self.pinned).sum(1).float().sqrt()

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in self.__dataclass_fields__})

    def repeated(self, times: int) -> Batch:
        """Every canvas that many times, for that many corruptions behind one clean pass."""
        names = ("owner", "origin", "start", "target", "pinned", "content")
        return replace(self, **{name: getattr(self, name).repeat_interleave(times, 0) for name in names})


@dataclass(frozen=True)
class Noise:
    """How canvases are corrupted; the words are the recipe's (`ObjectiveRecipe`)."""

    self_conditioning: float = 0.5
    plausible: float = 0.0
    rolled: float = 0.0
    own: float = 0.0
    own_steps: int = 0


@dataclass(frozen=True)
class Scoring:
    """What a canvas is scored by beside cross-entropy; the words are the recipe's (`ObjectiveRecipe`)."""

    leave_one_out: bool = False
    certainty: float = 0.0


@dataclass(frozen=True)
class Roll:
    """Steps of the sampler that canvases go before they are scored: how many each, and for each step its temperature,
    the uniform number behind each sample, and what replaces the rest."""

    steps: Int[Tensor, "canvases"]
    temperature: Float[Tensor, "steps canvases"]
    uniform: Float[Tensor, "steps canvases canvas"]
    tokens: Int[Tensor, "steps canvases canvas"]


@dataclass(frozen=True)
class Corruption:
    """The random choices of one training step: what the canvases show, and which of them condition on a guess.

    Canvases that go steps of the sampler are conditioned, on the guess of the last step.
    """

    canvas: Int[Tensor, "canvases canvas"]
    level: Float[Tensor, "canvases"]
    conditioned: Bool[Tensor, "canvases"]
    roll: Roll | None = None

    def to(self, device: torch.device) -> Corruption:
        """The same on a device: the numbers are drawn on the CPU, so that every device trains alike."""
        moved = {name: getattr(self, name).to(device) for name in ("canvas", "level", "conditioned")}
        roll = self.roll
        if roll is not None:
            roll = Roll(*(getattr(roll, name).to(device) for name in roll.__dataclass_fields__))
        return Corruption(**moved, roll=roll)

    def some(self, chosen: Int[Tensor, "some"]) -> Corruption:
        """Of a part of the canvases."""
        roll = self.roll
        if roll is not None:
            later = (part[:, chosen] for part in (roll.temperature, roll.uniform, roll.tokens))
            roll = Roll(roll.steps[chosen], *later)
        return Corruption(self.canvas[chosen], self.level[chosen], self.conditioned[chosen], roll)


@dataclass(frozen=True)
class Losses:
    """Weighted mean nats per token, with the graph. `denoise` None: no canvas was run.

    `each` and `seen` are for reports: nats at every position of the canvases, and the canvases as they were shown.
    """

    encode: Float[Tensor, ""]
    denoise: Float[Tensor, ""] | None
    each: Float[Tensor, "canvases canvas"] | None = None
    seen: Int[Tensor, "canvases canvas"] | None = None

    @property
    def total(self) -> Float[Tensor, ""]:
        """Both terms with weight one."""
        return self.encode if self.denoise is None else self.encode + self.denoise


PLAIN = Noise()
REFERENCE = Scoring()


def corrupt(batch: Batch, vocab: int, generator: torch.Generator, noise: Noise = PLAIN) -> Corruption:
    """Corruption at one noise level per canvas; a random token may equal the one it replaces.

    Replacements are uniform over the vocabulary, but for a share `plausible` of them, which come from elsewhere on the
    same canvas: wrong tokens that look right. A share `own` shows what a caller's canvas does at first, uniform noise
    in every open position, and goes 0 to `own_steps` steps of the sampler from there.
    """
    size = batch.target.shape
    level = EPSILON + (1 - 2 * EPSILON) * torch.rand(size[0], generator=generator)
    from_noise = batch.pinned.any(1) & (torch.rand(size[0], generator=generator) < 0.5)
    level = torch.where(from_noise, 1.0, level)
    replaced = (torch.rand(size, generator=generator) < level[:, None]) & ~batch.pinned
    random = torch.randint(vocab, size, generator=generator)
    if noise.plausible:
        place = (torch.rand(size, generator=generator) * batch.content[:, None]).long()
        near = torch.rand(size, generator=generator) < noise.plausible
        random = torch.where(near, batch.target.gather(1, place), random)
    conditioned = torch.rand(size[0], generator=generator) < noise.self_conditioning
    canvas = torch.where(replaced, random, batch.target)
    if not noise.rolled and not noise.own:
        return Corruption(canvas, level, conditioned)
    roll = _draw_roll(size, vocab, generator, noise, conditioned)
    if noise.own:
        own = torch.rand(size[0], generator=generator) < noise.own
        steps = torch.randint(noise.own_steps + 1, size[:1], generator=generator)
        start = torch.randint(vocab, size, generator=generator)
        canvas = torch.where(own[:, None] & ~batch.pinned, start, canvas)
        level, conditioned = torch.where(own, 1.0, level), torch.where(own, steps > 0, conditioned)
        roll = replace(roll, steps=torch.where(own, steps, roll.steps))
    return Corruption(canvas, level, conditioned, roll)


def losses(model: DiffusionGemma, batch: Batch, corruption: Corruption | None, scoring: Scoring = REFERENCE) -> Losses:
    """Both losses of a batch; without a corruption only the autoregressive one, and no canvas is run.

    With `leave_one_out` the logits of a position are taken for those of one who does not see what it shows, and are
    told that (`observed`) before they are scored. `certainty` weighs the entropy of positions whose likeliest token is
    the right one (certainty forcing, arXiv 2509.26488): a sampler waits for what is right and doubted.
    """
    clean = CleanContext(model.config, batch.clean, batch.first)
    hidden = model(batch.clean.flatten(), None, clean).view(*batch.clean.shape, -1)
    told = batch.told[:, 1:]
    encode = F.cross_entropy(model.logits(hidden[:, :-1][told]), batch.clean[:, 1:][told], reduction="sum")
    encode = encode / told.sum().clamp_min(1)
    if corruption is None or not len(batch.target):
        return Losses(encode, None)
    context = CanvasContext(clean, batch.owner, batch.origin, batch.start, batch.target.shape[1])
    seen, soft = _guess(model, context, batch, corruption)
    logits = _canvas_logits(model, context, seen, soft)
    if scoring.leave_one_out:
        logits = observed(logits, seen, corruption.level)
    each = F.cross_entropy(logits.flatten(0, 1), batch.target.flatten(), reduction="none").view(batch.target.shape)
    scored, weight = ~batch.pinned, batch.weight
    nats = each + scoring.certainty * _doubt(logits, batch.target) if scoring.certainty else each
    means = (nats * scored).sum(1) / scored.sum(1).clamp_min(1)
    return Losses(encode, (means * weight).sum() / weight.sum().clamp_min(1), each.detach(), seen)


def observed(
    logits: Float[Tensor, "canvases canvas vocab"],
    canvas: Int[Tensor, "canvases canvas"],
    level: Float[Tensor, "canvases"],
) -> Float[Tensor, "canvases canvas vocab"]:
    """Logits of each position's clean token given the whole canvas, from logits given the canvas but that position.

    A position shows its token with probability 1 - t, else any of V alike. So Bayes' rule multiplies the odds of what
    it shows by 1 + V (1 - t) / t, and no other's (arXiv 2605.22765).
    """
    told = torch.log1p(logits.shape[-1] * (1 - level) / level)[:, None, None].to(logits.dtype)
    return logits.scatter_add(2, canvas[..., None], told.expand(*canvas.shape, 1))


def _doubt(
    logits: Float[Tensor, "canvases canvas vocab"], target: Int[Tensor, "canvases canvas"]
) -> Float[Tensor, "canvases canvas"]:
    """Entropy in nats where the likeliest token is the target, else 0."""
    log = logits.float().log_softmax(-1)
    return -(log.exp() * log).sum(-1) * (logits.argmax(-1) == target)


@torch.no_grad()
def _guess(
    model: DiffusionGemma, context: CanvasContext, batch: Batch, corruption: Corruption
) -> tuple[Int[Tensor, "canvases canvas"], Float[Tensor, "canvases canvas hidden"]]:
    """The canvases to denoise and the soft embeddings to do it with, exactly zero where there is no guess."""
    shape = (*corruption.canvas.shape, model.config.hidden_size)
    seen, soft = corruption.canvas, torch.zeros(shape, dtype=model.dtype, device=model.device)
    roll, going, turn = corruption.roll, corruption.conditioned, 0
    while going.any():
        chosen = going.nonzero().flatten()
        logits = _canvas_logits(model, context.some(chosen), seen[chosen], soft[chosen] if turn else None)
        if roll is not None:
            temperature = torch.where(roll.steps > turn, roll.temperature[turn], 1.0)[chosen]
            logits = logits / temperature[:, None, None]
        probabilities = torch.softmax(logits, dim=-1)
        given = F.one_hot(batch.target[chosen], logits.shape[-1]).to(probabilities.dtype)
        probabilities = torch.where(batch.pinned[chosen][..., None], given, probabilities)
        soft[chosen] = model.soften(probabilities.flatten(0, 1)).view(-1, *shape[1:]).to(soft.dtype)
        if roll is None:
            break
        seen = seen.clone()
        seen[chosen] = _rolled(seen[chosen], probabilities, batch.pinned[chosen], roll, chosen, turn)
        turn += 1
        going = roll.steps > turn
    return seen, soft


def _rolled(canvas: Tensor, p: Tensor, pinned: Tensor, roll: Roll, chosen: Tensor, turn: int) -> Tensor:
    """One step of the released sampler on many canvases: the surest samples stay, fresh noise comes elsewhere."""
    entropy = torch.special.entr(p).sum(-1).masked_fill(pinned, 0.0)
    ordered, order = entropy.sort(dim=1)
    kept = torch.zeros_like(pinned).scatter(1, order, ordered.cumsum(1) - ordered <= _BOUND)
    reached = p.cumsum(-1)
    draw = roll.uniform[turn, chosen][..., None] * reached[..., -1:]
    sample = (reached < draw).sum(-1).clamp_max(p.shape[-1] - 1)
    stepped = torch.where(kept, sample, roll.tokens[turn, chosen])
    return torch.where((roll.steps > turn)[chosen, None] & ~pinned, stepped, canvas)


def _draw_roll(size: torch.Size, vocab: int, generator: torch.Generator, noise: Noise, conditioned: Tensor) -> Roll:
    """Draws of a step for what is rolled, of `own_steps` for all if some canvases may go so many."""
    most = max(1, noise.own_steps if noise.own else 0)
    rolled = (torch.rand(size[0], generator=generator) < noise.rolled) & conditioned
    temperature = _COOLEST + (_WARMEST - _COOLEST) * torch.rand((most, size[0]), generator=generator)
    uniform = torch.rand((most, *size), generator=generator)
    return Roll(rolled.long(), temperature, uniform, torch.randint(vocab, (most, *size), generator=generator))


def _canvas_logits(
    model: DiffusionGemma, context: CanvasContext, canvas: Tensor, soft: Tensor | None
) -> Float[Tensor, "canvases canvas vocab"]:
    hidden = model(canvas.flatten(), None if soft is None else soft.flatten(0, 1), context)
    return model.logits(hidden).view(*canvas.shape, -1)
