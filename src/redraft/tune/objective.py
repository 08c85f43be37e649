"""The training objective of block diffusion (model spec 4).

A batch has clean sequences (prompt, answer) and canvases in them: every block of an answer, or a gap in a text. After
the answer's end a canvas is filled with end tokens.

    encode    clean sequences, causal, once              → next-token loss; keys and values for the canvases
    corrupt   each open position of a canvas is replaced by a random token with probability t, t ~ U(ε, 1-ε) per canvas
    guess     the canvas without self-conditioning and without gradient, for a random half of the canvases
    roll      some of those take one step of the sampler from the guess, as at inference
    own       a share starts from pure noise, as a caller's canvas does, and takes some steps of the sampler
    denoise   the canvas, conditioned on the guess or on an exact zero
              → cross-entropy on the scored positions, corrupted or not; optionally the entropy of correct positions

Pinned positions stay clean, feed their token back and are not scored. Half of the canvases with pins start from pure
noise everywhere else, as a caller's canvas does.

The weight of a canvas is the square root of its number of scored positions, so that neither a wide canvas of end tokens
nor a gap of three tokens dominates. For canvases of equal size the loss is the plain mean over all positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional as F

from redraft.model.gemma import DiffusionGemma
from redraft.shapes import Bool, Float, Int, Tensor
from redraft.tune.context import CanvasContext, CleanContext
from redraft.tune.images import Shown, inserted
from redraft.tune.recipe import ObjectiveRecipe

ALIGNED = 16  # tokens: products of a GPU are fast where sizes are multiples of this
EPSILON = 1e-4
_COOLEST, _WARMEST = 0.4, 0.8  # the released sampler's temperatures
_BOUND = 0.1  # nats, the released sampler's entropy bound


@dataclass(frozen=True)
class Batch:
    """Lines of one or more clean sequences, and the canvases in them. Indices count tokens of a line.

    clean     padded on the right                    scored  tokens on which the causal mode is scored
    first     for each token, where its sequence begins
    owner     the line of each canvas                origin  where the canvas's sequence begins
    start     where the canvas begins; its prefix is its sequence up to there
    target    the correct tokens of each canvas      pinned  given positions: clean, and not scored
    content   positions up to and including the first end token; at least 1
    live      positions of each canvas that are there, if not all are: the rest is padding, pinned, and seen by none
    images    pictures whose soft tokens stand in the clean sequences
    places    numbers of the scored tokens, line after line, where they are known
    reach     a token of a line from which on no canvas sees any, where it is known
    """

    clean: Int[Tensor, "batch tokens"]
    scored: Bool[Tensor, "batch tokens"]
    first: Int[Tensor, "batch tokens"]
    owner: Int[Tensor, "canvases"]
    origin: Int[Tensor, "canvases"]
    start: Int[Tensor, "canvases"]
    target: Int[Tensor, "canvases canvas"]
    pinned: Bool[Tensor, "canvases canvas"]
    content: Int[Tensor, "canvases"]
    live: Int[Tensor, "canvases"] | None = None
    images: tuple[Shown, ...] = ()
    places: Int[Tensor, "places"] | None = None
    reach: int | None = None

    @property
    def weight(self) -> Float[Tensor, "canvases"]:
        """Weight of each canvas in the loss."""
        return (~self.pinned).sum(1).float().sqrt()

    def to(self, device: torch.device) -> Batch:
        """The same on a device. What else a forward asks of a batch is asked here, where nobody waits for a GPU."""
        reach = max(self.start.tolist(), default=0)
        if device.type != "cpu":
            reach = min(-(-reach // ALIGNED) * ALIGNED, self.clean.shape[1])
        whole = replace(self, places=self.found_places(), reach=reach)
        held = {name: one for name, one in vars(whole).items() if isinstance(one, Tensor)}
        moved: dict[str, Any] = {name: to_device(one, device) for name, one in held.items()}
        return replace(whole, **moved)

    def found_places(self) -> Int[Tensor, "places"]:
        """Numbers of the scored tokens, line after line; the first of a line follows nothing."""
        if self.places is not None:
            return self.places
        return F.pad(self.scored[:, 1:], (1, 0)).flatten().nonzero().flatten()

    def repeated(self, times: int) -> Batch:
        """Every canvas `times` times, for that many corruptions after one clean pass."""
        return self.canvases(torch.arange(len(self.target)).repeat_interleave(times))

    def canvases(self, chosen: Int[Tensor, "some"]) -> Batch:
        """The same clean sequences with some of the canvases."""
        names = ("owner", "origin", "start", "target", "pinned", "content")
        live = None if self.live is None else self.live[chosen]
        return replace(self, **{name: getattr(self, name)[chosen] for name in names}, live=live)

    @property
    def given(self) -> Bool[Tensor, "canvases"]:
        """Whether a canvas has pins, padding aside."""
        if self.live is None:
            return self.pinned.any(1)
        there = torch.arange(self.target.shape[1], device=self.live.device) < self.live[:, None]
        return (self.pinned & there).any(1)


@dataclass(frozen=True)
class Roll:
    """Steps of the sampler that canvases take before they are scored: the number of steps of each canvas; for each step
    its temperature, the uniform number of each sample, and the random tokens elsewhere."""

    steps: Int[Tensor, "canvases"]
    temperature: Float[Tensor, "steps canvases"]
    uniform: Float[Tensor, "steps canvases canvas"]
    tokens: Int[Tensor, "steps canvases canvas"]


@dataclass(frozen=True)
class Corruption:
    """The random choices of one training step: the tokens of the canvases, and which canvases condition on a guess.

    Canvases that take steps of the sampler are conditioned on the distribution of the last step. `guessed` are, for
    each forward without a gradient, the canvases that take part in it, where they are known.
    """

    canvas: Int[Tensor, "canvases canvas"]
    level: Float[Tensor, "canvases"]
    conditioned: Bool[Tensor, "canvases"]
    roll: Roll | None = None
    guessed: tuple[Int[Tensor, "some"], ...] | None = None

    def to(self, device: torch.device) -> Corruption:
        """The same on a device: the numbers are drawn on the CPU, so that every device trains alike."""
        moved = {name: to_device(getattr(self, name), device) for name in ("canvas", "level", "conditioned")}
        roll, guessed = self.roll, tuple(to_device(one, device) for one in self.turns())
        if roll is not None:
            roll = Roll(*(to_device(getattr(roll, name), device) for name in roll.__dataclass_fields__))
        return Corruption(**moved, roll=roll, guessed=guessed)

    def turns(self) -> tuple[Int[Tensor, "some"], ...]:
        """The canvases of each forward without a gradient: those with a guess, then those with steps left."""
        if self.guessed is not None:
            return self.guessed
        most = 0 if self.roll is None or not len(self.roll.steps) else int(self.roll.steps.max())
        later = [(self.roll.steps > turn).nonzero().flatten() for turn in range(1, most)] if self.roll else []
        first = self.conditioned.nonzero().flatten()
        return (first, *later) if len(first) else ()

    def some(self, chosen: Int[Tensor, "some"]) -> Corruption:
        """The choices of some canvases."""
        roll = self.roll
        if roll is not None:
            later = (part[:, chosen] for part in (roll.temperature, roll.uniform, roll.tokens))
            roll = Roll(roll.steps[chosen], *later)
        return Corruption(self.canvas[chosen], self.level[chosen], self.conditioned[chosen], roll)


@dataclass(frozen=True)
class Losses:
    """Weighted mean nats per token, with the graph. `denoise` None: no canvas was run.

    `each` and `seen` are for reports: nats at every position of the canvases, and the tokens that the canvases had.
    """

    encode: Float[Tensor, ""]
    denoise: Float[Tensor, ""] | None
    each: Float[Tensor, "canvases canvas"] | None = None
    seen: Int[Tensor, "canvases canvas"] | None = None

    @property
    def total(self) -> Float[Tensor, ""]:
        """Both terms with weight one."""
        return self.encode if self.denoise is None else self.encode + self.denoise


REFERENCE = ObjectiveRecipe()


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """The same on a device; its copy to a GPU takes place behind what the GPU does, and the host goes on."""
    if device.type == "cuda" and x.device.type == "cpu":
        x = x.pin_memory()
    return x.to(device, non_blocking=device.type == "cuda")


def corrupt(batch: Batch, vocab: int, generator: torch.Generator, objective: ObjectiveRecipe = REFERENCE) -> Corruption:
    """Corruption at one noise level per canvas; a random token may equal the token that it replaces.

    Replacements are uniform over the vocabulary, except a share `plausible`, which is taken from elsewhere on the same
    canvas: wrong tokens that look right. A share `own` of the canvases starts from uniform noise in every open position
    and takes 0 to `own_steps` steps of the sampler.
    """
    size = batch.target.shape
    level = EPSILON + (1 - 2 * EPSILON) * torch.rand(size[0], generator=generator)
    from_noise = batch.given & (torch.rand(size[0], generator=generator) < 0.5)
    level = torch.where(from_noise, 1.0, level)
    replaced = (torch.rand(size, generator=generator) < level[:, None]) & ~batch.pinned
    random = torch.randint(vocab, size, generator=generator)
    if objective.plausible:
        place = (torch.rand(size, generator=generator) * batch.content[:, None]).long()
        near = torch.rand(size, generator=generator) < objective.plausible
        random = torch.where(near, batch.target.gather(1, place), random)
    conditioned = torch.rand(size[0], generator=generator) < objective.self_conditioning
    canvas = torch.where(replaced, random, batch.target)
    if not objective.rolled and not objective.own:
        return Corruption(canvas, level, conditioned)
    roll = _draw_roll(size, vocab, generator, objective, conditioned)
    if objective.own:
        own = torch.rand(size[0], generator=generator) < objective.own
        steps = torch.randint(objective.own_steps + 1, size[:1], generator=generator)
        start = torch.randint(vocab, size, generator=generator)
        canvas = torch.where(own[:, None] & ~batch.pinned, start, canvas)
        level, conditioned = torch.where(own, 1.0, level), torch.where(own, steps > 0, conditioned)
        roll = replace(roll, steps=torch.where(own, steps, roll.steps))
    return Corruption(canvas, level, conditioned, roll)


def losses(
    model: DiffusionGemma, batch: Batch, corruption: Corruption | None, objective: ObjectiveRecipe = REFERENCE
) -> Losses:
    """Both losses of a batch; without a corruption only the autoregressive loss, and no canvas is run.

    With `leave_one_out` the logits of a position are a belief that ignores the position's own token; `observed` adds
    the token before they are scored. `certainty` is the weight of the entropy of positions whose likeliest token is
    correct (certainty forcing, arXiv 2509.26488): a sampler waits for positions that are correct but uncertain.
    """
    spans = [(one.line, one.start, one.stop) for one in batch.images]
    clean = CleanContext(model.config, batch.clean, batch.first, spans, model.image_attention)
    clean.inserted = inserted(model, batch.images, batch.clean.shape[1])
    hidden, places = model(batch.clean.flatten(), None, clean), batch.found_places()
    logits, wanted = model.logits(hidden.index_select(0, places - 1)), batch.clean.flatten()[places]
    encode = F.cross_entropy(logits, wanted, reduction="sum")
    encode = encode / max(1, len(places))
    if corruption is None or not len(batch.target):
        return Losses(encode, None)
    width = batch.target.shape[1]
    context = CanvasContext(clean, batch.owner, batch.origin, batch.start, width, batch.live, batch.reach)
    seen, soft = _guess(model, context, batch, corruption)
    logits = _canvas_logits(model, context, seen, soft)
    if objective.leave_one_out:
        logits = observed(logits, seen, corruption.level)
    each = F.cross_entropy(logits.flatten(0, 1), batch.target.flatten(), reduction="none").view(batch.target.shape)
    free, weight = ~batch.pinned, batch.weight
    nats = each + objective.certainty * _doubt(logits, batch.target) if objective.certainty else each
    means = (nats * free).sum(1) / free.sum(1).clamp_min(1)
    return Losses(encode, (means * weight).sum() / weight.sum().clamp_min(1), each.detach(), seen)


def observed(
    logits: Float[Tensor, "canvases canvas vocab"],
    canvas: Int[Tensor, "canvases canvas"],
    level: Float[Tensor, "canvases"],
) -> Float[Tensor, "canvases canvas vocab"]:
    """Logits of each position's clean token given the whole canvas, from logits given the canvas but that position.

    A position has its clean token with probability 1 - t, else any of V tokens. So Bayes' rule multiplies the odds of
    the token that it has by 1 + V (1 - t) / t, and of no other token (arXiv 2605.22765).
    """
    evidence = torch.log1p(logits.shape[-1] * (1 - level) / level)[:, None, None].to(logits.dtype)
    return logits.scatter_add(2, canvas[..., None], evidence.expand(*canvas.shape, 1))


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
    """The canvases to denoise and their soft embeddings, exactly zero where there is no guess."""
    shape = (*corruption.canvas.shape, model.config.hidden_size)
    seen, soft = corruption.canvas, torch.zeros(shape, dtype=model.dtype, device=model.device)
    roll = corruption.roll
    for turn, chosen in enumerate(corruption.turns()):
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
    return seen, soft


def _rolled(canvas: Tensor, p: Tensor, pinned: Tensor, roll: Roll, chosen: Tensor, turn: int) -> Tensor:
    """One step of the released sampler on many canvases: it keeps the most certain samples and renoises the rest."""
    entropy = torch.special.entr(p).sum(-1).masked_fill(pinned, 0.0)
    ordered, order = entropy.sort(dim=1)
    kept = torch.zeros_like(pinned).scatter(1, order, ordered.cumsum(1) - ordered <= _BOUND)
    reached = p.cumsum(-1)
    draw = roll.uniform[turn, chosen][..., None] * reached[..., -1:]
    sample = (reached < draw).sum(-1).clamp_max(p.shape[-1] - 1)
    stepped = torch.where(kept, sample, roll.tokens[turn, chosen])
    return torch.where((roll.steps > turn)[chosen, None] & ~pinned, stepped, canvas)


def _draw_roll(
    size: torch.Size, vocab: int, generator: torch.Generator, objective: ObjectiveRecipe, conditioned: Tensor
) -> Roll:
    """The draws of one step for rolled canvases; with a share `own`, of `own_steps` steps for all canvases."""
    most = max(1, objective.own_steps if objective.own else 0)
    rolled = (torch.rand(size[0], generator=generator) < objective.rolled) & conditioned
    temperature = _COOLEST + (_WARMEST - _COOLEST) * torch.rand((most, size[0]), generator=generator)
    uniform = torch.rand((most, *size), generator=generator)
    return Roll(rolled.long(), temperature, uniform, torch.randint(vocab, (most, *size), generator=generator))


def _canvas_logits(
    model: DiffusionGemma, context: CanvasContext, canvas: Tensor, soft: Tensor | None
) -> Float[Tensor, "canvases canvas vocab"]:
    hidden = model(canvas.flatten(), None if soft is None else soft.flatten(0, 1), context)
    return model.logits(hidden).view(*canvas.shape, -1)
