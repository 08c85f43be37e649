"""Whose turn it is in a loop: one thread's at a time, and a fork's only if it has lost nothing."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from redraft.errors import RunError

LAST_FORWARD_SEC = 60.0
"""How long the end of a program waits for another thread's forward."""
LAST_WAIT_SEC = 10.0
"""How long another thread waits for the end of a program before it has an error: by then most have ended with it."""


@dataclass(eq=False)
class _Lock:
    """The turn's lock, the process whose threads take it, and when the program began to end."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    process: int = field(default_factory=os.getpid)
    ended: float | None = None

    def take(self, *, wait: bool) -> bool:
        """Whether it is taken. When the program ends only its main thread has it: Python ends the others where they
        are, and aborts the process where one is within a forward. Raises RunError for one that does not end."""
        ours = self.lock.acquire(blocking=wait)
        if ours and self.ended is not None and threading.current_thread() is not threading.main_thread():
            self.lock.release()
            if not wait:
                return False
            threading.Event().wait(max(0.0, self.ended + LAST_WAIT_SEC - time.monotonic()))
            raise RunError("the program ends, and only its main thread has answers; ask from there, or earlier")
        return ours

    def end(self) -> None:
        """At the end of the program: wait for the forward of another thread, behind which there is none."""
        if self.process == os.getpid() and self.lock.acquire(timeout=LAST_FORWARD_SEC):
            self.ended = time.monotonic()
            self.lock.release()


class Turn:
    """Who holds it may touch all of a loop but its mail, whose condition is notified at the end of each turn."""

    def __init__(self, mail: threading.Condition) -> None:
        self._lock, self._mail = _Lock(), mail
        self._holder: int | None = None
        weakref.finalize(self, self._lock.end)

    @property
    def is_held(self) -> bool:
        """Whether some thread holds it."""
        return self._lock.lock.locked()

    @property
    def ends(self) -> bool:
        """Whether the program ends, and only its main thread may hold it."""
        return self._lock.ended is not None and self._lock.process == os.getpid()

    @property
    def is_mine(self) -> bool:
        """Whether this thread holds it."""
        return self._holder == threading.get_ident()

    @contextmanager
    def held(self, *, wait: bool = True) -> Iterator[bool]:
        """Hold it; yields whether it could be had, which is only in doubt without `wait`."""
        if not self._lock.take(wait=wait):
            yield False
            return
        self._holder = threading.get_ident()
        try:
            yield True
        finally:
            self._holder = None
            self._lock.lock.release()
            with self._mail:
                self._mail.notify_all()  # there may be room in the queue

    def is_lost(self, *, threaded: bool) -> bool:
        """Whether this process is a fork, made while the loop had a thread of its own (`threaded`), or another thread
        held the turn or the mail: none of them is here. A fork that has lost nothing goes on."""
        if self._lock.process == os.getpid():
            return False
        if threaded or self.is_held or not self._mail.acquire(blocking=False):
            return True
        self._mail.release()
        self._lock.process = os.getpid()
        return False
