"""What a checkpoint is made of: parameters, bytes, cache growth. Reads no weights; what fits is `weights/memory.py`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from redraft.config import LayerConfig, ModelConfig

BYTES = {"float32": 4.0, "bfloat16": 2.0}


@dataclass(frozen=True)
class Anatomy:
    """Counts of parameters and bytes of one network.

    `active` is what one row multiplies with: its chosen experts only, the head included. `cache_growth` is bytes per
    prefix token on full layers, which grow without end; `cache_window` is what the sliding layers hold at most.
    """

    groups: dict[str, int]
    active: int
    cache_growth: dict[str, int]
    cache_window: dict[str, int]

    @property
    def total(self) -> int:
        """All text parameters."""
        return sum(self.groups.values())


def dissect(config: ModelConfig) -> Anatomy:
    """Count a network from its config (model spec 5.2, 5.3)."""
    hidden, layers = config.hidden_size, len(config.layers)
    one_expert = 3 * hidden * config.moe_intermediate_size
    router = config.num_experts * hidden + hidden + config.num_experts
    attention = sum(_attention(config, layer) for layer in config.layers)
    groups = {
        "experts": layers * config.num_experts * one_expert,
        "attention": attention,
        "embedding": config.vocab_size * hidden,
        "dense MLPs": layers * 3 * hidden * config.intermediate_size,
        "self-conditioning": 3 * hidden * config.intermediate_size + hidden,
        "routers": layers * router,
        "norms and scalars": layers * (7 * hidden + 2) + hidden,
    }
    idle = layers * (config.num_experts - config.top_k_experts) * one_expert
    growth = sum(2 * layer.num_kv_heads * layer.head_dim for layer in config.layers if layer.is_full)
    window = sum(
        2 * layer.num_kv_heads * layer.head_dim * (layer.window - 1)
        for layer in config.layers
        if layer.window is not None
    )
    return Anatomy(
        groups,
        active=sum(groups.values()) - idle,
        cache_growth={name: int(growth * size) for name, size in BYTES.items()},
        cache_window={name: int(window * size) for name, size in BYTES.items()},
    )


def stored_bytes(headers: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Bytes on disk by number format, from (format, elements) of each stored tensor; formats in safetensors' words."""
    found: dict[str, int] = {}
    for dtype, count in headers:
        bits = int("".join(filter(str.isdigit, dtype.split("_")[0])) or 8)
        found[dtype] = found.get(dtype, 0) + count * bits // 8
    return found


def _attention(config: ModelConfig, layer: LayerConfig) -> int:
    kinds = 1 if layer.is_full else 2
    queries, keys = config.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
    return config.hidden_size * (2 * queries + kinds * keys) + 2 * layer.head_dim
