"""Automata and schemas that are kept by what made them, up to a number of bytes: an automaton may have 50 MB."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MOST_BYTES = 64 * 2**20
"""Of all that is remembered."""
OVERHEAD = 500
"""Bytes of an entry besides its arrays and texts, about."""


class Remembered:
    """Values by key, the least recently used of which go first."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """The value; None if there is none."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: Hashable, value: Any, num_bytes: int) -> None:
        """Keep it, if it is not too large by itself, and drop what there is no room for any more."""
        with self._lock:
            if num_bytes > MOST_BYTES or key in self._kept:
                return
            self._kept[key] = value, num_bytes
            self.num_bytes += num_bytes
            while self.num_bytes > MOST_BYTES:
                self.num_bytes -= self._kept.popitem(last=False)[1][1]


REMEMBERED = Remembered()


def remembered(make: Callable[P, T]) -> Callable[P, T]:
    """A function whose values are kept by its arguments, among those of all such functions."""

    @wraps(make)
    def found(*args: P.args, **kwargs: P.kwargs) -> T:
        key = (make, args, *kwargs.items())
        value: T | None = REMEMBERED.get(key)
        if value is None:
            value = make(*args, **kwargs)
            REMEMBERED.put(key, value, size_of(value) + size_of(args))
        return value

    return found


def size_of(thing: Any) -> int:
    """Bytes of a value that says how many it has (`num_bytes`), of a text, or of some of these."""
    if isinstance(thing, dict):
        return size_of((*thing, *thing.values()))
    if isinstance(thing, tuple):
        return OVERHEAD + sum(map(size_of, thing))
    if isinstance(thing, str | bytes):
        return OVERHEAD + sys.getsizeof(thing)
    return OVERHEAD + int(getattr(thing, "num_bytes", 0))
