"""The trainer: one loop, from a recipe to a checkpoint folder.

Every step's data and noise are a function of (seed, step), so an interrupted run continues exactly: the state file
holds weights, average, optimizer and step, and nothing else is needed. It is written beside its final name and
renamed, so a kill at any moment leaves the last good one.

What is shipped is the exponential moving average of the weights.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from redraft.cache import Prefix
from redraft.config import CheckpointConfig, ModelConfig
from redraft.diffusion.canvas import fresh
from redraft.diffusion.denoise import Policy, reference_policy, settle
from redraft.diffusion.noise import SeededNoise
from redraft.errors import RecipeError, RunError
from redraft.model.gemma import DiffusionGemma
from redraft.tasks import Example, Task, task
from redraft.text import Text, read_text
from redraft.tune.initial import initial_model, random_vision
from redraft.tune.objective import Batch, corrupt, losses
from redraft.tune.recipe import Recipe, generation_config, model_config
from redraft.tune.vocabulary import build_tokenizer, write_tokenizer
from redraft.weights.save import save_model

STATE = "training-state.pt"
LOG = "training-log.jsonl"
_SAVED = {"model", "average", "optimizer", "step", "fingerprint"}
PAD, EOS = 0, 1
_SEED_STRIDE = 1_000_003


@dataclass
class State:
    """Everything an exact continuation needs. `fingerprint` names the recipe it belongs to."""

    fingerprint: str
    model: DiffusionGemma
    average: dict[str, torch.Tensor]
    optimizer: torch.optim.Optimizer
    step: int = 0


Progress = Callable[[int, int, dict[str, float]], None]


def train(recipe: Recipe, out: Path, progress: Progress) -> Path:
    """Run or continue a recipe; `out` receives the checkpoint, the log and the state. Returns `out`.

    Raises RecipeError if an answer does not fit the canvas or `out` holds another recipe's state, RunError if the loss
    stops being a number or the disk refuses.
    """
    torch.set_num_threads(recipe.train.threads)
    try:
        out.mkdir(parents=True, exist_ok=True)
        _run(recipe, out, progress)
    except OSError as error:
        raise RunError(
            f"{out} could not be written to: {error.strerror or error}; free space or choose another"
        ) from None
    return out


def _run(recipe: Recipe, out: Path, progress: Progress) -> None:
    feed = Feed(recipe, out)
    state = _restore(recipe, feed.config, out / STATE)
    _cut_log(out / LOG, state.step)
    total = recipe.train.encode_steps + recipe.train.steps
    with (out / LOG).open("a", encoding="utf-8") as log:
        while state.step < total:
            began = time.monotonic()
            row = _train_step(recipe, feed, state)
            row["seconds"] = round(time.monotonic() - began, 4)
            if state.step % recipe.train.probe_every == 0 or state.step == total:
                row |= probe(_averaged(recipe, feed.config, state), recipe, feed)
            log.write(json.dumps({"step": state.step, **row}) + "\n")
            log.flush()
            if state.step % recipe.train.save_every == 0 or state.step == total:
                _keep(state, out / STATE)
            progress(state.step, total, row)
    ship(_averaged(recipe, feed.config, state), recipe, out)


class Feed:
    """Batches of a recipe's tasks. `batch(step)` is a pure function of the recipe and the step."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe = recipe
        write_tokenizer(folder)
        self.tasks: list[tuple[Task, float]] = [(task(name), share) for name, share in recipe.data.tasks.items()]
        self.config: ModelConfig = model_config(recipe, build_tokenizer().get_vocab_size())
        self.text: Text = read_text(folder, CheckpointConfig(self.config, generation_config(recipe)))

    def batch(self, step: int) -> Batch:
        """The examples of one step, tasks in the recipe's shares."""
        size, whole = self.recipe.train.batch_size, sum(share for _, share in self.tasks)
        examples: list[Example] = []
        for i, (one, share) in enumerate(self.tasks):
            last = i == len(self.tasks) - 1
            count = size - len(examples) if last else round(size * share / whole)
            stream = one.examples("train", self.recipe.train.seed * _SEED_STRIDE + step)
            examples += [example for example, _ in zip(stream, range(count), strict=False)]
        return self.pack(examples)

    def pack(self, examples: list[Example]) -> Batch:
        """Token tensors of some examples. The canvas is the answer, then end tokens to its full width."""
        width = self.config.canvas_length
        prompts = [self.prompt(example.prompt) for example in examples]
        answers = [self.text.encode(example.answer, bos=False) for example in examples]
        for example, answer in zip(examples, answers, strict=True):
            if len(answer) >= width:
                raise RecipeError(
                    f"an answer has {len(answer)} tokens and the canvas {width}, one of them for the end: "
                    f"{example.answer[:60]!r}; raise [model] canvas_length"
                )
        cleans = [p + a + [EOS] for p, a in zip(prompts, answers, strict=True)]
        longest = max(map(len, cleans))
        return Batch(
            clean=torch.tensor([c + [PAD] * (longest - len(c)) for c in cleans]),
            length=torch.tensor([len(c) for c in cleans]),
            start=torch.tensor([len(p) for p in prompts]),
            target=torch.tensor([a + [EOS] * (width - len(a)) for a in answers]),
        )

    def prompt(self, text: str) -> list[int]:
        """One user turn in the checkpoint's chat form, ready for the model's turn."""
        return self.text.chat([{"role": "user", "content": text}])


