"""What a model needs of a device, counted before anything is loaded, and what else would fit.

    weights       every tensor in its format                            fixed
    request       keys and values of sliding layers, the soft embedding  each
    context       keys and values of full layers                         each token of each request
    canvas        what a step holds while it runs                        each canvas of a forward

A count that is too small is a load that dies after minutes, so buffers are counted as large as they are made.
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
from redraft.weights.names import slots
from redraft.weights.offload import PLACES
from redraft.weights.place import Placement
from redraft.weights.plan import Formats, fitting_plans, num_bytes
from redraft.weights.vision import vision_bytes

GIGABYTE = 1e9
STEP_LOGITS = 7.0
"""Tensors of the size of a canvas's float32 logits that live at once in a step that is not read as a stream.

Measured: 5.0 in float32; in bfloat16, where the distribution is rounded and taken once more, 6.0 to 7.0, by the kernels
that the CPU has.
"""
SPOKEN = 1e9
"""From so many bytes of weights on, the plan is reported before a load."""

# Products, scaled, exponentials, their rounding, and two temporaries; a GPU's kernel has two of WIDEST in 16 bits.
_TILE_COPIES = 6
_PARTS = {"embed": "embedding", "attention": "attention", "mlp": "dense MLPs", "experts": "experts"}


@dataclass(frozen=True)
class Footprint:
    """Bytes. `weights` by part; `token` of context, per request; `request` and `canvas` each. `most` is the context.

    `host` are those of experts that are not on the device, `workspace` those of a forward, however many its canvases.
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
        """Of `canvases` requests at once, with `context` tokens each, canvas included."""
        return self.fixed + self.workspace + canvases * (self.request + self.canvas + context * self.token)

    def longest_context(self, memory: int, canvases: int = 1) -> int | None:
        """Tokens of each of `canvases` requests that fit; None if not even the weights and their steps do."""
        left = memory - self.total(0, canvases)
        return None if left < 0 else min(self.most, left // max(1, canvases * self.token))

    def most_canvases(self, memory: int, context: int) -> int:
        """Requests of that context that fit at once."""
        each = self.request + self.canvas + context * self.token
        return max(0, (memory - self.fixed - self.workspace) // each)


@dataclass(frozen=True)
class Room:
    """Bytes that are free on a device and on the host, None if they are not known; `kind` of device, and the names of
    the plans that it can compute with, None for all."""

    device: int | None
    host: int | None = None
    kind: str = "cpu"
    plans: Container[str] | None = None


def footprint(
    config: ModelConfig,
    dtype: torch.dtype,
    packed: Formats,
    placement: Placement = Placement.DEVICE,
    *,
    images: bool = False,
) -> Footprint:
    """Count a network. A vocabulary of LONG or more is read as a stream, which keeps no logits.

    With `images` the vision tower is counted, too, which takes its memory when the first image comes.
    """
    weights: dict[str, int] = {"vision tower": vision_bytes(config, dtype)} if images else {}
    for slot in slots(config):
        words = slot.target.split(".")
        part = _PARTS.get(words[2] if words[0] == "layers" else words[0], "rest")
        weights[part] = weights.get(part, 0) + num_bytes(slot, packed.get(slot.target), dtype)
    host = 0
    if placement is Placement.HOST:
        host = weights["experts"]
        weights["experts"] = PLACES * host // (len(config.layers) * config.num_experts)
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


def _step(config: ModelConfig) -> int:
    rows, vocab = config.canvas_length, config.vocab_size
    if vocab < LONG:
        return int(STEP_LOGITS * 4 * rows * vocab)
    return 4 * rows * (max(_TILE_COPIES * TILE, WIDEST) + 3 * -(-vocab // STRIPE) + 3 * config.hidden_size)


def _unpacking(config: ModelConfig, packed: Formats) -> int:
    """A part of a packed table as numbers, and what that takes; all of it where a step is not read as a stream."""
    if "embed.weight" not in packed:
        return 0
    return 3 * 4 * config.hidden_size * (config.vocab_size if config.vocab_size < LONG else TILE)


def _activations(config: ModelConfig, dtype: torch.dtype) -> int:
    """Of the widest moment of a layer: rows gathered for their experts, both sides of an expert, and the sums."""
    widest = max((config.num_heads + 2 * layer.num_kv_heads) * layer.head_dim for layer in config.layers)
    routed = config.top_k_experts * (2 * config.hidden_size * dtype.itemsize + 3 * config.moe_intermediate_size * 4)
    summed = config.top_k_experts * config.hidden_size * 4
    return config.canvas_length * (routed + summed + 2 * widest * dtype.itemsize + 8 * config.hidden_size * 4)


def free_memory(device: torch.device) -> int | None:
    """Bytes that can be had on a device now; None if it does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    told = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024 * told[0] if device.type == "cpu" and told else None


def check_fits(
    config: ModelConfig,
    dtype: torch.dtype,
    packed: Formats,
    room: Room,
    report: Callable[[str], None],
    placement: Placement = Placement.DEVICE,
) -> None:
    """Say what a load will take, and raise RunError before it if that is more than there is."""
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
            f" {free / GIGABYTE:.1f} GB are free; {_would_fit(config, room, free)}{_offloaded(config, room, placement)}"
        )
    if need.fixed >= SPOKEN:
        parts = ", ".join(f"{part} {size / GIGABYTE:.1f}" for part, size in need.weights.items())
        report(
            f"{need.fixed / GIGABYTE:.1f} GB of weights ({parts}) of {free / GIGABYTE:.1f} GB free"
            f"{f' and {need.host / GIGABYTE:.1f} GB of experts on the host' if need.host else ''};"
            f" beside them a context of {context} tokens, or {need.most_canvases(free, 8192)} canvases of 8192 each"
        )


def _offloaded(config: ModelConfig, room: Room, placement: Placement) -> str:
    """What would fit with the experts elsewhere, in words; nothing if that is no way out here."""
    if room.kind == "cpu" or room.host is None or room.device is None or placement is Placement.HOST:
        return ""
    for name, packed in _ways(config, room):
        need = footprint(config, torch.bfloat16, packed, Placement.HOST)
        context = need.longest_context(room.device)
        if need.host <= room.host and context is not None and context >= config.canvas_length:
            numbers = f"bfloat16 with plan {name}" if name else "bfloat16"
            return (
                f"; --dtype {numbers} fits with --offload experts, slower, with {need.host / GIGABYTE:.1f} GB of"
                f" experts in the processor's memory and a context of {context} tokens"
            )
    return ""


def _ways(config: ModelConfig, room: Room) -> Iterator[tuple[str, Formats]]:
    """Plain numbers, whose name is empty, and every plan that can be had there."""
    yield "", {}
    for name, packed in fitting_plans(config):
        if room.plans is None or name in room.plans:
            yield name, packed


def _would_fit(config: ModelConfig, room: Room, free: int) -> str:
    """The plan that keeps most and fits, in words; none if plain numbers do."""
    best, most = "no plan fits; use a larger device or a smaller model", 0
    for name, packed in _ways(config, room):
        need = footprint(config, torch.bfloat16, packed)
        context = need.longest_context(free)
        if context is not None and context >= config.canvas_length and need.fixed > most:
            numbers = f"bfloat16 with plan {name}" if name else "bfloat16"
            best, most = f"--dtype {numbers} fits, with a context of {context} tokens", need.fixed
    return best
