"""The memory that a model needs, counted before loading, and what else would fit.

    weights       every tensor in its format                            fixed
    request       keys and values of sliding layers, the soft embedding  each
    context       keys and values of full layers                         each token of each request
    canvas        temporary tensors of a step                            each canvas of a forward

With a count that is too small a load would fail after minutes, so buffers are counted at their full size.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from redraft.cache import MIN_ROOM
from redraft.config import ModelConfig
from redraft.errors import RunError
from redraft.model.head import LONG, STRIPE, TILE, WIDEST
from redraft.model.packed import Format
from redraft.weights.names import slots
from redraft.weights.offload import PLACES
from redraft.weights.place import Placement
from redraft.weights.plan import Formats, fitting_plans, num_bytes

GIGABYTE = 1e9
STEP_LOGITS = 7.0
"""Tensors of the size of a canvas's float32 logits that exist at once in a step that is not read as a stream.

Measured: 5.0 in float32, with a bias 6.0; in bfloat16, where the distribution is rounded and computed once more, 6.0
to 7.0, depending on the CPU's kernels.
"""
REPORTED = 1e9
"""From this many bytes of weights on, a load reports its memory first."""

# Products, scaled, exponentials, their rounding, and two temporaries; a GPU's kernel has two of WIDEST in 16 bits.
_TILE_COPIES = 6
_PARTS = {"embed": "embedding", "attention": "attention", "mlp": "dense MLPs", "experts": "experts"}


@dataclass(frozen=True)
class Footprint:
    """Bytes of `weights` by part, of one `token` of context, of one `request` and of one `canvas`. `most` is the
    longest context in tokens. `host` are bytes of experts on the host, `workspace` those of a forward, whatever its
    number of canvases.
    """

    weights: dict[str, int]
    token: int
    request: int
    canvas: int
    most: int
    host: int = 0
    workspace: int = 0

    @property
    def fixed(self) -> int:
        """All weights."""
        return sum(self.weights.values())

    def total(self, context: int, canvases: int = 1) -> int:
        """Bytes of `canvases` requests at once, with `context` tokens each, canvas included."""
        return self.fixed + self.workspace + canvases * (self.request + self.canvas + context * self.token)

    def longest_context(self, memory: int) -> int | None:
        """Most tokens of one request; None if not even the weights and a step fit."""
        left = memory - self.total(0)
        return None if left < 0 else min(self.most, left // max(1, self.token))

    def most_canvases(self, memory: int, context: int) -> int:
        """Most requests of that context at once."""
        each = self.request + self.canvas + context * self.token
        return max(0, (memory - self.fixed - self.workspace) // each)


@dataclass(frozen=True)
class Room:
    """Free bytes on a device and on the host, None if unknown; the `kind` of device; and the names of the plans that it
    can compute with, None for all."""

    device: int | None
    host: int | None = None
    kind: str = "cpu"
    plans: Container[str] | None = None


def footprint(
    config: ModelConfig, dtype: torch.dtype, packed: Formats, placement: Placement = Placement.DEVICE
) -> Footprint:
    """Count a network but its vision tower. A vocabulary of LONG or more is read as a stream, which keeps no logits."""
    weights: dict[str, int] = {}
    for slot in slots(config):
        words = slot.target.split(".")
        part = _PARTS.get(words[2] if words[0] == "layers" else words[0], "rest")
        weights[part] = weights.get(part, 0) + num_bytes(slot, packed.get(slot.target), dtype)
    host = 0
    if placement is Placement.HOST:
        host = weights["experts"]
        weights["experts"] = _places(config, dtype, packed)
    each = [(layer.window, 2 * layer.num_kv_heads * layer.head_dim * dtype.itemsize) for layer in config.layers]
    sliding = sum(size * (2 * window + MIN_ROOM) for window, size in each if window is not None)
    rows, width = config.canvas_length, config.hidden_size
    return Footprint(
        weights=weights,
        token=sum(size for window, size in each if window is None),
        request=sliding + 2 * rows * width * 4,
        canvas=_step(config) + _activations(config, dtype),
        most=config.max_positions,
        host=host,
        workspace=_unpacking(config, packed),
    )


def _places(config: ModelConfig, dtype: torch.dtype, packed: Formats) -> int:
    """The places for experts of the host: layers in one form share them (`weights/offload.py`)."""
    sizes: dict[tuple[Format | None, ...], int] = {}
    every = [slot for slot in slots(config) if ".experts." in slot.target]
    for i in range(len(config.layers)):
        own = {slot: packed.get(slot.target) for slot in every if slot.target.startswith(f"layers.{i}.")}
        sizes[tuple(own.values())] = sum(num_bytes(slot, form, dtype) for slot, form in own.items())
    return PLACES * sum(sizes.values()) // config.num_experts


def _step(config: ModelConfig) -> int:
    rows, vocab = config.canvas_length, config.vocab_size
    if vocab < LONG:
        return int(STEP_LOGITS * 4 * rows * vocab)
    return 4 * rows * (max(_TILE_COPIES * TILE, WIDEST) + 3 * -(-vocab // STRIPE) + 3 * config.hidden_size)


def _unpacking(config: ModelConfig, packed: Formats) -> int:
    """Unpacking a part of a packed table; all of it if a step is not read as a stream."""
    if "embed.weight" not in packed:
        return 0
    return 3 * 4 * config.hidden_size * (config.vocab_size if config.vocab_size < LONG else TILE)


def _activations(config: ModelConfig, dtype: torch.dtype) -> int:
    """The peak of a layer: rows gathered for their experts, input and output of an expert, and the sums."""
    widest = max((config.num_heads + 2 * layer.num_kv_heads) * layer.head_dim for layer in config.layers)
    routed = config.top_k_experts * (2 * config.hidden_size * dtype.itemsize + 3 * config.moe_intermediate_size * 4)
    summed = config.top_k_experts * config.hidden_size * 4
    return config.canvas_length * (routed + summed + 2 * widest * dtype.itemsize + 8 * config.hidden_size * 4)


def free_memory(device: torch.device) -> int | None:
    """Free bytes on a device now; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024 * found[0] if device.type == "cpu" and found else None


