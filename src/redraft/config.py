"""What a checkpoint's `config.json` and `generation_config.json` say, read once into frozen records.

Both published spellings of the full layers' geometry are read: `global_head_dim` / `num_global_key_value_heads`
(the released file) and `per_layer_config` (what transformers >= 5.2x writes back). A key that is not known is reported,
never dropped in silence; a value that is not supported is refused with the key, the value and what is supported.

This file does no tensor work and imports nothing heavy, so the command line can read a config without torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from redraft.errors import ConfigError

SLIDING, FULL = "sliding_attention", "full_attention"

# Keys whose value cannot change what a text forward computes at inference.
_INERT_TEXT = {
    "attention_dropout",  # training only
    "bos_token_id",
    "dtype",
    "initializer_range",
    "model_type",
    "eos_token_id",  # the root config and generation_config hold the list that counts
    "torch_dtype",
    "transformers_version",
    "use_cache",
}
_INERT_ROOT = {
    "architectures",
    "audio_config",
    "boi_token_id",
    "dtype",
    "eoi_token_id",
    "eos_token_id",
    "image_token_id",
    "initializer_range",
    "torch_dtype",
    "transformers_version",
    "video_token_id",
    "vision_config",
    "vision_soft_tokens_per_image",
}


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
    """The network's shape. Sizes are element counts; `layers` runs from the first layer to the last, which is full."""

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

    @property
    def window(self) -> int:
        """Width of the sliding window in tokens, the query itself included; 0 when every layer is full."""
        return next((layer.window for layer in self.layers if layer.window is not None), 0)


@dataclass(frozen=True)
class GenerationConfig:
    """The sampler's settings as the checkpoint ships them; defaults are the released model's (model spec 3.7)."""

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

    def __post_init__(self) -> None:
        _require("max_new_tokens", self.max_new_tokens, self.max_new_tokens >= 1, "an integer of at least 1")
        _require("max_denoising_steps", self.max_denoising_steps, self.max_denoising_steps >= 1, "at least 1")
        _require("t_min", self.t_min, 0 < self.t_min <= self.t_max, f"above 0 and at most t_max ({self.t_max})")
        _require("entropy_bound", self.entropy_bound, self.entropy_bound > 0, "a number above 0 (nats)")
        _require("stability_threshold", self.stability_threshold, self.stability_threshold >= 0, "0 or more")
        _require("confidence_threshold", self.confidence_threshold, self.confidence_threshold > 0, "above 0 (nats)")


@dataclass(frozen=True)
class CheckpointConfig:
    """Both files of one checkpoint, and the keys in them that this code does not know."""

    model: ModelConfig
    generation: GenerationConfig
    unknown_keys: tuple[str, ...] = ()


def read_config(folder: Path) -> CheckpointConfig:
    """Read `config.json` and, if present, `generation_config.json` from a checkpoint folder.

    Raises ConfigError for a file that is absent, is not JSON, belongs to another model or asks for the unsupported.
    """
    model, unknown = parse_model(_read_json(folder / "config.json"))
    generation = GenerationConfig(eos_token_ids=model.eos_token_ids, pad_token_id=model.pad_token_id)
    path = folder / "generation_config.json"
    if path.exists():
        generation, more = parse_generation(_read_json(path), generation)
        unknown += more
    return CheckpointConfig(model, generation, unknown)


