"""What goes to another server and comes from it: bodies, counts, the lines of an event stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from redraft.errors import RequestError

EVERY_LINES = 256
"""Lines of a stream between two that let the event loop look at the clock and at Ctrl-C."""


async def lines_of(parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Lines of an event stream. httpx's own would also split at separators that stand inside a JSON string."""
    rest = bytearray()
    async for part in parts:
        rest += part
        if b"\n" in part:
            *lines, rest = rest.split(b"\n")
            for number, line in enumerate(lines, 1):
                if number % EVERY_LINES == 0:  # a part may come unpacked from a few bytes
                    await asyncio.sleep(0)
                yield bytes(line)
    yield bytes(rest)


def count_of(usage: Any, name: str) -> int | None:
    """What another server counts, if it is a number that can be one."""
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if type(count) is int and 0 <= count < 2**53 else None


def encoded(body: Mapping[str, Any]) -> bytes:
    """A body as JSON. Raises RequestError for what JSON cannot hold."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the request cannot be written as JSON: {error!s:.200}") from None
