"""The lines of an event stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

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
