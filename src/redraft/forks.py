"""torch's threads in a fork: they are the parent's alone, and an operation shared among them would wait for ever."""

from __future__ import annotations

import os
import sys


def _one_thread() -> None:
    """Have torch work on one thread, if the parent had loaded it."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


os.register_at_fork(after_in_child=_one_thread)