def probe(model: DiffusionGemma, recipe: Recipe, feed: Feed) -> dict[str, float]:
    """Share of held-out examples answered exactly by the reference sampler, and its mean steps, per task."""
    policy = reference_policy(generation_config(recipe))
    found: dict[str, float] = {}
    for one, _ in feed.tasks:
        right = steps = 0
        examples = zip(one.examples("held_out", 1), range(recipe.train.probe_examples), strict=False)
        for example, i in examples:
            tokens, taken = _answer(model, feed.prompt(example.prompt), policy, i)
            end = tokens.index(EOS) if EOS in tokens else len(tokens)
            right += one.score(example, feed.text.decode(tokens[:end])).exact
            steps += taken
        found[f"{one.name} exact"] = right / recipe.train.probe_examples
        found[f"{one.name} steps"] = steps / recipe.train.probe_examples
    return found


def ship(model: DiffusionGemma, recipe: Recipe, out: Path) -> None:
    """Write the checkpoint in the Hugging Face layout; tokenizer and template are there since the start."""
    vision = random_vision(model.config, seed=recipe.train.seed)
    save_model(model, out, generation=generation_config(recipe), vision=vision)


def _train_step(recipe: Recipe, feed: Feed, state: State) -> dict[str, float]:
    wanted = recipe.train
    batch = feed.batch(state.step)
    generator = torch.Generator().manual_seed(wanted.seed * _SEED_STRIDE + state.step)
    both = state.step >= wanted.encode_steps
    found = losses(state.model, batch, corrupt(batch.target, feed.config.vocab_size, generator) if both else None)
    if not math.isfinite(found.total.item()):
        raise RunError(f"the loss is {found.total.item()} at step {state.step}; lower [train] lr and start again")
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(recipe, state.step)
    state.optimizer.zero_grad(set_to_none=True)
    found.total.backward()
    norm = torch.nn.utils.clip_grad_norm_(state.model.parameters(), wanted.clip)
    state.optimizer.step()
    state.step += 1
    decay = min(wanted.ema, (1 + state.step) / (10 + state.step))
    with torch.no_grad():
        for name, value in state.model.named_parameters():
            state.average[name].lerp_(value, 1 - decay)
    row = {"encode": found.encode.item(), "norm": norm.item()}
    return row | ({} if found.denoise is None else {"denoise": found.denoise.item()})


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then half a cosine down to `final_lr`."""
    wanted = recipe.train
    if step < wanted.warmup:
        return wanted.lr * (step + 1) / wanted.warmup
    done = (step - wanted.warmup) / max(1, wanted.encode_steps + wanted.steps - wanted.warmup)
    return wanted.final_lr + (wanted.lr - wanted.final_lr) * 0.5 * (1 + math.cos(math.pi * done))


def _restore(recipe: Recipe, config: ModelConfig, path: Path) -> State:
    model = initial_model(config, seed=recipe.train.seed).requires_grad_(True).train()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": recipe.train.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.train.lr, betas=recipe.train.betas, fused=True)
    average = {name: value.detach().clone() for name, value in model.named_parameters()}
    state = State(hashlib.sha256(msgspec.json.encode(recipe)).hexdigest(), model, average, optimizer)
    if path.exists():
        try:
            saved = torch.load(path, weights_only=True)
            if not isinstance(saved, dict) or saved.keys() != _SAVED:
                raise TypeError(f"holds a {type(saved).__name__}")
        except Exception as error:  # a damaged file fails in any way that a zip file or a pickle can
            raise RecipeError(f"{path} is damaged ({type(error).__name__}); remove it to start again") from None
        if saved["fingerprint"] != state.fingerprint:
            raise RecipeError(f"{path} belongs to another recipe; choose another --out folder or remove the file")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state.average, state.step = saved["average"], saved["step"]
    return state


def _cut_log(path: Path, step: int) -> None:
    """Drop the rows of steps after the saved state: they are about to be run, and logged, again."""
    if path.exists():
        rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
        beside = path.with_suffix(".new")
        beside.write_text("".join(rows[:step]), encoding="utf-8")
        os.replace(beside, path)  # in one move: a kill at any moment leaves a whole log


def _keep(state: State, path: Path) -> None:
    beside = path.with_suffix(".new")
    saved = {
        "model": state.model.state_dict(),
        "average": state.average,
        "optimizer": state.optimizer.state_dict(),
        "step": state.step,
        "fingerprint": state.fingerprint,
    }
    try:
        torch.save(saved, beside)
        os.replace(beside, path)
    except (OSError, RuntimeError) as error:  # torch's own writer reports a full disk as a RuntimeError
        with suppress(OSError):
            beside.unlink()
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise RunError(f"the training state could not be written to {path}: {reason}; free some space") from None


def _averaged(recipe: Recipe, config: ModelConfig, state: State) -> DiffusionGemma:
    """A model that holds the averaged weights."""
    model = initial_model(config, seed=recipe.train.seed)
    model.load_state_dict(state.average, strict=False)
    return model.requires_grad_(False).eval()


@dataclass(frozen=True)
class _Behind:
    """A model behind one prompt, as the denoise loop wants it."""

    model: DiffusionGemma
    prefix: Prefix

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def denoise(self, tokens: torch.Tensor, soft: torch.Tensor | None) -> torch.Tensor:
        return self.model.denoise(tokens, soft, self.prefix)

    def soften(self, probabilities: torch.Tensor) -> torch.Tensor:
        return self.model.soften(probabilities)


@torch.inference_mode()
def _answer(model: DiffusionGemma, prompt: list[int], policy: Policy, seed: int) -> tuple[list[int], int]:
    """Draft of one canvas behind a prompt, and the steps it took."""
    prefix = Prefix(model.config.layers, room=len(prompt) + model.config.canvas_length)
    model.encode(torch.tensor(prompt), prefix)
    noise = SeededNoise(seed)
    start = fresh(noise, 0, model.config.canvas_length, model.config.vocab_size)
    *_, canvas = settle(_Behind(model, prefix), start, policy, noise)
    return canvas.draft.tolist(), canvas.step
