"""The trainer: one loop, from a recipe to a checkpoint folder.

Every step's data and noise are a function of (seed, step), so an interrupted run continues exactly: the state
(`tune/state.py`) holds all there is.

What is shipped is the exponential moving average of the weights, as it was at the probe with the best answers.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch

from redraft.errors import RecipeError, RunError
from redraft.model.gemma import DiffusionGemma
from redraft.tune.base import Base, read_base
from redraft.tune.data import SEED_STRIDE, Feed
from redraft.tune.lora import adapt, adapters, merge
from redraft.tune.objective import Batch, Corruption, Losses, Noise, corrupt, losses
from redraft.tune.probe import probe, score
from redraft.tune.recipe import Recipe
from redraft.tune.state import FILE, State, cut_log, device_of, follow, keep, restore
from redraft.weights.adapter import write_adapter

LOG = "training-log.jsonl"
ADAPTER = "adapter"
LEVELS = ("low", "middle", "high")  # thirds of the noise level
_MEMORY = ("not enough memory", "out of memory", "can't allocate memory")  # how torch's allocators put it


Progress = Callable[[int, int, dict[str, float]], None]


def train(recipe: Recipe, out: Path, progress: Progress) -> Path:
    """Run or continue a recipe; `out` receives the checkpoint, the log and the state. Returns `out`.

    Raises RecipeError for data that cannot be used, a state of another recipe or a folder that cannot be made, RunError
    if the loss stops being a number, memory runs out or the disk refuses.
    """
    torch.set_num_threads(recipe.train.threads)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecipeError(f"{out} cannot be made a folder: {error.strerror or error}; give another") from None
    try:
        _run(recipe, out, progress)
    except OSError as error:
        raise RunError(
            f"{out} could not be written to: {error.strerror or error}; free space or choose another"
        ) from None
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error).lower() for words in _MEMORY):
            raise
        raise RunError(
            "memory ran out; lower [train] batch_size, or bound a forward with [train] most_rows, and run again:"
            " the run continues behind its last saved state"
        ) from None
    return out


def _run(recipe: Recipe, out: Path, progress: Progress) -> None:
    base = read_base(recipe, out)
    feed = Feed(recipe, base)
    state = restore(recipe, base, out / FILE)
    cut_log(out / LOG, state.step)
    total = recipe.train.encode_steps + recipe.train.steps
    with (out / LOG).open("a", encoding="utf-8") as log:
        while state.step < total:
            began = time.monotonic()
            row = train_step(recipe, feed, state)
            row["seconds"] = round(time.monotonic() - began, 4)
            if state.step % recipe.train.probe_every == 0 or state.step == total:
                row |= _judge(recipe, feed, state)
            log.write(json.dumps({"step": state.step, **row}) + "\n")
            log.flush()
            if state.step % recipe.train.save_every == 0 or state.step == total:
                keep(state, out / FILE)
            progress(state.step, total, row)
    _ship(recipe, base, state, out)


def train_step(recipe: Recipe, feed: Feed, state: State) -> dict[str, float]:
    """One step of the optimizer, and its row of the log. Raises RunError if the loss is no number."""
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(recipe, state.step)
    state.optimizer.zero_grad(set_to_none=True)
    row = _backward(recipe, feed, state)
    if not math.isfinite(row["encode"] + row.get("denoise", 0.0)):
        raise RunError(f"the loss is nan at step {state.step}; lower [train] lr and start again")
    row["norm"] = torch.nn.utils.clip_grad_norm_(state.trained.values(), recipe.train.clip).item()
    state.optimizer.step()
    state.step += 1
    follow(state, recipe.train.ema)
    return row


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then half a cosine down to `final_lr`; with `decay_steps`, flat and then a line down to it."""
    wanted = recipe.train
    if step < wanted.warmup:
        return wanted.lr * (step + 1) / wanted.warmup
    total = wanted.encode_steps + wanted.steps
    if wanted.decay_steps:
        share = min(1.0, (total - step) / wanted.decay_steps)
    else:
        share = 0.5 * (1 + math.cos(math.pi * (step - wanted.warmup) / max(1, total - wanted.warmup)))
    return wanted.final_lr + (wanted.lr - wanted.final_lr) * share


