"""Ctrl-C while a step runs: the step is finished and kept, so that the same command goes on behind it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SAID = b"\nredraft: the step that runs is finished and kept; interrupt again to end at once\n"


@contextmanager
def pausable() -> Iterator[Callable[[], bool]]:
    """Within, the first SIGINT is only noted, which is what the function tells, and the second interrupts.

    Where Python would not raise KeyboardInterrupt at one (it is ignored, or somebody else's), nothing changes.
    """
    asked = threading.Event()

    def hear(_number: int, _frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, SAID)  # no print: it may be in one just now

    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, hear)
    try:
        yield asked.is_set
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
