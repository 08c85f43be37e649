"""The ledger: every byte that a model takes on its device, by use. Requests are admitted by it.

    weights      the model's tensors
    tower        the vision tower's, which are loaded with the first image
    workspace    temporary tensors of the widest forward, and tiles of the head
    graphs       the memory that recorded steps keep
    reading      the logits of the widest canvas that is read alone, with what a step makes of them
    sequences    keys and values of running requests with room for all of their answers; logits that they keep
    standing     fixed buffers for graphs that no request uses now; they give way
    prefixes     kept beginnings of prompts; they give way

A request that does not fit beside the running ones waits, one that would not fit alone is refused. `inspect --memory`
prints the same ledger for a model that is not loaded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import nn

from redraft.cache import MIN_ROOM
from redraft.config import ModelConfig
from redraft.errors import ConfigError, RequestError
from redraft.images.config import has_tower
from redraft.model.gemma import DiffusionGemma
from redraft.model.gpu.graph import PLACES
from redraft.model.head import LONG
from redraft.model.packed import Packed
from redraft.shapes import Tensor
from redraft.weights.memory import GIGABYTE, STEP_LOGITS, Footprint, footprint, free_memory
from redraft.weights.plan import packed_matrices
from redraft.weights.vision import vision_bytes

MARGIN = 0.03
"""Share of a GPU's memory that is left to its allocator, whose blocks are larger than what they hold."""
WORKSPACE_SHARE = 4
"""Forwards are as wide as they may be, unless their temporary tensors took more than one in so many bytes beside the
weights."""


@dataclass(frozen=True)
class Demand:
    """Bytes of a request while it runs: its keys and values, the logits that it keeps, and those of its canvas with
    what a step makes of them, if that is read alone."""

    cache: int
    kept: int = 0
    reading: int = 0


