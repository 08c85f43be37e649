"""Ctrl-C that waits for the end of a block.

Python raises KeyboardInterrupt between any two of the main thread's instructions: also between taking a lock or a mode
of torch and the `with` that would give it back. torch's guard then lives until it is collected, and ends the mode in
the middle of a later forward.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from threading import current_thread, main_thread
from typing import Any


class Held:
    """In its block the first SIGINT is `noted`, and raised at the end; a second one is raised at once.

    With a `notice` the first is answered by it on stderr and left to the block, which looks at `noted`; `also` are
    signals that do the same, as SIGTERM, by which others end a program that has work to keep. Nothing changes
    where SIGINT would not raise KeyboardInterrupt: on another thread, or with another handler.
    """

    def __init__(self, notice: bytes | None = None, also: Sequence[signal.Signals] = ()) -> None:
        self.noted = self._ours = False
        self._notice, self._process = notice, os.getpid()
        self._also, self._before = also, dict[signal.Signals, Any]()

    def __enter__(self) -> None:
        if current_thread() is main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._ours = True  # no interrupt can come before this line: the handler only puts it down
            self._before = {number: signal.signal(number, self._note) for number in self._also}

    def __exit__(self, *_: object) -> None:
        if self._ours and signal.getsignal(signal.SIGINT) == self._note:  # an observer may have put another there
            signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.noted and self._notice is None:
            raise KeyboardInterrupt

    def _note(self, _number: int, _frame: object) -> None:
        if self._notice is not None and os.getpid() != self._process:
            return  # a terminal also signals workers that the block has forked and still needs
        if self.noted:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        self.noted = True
        if self._notice is not None and sys.__stderr__ is not None:
            with suppress(OSError):  # a program behind a pipe got the same signal, and may have exited
                os.write(sys.__stderr__.fileno(), self._notice)  # not print, which may have been interrupted itself
