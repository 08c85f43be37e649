"""What a run starts from: shape, tokenizer and first weights, from a recipe's [model], its `start`, or both.

[model] alone       random weights; a built-in tokenizer
start alone         the checkpoint's weights, tokenizer and template
both                the checkpoint's weights, extended to the recipe's vocabulary
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from redraft.config import CheckpointConfig, GenerationConfig, ModelConfig, read_config
from redraft.errors import RecipeError
from redraft.files import copy_files
from redraft.model.gemma import DiffusionGemma
from redraft.shapes import Tensor
from redraft.text import Text, read_text
from redraft.tune.initial import grow, initial_model, random_vision
from redraft.tune.lora import adapt
from redraft.tune.recipe import Recipe, generation_config, model_config
from redraft.tune.vocabulary import build_tokenizer, write_tokenizer
from redraft.weights.load import load_model
from redraft.weights.names import VISION_PREFIXES
from redraft.weights.plan import packed_matrices
from redraft.weights.save import save_model
from redraft.weights.source import TEXT_FILES, Source, locate


@dataclass(frozen=True)
class Base:
    """Config and tokenizer of a run. `folder` is the checkpoint that it starts from, if any."""

    recipe: Recipe
    checkpoint: CheckpointConfig
    text: Text
    folder: Path | None

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.model

    @property
    def generation(self) -> GenerationConfig:
        return self.checkpoint.generation

    def model(self) -> DiffusionGemma:
        """The first weights, in float32 on the CPU. Raises RecipeError if the start has another shape or is packed."""
        if self.recipe.model is None and self.folder is not None:
            model = load_model(self.folder)[0]
            if packed_matrices(model):
                raise RecipeError(f"{self.folder} is packed; train the checkpoint that is not quantized")
            return model
        model = initial_model(self.config, seed=self.recipe.train.seed)
        if self.folder is not None:
            grow(model, self.folder)
        return model

    def adapted(self) -> DiffusionGemma:
        """The first weights; if the recipe trains adapters, frozen and with adapters. Raises as `model`."""
        model = self.model()
        if self.recipe.lora is not None:
            adapt(model, self.recipe.lora, seed=self.recipe.train.seed)
        return model

    def save(self, model: DiffusionGemma, out: Path) -> None:
        """Write weights and configs; `read_base` has written the tokenizer files."""
        vision: Source | Mapping[str, Tensor] | None = random_vision(self.config, seed=self.recipe.train.seed)
        if self.recipe.model is None and self.folder is not None:
            stored = Source(self.folder)
            vision = stored if any(name.startswith(VISION_PREFIXES) for name in stored.tensors) else None
        save_model(model, out, generation=self.generation, vision=vision)


def read_base(recipe: Recipe, out: Path) -> Base:
    """What a recipe starts from; writes its tokenizer files into `out`.

    Raises WeightsError, ConfigError or TextError for a start that is not a whole checkpoint.
    """
    folder = locate(recipe.start) if recipe.start else None
    if recipe.model is None and folder is not None:
        found = read_config(folder)
        if recipe.sampling is not None:
            found = CheckpointConfig(found.model, generation_config(recipe))
        copy_files((*TEXT_FILES, "special_tokens_map.json"), folder, out)
        return Base(recipe, found, read_text(folder, found), folder)
    assert recipe.model is not None, "read_recipe refuses a recipe with neither"
    write_tokenizer(out, recipe.model.vocabulary)
    vocab = build_tokenizer(recipe.model.vocabulary).get_vocab_size()
    made = CheckpointConfig(model_config(recipe.model, vocab), generation_config(recipe))
    return Base(recipe, made, read_text(out, made), folder)
