"""Where a model's experts are, nine tenths of its weights: on the device, on the host, or shared among processes.

device    every expert where everything else is
host      in the processor's memory; those that rows are sent to are copied (`weights/offload.py`)
shared    each of several processes holds its share (`weights/group.py`), the first everything else, too
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from redraft.errors import RequestError
from redraft.model.gemma import DiffusionGemma
from redraft.weights.group import Group
from redraft.weights.offload import keep_on_host

PLACES = ("device", "host", "shared")


@dataclass(frozen=True)
class Placement:
    """The place, and for shared experts which of how many processes this is."""

    place: str = "device"
    rank: int = 0
    ranks: int = 1
    group: Group | None = None

    def share(self, experts: int) -> range:
        """The experts that this process holds; where they do not divide, the first, which holds the rest, has fewer."""
        return range(experts * self.rank // self.ranks, experts * (self.rank + 1) // self.ranks)

    def settle(self, model: DiffusionGemma) -> DiffusionGemma:
        """Let a filled model run with its experts where they are. Returns the model, to the first process only."""
        if self.place == "host":
            return keep_on_host(model)
        if self.group is not None:
            self.group.settle(model, self.share(model.config.num_experts))
        return model


ON_DEVICE = Placement()


def place_experts(place: str | Group, device: torch.device, experts: int) -> tuple[Placement, torch.device]:
    """The placement of that name, and the device of this process. Raises RequestError if it cannot be had here.

    A group that has met already may stand for "shared".
    """
    if isinstance(place, str) and place not in PLACES:
        raise RequestError(f"experts is {place!r}; supported: {', '.join(PLACES)}")
    if place == "host" and device.type == "cpu":
        raise RequestError("experts are to be on the host and the device is cpu, which is the host; leave it out")
    if isinstance(place, str) and place != "shared":
        return Placement(place), device
    if device.type == "cuda" and ":" in str(device):
        raise RequestError(f"device is {device}; shared experts take one GPU a process, so give cuda")
    group = place if isinstance(place, Group) else Group()
    if group.ranks > experts:
        raise RequestError(f"{group.ranks} processes cannot share {experts} experts; start at most {experts}")
    return Placement("shared", group.rank, group.ranks, group), group.use(device)
