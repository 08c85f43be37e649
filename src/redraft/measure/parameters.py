"""What a checkpoint is made of: parameters, bytes, cache growth. Reads no weights; what fits is `weights/memory.py`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from redraft.config import ModelConfig
from redraft.weights.names import slots

GROUPS = {
    "experts": "experts",
    "attention": "attention",
    "embed": "embedding",
    "mlp": "dense MLPs",
    "self_conditioning": "self-conditioning",
    "router": "routers",
}
REST = "norms and scalars"
BYTES = {"float32": 4.0, "bfloat16": 2.0}


@dataclass(frozen=True)
class ParameterCount:
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


def count_parameters(config: ModelConfig) -> ParameterCount:
    """Count a network's stored tensors and its cache (model spec 5.2, 5.3)."""
    groups = dict.fromkeys(GROUPS.values(), 0) | {REST: 0}
    for slot in slots(config):
        words = slot.target.split(".")
        groups[GROUPS.get(words[2] if words[0] == "layers" else words[0], REST)] += slot.num_elements
    idle = groups["experts"] // config.num_experts * (config.num_experts - config.top_k_experts)
    sizes = [(layer.window, 2 * layer.num_kv_heads * layer.head_dim) for layer in config.layers]
    growth = sum(size for window, size in sizes if window is None)
    held = sum(size * (window - 1) for window, size in sizes if window is not None)
    return ParameterCount(
        groups,
        active=sum(groups.values()) - idle,
        cache_growth={name: int(growth * size) for name, size in BYTES.items()},
        cache_window={name: int(held * size) for name, size in BYTES.items()},
    )


def stored_bytes(headers: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Bytes on disk by number format, from (format, elements) of each stored tensor; formats in safetensors' words."""
    found: dict[str, int] = {}
    for dtype, count in headers:
        bits = int("".join(filter(str.isdigit, dtype.split("_")[0])) or 8)
        found[dtype] = found.get(dtype, 0) + count * bits // 8
    return found
