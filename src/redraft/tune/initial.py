"""First weights of a training run, and the vision tower that the format requires of our text-only models."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from redraft.config import ModelConfig
from redraft.errors import RecipeError
from redraft.images.config import parse_vision
from redraft.model.gemma import DiffusionGemma
from redraft.shapes import Tensor
from redraft.tune.vocabulary import build_tokenizer
from redraft.weights.build import empty_model
from redraft.weights.load import load_model
from redraft.weights.vision import stored_shapes


@torch.no_grad()
def initial_model(config: ModelConfig, *, seed: int) -> DiffusionGemma:
    """A float32 model on the CPU with weights drawn from `seed`, scaled for training from nothing.

    Matrices keep the variance of what they multiply. Queries and keys start at d^-1/4 each, because the network has no
    1/√d in its scores; branch norms start at (2 layers)^-1/2, so that the residual stream keeps its scale.
    """
    model = empty_model(config, dtype=torch.float32, device="cpu")
    generator = torch.Generator().manual_seed(seed)
    for name, value in sorted(model.state_dict().items()):
        value.copy_(_initial(name, value, generator, config))
    return model


@torch.no_grad()
def grow(model: DiffusionGemma, folder: Path, vocabulary: str) -> None:
    """Fill a model of a vocabulary from a checkpoint of its shape, whose vocabulary is the first part of the model's.

    A new token starts as the mean of the tokens that the checkpoint's tokenizer makes of it. Raises RecipeError for
    another shape or other tokens.
    """
    old, new = Tokenizer.from_file(str(folder / "tokenizer.json")), build_tokenizer(vocabulary).get_vocab()
    if not old.get_vocab().items() <= new.items():
        raise RecipeError(
            f"[model] vocabulary is {vocabulary!r}, which does not begin with the tokens of the start, {str(folder)!r};"
            " leave out [model], or give a vocabulary that does"
        )
    start, _ = load_model(folder)
    mine, theirs = model.state_dict(), start.state_dict()
    for name, value in mine.items():
        if name == "embed.weight":
            continue
        if name not in theirs or theirs[name].shape != value.shape:
            found = tuple(theirs[name].shape) if name in theirs else "absent"
            raise RecipeError(
                f"[model] start is {str(folder)!r}, where {name} is {found}; this recipe's is {tuple(value.shape)}"
            )
        value.copy_(theirs[name])
    table, size = theirs["embed.weight"].float(), old.get_vocab_size()
    mine["embed.weight"][:size] = table[:size]
    for token, i in new.items():
        if i >= size:
            pieces = old.encode(token.replace("▁", " "), add_special_tokens=False).ids
            mine["embed.weight"][i] = table[pieces].mean(0)


def random_vision(config: ModelConfig, *, seed: int) -> dict[str, Tensor]:
    """Random tensors, by stored name, for the vision tower that the format requires and our text models never run."""
    if config.vision is None:
        return {}
    vision, _ = parse_vision(config.vision)
    generator = torch.Generator().manual_seed(seed)
    shapes = stored_shapes(vision, config.hidden_size)
    return {name: 0.02 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def _initial(name: str, value: Tensor, generator: torch.Generator, config: ModelConfig) -> Tensor:
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return torch.full_like(value, value.shape[0] ** -0.25)
    if name.endswith(("post_attention_norm.weight", "post_ffw_norm.weight")):
        return torch.full_like(value, (2 * len(config.layers)) ** -0.5)
    if name.endswith("router.scale"):
        return torch.full_like(value, config.hidden_size**0.5)  # undoes the router's own d^-1/2
    if value.ndim == 1:
        return torch.ones_like(value)
    spread: float = value.shape[-1] ** -0.5
    return spread * torch.randn(value.shape, generator=generator)
