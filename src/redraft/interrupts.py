"""Ctrl-C that waits for the end of a block.

Python raises KeyboardInterrupt between any two of the main thread's instructions: also between taking a lock or a mode
of torch and the `with` that would give it back. torch's guard then lives until it is collected, and ends the mode in
the middle of a later forward.
"""

from __future__ import annotations

import signal
from threading import current_thread, main_thread


class Held:
    """In its block the first SIGINT is put down, and raised at the end; a second one is raised at once.

    Nothing changes where SIGINT would not raise KeyboardInterrupt: on another thread, or with another handler.
    """

    def __init__(self) -> None:
        self._ours = self._noted = False

    def __enter__(self) -> None:
        if current_thread() is main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._ours = True  # no interrupt can come before this line: the handler only puts it down

    def __exit__(self, *_: object) -> None:
        if self._ours and signal.getsignal(signal.SIGINT) == self._note:  # an observer may have put another there
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._noted:
            raise KeyboardInterrupt

    def _note(self, _number: int, _frame: object) -> None:
        if self._noted:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        self._noted = True
