"""A checkpoint's image settings: the shape of its vision tower, three token ids, and the largest size of a picture.

`config.json` has the tower (`vision_config`) and the ids; `processor_config.json` or `preprocessor_config.json`, if
present, has the size. They are not read with the text model's config, so that an unsupported section does not prevent
the text model from running.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

from redraft.config import ModelConfig
from redraft.errors import ConfigError
from redraft.reader import Reader, read_json

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
"""The smallest vision tower that transformers builds. The format requires a text-only model to declare a tower."""

_MOST_LAYERS = 10_000
_MOST_TOKENS = 4096  # soft tokens of an image; the released processor goes to 1120
_SOFT_TOKENS = 280

# Keys whose value cannot change what the tower computes at inference.
_INERT = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "chunk_size_feed_forward",
        "default_output_length",  # a picture's size says how many tokens it has
        "dtype",
        "global_head_dim",  # the tower has no full layers apart
        "id2label",
        "initializer_range",
        "is_encoder_decoder",
        "label2id",
        "max_position_embeddings",
        "output_attentions",
        "output_hidden_states",
        "problem_type",
        "return_dict",
        "torch_dtype",
        "transformers_version",
    }
)


@dataclass(frozen=True)
class VisionConfig:
    """The shape of a vision tower. Sizes are element counts; a patch is a square of `patch_size` pixels.

    `pooling` squared patches become one soft token. `positions` is the number of rows, and of columns, of patches that
    have an embedding. With `clipped` linears clamp input and output to stored bounds.
    """

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    patch_size: int = 16
    pooling: int = 3
    positions: int = 10_240
    theta: float = 100.0
    norm_eps: float = 1e-6
    clipped: bool = False
    standardize: bool = False

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"vision_config.num_key_value_heads is {self.kv_heads}; it must divide {self.heads}, the heads"
            )
        if self.head_dim % 4:
            raise ConfigError(
                f"vision_config.head_dim is {self.head_dim}; it must be a multiple of 4, for two halves of pairs"
            )

    @property
    def patch_values(self) -> int:
        """Numbers of a patch: its pixels in three colours."""
        return 3 * self.patch_size**2

    @property
    def token_side(self) -> int:
        """Pixels along one side of the square of one soft token."""
        return self.pooling * self.patch_size


@dataclass(frozen=True)
class ImageConfig:
    """Images in a prompt: an image is `begin`, then `placeholder` once per soft token, then `end`.

    `most_tokens` is the largest number of soft tokens of one image. `unknown_keys` are unknown keys of the two files.
    """

    vision: VisionConfig
    begin: int
    placeholder: int
    end: int
    most_tokens: int = _SOFT_TOKENS
    unknown_keys: tuple[str, ...] = ()


def read_images(folder: Path, model: ModelConfig) -> ImageConfig | None:
    """Image settings of the checkpoint in a folder; None if it is text only. Raises ConfigError as `read_config`."""
    for name, key in (("processor_config.json", "image_processor"), ("preprocessor_config.json", None)):
        if (folder / name).is_file():
            found = read_json(folder / name)
            inner = found if key is None else found.get(key)
            if isinstance(inner, Mapping):
                return parse_images(model, inner)
    return parse_images(model, {})


def parse_images(model: ModelConfig, processor: Mapping[str, Any]) -> ImageConfig | None:
    """The same from a model's config and the JSON of its image processor, which may be empty."""
    if not has_tower(model):
        return None
    shape, unknown = parse_vision(model.vision or {})
    root, take = Reader(model.root, ""), Reader(processor, "image_processor.")
    stated = root.integer("vision_soft_tokens_per_image", _SOFT_TOKENS, high=_MOST_TOKENS)
    most = take.integer("max_soft_tokens", stated, high=_MOST_TOKENS)
    _check_processor(take, shape)
    ids = {
        "boi_token_id": root.integer("boi_token_id", 255_999, low=0),
        "image_token_id": root.integer("image_token_id", 258_880, low=0),
        "eoi_token_id": root.integer("eoi_token_id", 258_882, low=0),
    }
    for key, token in ids.items():
        if token >= model.vocab_size:
            raise ConfigError(f"{key} is {token}; it must be in the vocabulary, below vocab_size ({model.vocab_size})")
    if len(set(ids.values())) < len(ids):
        raise ConfigError(f"{', '.join(ids)} are {', '.join(map(str, ids.values()))}; they must differ")
    begin, placeholder, end = ids.values()
    return ImageConfig(shape, begin, placeholder, end, most_tokens=most, unknown_keys=unknown)


def has_tower(model: ModelConfig) -> bool:
    """Whether a model has a real vision tower, not only the one that the format requires (`TINY_VISION`)."""
    return model.vision is not None and dict(model.vision) != TINY_VISION


def parse_vision(section: Mapping[str, Any]) -> tuple[VisionConfig, tuple[str, ...]]:
    """The shape of a tower and the names of unknown keys, from `vision_config`. Raises ConfigError for the unsupported.

    Absent keys have the defaults of transformers' config class.
    """
    take = Reader(section, "vision_config.", _INERT)
    take.fixed("model_type", ("gemma4_vision",))
    take.fixed("hidden_activation", ("gelu_pytorch_tanh",))
    take.fixed("attention_bias", (False, None))
    heads = take.integer("num_attention_heads", 12)
    rope = take.inner("rope_parameters")
    rope.fixed("rope_type", ("axial", "default"))  # older files call the axial form the default one
    rope.fixed("partial_rotary_factor", (1.0,))
    config = VisionConfig(
        hidden_size=take.integer("hidden_size", 768),
        intermediate_size=take.integer("intermediate_size", 3072),
        layers=take.integer("num_hidden_layers", 16, high=_MOST_LAYERS),
        heads=heads,
        kv_heads=take.integer("num_key_value_heads", 12),
        head_dim=take.integer("head_dim", 64),
        patch_size=take.integer("patch_size", 16, high=1024),
        pooling=take.integer("pooling_kernel_size", 3, high=64),
        positions=take.integer("position_embedding_size", 10_240),
        theta=rope.number("rope_theta", 100.0),
        norm_eps=take.number("rms_norm_eps", 1e-6),
        clipped=_flag(take, "use_clipped_linears"),
        standardize=_flag(take, "standardize"),
    )
    return config, take.unread()


def _check_processor(take: Reader, vision: VisionConfig) -> None:
    """Refuse a processor that prepares pictures differently from `images/pixels.py`."""
    take.fixed("patch_size", (vision.patch_size, None))
    take.fixed("pooling_kernel_size", (vision.pooling, None))
    for key, needed in (("do_convert_rgb", True), ("do_resize", True), ("do_rescale", True), ("do_normalize", False)):
        take.fixed(key, (needed, None))
    take.fixed("resample", (3, None))  # bicubic
    factor = take.number("rescale_factor", 1 / 255)
    if not isclose(factor, 1 / 255, rel_tol=1e-6):
        raise take.refusal("rescale_factor", factor, "supported: 1/255")


def _flag(take: Reader, key: str) -> bool:
    found = take.value(key, False)
    if not isinstance(found, bool):
        raise take.refusal(key, found, "it must be true or false")
    return found
