"""Images in training: from the parts of messages to runs of placeholders, and to soft tokens in the clean pass.

A start with a vision tower has it as the model's submodule `tower`: frozen, unless the recipe trains it, too. Batches
carry pictures, not soft tokens, so that a tower that learns is run with its weights of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from redraft.errors import RecipeError, RequestError, TextError
from redraft.images.config import ImageConfig, has_tower
from redraft.images.messages import split_images
from redraft.images.pixels import Picture, read_picture
from redraft.images.prompt import place_images
from redraft.model.gemma import DiffusionGemma
from redraft.model.rows import Inserted
from redraft.model.vision import VisionTower
from redraft.text import Message, Text
from redraft.weights.vision import load_vision


@dataclass(frozen=True)
class Shown:
    """An image in a sequence, or in a batch: the line, the first of its soft tokens, its pixels."""

    start: int
    picture: Picture
    line: int = 0

    @property
    def stop(self) -> int:
        """The token behind its last."""
        return self.start + self.picture.num_tokens


def attach(model: DiffusionGemma, folder: Path, *, trained: bool) -> None:
    """Give a model its checkpoint's tower, if there is one. Raises RecipeError for one to train that is not there."""
    if has_tower(model.config):
        model.add_module("tower", load_vision(folder).requires_grad_(trained))
    elif trained:
        raise RecipeError(f"[train] tower is true, and {folder} has no vision tower; leave it out")


def tower_of(model: DiffusionGemma) -> VisionTower | None:
    """The tower of a model that has one."""
    found = getattr(model, "tower", None)
    return found if isinstance(found, VisionTower) else None


def rendered(
    text: Text, messages: Sequence[Message], config: ImageConfig | None, where: str
) -> tuple[list[int], tuple[Shown, ...]]:
    """Tokens of a conversation, ready for the model's turn, and its images. Raises RecipeError from `where` on."""
    try:
        plain, given = split_images(messages)
        if given and config is None:
            raise RequestError(f"{given[0].part} is an image, and the start reads text alone")
        tokens = text.chat(plain)
        if not given or config is None:
            return tokens, ()
        pictures = [read_picture(one.image, config, part=one.part) for one in given]
        placed, runs = place_images(tokens, [picture.num_tokens for picture in pictures], config)
    except (RequestError, TextError) as error:  # the second where the template fails at what the row has
        raise RecipeError(f"{where}: {error}") from None
    return placed, tuple(Shown(run.start, picture) for run, picture in zip(runs, pictures, strict=True))


def inserted(model: DiffusionGemma, images: Sequence[Shown], length: int) -> Inserted | None:
    """The soft tokens of a batch's images in the place of token embeddings, in lines of `length` tokens."""
    tower = tower_of(model)
    if not images or tower is None:
        return None
    places = [torch.arange(one.line * length + one.start, one.line * length + one.stop) for one in images]
    return Inserted(torch.cat(places).to(model.device), torch.cat([soft_of(tower, one.picture) for one in images]))


def soft_of(tower: VisionTower, picture: Picture) -> torch.Tensor:
    """A picture's soft tokens, with their gradients if the tower is trained."""
    found: torch.Tensor = tower(torch.from_numpy(picture.patches()), picture.columns)
    return found
