"""Which kernels a device runs: chosen at the top, so that nothing below has to know whether Triton is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redraft.model.kernels import Kernels


def kernels_for(device: str) -> Kernels:
    """A GPU's own where Triton is installed, plain torch elsewhere."""
    from redraft.model.kernels import FAST

    if not device.startswith("cuda"):
        return FAST
    try:
        from redraft.model.triton.kernels import GPU
    except ImportError:
        return FAST
    return GPU
