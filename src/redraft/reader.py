"""Reads typed values from a JSON object of unknown content, and reports the keys that were never read.

A read either returns a value of the requested type or raises ConfigError with the key, the value and what it must be.
`null` means the same as an absent key, except for `fixed`, which compares it with the allowed values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redraft.errors import ConfigError
from redraft.files import read_small

_LARGEST = math.nextafter(math.inf, 0)
_MOST = 2**31 - 1  # every count in a network is below this, and products of counts fit in 64 bits


class Reader:
    """One JSON object. Messages put `prefix` before its keys; `inert` keys are known and have no effect."""

    def __init__(self, source: Mapping[str, Any], prefix: str, inert: frozenset[str] = frozenset()) -> None:
        self.source, self.prefix, self.inert = source, prefix, inert
        self._read: set[str] = set()
        self._inner: list[Reader] = []

    def value(self, key: str, default: Any = None) -> Any:
        """The value of any type."""
        self._read.add(key)
        found = self.source.get(key)
        return default if found is None else found

    def integer(self, key: str, default: int | None = None, low: int = 1, high: int = _MOST) -> int:
        """An integer from `low` to `high`."""
        found = self.value(key, default)
        if not isinstance(found, int) or isinstance(found, bool) or not low <= found <= high:
            raise self.refusal(key, found, f"it must be an integer from {low} to {high}")
        return found

    def number(self, key: str, default: float) -> float:
        """A finite number above 0."""
        found = self.value(key, default)
        if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found <= _LARGEST:
            raise self.refusal(key, found, "it must be a number above 0")
        return float(found)

    def integers(self, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """One integer or a list of them, none below 0."""
        found = self.value(key, list(default))
        several = found if isinstance(found, list) else [found]
        if not several or any(
            not isinstance(one, int) or isinstance(one, bool) or not 0 <= one <= _MOST for one in several
        ):
            raise self.refusal(key, found, f"it must be an integer from 0 to {_MOST}, or a list of them")
        return tuple(several)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """The object under a key, an empty one if there is none."""
        found = self.value(key, {})
        if not isinstance(found, Mapping):
            raise self.refusal(key, found, "it must be an object")
        return found

    def inner(self, key: str, inert: frozenset[str] = frozenset()) -> Reader:
        """The object under a key, as a Reader. Its unread keys are unread keys of this one."""
        self._inner.append(Reader(self.mapping(key), f"{self.prefix}{key}.", inert))
        return self._inner[-1]

    def fixed(self, key: str, allowed: tuple[object, ...]) -> None:
        """Refuse any value but the allowed ones; an absent key is one of them."""
        self._read.add(key)
        if key in self.source and self.source[key] not in allowed:
            raise self.refusal(key, self.source[key], f"supported: {', '.join(map(repr, allowed))}")

    def refusal(self, key: str, found: object, wanted: str) -> ConfigError:
        """The error of a value that cannot be used."""
        shown = repr(found)
        return ConfigError(f"{self.prefix}{key} is {shown if len(shown) <= 200 else shown[:200] + '…'}; {wanted}")

    def unread(self) -> tuple[str, ...]:
        """Names of the keys that were not read and are not inert; keys of inner objects come last."""
        own = tuple(self.prefix + key for key in sorted(self.source) if key not in self._read | self.inert)
        return own + tuple(name for inner in self._inner for name in inner.unread())


def read_json(path: Path) -> Mapping[str, Any]:
    """The JSON object of a file. Raises ConfigError if the file is absent or holds no JSON object."""
    try:
        found = json.loads(read_small(path))
    except FileNotFoundError:
        trains = (path.parent / "training-log.jsonl").is_file()
        why = "redraft tune has not ended there" if trains else "a checkpoint folder needs it"
        raise ConfigError(f"{path} does not exist; {why}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # bytes that are not UTF-8 are also a ValueError
        raise ConfigError(f"{path} is not valid JSON ({error}); fetch the file again") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds a {type(found).__name__}; it must hold an object")
    return found
