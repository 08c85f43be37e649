"""The trainer: one loop, from a recipe to a checkpoint folder.

Every step's data and noise are a function of (seed, step), so an interrupted run continues exactly from its state
(`tune/state.py`). The result is the exponential moving average of the weights at the probe with the best answers.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import torch

from redraft.errors import RecipeError, RequestError, RunError, ran_out
from redraft.files import alone, copy_files, remove_halves
from redraft.interrupts import Held
from redraft.model.gemma import DiffusionGemma
from redraft.tune.base import STARTED, Base, read_base
from redraft.tune.clock import Clock
from redraft.tune.data import SEED_STRIDE, Feed
from redraft.tune.lora import adapters, merge
from redraft.tune.objective import Batch, Corruption, Losses, corrupt, losses
from redraft.tune.parallel import World, share, whole, world_of
from redraft.tune.probe import probe, score
from redraft.tune.recipe import ObjectiveRecipe, Recipe
from redraft.tune.state import FILE, WORKER_ENDED, State, cut_log, follow, keep, restore
from redraft.weights.adapter import CONFIG, write_adapter

LOG = "training-log.jsonl"
ADAPTER = "adapter"
_CONFIGS = ("config.json", "generation_config.json", "redraft.json")
_WRITTEN = ("*.safetensors", "*.index.json", *_CONFIGS, *STARTED, f"{ADAPTER}/adapter_*", LOG)
"""What a run writes over or removes, besides its state."""
_FIRST = b'{"step": 1, "encode": '
"""How a run's log begins."""
NOTICE = b"\nredraft: the step that runs is finished and kept; interrupt again to end at once\n"
SHOWN = ("clean", "corrupted")
LEVELS = ("low", "middle", "high")  # thirds of the noise level

Progress = Callable[[int, int, dict[str, float]], None]