def _backward(recipe: Recipe, feed: Feed, state: State) -> dict[str, float]:
    """Gradients of one step, batch by batch; each counts by the tokens and canvases it scores."""
    wanted, objective, batches = recipe.train, recipe.objective, feed.batches(state.step)
    device = device_of(recipe)
    generator = torch.Generator().manual_seed(wanted.seed * SEED_STRIDE + state.step)
    both = state.step >= wanted.encode_steps
    correcting = state.step >= objective.correct_from
    noise = Noise(
        objective.self_conditioning,
        objective.plausible if correcting else 0.0,
        objective.rolled if correcting else 0.0,
        objective.own if correcting else 0.0,
        objective.own_steps,
    )
    told = max(1, sum(int(batch.told.sum()) for batch in batches))
    weight = sum(float(batch.weight.sum()) for batch in batches)
    split = Split()
    row = {"encode": 0.0} | ({"denoise": 0.0} if both else {})
    for drawn_up in batches:
        drawn = corrupt(drawn_up, feed.base.config.vocab_size, generator, noise).to(device)
        batch = drawn_up.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=wanted.bfloat16):
            found = losses(state.model, batch, drawn if both else None)
        share = int(batch.told.sum()) / told
        total = found.encode * (share * objective.causal_weight)
        row["encode"] += found.encode.item() * share
        if found.denoise is not None:
            denoise = found.denoise * (float(batch.weight.sum()) / weight)
            total, row["denoise"] = total + denoise, row["denoise"] + denoise.item()
            split.add(batch, drawn, found)
        total.backward()
    return row | split.means()


class Split:
    """The canvas loss by what a position showed and how noisy its canvas was. Clean positions at low noise are easy
    and many: without this, every curve looks converged early."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}

    def add(self, batch: Batch, drawn: Corruption, found: Losses) -> None:
        """Take the scored positions of one batch."""
        assert found.each is not None, "canvases were run"
        assert found.seen is not None, "canvases were run"
        wrong, scored = found.seen != batch.target, ~batch.pinned
        third = (drawn.level * len(LEVELS)).long().clamp_max(len(LEVELS) - 1)[:, None]
        for i, level in enumerate(LEVELS):
            for name, chosen in (("corrupted", wrong), ("clean", ~wrong)):
                picked = found.each[chosen & scored & (third == i)]
                if picked.numel():
                    sums = self._sums.setdefault(f"{name} {level}", [0.0, 0.0])
                    sums[0] += float(picked.sum())
                    sums[1] += picked.numel()

    def means(self) -> dict[str, float]:
        """Mean nats for each kind that occurred."""
        return {name: total / count for name, (total, count) in sorted(self._sums.items())}


def _judge(recipe: Recipe, feed: Feed, state: State) -> dict[str, float]:
    """Probe the averaged weights, and remember them if none were better."""
    found = probe(averaged(recipe, feed.base, state.average), feed, recipe.train.probe_examples)
    if score(found) >= state.score:
        state.best = {name: value.clone() for name, value in state.average.items()}
        state.score = score(found)
    return found


def averaged(recipe: Recipe, base: Base, weights: dict[str, torch.Tensor]) -> DiffusionGemma:
    """A plain model that holds these weights where the recipe trains any."""
    model = base.model()
    if recipe.lora is not None:
        adapt(model, recipe.lora, seed=recipe.train.seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name in weights:
                value.copy_(weights[name])
    merge(model)
    return model.requires_grad_(False).eval()


def _ship(recipe: Recipe, base: Base, state: State, out: Path) -> None:
    """Write the checkpoint in the Hugging Face layout, and the adapter alone where one was trained."""
    weights = state.average if state.best is None else state.best
    base.save(averaged(recipe, base, weights), out)
    if recipe.lora is not None:
        model = base.model()
        adapt(model, recipe.lora, seed=recipe.train.seed)
        model.load_state_dict(weights, strict=False)
        write_adapter(adapters(model), out / ADAPTER, alpha=recipe.lora.alpha, base=recipe.start)
