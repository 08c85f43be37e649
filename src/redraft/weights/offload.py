"""Experts in the processor's memory: the experts that rows have chosen are copied to the device.

    host    [expert 3] [expert 7] [expert 9] …            all experts of all layers
    device       place A ◄─ 3 ── 9 …   place B ◄─ 7 …     two places, shared by all layers

While one expert multiplies, the next one is copied on another stream. The sums are bit-equal to
`model/moe.py::experts_grouped`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from redraft.model.gemma import DiffusionGemma, Layer
from redraft.model.moe import Experts, Matrices, PackedExperts, experts_grouped
from redraft.model.packed import Packed
from redraft.shapes import Tensor

PLACES = 2


class HostExperts(nn.Module):
    """The experts of one layer, on the host; the courier copies them to the device for use."""

    def __init__(self, matrices: Experts | PackedExperts, courier: Courier) -> None:
        super().__init__()
        self.matrices, self.courier = matrices, courier

    @property
    def gate_up(self) -> Tensor | Packed:
        """[experts, 2·ffn, hidden], on the host."""
        return self.matrices.gate_up

    @property
    def down(self) -> Tensor | Packed:
        """[experts, hidden, ffn], on the host."""
        return self.matrices.down

    def fetch(self, wanted: Sequence[int]) -> Iterator[Matrices]:
        """The matrices of some experts, in order, on the device. Each pair is valid until the next is requested."""
        return self.courier.carry([(self.gate_up[e], self.down[e]) for e in wanted])


class Courier:
    """Copies pairs of matrices to a device, one pair ahead. `copied` counts bytes."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.copied = device, 0
        self.places: list[Matrices | None] = [None] * PLACES
        self.side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._free: list[torch.cuda.Event | None] = [None] * PLACES
        self._number = 0

    def carry(self, pairs: Sequence[Matrices]) -> Iterator[Matrices]:
        """The pairs on the device. A place is filled again when the work on its last pair has ended."""
        under_way = self._begin(pairs[0]) if pairs else None
        for following in (*pairs[1:], None):
            assert under_way is not None
            place, arrived = under_way
            under_way = None if following is None else self._begin(following)
            if arrived is not None:
                torch.cuda.current_stream(self.device).wait_event(arrived)
            ready = self.places[place]
            assert ready is not None
            yield ready
            if self.side is not None:
                self._free[place] = torch.cuda.current_stream(self.device).record_event()

    @property
    def num_bytes(self) -> int:
        """Bytes of all places."""
        return sum(part.numel() * part.element_size() for pair in self.places for part in _parts(pair))

    def _begin(self, pair: Matrices) -> tuple[int, torch.cuda.Event | None]:
        """Start a copy. Returns its place and the event of its end (None: it has ended)."""
        place, self._number = self._number % PLACES, self._number + 1
        if self.places[place] is None:
            self.places[place] = (_room(pair[0], self.device), _room(pair[1], self.device))
            if self.side is not None:  # earlier tensors in that memory may still be read
                self.side.wait_stream(torch.cuda.current_stream(self.device))
        parts = list(zip(_parts(self.places[place]), _parts(pair), strict=True))
        self.copied += sum(source.numel() * source.element_size() for _, source in parts)
        if self.side is None:
            for target, source in parts:
                target.copy_(source)
            return place, None
        free = self._free[place]
        if free is not None:
            self.side.wait_event(free)
        with torch.cuda.stream(self.side):
            for target, source in parts:
                target.copy_(source, non_blocking=True)
        return place, self.side.record_event()


def keep_on_host(model: DiffusionGemma) -> DiffusionGemma:
    """Make the layers of a model fetch their experts, which are in the processor's memory. Returns the model."""
    couriers: dict[object, Courier] = {}  # layers in one form share places; a folder may mix forms
    for layer in model.layers:
        assert isinstance(layer, Layer)
        assert isinstance(layer.experts, Experts | PackedExperts)
        form = _form((layer.experts.gate_up, layer.experts.down))
        if form not in couriers:
            couriers[form] = Courier(model.device)
        layer.experts = HostExperts(layer.experts, couriers[form])
        layer.kernels = replace(layer.kernels, experts=experts_grouped)
    return model


def _parts(pair: Matrices | None) -> list[Tensor]:
    found: list[Tensor] = []
    for matrix in pair or ():
        if isinstance(matrix, Packed):
            found += matrix.parts
        else:
            found.append(matrix)
    return found


def _form(pair: Matrices) -> tuple[object, ...]:
    """Formats, types and shapes: layers in which these are equal share places."""
    formats = [matrix.format if isinstance(matrix, Packed) else None for matrix in pair]
    return (*formats, *((part.dtype, part.shape[1:]) for part in _parts(pair)))


@torch.inference_mode(False)  # the first use may be in inference mode and the next use not
def _room(matrix: Tensor | Packed, device: torch.device) -> Tensor | Packed:
    """Uninitialised memory for a matrix of the same shape and format."""
    if not isinstance(matrix, Packed):
        return torch.empty_like(matrix, device=device)
    return matrix.each(lambda part: torch.empty_like(part, device=device))