def train(recipe: Recipe, out: Path, progress: Progress = lambda *_: None, *, seconds: float | None = None) -> Path:
    """Run or continue a recipe; `out` receives the checkpoint, the log and the state. Returns `out`.

    With `seconds` it trains for so long, whatever the recipe's `steps` (`tune/clock.py`), and saves then. Under
    torchrun every process calls this; the first one writes and reports progress.

    Raises RecipeError for data that cannot be used, a state of another recipe, a folder that cannot be made or has
    what would be lost, or processes that cannot share the recipe; RequestError if another program writes there;
    RunError if the loss is NaN, memory runs out or the disk refuses.
    """
    torch.set_num_threads(recipe.train.threads)
    try:
        new = [folder for folder in (out, *out.parents) if not folder.exists()]
        there = [str(file.relative_to(out)) for form in _WRITTEN for file in out.glob(form)]
    except OSError as error:
        raise RecipeError(f"{str(out)[:200]} cannot be looked at: {error.strerror}; give another folder") from None
    if inside := [name for name in recipe.data.folders if out.resolve().is_relative_to(Path(name).resolve())]:
        raise RecipeError(f"{out} lies in {inside[0]}, whose files are what the run learns from; give another folder")
    if recipe.lora is not None and os.path.lexists(out / ADAPTER) and not (out / ADAPTER).is_dir():
        raise RecipeError(f"{out / ADAPTER} is a file where the adapter's folder would be; give another folder")
    if there and not _is_log(out / LOG):  # looked at last: a run that begins makes it first
        raise RecipeError(f"{out} holds {there[0]} and no log of a run, which would be lost; give another folder")
    if {*there} - {LOG, *STARTED} and not (out / FILE).exists():  # it is there before the model is, and stays
        raise RecipeError(f"{out} holds a finished model and no {FILE}, so its run cannot go on; give another folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecipeError(f"{out} cannot be made a folder: {error.strerror or error}; give another") from None
    try:
        with world_of(recipe) as world, alone(out, out) if world.first else TemporaryDirectory() as mine:
            if seconds is not None and world.count > 1:
                raise RecipeError("a run by the clock is for one process; give [train] steps")
            _run(recipe, out, Path(mine), progress, world, seconds)
    except BaseException as error:
        # Whatever it was: a run that took no step leaves no folder. What has no remedy goes on up.
        another = isinstance(error, RequestError)  # program has just made the same folder
        if new and not another and not ((out / LOG).exists() and (out / LOG).stat().st_size):
            _take_back(out, new)  # no step began
        if (remedy := _remedy(error, out)) is None:
            raise
        raise RunError(remedy) from None
    return out


def _remedy(error: BaseException, out: Path) -> str | None:
    """What to do about a disk that refuses or memory that ran out; None for any other error."""
    if isinstance(error, OSError):
        return (
            f"{error.filename or out} could not be written to: {error.strerror or error}; free space or choose another"
        )
    if isinstance(error, RuntimeError) and str(error).startswith(WORKER_ENDED):
        return (
            "a process that prepares samples was killed, probably for lack of memory; lower [train] workers or"
            " batch_size and run again: the run continues behind its last saved state"
        )
    if ran_out(error):
        return (
            "memory ran out; lower [train] batch_size, or bound a forward with [train] most_rows, and run again:"
            " the run continues behind its last saved state (a smaller [model] or [lora] rank makes a new one)"
        )
    return None


def _is_log(path: Path) -> bool:
    """Whether a run has begun where this lies: before its first step it has an empty one."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _FIRST.startswith(file.read(len(_FIRST)))  # a kill may have cut it


def _take_back(out: Path, new: Sequence[Path]) -> None:
    """Remove the files that a run makes before its first step, and the new folders if nothing else is in them."""
    for name in (*STARTED, LOG):
        with suppress(OSError):
            (out / name).unlink()
    for folder in new:
        with suppress(OSError):  # others may have put something there
            folder.rmdir()


def _run(recipe: Recipe, out: Path, mine: Path, progress: Progress, world: World, seconds: float | None) -> None:
    """`mine` receives the files that only the first process needs: it is `out` there, a temporary folder elsewhere.

    Nothing in it changes before the state there has been found to be this recipe's.
    """
    clock = None if seconds is None else Clock(recipe, seconds)
    recipe = recipe if clock is None else clock.recipe
    with TemporaryDirectory() as made:
        base = read_base(recipe, Path(made))
        _ = base.digests  # of what has been read, not of what stands there when the state is kept
        feed = Feed(recipe, base)
        state = restore(recipe, base, out / FILE, world, feed)
        feed.look_ahead(state.step)
        if world.first:
            remove_halves(out, (FILE, LOG, *STARTED))
            remove_halves(out / ADAPTER, (CONFIG,))
            cut_log(out / LOG, state.step)
        copy_files(STARTED, Path(made), mine)
    total = recipe.train.encode_steps + recipe.train.steps
    pause = Held(NOTICE, (signal.SIGTERM,))
    alone = world.count == 1  # several processes would have to agree on the step
    with (mine / LOG).open("a", encoding="utf-8") as log, pause if alone else nullcontext():
        began = time.monotonic()
        for batches in feed.ahead(range(state.step, total)):
            row = train_step(recipe.at(state.step), state, batches)
            row["seconds"] = round(time.monotonic() - began, 4)
            if clock is not None:
                total = clock.after(state.step)
                if clock.recipe is not recipe:  # with which the run can be repeated
                    recipe = clock.recipe
                    row["decay_steps"] = recipe.train.decay_steps
            if state.step % recipe.train.probe_every == 0 or state.step == total:
                row |= _judge(recipe, feed, state)
            log.write(json.dumps({"step": state.step, **row}) + "\n")
            log.flush()
            leaving = pause.noted and state.step < total
            if state.step % recipe.train.save_every == 0 or state.step == total or leaving:
                keep(state, out / FILE, feed)
            if world.first:
                progress(state.step, total, row)
            if leaving:
                raise KeyboardInterrupt(f"interrupted behind step {state.step} of {total}; the same command goes on")
            if state.step >= total:
                break
            began = time.monotonic()
    _ship(recipe, base, state, out)


def train_step(recipe: Recipe, state: State, batches: Sequence[Batch]) -> dict[str, float]:
    """One step of the optimizer; returns its row of the log. Raises RunError if the loss or its gradient is NaN."""
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(recipe, state.step)
    state.optimizer.zero_grad(set_to_none=True)
    row = _backward(recipe, state, batches)
    if not math.isfinite(row["encode"] + row.get("denoise", 0.0)):
        raise RunError(f"the loss is nan at step {state.step}; lower [train] lr and start again")
    norm = torch.nn.utils.clip_grad_norm_(state.trained.values(), recipe.train.clip)
    row["norm"] = float(whole({"norm": norm}, state.world).get("norm", 0.0))
    if not math.isfinite(state.world.sum(torch.tensor(row["norm"], dtype=torch.float64)).item()):  # in every process
        raise RunError(f"the gradient is nan at step {state.step}, before it reached a weight; lower [train] lr")
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


def _backward(recipe: Recipe, state: State, batches: Sequence[Batch]) -> dict[str, float]:
    """Gradients of one step, batch by batch, each weighted by the tokens and canvases that it scores."""
    wanted, objective, device = recipe.train, _objective(recipe, state.step), state.world.device
    generator = torch.Generator().manual_seed(wanted.seed * SEED_STRIDE + state.step)
    both = state.step >= wanted.encode_steps
    scored = max(1, sum(int(batch.scored.sum()) for batch in batches))
    weight = sum(float(batch.weight.sum()) for batch in batches)
    sums, split = torch.zeros(2, dtype=torch.float64, device=device), Split(device)
    for drawn_up in batches:
        noisy = corrupt(drawn_up, state.model.config.vocab_size, generator, objective)
        mine, noise = share(drawn_up, noisy, state.world)
        batch, drawn = mine.to(device), noise.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=wanted.bfloat16):
            found = losses(state.model, batch, drawn if both else None, objective)
        encode = found.encode * (int(mine.scored.sum()) / scored)
        total = encode * objective.causal_weight
        sums[0] += encode.detach()
        if found.denoise is not None:
            denoise = found.denoise * (float(mine.weight.sum()) / weight)
            total = total + denoise
            sums[1] += denoise.detach()
            split.add(batch, drawn, found)
        total.backward()
    encode, denoise = state.world.sum(sums.cpu()).tolist()
    return {"encode": encode} | ({"denoise": denoise} if both else {}) | split.means(state.world)


def _objective(recipe: Recipe, step: int) -> ObjectiveRecipe:
    """The objective at a step: plain noise before `correct_from`."""
    found = recipe.objective
    if step >= found.correct_from:
        return found
    return msgspec.structs.replace(found, plausible=0.0, rolled=0.0, own=0.0)


class Split:
    """The canvas loss by whether a position was corrupted, and by noise level. Clean positions at low noise are easy
    and many: without this split, every curve looks converged early."""

    def __init__(self, device: torch.device) -> None:
        """The sums are kept on the device, so that a GPU is waited for once."""
        # clean or corrupted, level: nats, positions
        self._sums = torch.zeros(2, len(LEVELS), 2, dtype=torch.float64, device=device)

    def add(self, batch: Batch, drawn: Corruption, found: Losses) -> None:
        """Take the scored positions of one batch."""
        assert found.each is not None, "canvases were run"
        assert found.seen is not None, "canvases were run"
        wrong, scored = found.seen != batch.target, ~batch.pinned
        third = (drawn.level * len(LEVELS)).long().clamp_max(len(LEVELS) - 1)[:, None]
        kind = (wrong * len(LEVELS) + third).flatten()
        counted = torch.stack([found.each.detach().where(scored, 0.0), scored], -1).double().flatten(0, 1)
        self._sums.view(-1, 2).index_add_(0, kind, counted)

    def means(self, world: World) -> dict[str, float]:
        """Mean nats for each kind that occurred in any process."""
        sums = world.sum(self._sums.cpu())
        kinds = {f"{name} {level}": sums[i, j] for i, name in enumerate(SHOWN) for j, level in enumerate(LEVELS)}
        return {name: float(nats / count) for name, (nats, count) in sorted(kinds.items()) if count}


def _judge(recipe: Recipe, feed: Feed, state: State) -> dict[str, float]:
    """Probe the averaged weights, and keep them if they are the best. The first process probes, the others wait."""
    weights, found = whole(state.average, state.world), dict[str, float]()
    if state.world.first:
        found = probe(averaged(feed.base, weights), feed, recipe.train.probe_examples)
    shared = state.world.sum(torch.tensor(score(found) if state.world.first else 0.0, dtype=torch.float64)).item()
    if shared >= state.score:
        state.best = {name: value.clone() for name, value in state.average.items()}
        state.score = shared
    return found


def averaged(base: Base, weights: dict[str, torch.Tensor]) -> DiffusionGemma:
    """A plain model with these weights in place of the trained ones."""
    model = base.adapted()
    model.load_state_dict(weights, strict=False)
    merge(model)
    return model.eval()


def _ship(recipe: Recipe, base: Base, state: State, out: Path) -> None:
    """Write the checkpoint in the Hugging Face layout, and the adapter alone where one was trained."""
    weights = whole(state.average if state.best is None else state.best, state.world)
    if not state.world.first:
        return
    base.save(averaged(base, weights), out)
    if recipe.lora is not None:
        model = base.adapted()
        model.load_state_dict(weights, strict=False)
        write_adapter(adapters(model), out / ADAPTER, alpha=recipe.lora.alpha, base=recipe.start)
