"""Where a model's experts are, nine tenths of its weights: on the device, or on the host.

device    on the device, as all other weights
host      in the processor's memory; chosen experts are copied to the device (`weights/offload.py`)
"""

from __future__ import annotations

from enum import StrEnum

import torch

from redraft.errors import RequestError


class Placement(StrEnum):
    """The place."""

    DEVICE = "device"
    HOST = "host"


def place_experts(place: str, device: torch.device) -> Placement:
    """The placement of that name. Raises RequestError if it is not possible on this device."""
    if place not in list(Placement):
        raise RequestError(f"experts is {place!r}; supported: {', '.join(Placement)}")
    if place == Placement.HOST and device.type == "cpu":
        raise RequestError("experts is 'host' and the device is cpu, which is the host: leave it out")
    return Placement(place)
