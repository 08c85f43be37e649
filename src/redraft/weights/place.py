"""Where a model's experts are, nine tenths of its weights: on the device, on the host, or shared among processes.

    device    every expert where everything else is
    host      in the processor's memory; those that rows are sent to are copied (`weights/offload.py`)
    shared    each of several processes holds its share, and sums are made whole by an all-reduce

Processes that share experts hold everything else each for itself, read the same requests with the same seeds and take
the same steps; the only thing they tell each other are sums, once a layer. They are started by torchrun.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import torch

from redraft.errors import RequestError
from redraft.model.gemma import DiffusionGemma, Layer
from redraft.model.moe import AnyExperts, ExpertsForm
from redraft.shapes import Tensor
from redraft.weights.offload import keep_on_host

PLACES = ("device", "host", "shared")


@dataclass(frozen=True)
class Placement:
    """The place, and for shared experts which of how many processes this is."""

    place: str = "device"
    rank: int = 0
    ranks: int = 1
    mesh: Any = None  # torch's DeviceMesh, which takes seconds to import

    def share(self, experts: int) -> range:
        """The experts that this process holds."""
        each = experts // self.ranks
        return range(self.rank * each, (self.rank + 1) * each)

    def settle(self, model: DiffusionGemma) -> DiffusionGemma:
        """Let a filled model run with its experts where they are. Returns the model."""
        if self.place == "host":
            return keep_on_host(model)
        if self.mesh is not None:
            for layer in model.layers:
                assert isinstance(layer, Layer)
                form = SharedForm(layer.kernels.experts, self.share(model.config.num_experts), self.mesh)
                layer.kernels = replace(layer.kernels, experts=form)
        return model


ON_DEVICE = Placement()


@dataclass(frozen=True)
class SharedForm:
    """A form of the experts that runs another one on this process's share and adds up what all processes have."""

    form: ExpertsForm
    share: range
    mesh: Any

    def __call__(self, experts: AnyExperts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The sum of each row's chosen experts, whoever holds them."""
        from torch.distributed.tensor import DTensor, Partial

        rows, place = torch.where((chosen >= self.share.start) & (chosen < self.share.stop))
        own = torch.zeros_like(x, dtype=torch.float32)
        if rows.numel():
            numbers = chosen[rows, place, None] - self.share.start
            own.index_add_(0, rows, self.form(experts, x[rows], weights[rows, place, None], numbers).float())
        whole: Tensor = DTensor.from_local(own, self.mesh, [Partial()], run_check=False).full_tensor()
        return whole.to(x.dtype)


def place_experts(place: str, device: torch.device, experts: int) -> tuple[Placement, torch.device]:
    """The placement of that name, and the device of this process. Raises RequestError if it cannot be had here."""
    if place not in PLACES:
        raise RequestError(f"experts is {place!r}; supported: {', '.join(PLACES)}")
    if place == "host" and device.type == "cpu":
        raise RequestError("experts are to be on the host and the device is cpu, which is the host; leave it out")
    if place != "shared":
        return Placement(place), device
    if "WORLD_SIZE" not in os.environ:
        raise RequestError(
            "experts are to be shared and this process was not started by torchrun; run:"
            " torchrun --nproc-per-node 2 -m redraft generate … --parallel experts"
        )
    ranks = int(os.environ["WORLD_SIZE"])
    if experts % ranks:
        raise RequestError(f"{experts} experts cannot be shared equally by {ranks} processes; start another number")
    if device.type == "cuda":
        if ":" in str(device):
            raise RequestError(f"device is {device}; shared experts take one GPU a process, so give cuda")
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device.type, (ranks,), mesh_dim_names=("experts",))
    return Placement(place, distributed.get_rank(), ranks, mesh), device
