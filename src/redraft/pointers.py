"""JSON pointers: where a reference within a document leads."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote


def at_step(value: Any, step: str) -> Any:
    """What stands at a step of a pointer; None if nothing does."""
    step = unquote(step).replace("~1", "/").replace("~0", "~")
    if isinstance(value, list):
        return value[int(step)] if step.isdecimal() and len(step) < 10 and int(step) < len(value) else None
    return value.get(step) if isinstance(value, dict) else None
