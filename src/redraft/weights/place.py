"""Where a model's experts are, nine tenths of its weights: on the device, or on the host.

device    every expert where everything else is
host      in the processor's memory; those that rows are sent to are copied (`weights/offload.py`)
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
    """The placement of that name. Raises RequestError if it cannot be had on this device."""
    if place not in list(Placement):
        raise RequestError(f"experts is {place!r}; supported: {', '.join(Placement)}")
    if place == Placement.HOST and device.type == "cpu":
        raise RequestError("experts are to be on the host and the device is cpu, which is the host; leave it out")
    return Placement(place)
