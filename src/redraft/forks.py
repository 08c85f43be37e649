"""torch's threads in a fork: they are the parent's alone, and an operation shared among them would wait for ever."""

from __future__ import annotations

import os
import sys


def _one_thread() -> None:
    """Have torch work on one thread, if the parent had loaded it; not if it was about to."""
    if (one := getattr(sys.modules.get("torch"), "set_num_threads", None)) is not None:
        one(1)


os.register_at_fork(after_in_child=_one_thread)
