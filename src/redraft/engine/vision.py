"""The engine's images: pictures put into a prompt, and their soft tokens, from a tower loaded with the first of them.

message parts ──► pictures ──► runs of placeholders in the prompt        on the caller's thread
picture ──► soft tokens, kept by the digest of its pixels                when its request is opened
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import torch

from redraft.config import ModelConfig
from redraft.constraints.compile.limits import PREPARING, Turns
from redraft.errors import ConfigError, RequestError, WeightsError
from redraft.images.config import ImageConfig, has_tower, read_images
from redraft.images.messages import GivenImage
from redraft.images.parts import png_bytes, scans
from redraft.images.pixels import LIMITS, ImageLimits, Picture, is_small, load_rgb, prepare, sent_pixels
from redraft.images.prompt import PlacedImage, Prompt, place_images
from redraft.model.gemma import DiffusionGemma
from redraft.model.vision import VisionTower
from redraft.shapes import Float, Tensor
from redraft.weights.fingerprint import Stamps, stamps
from redraft.weights.vision import load_vision

MOST_PIXELS, MOST_SCANNED = 4 * LIMITS.num_pixels, 4 * LIMITS.num_scanned
"""Of all images of a prompt, as they are sent."""
KEPT_BYTES = 64 * 2**20
"""Soft tokens that are kept: some forty images of the 26B model's largest size."""

DECODED: ContextVar[dict[bytes, tuple[Picture, int]] | None] = ContextVar("decoded", default=None)


@contextmanager
def decoded_once() -> Iterator[None]:
    """Within this, the bytes of an image are decoded once, however many prompts have it."""
    token = DECODED.set({})
    try:
        yield
    finally:
        DECODED.reset(token)


class Vision:
    """Images for the model of a checkpoint folder that has a vision tower (`vision_of`). Safe to use from any thread.

    `encodings` counts images that went through the tower.
    """

    def __init__(
        self,
        folder: Path,
        model: DiffusionGemma,
        report: Callable[[str], None] | None = None,
        max_bytes: int = KEPT_BYTES,
        files: Stamps | None = None,
    ) -> None:
        self.folder, self.model, self.report, self.max_bytes = folder, model, report, max_bytes
        self._files = stamps(folder, weights_alone=True) if files is None else files
        self.encodings = self.num_bytes = 0
        self._tower: VisionTower | None = None
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()
        # One image at a time is decoded or encoded: the pixels of a large one take more than its request does else.
        self._decoding, self._encoding = Turns(around=PREPARING), threading.Lock()
        self._small = Turns(around=PREPARING)  # which wait for no large one, whose decoding nothing can interrupt

    @cached_property
    def config(self) -> ImageConfig:
        """The checkpoint's image settings. Raises ConfigError for a tower that is not supported."""
        found = read_images(self.folder, self.model.config)
        if found is None:
            raise ConfigError(f"{self.folder} has no vision tower; use a checkpoint that has one")
        return found

    @property
    def is_loaded(self) -> bool:
        """Whether the tower is in memory."""
        return self._tower is not None

    def place(self, tokens: Sequence[int], given: Sequence[GivenImage]) -> Prompt:
        """A rendered prompt with the images in their places; loads the tower, if it is not there yet.

        Raises RequestError for an image that cannot be used, ConfigError and WeightsError for a tower that cannot be.
        """
        if (sent := sum(sent_pixels(one.image) for one in given)) > MOST_PIXELS:
            raise RequestError(
                f"the images have {sent} pixels in all; at most {MOST_PIXELS}, so send fewer or smaller ones"
            )
        pictures, pixels, scanned = [], MOST_PIXELS, MOST_SCANNED
        for one in given:
            limits = ImageLimits(
                num_pixels=min(LIMITS.num_pixels, pixels), num_scanned=min(LIMITS.num_scanned, scanned)
            )
            picture, size = self._decode(one, limits)
            pictures.append(picture)
            pixels, scanned = pixels - size, scanned - size * scans(one.image)
        placed, runs = place_images(tokens, [picture.num_tokens for picture in pictures], self.config)
        if not self.is_loaded:
            with PREPARING.aside(), self._encoding:
                self._load()
        images = zip(runs, pictures, strict=True)
        return Prompt(tuple(placed), tuple(PlacedImage(run, picture, self.encode) for run, picture in images))

    def check(self, prompt: Prompt) -> None:
        """Raises RequestError for a prompt without images that has an image's token: nothing would be in its place."""
        try:
            placeholder = self.config.placeholder
        except ConfigError:
            return  # a tower that is not supported does not prevent text
        if not prompt.images and placeholder in prompt.tokens:
            place_images(prompt.tokens, (), self.config)

    def _decode(self, one: GivenImage, limits: ImageLimits) -> tuple[Picture, int]:
        """An image for the tower, and its pixels as it was sent, one of many bits as several. Callers take turns."""
        kept, key = DECODED.get(), blake2b(one.image).digest() if isinstance(one.image, bytes) else None
        if kept is None or key is None:
            return self._decoded(one, limits)
        picture, size = kept.get(key) or self._decoded(one, limits)
        if size > limits.num_pixels or size * scans(one.image) > max(size, limits.num_scanned):
            return self._decoded(one, limits)  # says what is too large
        kept[key] = picture, size
        return picture, size

    def _decoded(self, one: GivenImage, limits: ImageLimits) -> tuple[Picture, int]:
        with self._small.turn(secrets.token_hex(), counted=False):
            if isinstance(one.image, bytes) and is_small(one.image):
                return self._prepared(one, limits)
        with self._decoding.turn(secrets.token_hex(), counted=False):
            return self._prepared(one, limits)

    def _prepared(self, one: GivenImage, limits: ImageLimits) -> tuple[Picture, int]:
        image = load_rgb(one.image, part=one.part, limits=limits)
        unpacked = png_bytes(one.image) if isinstance(one.image, bytes) else 0
        return prepare(image, self.config, part=one.part), max(image.width * image.height, unpacked // 4)

    @torch.inference_mode()
    def encode(self, picture: Picture) -> Float[Tensor, "tokens hidden"]:
        """A picture's soft tokens, which are encoded once while they are kept."""
        with self._encoding:
            soft = self._kept.pop(picture.digest, None)
            if soft is None:
                soft = self._load()(torch.from_numpy(picture.patches()), picture.columns)
                self.encodings += 1
                self.num_bytes += soft.nbytes
            self._kept[picture.digest] = soft
            while self.num_bytes > self.max_bytes:
                self.num_bytes -= self._kept.popitem(last=False)[1].nbytes
            return soft

    def _load(self) -> VisionTower:
        if self._tower is None:
            if stamps(self.folder, weights_alone=True) != self._files:  # its tower might be another model's
                raise WeightsError(f"the files of {self.folder} were changed since the model was loaded; load it anew")
            device, dtype = self.model.device, self.model.dtype
            self._tower = load_vision(self.folder, dtype=dtype, device=device, report=self.report)
        return self._tower


def vision_of(
    folder: Path, model: DiffusionGemma, config: ModelConfig, report: Callable[[str], None] | None, files: Stamps
) -> Vision | None:
    """The images of a checkpoint, whose weights were in such `files`; None if it is text only."""
    return Vision(folder, model, report, files=files) if has_tower(config) else None
