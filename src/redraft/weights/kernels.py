"""Which kernels a device runs, so that nothing else has to know whether Triton is there."""

from __future__ import annotations

from redraft.model.kernels import FAST, Kernels


def kernels_for(device: str) -> Kernels:
    """A GPU's own where Triton is installed, plain torch elsewhere."""
    if not device.startswith("cuda"):
        return FAST
    try:
        from redraft.model.triton.kernels import GPU  # takes seconds, which a CPU has no use for
    except ImportError:
        return FAST
    return GPU
