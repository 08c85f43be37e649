"""The floor: how long a step takes at least, from the bytes it must read and the arithmetic it must do.

    bytes   every weight once (of the experts, those that are touched), keys and values of the prefix, the head's table
    flops   two for every weight and row that meet, attention over prefix and canvas, the head's two products

A step is no faster than the slower of bytes / bandwidth and flops / peak, nor, with experts elsewhere, than their way
over the bus. Nothing else is counted: activations stay in a cache, and a head read as a stream keeps no logits. Figures
of a card are its vendor's data sheet's, or measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from redraft.config import ModelConfig
from redraft.measure.parameters import count_parameters
from redraft.weights.memory import footprint
from redraft.weights.plan import Formats


@dataclass(frozen=True)
class Card:
    """A device: bytes of memory, bytes per second, operations per second by the kind of matmul.

    `bus`: bytes per second that reach it from the processor's memory.
    """

    name: str
    memory: int
    bandwidth: float
    bf16: float
    fp8: float | None = None
    bus: float | None = None


# Dense rates without sparsity, from the vendor's data sheets; memory in bytes of 10^9.
CARDS = (
    Card("H200 SXM 141 GB", 141 * 10**9, 4.8e12, 989e12, 1979e12),
    Card("H100 SXM 80 GB", 80 * 10**9, 3.35e12, 989e12, 1979e12),
    Card("A100 SXM 80 GB", 80 * 10**9, 2.04e12, 312e12),
    Card("L40S 48 GB", 48 * 10**9, 0.864e12, 362e12, 733e12),
    Card("RTX 5090 32 GB", 32 * 10**9, 1.792e12, 210e12, 419e12),
    Card("RTX 4090 24 GB", 24 * 10**9, 1.008e12, 165e12, 330e12),
    Card("RTX 3090 24 GB", 24 * 10**9, 0.936e12, 71e12),
    Card("RTX 4080 16 GB", 16 * 10**9, 0.717e12, 97e12, 195e12),
)


TOUCHED, OF_EXPERTS = 84, 128
"""Distinct experts of a layer of the released model that a canvas of real text is sent to, by arXiv 2608.00146."""


@dataclass(frozen=True)
class StepWork:
    """What a step must read and do; `sent` are the bytes of it that are in the processor's memory."""

    num_bytes: int
    flops: int
    eight_bit_flops: int
    sent: int = 0

    def seconds(self, card: Card) -> float:
        """The floor on a card."""
        over_bus = self.sent / card.bus if card.bus else 0.0
        return max(self.memory_seconds(card), self.compute_seconds(card), over_bus)

    def memory_seconds(self, card: Card) -> float:
        """Reading alone."""
        return self.num_bytes / card.bandwidth

    def compute_seconds(self, card: Card) -> float:
        """Arithmetic alone. Matrices in fp8 multiply at its rate, if the card has one; four-bit ones are unpacked and
        multiply in bfloat16, as everything else does."""
        return (self.flops - self.eight_bit_flops) / card.bf16 + self.eight_bit_flops / (card.fp8 or card.bf16)


def step_work(
    config: ModelConfig,
    dtype: torch.dtype,
    packed: Formats,
    *,
    canvases: int = 1,
    prefix: int = 2048,
    touched: float = 1.0,
) -> StepWork:
    """A denoising step of `canvases` canvases. `touched` is the share of experts read."""
    need = footprint(config, dtype, packed)
    weights = dict(need.weights)
    weights["experts"] = int(weights["experts"] * touched)
    rows = canvases * config.canvas_length
    inner = linear_flops(config) * rows
    head = 2 * 2 * rows * config.vocab_size * config.hidden_size
    return StepWork(
        num_bytes=sum(weights.values()) + canvases * cache_bytes(config, dtype, prefix),
        flops=inner + head + attention_flops(config, rows, prefix + config.canvas_length, config.canvas_length),
        eight_bit_flops=inner if any(form.name == "fp8" for form in packed.values()) else 0,
    )


def encode_work(
    config: ModelConfig, dtype: torch.dtype, packed: Formats, *, rows: int, prefix: int, touched: float = 1.0
) -> StepWork:
    """A causal pass over `rows` tokens behind a prefix: no self-conditioning and no head."""
    need = footprint(config, dtype, packed)
    weights = {part: size for part, size in need.weights.items() if part != "embedding"}
    weights["experts"] = int(weights["experts"] * touched)
    inner = (linear_flops(config) - 2 * 3 * config.hidden_size * config.intermediate_size) * rows
    return StepWork(
        num_bytes=sum(weights.values()) + cache_bytes(config, dtype, prefix),
        # Half of the span's own keys are hidden from a row on average.
        flops=inner + attention_flops(config, rows, prefix + rows // 2, rows // 2),
        eight_bit_flops=inner if any(form.name == "fp8" for form in packed.values()) else 0,
    )


def linear_flops(config: ModelConfig) -> int:
    """Of one row through the layers and the self-conditioning block, without the head."""
    anatomy = count_parameters(config)
    small = anatomy.groups["norms and scalars"] + config.hidden_size
    routers = len(config.layers) * (config.hidden_size + config.num_experts)
    norms = sum(2 * layer.head_dim for layer in config.layers)
    return 2 * (anatomy.active - anatomy.groups["embedding"] - small - routers - norms)


def attention_flops(config: ModelConfig, rows: int, keys: int, own: int) -> int:
    """Scores and sums of `rows` rows over `keys` keys, `own` of them of the span itself; sliding layers see fewer."""
    seen = ((layer, keys if layer.window is None else min(keys, layer.window - 1 + own)) for layer in config.layers)
    return sum(4 * rows * config.num_heads * layer.head_dim * count for layer, count in seen)


def cache_bytes(config: ModelConfig, dtype: torch.dtype, prefix: int) -> int:
    """Keys and values that a canvas reads behind a prefix."""
    seen = ((layer, prefix if layer.window is None else min(prefix, layer.window - 1)) for layer in config.layers)
    return sum(2 * layer.num_kv_heads * layer.head_dim * dtype.itemsize * count for layer, count in seen)