class Ledger:
    """The books of one model on one device. `memory` is what all of it may take, None if unknown: then all fits.
    `short` is what was taken when memory ran out all the same; it counts for a while.

    `max_rows` are the rows of the widest forward, lowered if the device has no room for its temporary tensors.
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        need: Footprint,
        *,
        memory: int | None,
        max_rows: int,
        graphs: bool = False,
        weights: int | None = None,
    ) -> None:
        self.config, self.itemsize, self.memory = config, dtype.itemsize, memory
        self.weights = need.fixed if weights is None else weights
        self.tower = 0
        if has_tower(config):
            with suppress(ConfigError):  # one that is not supported is never loaded
                self.tower = vision_bytes(config, dtype)
        canvases = -(-max_rows // config.canvas_length)
        if memory is not None:
            most = (memory - self.weights - self.tower) // WORKSPACE_SHARE // need.canvas
            canvases = max(1, min(canvases, most))
        self.max_rows = min(max_rows, canvases * config.canvas_length)
        self.workspace = need.workspace + canvases * need.canvas
        self.graphs = min(PLACES, canvases) * need.canvas if graphs else 0
        self.running: dict[int, Demand] = {}
        self.standing = 0
        self.short: int | None = None

    def cache(self, room: int) -> int:
        """Bytes of keys and values with room for that many tokens (`redraft/cache.py`)."""
        layers = self.config.layers
        held = ((one, room if one.window is None else min(room, 2 * one.window + MIN_ROOM)) for one in layers)
        return sum(2 * one.num_kv_heads * one.head_dim * self.itemsize * max(rows, MIN_ROOM) for one, rows in held)

    def logits(self, rows: int) -> int:
        """Bytes of the logits of so many rows."""
        return 4 * rows * self.config.vocab_size

    def reading(self, rows: int) -> int:
        """Bytes of a canvas of so many rows that is read alone."""
        # Of a short vocabulary the workspace holds the logits of every canvas.
        return int(STEP_LOGITS * self.logits(rows)) if self.config.vocab_size >= LONG else 0

    def enter(self, number: int, demand: Demand) -> None:
        """A request runs from now on."""
        self.running[number] = demand

    def leave(self, number: int) -> None:
        """It has ended, or never ran."""
        self.running.pop(number, None)
        if not self.running:
            self.short = None

    def holds(self, number: int, cache: int) -> None:
        """The keys and values of a running request take so many bytes: more than it asked for, in a larger place."""
        one = self.running[number]
        self.running[number] = replace(one, cache=max(one.cache, cache))

    @property
    def fixed(self) -> int:
        """Bytes that no request changes."""
        return self.weights + self.tower + self.workspace + self.graphs

    @property
    def taken(self) -> int:
        """Bytes of all but prefixes."""
        return self.fixed + self.standing + self._requests(*self.running.values())

    @property
    def left(self) -> int | None:
        """Bytes for prefixes; None if unknown."""
        most = self._most
        return None if most is None else max(0, most - self.taken)

    @property
    def _most(self) -> int | None:
        return min((most for most in (self.memory, self.short) if most is not None), default=None)

    def fits(self, demand: Demand) -> bool:
        """Whether a request fits beside the running ones, if prefixes give way."""
        wanted, most = self._requests(*self.running.values(), demand), self._most
        return most is None or self.fixed + self.standing + wanted <= most

    def check(self, demand: Demand, prompt: int, max_tokens: int) -> None:
        """Raise RequestError, with what would fit, if a request does not fit alone."""
        if self.memory is None:
            return
        wanted, room = self._requests(demand), max(0, self.memory - self.fixed)
        if wanted <= room:
            return
        most = self.longest(room - wanted + demand.cache) - 2 * self.config.canvas_length
        if most > prompt:
            remedy = f"lower max_tokens to {most - prompt}"
        elif most > 0:
            remedy = f"a prompt and an answer of {most} tokens together would fit"
        else:
            remedy = "load the model in fewer bits or on a larger device"
        raise RequestError(
            f"a prompt of {prompt} tokens with max_tokens {max_tokens} needs {wanted / GIGABYTE:.3g} GB and"
            f" {room / GIGABYTE:.3g} GB are left beside the model; {remedy}"
        )

    def longest(self, room: int) -> int:
        """Most tokens whose keys and values fit into so many bytes, up to the model's context; 0 if none do."""
        most = self.config.max_positions + 2 * self.config.canvas_length
        return bisect_right(range(1, most + 1), room, key=self.cache)

    def lines(self, prefixes: int) -> Iterator[tuple[str, int]]:
        """What is taken, by use; `prefixes` are the bytes of kept ones."""
        running = list(self.running.values())
        yield "weights", self.weights
        yield "tower", self.tower
        yield "workspace", self.workspace
        yield "graphs", self.graphs
        yield "reading", max((one.reading for one in running), default=0)
        yield "sequences", sum(one.cache + one.kept for one in running)
        yield "standing", self.standing
        yield "prefixes", prefixes

    def _requests(self, *demands: Demand) -> int:
        # Canvases that are read alone are read one after the other.
        return sum(one.cache + one.kept for one in demands) + max((one.reading for one in demands), default=0)


def ledger_of(model: DiffusionGemma, *, memory: int | None, max_rows: int, graphs: bool) -> Ledger:
    """The ledger of a loaded model. `memory` None is what is free on its device now and what the model has there."""
    formats = {name: matrix.format for name, matrix in packed_matrices(model).items()}
    need = footprint(model.config, model.dtype, formats)
    weights = held_bytes(model)
    if memory is None and (free := free_memory(model.device)) is not None:
        memory = free + weights
        if model.device.type == "cuda":
            memory = int((free + max(weights, torch.cuda.memory_reserved(model.device))) * (1 - MARGIN))
    return Ledger(model.config, model.dtype, need, memory=memory, max_rows=max_rows, graphs=graphs, weights=weights)


def held_bytes(model: nn.Module) -> int:
    """Bytes of a model's tensors on the device of its norms; experts on the host are not among them."""
    device = next(model.parameters()).device
    found = {id(tensor): tensor.nbytes for tensor in _tensors(model) if tensor.device == device}
    return sum(found.values())


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        yield from module.parameters(recurse=False)
        yield from module.buffers(recurse=False)
        for value in vars(module).values():
            if isinstance(value, Packed):  # of a fused layer
                yield from value.parts
