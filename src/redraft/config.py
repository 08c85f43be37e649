"""A checkpoint's `config.json`, `generation_config.json` and `redraft.json`, read once into frozen records.

Both published spellings of the full layers' geometry are read: `global_head_dim` / `num_global_key_value_heads` (the
released file) and `per_layer_config` (written by transformers >= 5.2x). An unknown key is reported. An unsupported
value is refused with the key, the value and the supported values.

This file does no tensor work and imports nothing heavy, so the command line can read a config without torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from redraft.errors import ConfigError
from redraft.options import MOST_STEPS, PRESET_NAMES
from redraft.reader import Reader, read_json

SLIDING, FULL = "sliding_attention", "full_attention"
OWN_FILE = "redraft.json"

# Keys whose value cannot change what a text forward computes at inference.
_INERT_TEXT = frozenset(
    {
        "attention_dropout",  # training only
        "dtype",
        "initializer_range",
        "model_type",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
_INERT_ROOT = frozenset(
    {
        "architectures",
        "audio_config",
        "boi_token_id",
        "dtype",
        "eoi_token_id",
        "image_token_id",
        "initializer_range",
        "torch_dtype",
        "transformers_version",
        "video_token_id",
        "vision_soft_tokens_per_image",
    }
)
_INERT_GENERATION = frozenset({"_from_model_config", "return_dict_in_generate", "transformers_version"})

# Lists and buffers have these lengths: a damaged number must not fill the memory.
_MOST_LAYERS, _MOST_CANVAS = 10_000, 65_536

MOST_THREADS = 1024
"""Most processor threads: at some number above this, torch ends the process."""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding of one kind of layer (model spec 1.4).

    `rotary_fraction` < 1 is the "proportional" form: the exponent's denominator stays the whole head_dim.
    """

    theta: float
    rotary_fraction: float = 1.0
    factor: float = 1.0


@dataclass(frozen=True)
class LayerConfig:
    """Attention geometry of one layer. `window` is None on a full layer, where keys and values share a projection."""

    window: int | None
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig

    @property
    def is_full(self) -> bool:
        return self.window is None


