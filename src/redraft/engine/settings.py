"""Bounds of a loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoopConfig:
    """Bounds: rows per forward, requests at a time, requests in the queue, bytes of kept prefixes, bytes in all.

    `max_rows` None is what `redraft bench --knee` measured for the checkpoint on this machine where `load` finds it
    (engine/knee.py), else DEFAULT_CANVASES canvases. `prefix_bytes` None is room for a prompt of a few thousand tokens
    (engine/prefixes.py). `memory` bounds everything that the model takes on its device (engine/memory.py); None is all
    that is free there. `policy` says which requests go together. `graphs` lets a GPU repeat the steps of up to eight
    canvases as one graph; None does where it can, and goes on without where a graph cannot be recorded.
    """

    max_rows: int | None = None
    max_running: int = 64
    max_waiting: int = 4096
    policy: str = "mixed"
    prefix_bytes: int | None = None
    graphs: bool | None = None
    memory: int | None = None


DEFAULT_CANVASES = 12
"""Canvases in a forward where nobody has measured. It is beyond nano's knee on a CPU (bench/records/knee.json), for
with more arithmetic to spare a device has its knee further on; `redraft bench --knee` says where."""

DEFAULT_LOOP = LoopConfig()
