"""A training recipe: what to train, on what, for how long. Read from TOML, checked once, frozen.

    [model]     shape of the network
    [data]      tasks and their shares; each task makes its own examples (`redraft.tasks`)
    [train]     steps, batch, optimizer, seed
    [sampling]  what generation_config.json will say

An unknown key is refused by name, so a misspelt option can never be ignored.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from redraft.config import FULL, MOST_THREADS, SLIDING, GenerationConfig, LayerConfig, ModelConfig, RopeConfig
from redraft.errors import ConfigError, RecipeError
from redraft.tasks import task


class ModelRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes in elements; `layers` spells the kinds from first to last, "sliding" or "full", the last one full."""

    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_heads: int
    num_experts: int
    top_k_experts: int
    layers: tuple[str, ...]
    head_dim: int = 32
    full_head_dim: int = 64
    num_kv_heads: int = 2
    num_full_kv_heads: int = 1
    window: int = 64
    max_positions: int = 512
    canvas_length: int = 32


class DataRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tasks` maps a task's name to its share of every batch; shares are relative."""

    tasks: dict[str, float]


class TrainRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`encode_steps` come first and train the causal mode alone; then `steps` of both losses together."""

    steps: int
    batch_size: int
    encode_steps: int = 0
    lr: float = 2e-3
    final_lr: float = 1e-4
    warmup: int = 100
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.999
    seed: int = 0
    threads: int = 2
    probe_every: int = 500
    probe_examples: int = 40
    save_every: int = 250


class SamplingRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the reference sampler shipped with the result."""

    max_new_tokens: int = 32
    max_denoising_steps: int = 16
    entropy_bound: float = 0.1
    confidence_threshold: float = 0.005


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One training run."""

    name: str
    model: ModelRecipe
    data: DataRecipe
    train: TrainRecipe
    sampling: SamplingRecipe = SamplingRecipe()


def read_recipe(path: Path) -> Recipe:
    """Parse and check a recipe file. Raises RecipeError naming the key and what it must be."""
    try:
        recipe = msgspec.toml.decode(path.read_bytes(), type=Recipe)
    except OSError as error:
        raise RecipeError(f"{path} cannot be read ({error.strerror}); pass the path of a recipe file") from None
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: {error}; see docs/tuning.md for the keys") from None
    _check(recipe)
    try:
        model_config(recipe, vocab_size=LEAST_VOCAB)
    except ConfigError as error:
        raise RecipeError(f"[model] {error}") from None
    try:
        generation_config(recipe)
    except ConfigError as error:
        raise RecipeError(f"[sampling] {error}") from None
    return recipe


def model_config(recipe: Recipe, vocab_size: int) -> ModelConfig:
    """The network's config; end tokens are `<eos>` and the turn end of the tokenizer that `tune.vocabulary` builds."""
    shape = recipe.model
    sliding = LayerConfig(shape.window, shape.num_kv_heads, shape.head_dim, RopeConfig(10_000.0))
    full = LayerConfig(None, shape.num_full_kv_heads, shape.full_head_dim, RopeConfig(1_000_000.0, 0.25))
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        moe_intermediate_size=shape.moe_intermediate_size,
        num_heads=shape.num_heads,
        num_experts=shape.num_experts,
        top_k_experts=shape.top_k_experts,
        layers=tuple(full if kind == "full" else sliding for kind in shape.layers),
        max_positions=shape.max_positions,
        canvas_length=shape.canvas_length,
        eos_token_ids=(1, 5),
        vision=TINY_VISION,
        root={"boi_token_id": 0, "eoi_token_id": 0, "image_token_id": vocab_size - 1},
    )


def generation_config(recipe: Recipe) -> GenerationConfig:
    """What the trained checkpoint's generation_config.json will say."""
    wanted = recipe.sampling
    return GenerationConfig(
        max_new_tokens=wanted.max_new_tokens,
        max_denoising_steps=wanted.max_denoising_steps,
        entropy_bound=wanted.entropy_bound,
        confidence_threshold=wanted.confidence_threshold,
        eos_token_ids=(1, 5),
    )


LEAST_VOCAB = 6  # the special tokens, which the config names

# The format has a vision tower. A text-only model of ours carries the smallest one that transformers will build.
TINY_VISION = {
    "model_type": "gemma4_vision",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "global_head_dim": 8,
    "patch_size": 2,
    "pooling_kernel_size": 2,
    "position_embedding_size": 4,
    "default_output_length": 4,
    "standardize": True,
}


def _check(recipe: Recipe) -> None:
    kinds = {"sliding": SLIDING, "full": FULL}
    wrong = [kind for kind in recipe.model.layers if kind not in kinds]
    if wrong or not recipe.model.layers or recipe.model.layers[-1] != "full":
        raise RecipeError(
            f'[model] layers is {list(recipe.model.layers)}; it must hold "sliding" and "full" and end in "full"'
        )
    for key, value in msgspec.structs.asdict(recipe.model).items():
        if isinstance(value, int) and value < 1:
            raise RecipeError(f"[model] {key} is {value}; it must be at least 1")
    for name in ("num_kv_heads", "num_full_kv_heads"):
        heads = getattr(recipe.model, name)
        if recipe.model.num_heads % heads:
            raise RecipeError(f"[model] {name} is {heads}; it must divide num_heads ({recipe.model.num_heads})")
    if recipe.sampling.max_new_tokens >= recipe.model.max_positions:
        raise RecipeError(
            f"[sampling] max_new_tokens is {recipe.sampling.max_new_tokens}; prompt and answer share the context:"
            f" it must be below [model] max_positions ({recipe.model.max_positions})"
        )
    _check_train(recipe.train)
    for name, share in recipe.data.tasks.items():
        task(name)
        if not 0 < share < math.inf:
            raise RecipeError(f"[data] the share of {name} is {share}; it must be a number above 0")
    if not recipe.data.tasks:
        raise RecipeError("[data] tasks is {}; name at least one task")


def _check_train(train: TrainRecipe) -> None:
    for key in ("steps", "batch_size", "threads", "save_every", "probe_every", "probe_examples"):
        if getattr(train, key) < 1:
            raise RecipeError(f"[train] {key} is {getattr(train, key)}; it must be at least 1")
    if train.threads > MOST_THREADS:
        raise RecipeError(f"[train] threads is {train.threads}; it must be at most {MOST_THREADS}")
    for key in ("encode_steps", "warmup", "seed"):
        if not 0 <= getattr(train, key) < 2**31:
            raise RecipeError(f"[train] {key} is {getattr(train, key)}; it must be from 0 to {2**31 - 1}")
    for key in ("lr", "clip"):
        if not 0 < getattr(train, key) < math.inf:
            raise RecipeError(f"[train] {key} is {getattr(train, key)}; it must be a number above 0")
    for key in ("final_lr", "weight_decay"):
        if not 0 <= getattr(train, key) < math.inf:
            raise RecipeError(f"[train] {key} is {getattr(train, key)}; it must be a number of at least 0")
    for key, value in (("betas", train.betas[0]), ("betas", train.betas[1]), ("ema", train.ema)):
        if not 0 <= value < 1:
            raise RecipeError(f"[train] {key} has {value}; it must be from 0 to below 1")