@dataclass(frozen=True)
class ModelConfig:
    """The network's shape. Sizes are element counts; the last of `layers` is full.

    A text forward does not read `vision` and `root`; `model_json` writes them back.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_heads: int
    num_experts: int
    top_k_experts: int
    layers: tuple[LayerConfig, ...]
    max_positions: int
    canvas_length: int
    norm_eps: float = 1e-6
    logit_cap: float = 30.0
    pad_token_id: int = 0
    eos_token_ids: tuple[int, ...] = (1,)
    bos_token_id: int = 2
    vision: Mapping[str, Any] | None = field(default=None, compare=False)
    root: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        _check_shape(self)

    @property
    def window(self) -> int:
        """Width of the sliding window in tokens, the query itself included; 0 when every layer is full."""
        return next((layer.window for layer in self.layers if layer.window is not None), 0)


@dataclass(frozen=True)
class GenerationConfig:
    """The checkpoint's sampler settings; defaults are the released model's (model spec 3.7).

    `preset` names the sampler rules that the checkpoint was trained for: the rules of every request that names none. It
    is in `redraft.json`, a file of our own, because transformers refuses unknown keys.
    """

    max_new_tokens: int = 256
    max_denoising_steps: int = 48
    t_min: float = 0.4
    t_max: float = 0.8
    entropy_bound: float = 0.1
    stability_threshold: int = 1
    confidence_threshold: float = 0.005
    eos_token_ids: tuple[int, ...] = (1, 106, 50)
    pad_token_id: int = 0
    bos_token_id: int = 2
    preset: str = "reference"

    def __post_init__(self) -> None:
        _require("preset", self.preset, self.preset in PRESET_NAMES, f"one of {', '.join(PRESET_NAMES)}")
        _require("max_new_tokens", self.max_new_tokens, self.max_new_tokens >= 1, "an integer of at least 1")
        _require("max_denoising_steps", n := self.max_denoising_steps, 1 <= n <= MOST_STEPS, f"from 1 to {MOST_STEPS}")
        _require("t_min", self.t_min, 0 < self.t_min <= self.t_max, f"above 0 and at most t_max ({self.t_max})")
        _require("entropy_bound", self.entropy_bound, 0 < self.entropy_bound < math.inf, "a number above 0 (nats)")
        _require("stability_threshold", self.stability_threshold, self.stability_threshold >= 0, "0 or more")
        _require("confidence_threshold", x := self.confidence_threshold, 0 < x < math.inf, "a number above 0 (nats)")


@dataclass(frozen=True)
class CheckpointConfig:
    """The config files of one checkpoint, and the names of their unknown keys."""

    model: ModelConfig
    generation: GenerationConfig
    unknown_keys: tuple[str, ...] = ()


def read_config(folder: Path) -> CheckpointConfig:
    """Read `config.json` and, if present, `generation_config.json` and `redraft.json` from a checkpoint folder.

    Raises ConfigError for a file that is absent, not JSON, of another model or with an unsupported value.
    """
    model, unknown = parse_model(read_json(folder / "config.json"))
    generation = GenerationConfig(
        eos_token_ids=model.eos_token_ids, pad_token_id=model.pad_token_id, bos_token_id=model.bos_token_id
    )
    path = folder / "generation_config.json"
    if path.exists():
        generation, more = parse_generation(read_json(path), generation)
        unknown += more
    if (folder / OWN_FILE).exists():
        own = Reader(read_json(folder / OWN_FILE), "redraft.")
        preset = own.value("preset", generation.preset)
        if not isinstance(preset, str):
            raise own.refusal("preset", preset, "it must be a text")
        generation = replace(generation, preset=preset)
        unknown += own.unread()
    return CheckpointConfig(model, generation, unknown)


def parse_model(root: Mapping[str, Any]) -> tuple[ModelConfig, tuple[str, ...]]:
    """ModelConfig from the JSON of `config.json`, and the names of unknown keys. Raises as `read_config`."""
    kind = root.get("model_type")
    if kind != "diffusion_gemma":
        raise ConfigError(f"config.json: model_type is {kind!r}; supported: 'diffusion_gemma'")
    top = Reader(root, "", _INERT_ROOT)
    top.fixed("model_type", ("diffusion_gemma",))
    top.fixed("tie_word_embeddings", (True,))
    top.mapping("quantization_config")  # read where the weights are
    take = top.inner("text_config", _INERT_TEXT)
    for key, allowed in _FIXED_TEXT.items():
        take.fixed(key, allowed)
    config = ModelConfig(
        vocab_size=take.integer("vocab_size"),
        hidden_size=take.integer("hidden_size"),
        intermediate_size=take.integer("intermediate_size"),
        moe_intermediate_size=take.integer("moe_intermediate_size"),
        num_heads=take.integer("num_attention_heads"),
        num_experts=take.integer("num_experts"),
        top_k_experts=take.integer("top_k_experts"),
        layers=_read_layers(take),
        max_positions=take.integer("max_position_embeddings"),
        canvas_length=top.integer("canvas_length", 256, high=_MOST_CANVAS),
        norm_eps=take.number("rms_norm_eps", 1e-6),
        logit_cap=take.number("final_logit_softcapping", 30.0),
        pad_token_id=take.integer("pad_token_id", 0, low=0),
        eos_token_ids=top.integers("eos_token_id", take.integers("eos_token_id", (1,))),
        bos_token_id=take.integer("bos_token_id", 2, low=0),
        vision=top.mapping("vision_config") or None,
        root={key: value for key, value in root.items() if key in _INERT_ROOT},
    )
    return config, top.unread()


def parse_generation(
    root: Mapping[str, Any], base: GenerationConfig | None = None
) -> tuple[GenerationConfig, tuple[str, ...]]:
    """GenerationConfig from the JSON of `generation_config.json`; keys it lacks keep the values of `base`."""
    take = Reader(root, "generation_config.", _INERT_GENERATION)
    base = base or GenerationConfig()
    sampler = take.inner("sampler_config")
    if sampler.source:
        name = sampler.value("_cls_name")
        if name != "EntropyBoundSamplerConfig":
            raise sampler.refusal("_cls_name", name, "supported: 'EntropyBoundSamplerConfig'")
    config = GenerationConfig(
        max_new_tokens=take.integer("max_new_tokens", base.max_new_tokens),
        max_denoising_steps=take.integer("max_denoising_steps", base.max_denoising_steps),
        t_min=take.number("t_min", base.t_min),
        t_max=take.number("t_max", base.t_max),
        entropy_bound=sampler.number("entropy_bound", base.entropy_bound),
        stability_threshold=take.integer("stability_threshold", base.stability_threshold, low=0),
        confidence_threshold=take.number("confidence_threshold", base.confidence_threshold),
        eos_token_ids=take.integers("eos_token_id", base.eos_token_ids),
        pad_token_id=take.integer("pad_token_id", base.pad_token_id, low=0),
        bos_token_id=take.integer("bos_token_id", base.bos_token_id, low=0),
        preset=base.preset,
    )
    return config, take.unread()


def model_json(config: ModelConfig, dtype: str) -> dict[str, Any]:
    """The `config.json` of a model, in the form that transformers 5.23 writes and reads."""
    sliding = next((layer for layer in config.layers if not layer.is_full), config.layers[-1])
    full = config.layers[-1]
    text = {
        "model_type": "diffusion_gemma_text",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "moe_intermediate_size": config.moe_intermediate_size,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": sliding.num_kv_heads,
        "head_dim": sliding.head_dim,
        "num_experts": config.num_experts,
        "top_k_experts": config.top_k_experts,
        "sliding_window": sliding.window or config.max_positions,
        "max_position_embeddings": config.max_positions,
        "layer_types": [FULL if layer.is_full else SLIDING for layer in config.layers],
        "per_layer_config": {
            str(i): {"head_dim": layer.head_dim, "num_key_value_heads": layer.num_kv_heads}
            for i, layer in enumerate(config.layers)
            if layer.is_full or layer != sliding
        },
        "rope_parameters": {SLIDING: _rope_json(sliding.rope), FULL: _rope_json(full.rope)},
        "rms_norm_eps": config.norm_eps,
        "final_logit_softcapping": config.logit_cap,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "use_bidirectional_attention": "vision",
        "tie_word_embeddings": True,
        "pad_token_id": config.pad_token_id,
        "eos_token_id": config.eos_token_ids[0],
        "bos_token_id": config.bos_token_id,
    }
    root = {"architectures": ["DiffusionGemmaForBlockDiffusion"], **config.root, "dtype": dtype}
    root |= {"model_type": "diffusion_gemma", "tie_word_embeddings": True, "canvas_length": config.canvas_length}
    root |= {"text_config": text, "eos_token_id": list(config.eos_token_ids)}
    return root | ({"vision_config": dict(config.vision)} if config.vision is not None else {})


def generation_json(config: GenerationConfig) -> dict[str, Any]:
    """The `generation_config.json` of a sampler setting, in transformers' form."""
    return {
        "max_new_tokens": config.max_new_tokens,
        "max_denoising_steps": config.max_denoising_steps,
        "t_min": config.t_min,
        "t_max": config.t_max,
        "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": config.entropy_bound},
        "stability_threshold": config.stability_threshold,
        "confidence_threshold": config.confidence_threshold,
        "eos_token_id": list(config.eos_token_ids),
        "pad_token_id": config.pad_token_id,
        "bos_token_id": config.bos_token_id,
    }