def parse_model(root: Mapping[str, Any]) -> tuple[ModelConfig, tuple[str, ...]]:
    """ModelConfig from the JSON of `config.json`, and the names of the keys that were not recognised."""
    kind = root.get("model_type")
    if kind != "diffusion_gemma":
        raise ConfigError(f"config.json: model_type is {kind!r}; supported: 'diffusion_gemma'")
    text = root.get("text_config")
    if not isinstance(text, Mapping):
        raise ConfigError(f"config.json: text_config is {text!r}; it must be an object")
    take = _Reader(text, "text_config.")
    for key, allowed in _FIXED_TEXT.items():
        take.fixed(key, allowed)
    top = _Reader(root, "")
    top.fixed("tie_word_embeddings", (True,))
    layers = _read_layers(take)
    eos = root.get("eos_token_id", text.get("eos_token_id", 1))
    config = ModelConfig(
        vocab_size=take.integer("vocab_size"),
        hidden_size=take.integer("hidden_size"),
        intermediate_size=take.integer("intermediate_size"),
        moe_intermediate_size=take.integer("moe_intermediate_size"),
        num_heads=take.integer("num_attention_heads"),
        num_experts=take.integer("num_experts"),
        top_k_experts=take.integer("top_k_experts"),
        layers=layers,
        max_positions=take.integer("max_position_embeddings"),
        canvas_length=top.integer("canvas_length", 256),
        norm_eps=float(take.value("rms_norm_eps", 1e-6)),
        logit_cap=float(take.value("final_logit_softcapping", 30.0)),
        pad_token_id=take.integer("pad_token_id", 0, low=0),
        eos_token_ids=tuple(eos) if isinstance(eos, list) else (int(eos),),
        bos_token_id=int(text.get("bos_token_id") or 2),
        vision=root.get("vision_config"),
        root={k: v for k, v in root.items() if k in _INERT_ROOT},
    )
    _check_shape(config)
    unknown = take.unread(_INERT_TEXT) + top.unread(_INERT_ROOT | {"model_type", "text_config"})
    return config, unknown


def parse_generation(
    root: Mapping[str, Any], base: GenerationConfig | None = None
) -> tuple[GenerationConfig, tuple[str, ...]]:
    """GenerationConfig from the JSON of `generation_config.json`; keys it lacks keep the values of `base`."""
    take = _Reader(root, "generation_config.")
    base = base or GenerationConfig()
    sampler = take.value("sampler_config", {"_cls_name": "EntropyBoundSamplerConfig"})
    name = sampler.get("_cls_name")
    if name != "EntropyBoundSamplerConfig":
        raise ConfigError(
            f"generation_config.sampler_config._cls_name is {name!r}; supported: 'EntropyBoundSamplerConfig'"
        )
    eos = take.value("eos_token_id", list(base.eos_token_ids))
    config = replace(
        base,
        max_new_tokens=take.integer("max_new_tokens", base.max_new_tokens),
        max_denoising_steps=take.integer("max_denoising_steps", base.max_denoising_steps),
        t_min=float(take.value("t_min", base.t_min)),
        t_max=float(take.value("t_max", base.t_max)),
        entropy_bound=float(sampler.get("entropy_bound", base.entropy_bound)),
        stability_threshold=take.integer("stability_threshold", base.stability_threshold, low=0),
        confidence_threshold=float(take.value("confidence_threshold", base.confidence_threshold)),
        eos_token_ids=tuple(eos) if isinstance(eos, list) else (int(eos),),
        pad_token_id=take.integer("pad_token_id", base.pad_token_id, low=0),
        bos_token_id=take.integer("bos_token_id", base.bos_token_id, low=0),
    )
    inert = {"_from_model_config", "return_dict_in_generate", "transformers_version"}
    return config, take.unread(inert)


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
            if layer.is_full
        },
        "rope_parameters": {SLIDING: _rope_json(sliding.rope), FULL: _rope_json(full.rope)},
        "rms_norm_eps": config.norm_eps,
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


