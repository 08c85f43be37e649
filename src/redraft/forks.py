"""What a fork has not got: torch's threads, for which an operation shared among them would wait for ever, and the
threads that held a lock."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any
from weakref import WeakSet


def _one_thread() -> None:
    """Have torch work on one thread, if the parent had loaded it; not if it was about to."""
    if (one := getattr(sys.modules.get("torch"), "set_num_threads", None)) is not None:
        one(1)


os.register_at_fork(after_in_child=_one_thread)


class ForkLock:
    """A lock that is free in a fork: the thread that held it is not there."""

    def __init__(self, kind: Callable[[], AbstractContextManager[bool]] = threading.Lock) -> None:
        self._kind = kind
        self._begin()
        _LOCKS.add(self)

    def _begin(self) -> None:
        self._lock: Any = self._kind()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        with suppress(RuntimeError):  # a fork made within it has not taken its own
            self._lock.release()


_LOCKS: WeakSet[ForkLock] = WeakSet()


def _free() -> None:
    for lock in list(_LOCKS):
        lock._begin()


os.register_at_fork(after_in_child=_free)