_FIXED_TEXT: dict[str, tuple[object, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "attention_bias": (False,),
    "tie_word_embeddings": (True,),
    "use_bidirectional_attention": ("vision", None),
    "attention_k_eq_v": (True,),
    "enable_moe_block": (True,),
}


def _read_layers(take: Reader) -> tuple[LayerConfig, ...]:
    count = take.integer("num_hidden_layers", high=_MOST_LAYERS)
    kinds = take.value("layer_types", [FULL if (i + 1) % 6 == 0 or i + 1 == count else SLIDING for i in range(count)])
    if not isinstance(kinds, list) or len(kinds) != count:
        raise take.refusal("layer_types", kinds, f"it must be a list with num_hidden_layers ({count}) entries")
    for i, kind in enumerate(kinds):
        if kind not in (SLIDING, FULL):
            raise take.refusal(f"layer_types[{i}]", kind, f"supported: {SLIDING!r}, {FULL!r}")
    if kinds[-1] != FULL:
        raise take.refusal(f"layer_types[{count - 1}]", kinds[-1], f"the last layer must be {FULL!r}")
    window = take.integer("sliding_window", low=2)  # transformers' cache keeps window - 1 keys, and takes 0 for all
    ropes = take.inner("rope_parameters")
    sliding_rope = _read_rope(ropes, SLIDING, RopeConfig(10_000.0))
    full_rope = _read_rope(ropes, FULL, RopeConfig(1_000_000.0, 0.25))
    heads, head_dim = take.integer("num_key_value_heads"), take.integer("head_dim")
    if take.value("per_layer_config") is None:
        # The released spelling, with transformers' defaults for absent keys.
        full_heads = take.integer("num_global_key_value_heads", heads)
        full_dim = take.integer("global_head_dim", 512)
        sliding = LayerConfig(window, heads, head_dim, sliding_rope)
        full = LayerConfig(None, full_heads, full_dim, full_rope)
        return tuple(full if kind == FULL else sliding for kind in kinds)
    overrides = _read_overrides(take, count)
    layers = []
    for i, kind in enumerate(kinds):
        own = overrides.get(i, Reader({}, ""))
        dims = own.integer("num_key_value_heads", heads), own.integer("head_dim", head_dim)
        layers.append(LayerConfig(None, *dims, full_rope) if kind == FULL else LayerConfig(window, *dims, sliding_rope))
    return tuple(layers)


def _read_overrides(take: Reader, count: int) -> dict[int, Reader]:
    """`per_layer_config` by layer. From ten layers on, transformers pads the numbers with zeros ("05")."""
    every = take.inner("per_layer_config")
    found: dict[int, Reader] = {}
    for key in every.source:
        if not (key.isascii() and key.isdecimal()) or len(key) > 9 or int(key) >= count or int(key) in found:
            raise every.refusal(key, every.source[key], f"a key must be a layer's number, once, below {count}")
        found[int(key)] = own = every.inner(key)
        for name in own.source.keys() - {"head_dim", "num_key_value_heads"}:
            raise own.refusal(name, own.source[name], "supported here: head_dim, num_key_value_heads")
    return found


def _read_rope(ropes: Reader, kind: str, default: RopeConfig) -> RopeConfig:
    rope = ropes.inner(kind)
    if not rope.source:
        return default
    theta = rope.number("rope_theta", default.theta)
    name = rope.value("rope_type", "default")
    if name == "proportional":
        return RopeConfig(theta, rope.number("partial_rotary_factor", 1.0), rope.number("factor", 1.0))
    if name != "default":
        raise rope.refusal("rope_type", name, "supported: 'default', 'proportional'")
    rope.fixed("partial_rotary_factor", (1.0,))  # in the default form it would change the exponents, too
    return RopeConfig(theta)


def _rope_json(rope: RopeConfig) -> dict[str, Any]:
    if rope == RopeConfig(rope.theta):
        return {"rope_type": "default", "rope_theta": rope.theta}
    form = {"rope_type": "proportional", "rope_theta": rope.theta, "partial_rotary_factor": rope.rotary_fraction}
    return form if rope.factor == 1.0 else form | {"factor": rope.factor}


def _check_shape(config: ModelConfig) -> None:
    for i, layer in enumerate(config.layers):
        if config.num_heads % layer.num_kv_heads:
            raise ConfigError(
                f"layer {i}: num_key_value_heads is {layer.num_kv_heads}; it must divide {config.num_heads}"
            )
        if layer.head_dim % 2:
            raise ConfigError(f"layer {i}: head_dim is {layer.head_dim}; it must be even, for RoPE's two halves")
        if not layer.rope.rotary_fraction <= 1:
            raise ConfigError(f"layer {i}: partial_rotary_factor is {layer.rope.rotary_fraction}; it must be at most 1")
    if config.canvas_length > config.max_positions:
        raise ConfigError(
            f"canvas_length is {config.canvas_length}; at most the context, max_positions ({config.max_positions})"
        )
    if config.top_k_experts > config.num_experts:
        raise ConfigError(f"top_k_experts is {config.top_k_experts}; at most num_experts ({config.num_experts})")
    named = [("pad_token_id", config.pad_token_id), ("bos_token_id", config.bos_token_id)]
    for key, token in [*named, *(("eos_token_id", token) for token in config.eos_token_ids)]:
        if not 0 <= token < config.vocab_size:
            raise ConfigError(f"{key} is {token}; it must be in the vocabulary, below vocab_size ({config.vocab_size})")


def _require(key: str, value: object, holds: bool, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{key} is {value!r}; it must be {wanted}")