def check_fits(
    config: ModelConfig,
    dtype: torch.dtype,
    packed: Formats,
    room: Room,
    report: Callable[[str], None],
    placement: Placement = Placement.DEVICE,
) -> None:
    """Report the memory of a load, and raise RunError if that is more than is free."""
    need, free = footprint(config, dtype, packed, placement), room.device
    if room.host is not None and need.host > room.host:
        raise RunError(
            f"the experts need {need.host / GIGABYTE:.1f} GB in the processor's memory and"
            f" {room.host / GIGABYTE:.1f} GB are free; use a plan with fewer bits"
        )
    if free is None:
        return
    context = need.longest_context(free)
    if context is None or context < config.canvas_length:
        wanted = need.total(config.canvas_length)
        raise RunError(
            f"the model needs {wanted / GIGABYTE:.1f} GB ({need.fixed / GIGABYTE:.1f} GB of weights) and"
            f" {free / GIGABYTE:.1f} GB are free; {_would_fit(config, room)}{_offloaded(config, room, placement)}"
        )
    if need.fixed >= REPORTED:
        parts = ", ".join(f"{part} {size / GIGABYTE:.1f}" for part, size in need.weights.items())
        report(
            f"{need.fixed / GIGABYTE:.1f} GB of weights ({parts}) of {free / GIGABYTE:.1f} GB free"
            f"{f' and {need.host / GIGABYTE:.1f} GB of experts on the host' if need.host else ''};"
            f" beside them a context of {context} tokens, or {need.most_canvases(free, 8192)} canvases of 8192 each"
        )


def _offloaded(config: ModelConfig, room: Room, placement: Placement) -> str:
    """The settings that fit with experts on the host, in words; empty if there are none."""
    if room.kind == "cpu" or room.host is None or placement is Placement.HOST:
        return ""
    for said, need, context in _fitting(config, room, Placement.HOST):
        if need.host <= room.host:
            return (
                f"; {said} fits with --offload experts, slower, with {need.host / GIGABYTE:.1f} GB of"
                f" experts in the processor's memory and a context of {context} tokens"
            )
    return ""


def _would_fit(config: ModelConfig, room: Room) -> str:
    """The largest plan that fits, in words; plain numbers if they do."""
    found = max(_fitting(config, room, Placement.DEVICE), key=lambda one: one[1].fixed, default=None)
    if found is None:
        return "no plan fits; use a larger device or a smaller model"
    return f"{found[0]} fits, with a context of {found[2]} tokens"


def _fitting(config: ModelConfig, room: Room, placement: Placement) -> Iterator[tuple[str, Footprint, int]]:
    """Flags, needs and contexts of what fits: plain numbers, and every plan that the device can compute with."""
    assert room.device is not None, "nothing is refused where it is not known"
    ways: list[tuple[str, Formats]] = [("", {}), *fitting_plans(config)]
    for name, packed in ways:
        if name and room.plans is not None and name not in room.plans:
            continue
        need = footprint(config, torch.bfloat16, packed, placement)
        context = need.longest_context(room.device)
        if context is not None and context >= config.canvas_length:
            yield f"--dtype bfloat16{f' with plan {name}' if name else ''}", need, context
