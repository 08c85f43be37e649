"""Ctrl-C while a step runs: the step is finished and kept, so that the same command goes on behind it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread

NOTICE = b"\nredraft: the step that runs is finished and kept; interrupt again to end at once\n"


@contextmanager
def pausable() -> Iterator[Callable[[], bool]]:
    """In the block the first SIGINT only sets a flag, which the yielded function returns; the second one interrupts.

    Nothing changes if SIGINT would not raise KeyboardInterrupt here: it is ignored, or another handler is installed.
    """
    interrupted, trainer = False, os.getpid()

    def note(_number: int, _frame: object) -> None:
        nonlocal interrupted
        if os.getpid() != trainer:  # a terminal also signals the workers, which the trainer still needs
            return
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True
        if sys.__stderr__ is not None:
            with suppress(OSError):  # a program behind a pipe got the same signal, and may have exited
                os.write(sys.__stderr__.fileno(), NOTICE)  # not print, which may have been interrupted itself

    ours = current_thread() is main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: interrupted
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
