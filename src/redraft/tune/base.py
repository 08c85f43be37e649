"""What a run starts from: shape, tokenizer and first weights, from a recipe's [model], its `start`, or both.

[model] alone       random weights; a built-in tokenizer
start alone         the checkpoint's weights, tokenizer and template
both                the checkpoint's weights, extended to the recipe's vocabulary
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

from redraft.config import CheckpointConfig, GenerationConfig, ModelConfig, read_config
from redraft.errors import RecipeError
from redraft.files import copy_files
from redraft.images.config import ImageConfig, has_tower, read_images
from redraft.model.gemma import DiffusionGemma
from redraft.shapes import Tensor
from redraft.text import Text, read_text
from redraft.tune.images import attach, tower_of
from redraft.tune.initial import grow, initial_model, random_vision
from redraft.tune.lora import adapt
from redraft.tune.recipe import Recipe, generation_config, model_config
from redraft.tune.vocabulary import build_tokenizer, write_tokenizer
from redraft.weights.gguf import open_source
from redraft.weights.load import load_model
from redraft.weights.names import VISION_PREFIXES
from redraft.weights.plan import packed_matrices
from redraft.weights.save import save_model
from redraft.weights.source import TEXT_FILES, WeightSource, locate
from redraft.weights.vision import stored_tensors

SAMPLE_BYTES, SAMPLES = 1 << 20, 256
"""Of a file of more bytes than their product so many pieces of so many bytes stand for all."""
CONFIGS = ("config.json", "generation_config.json")


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

    @cached_property
    def images(self) -> ImageConfig | None:
        """How the start reads images; None if it reads text alone."""
        if self.recipe.model is not None or self.folder is None or not has_tower(self.config):
            return None
        return read_images(self.folder, self.config)

    @cached_property
    def digests(self) -> dict[str, str]:
        """What the start holds, by its name: a state has only the weights that are trained, and the rest is read from
        there again. Of a large file samples stand for all. Raises RecipeError for a file that cannot be read."""
        if self.folder is None:
            return {}
        files = [
            *(self.folder / name for name in (*STARTED, *CONFIGS)),
            *sorted([*self.folder.glob("*.safetensors"), *self.folder.glob("*.gguf")]),
        ]
        whole = blake2b(digest_size=16)
        try:
            for path in filter(Path.is_file, files):
                size = path.stat().st_size
                whole.update(f"{path.name} {size}\n".encode())
                with path.open("rb") as file:
                    for at in range(0, size, max(SAMPLE_BYTES, size // SAMPLES)):
                        file.seek(at)
                        whole.update(file.read(SAMPLE_BYTES))
        except OSError as error:
            raise RecipeError(f"{self.folder}, the start, cannot be read: {error.strerror}") from None
        return {f"the start {self.recipe.start}": whole.hexdigest()}

    @property
    def trains_tower(self) -> bool:
        """Whether the vision tower is trained, too."""
        return self.recipe.train.tower is True

    def model(self) -> DiffusionGemma:
        """The first weights, in float32 on the CPU, with the start's vision tower as `tower`.

        Raises RecipeError if the start has another shape or other tokens, or is packed.
        """
        if self.recipe.model is None and self.folder is not None:
            model = load_model(self.folder)[0]
            if packed_matrices(model):
                raise RecipeError(f"{self.folder} is packed; train the checkpoint that is not quantized")
            attach(model, self.folder, trained=self.trains_tower)
            return model
        model = initial_model(self.config, seed=self.recipe.train.seed)
        if self.recipe.model is not None and self.folder is not None:
            grow(model, self.folder, self.recipe.model.vocabulary)
        return model

    def adapted(self) -> DiffusionGemma:
        """The first weights, to be trained; if the recipe trains adapters, frozen and with adapters. Raises as
        `model`."""
        model = self.model().requires_grad_(True)
        if self.recipe.lora is not None:
            adapt(model, self.recipe.lora, seed=self.recipe.train.seed)
        if (tower := tower_of(model)) is not None:
            tower.requires_grad_(self.trains_tower)
        return model

    def save(self, model: DiffusionGemma, out: Path) -> None:
        """Write weights and configs; `read_base` has written the tokenizer files."""
        vision: WeightSource | Mapping[str, Tensor] | None = random_vision(self.config, seed=self.recipe.train.seed)
        if self.recipe.model is None and self.folder is not None:
            stored, tower = open_source(self.folder), tower_of(model)
            vision = stored if any(name.startswith(VISION_PREFIXES) for name in stored.tensors) else None
            if tower is not None:
                vision = stored_tensors(tower) if self.trains_tower else vision
                del model.tower
        save_model(model, out, generation=self.generation, vision=vision)


STARTED = (*TEXT_FILES, "special_tokens_map.json")
"""Files of a folder that a run begins with."""


def read_base(recipe: Recipe, out: Path) -> Base:
    """What a recipe starts from; writes its tokenizer files into `out`.

    Raises WeightsError, ConfigError or TextError for a start that is not a whole checkpoint.
    """
    folder = locate(recipe.start) if recipe.start else None
    if recipe.model is None and folder is not None:
        found = read_config(folder)
        if recipe.sampling is not None:
            found = CheckpointConfig(found.model, generation_config(recipe))
            if (most := found.generation.max_new_tokens) >= found.model.max_positions:
                raise RecipeError(
                    f"[sampling] max_new_tokens is {most}; it must be below the context of {recipe.start}"
                    f" ({found.model.max_positions})"
                )
        copy_files(STARTED, folder, out)
        return Base(recipe, found, read_text(folder, found), folder)
    assert recipe.model is not None, "read_recipe refuses a recipe with neither"
    write_tokenizer(out, recipe.model.vocabulary)
    vocab = build_tokenizer(recipe.model.vocabulary).get_vocab_size()
    made = CheckpointConfig(model_config(recipe.model, vocab), generation_config(recipe))
    return Base(recipe, made, read_text(out, made), folder)