class _Reader:
    """Takes keys out of a JSON object and remembers which ones nobody asked for."""

    def __init__(self, source: Mapping[str, Any], prefix: str) -> None:
        self.source, self.prefix, self.read = source, prefix, set[str]()

    def value(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        found = self.source.get(key)
        return default if found is None else found

    def integer(self, key: str, default: int | None = None, low: int = 1) -> int:
        found = self.value(key, default)
        if not isinstance(found, int) or isinstance(found, bool) or found < low:
            raise ConfigError(f"{self.prefix}{key} is {found!r}; it must be an integer of at least {low}")
        return found

    def fixed(self, key: str, allowed: tuple[object, ...]) -> None:
        self.read.add(key)
        if key in self.source and self.source[key] not in allowed:
            raise ConfigError(f"{self.prefix}{key} is {self.source[key]!r}; supported: {', '.join(map(repr, allowed))}")

    def unread(self, inert: set[str]) -> tuple[str, ...]:
        return tuple(self.prefix + key for key in sorted(self.source) if key not in self.read | inert)


def _read_layers(take: _Reader) -> tuple[LayerConfig, ...]:
    count = take.integer("num_hidden_layers")
    kinds = take.value("layer_types") or [FULL if (i + 1) % 6 == 0 or i + 1 == count else SLIDING for i in range(count)]
    if len(kinds) != count:
        raise ConfigError(f"text_config.layer_types has {len(kinds)} entries; num_hidden_layers is {count}")
    if kinds[-1] != FULL:
        raise ConfigError(f"text_config.layer_types ends in {kinds[-1]!r}; the last layer must be {FULL!r}")
    window = take.integer("sliding_window")
    ropes = take.value("rope_parameters") or {}
    rope_of = {
        SLIDING: _read_rope(ropes.get(SLIDING), SLIDING, RopeConfig(10_000.0)),
        FULL: _read_rope(ropes.get(FULL), FULL, RopeConfig(1_000_000.0, 0.25)),
    }
    heads, head_dim = take.integer("num_key_value_heads"), take.integer("head_dim")
    full_heads = take.integer("num_global_key_value_heads", heads)
    full_dim = take.integer("global_head_dim", head_dim)
    overrides = take.value("per_layer_config", {})
    layers = []
    for i, kind in enumerate(kinds):
        if kind not in rope_of:
            raise ConfigError(f"text_config.layer_types[{i}] is {kind!r}; supported: {SLIDING!r}, {FULL!r}")
        full = kind == FULL
        own = overrides.get(str(i), {})
        layers.append(
            LayerConfig(
                window=None if full else window,
                num_kv_heads=own.get("num_key_value_heads", full_heads if full else heads),
                head_dim=own.get("head_dim", full_dim if full else head_dim),
                rope=rope_of[kind],
            )
        )
    return tuple(layers)


def _read_rope(source: Mapping[str, Any] | None, kind: str, default: RopeConfig) -> RopeConfig:
    if source is None:
        return default
    name = source.get("rope_type", "default")
    if name not in ("default", "proportional"):
        raise ConfigError(
            f"text_config.rope_parameters.{kind}.rope_type is {name!r}; supported: 'default', 'proportional'"
        )
    fraction = float(source.get("partial_rotary_factor", 1.0)) if name == "proportional" else 1.0
    return RopeConfig(float(source.get("rope_theta", default.theta)), fraction, float(source.get("factor", 1.0)))


def _rope_json(rope: RopeConfig) -> dict[str, Any]:
    if rope.rotary_fraction == 1.0:
        return {"rope_type": "default", "rope_theta": rope.theta}
    return {"rope_type": "proportional", "rope_theta": rope.theta, "partial_rotary_factor": rope.rotary_fraction}


def _check_shape(config: ModelConfig) -> None:
    for i, layer in enumerate(config.layers):
        if config.num_heads % layer.num_kv_heads:
            raise ConfigError(
                f"layer {i}: num_key_value_heads is {layer.num_kv_heads}; it must divide {config.num_heads}"
            )
        if layer.head_dim % 2:
            raise ConfigError(f"layer {i}: head_dim is {layer.head_dim}; it must be even, for RoPE's two halves")
    if config.top_k_experts > config.num_experts:
        raise ConfigError(f"top_k_experts is {config.top_k_experts}; at most num_experts ({config.num_experts})")
    for token in (config.pad_token_id, *config.eos_token_ids):
        if not 0 <= token < config.vocab_size:
            raise ConfigError(f"token id {token} is outside the vocabulary of {config.vocab_size}")


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; a checkpoint folder needs it") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid JSON ({error}); fetch the file again") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds a {type(found).__name__}; it must hold an object")
    return found


def _require(key: str, value: object, holds: bool, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{key} is {value!r}; it must be {wanted}")
