"""Ctrl-C while a step runs: the step is finished and kept, so that the same command goes on behind it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread

SAID = b"\nredraft: the step that runs is finished and kept; interrupt again to end at once\n"


@contextmanager
def pausable() -> Iterator[Callable[[], bool]]:
    """Within, the first SIGINT is only noted, which is what the function tells, and the second interrupts.

    Where Python would not raise KeyboardInterrupt at one (it is ignored, or somebody else's), nothing changes.
    """
    asked, trainer = False, os.getpid()

    def hear(_number: int, _frame: object) -> None:
        nonlocal asked
        if os.getpid() != trainer:  # a terminal's reaches workers, too, which the trainer still needs
            return
        if asked:
            raise KeyboardInterrupt
        asked = True
        if sys.__stderr__ is not None:
            with suppress(OSError):  # what it leads into heard the same ctrl-C, and may be gone
                os.write(sys.__stderr__.fileno(), SAID)  # no print: it may be in one just now

    ours = current_thread() is main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, hear)
    try:
        yield lambda: asked
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
