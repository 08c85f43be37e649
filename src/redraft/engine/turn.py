"""Whose turn it is in a loop: one thread's at a time, and a fork's only if it has lost nothing."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch

LAST_FORWARD_SEC = 60.0
"""How long the end of a program waits for another thread's forward."""


class Turn:
    """Who holds it may touch all of a loop but its mail, whose condition is notified at the end of each turn."""

    def __init__(self, mail: threading.Condition) -> None:
        self._lock, self._mail, self._process = threading.Lock(), mail, os.getpid()
        self._holder: int | None = None
        weakref.finalize(self, _take_for_good, self._lock, self._process)

    @property
    def is_mine(self) -> bool:
        """Whether this thread holds it."""
        return self._holder == threading.get_ident()

    @contextmanager
    def held(self, *, wait: bool = True) -> Iterator[bool]:
        """Hold it; yields whether it could be had, which is only in doubt without `wait`."""
        ours = self._lock.acquire(blocking=wait)
        if not ours:
            yield False
            return
        self._holder = threading.get_ident()
        try:
            yield True
        finally:
            self._holder = None
            self._lock.release()
            with self._mail:
                self._mail.notify_all()  # there may be room in the queue

    def is_lost(self, *, threaded: bool) -> bool:
        """Whether this process is a fork, made while the loop had a thread of its own (`threaded`), or another thread
        held the turn or the mail: none of them is here. A fork that has lost nothing goes on with one thread of torch,
        since an operation would wait for the others."""
        if self._process == os.getpid():
            return False
        if threaded or self._lock.locked() or not self._mail.acquire(blocking=False):
            return True
        self._mail.release()
        torch.set_num_threads(1)
        self._process = os.getpid()
        return False


def _take_for_good(lock: threading.Lock, process: int) -> None:
    """At the end of the program: Python ends other threads, and aborts the process where one is within a forward."""
    if os.getpid() == process:
        lock.acquire(timeout=LAST_FORWARD_SEC)
