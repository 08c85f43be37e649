"""A client for load tests: one streamed answer over one connection, by hand, timed, and left early if wanted."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StreamedReply:
    """What came of one request. Times are seconds after it was sent; None where there was none.

    `order` says whether the chunks came as they must: a role, text, a reason, the end.
    """

    status: int
    text: str = ""
    tokens: int = 0
    first_sec: float | None = None
    seconds: float = 0.0
    order: bool = True
    left: bool = False


Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def stream_chat(
    host: str, port: int, body: Mapping[str, Any], *, leave: bool = False, links: list[Link] | None = None
) -> StreamedReply:
    """Ask, and read to the end; with `leave` hang up after the first chunk. Raises OSError.

    The connection is its own, or one of `links`, to which it goes back: as clients with a pool do.
    """
    began = time.monotonic()
    reader, writer = links.pop() if links else await asyncio.open_connection(host, port)
    try:
        content = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        head += "Connection: close\r\n" if links is None else ""
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        if status != 200:
            return StreamedReply(status, seconds=time.monotonic() - began)
        reply = await _read(reader, began, leave)
        if links is not None and reply.order and not leave:
            await reader.readuntil(b"\r\n0\r\n\r\n")
            links.append((reader, writer))
        return reply
    finally:
        if not (links and links[-1][1] is writer):
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _read(reader: asyncio.StreamReader, began: float, leave: bool) -> StreamedReply:
    kinds, text, tokens, first = "", "", 0, None
    async for chunk in _chunks(reader):
        if chunk is None:
            kinds += "d"
            continue
        if "error" in chunk:
            return StreamedReply(500, text, tokens, first, time.monotonic() - began, order=False)
        if not chunk["choices"]:
            kinds, tokens = kinds + "u", chunk["usage"]["completion_tokens"]
            continue
        choice = chunk["choices"][0]
        said = choice["delta"].get("content")
        kinds += "f" if choice["finish_reason"] else "t" if said else "r"
        text += said or ""
        if said and first is None:
            first = time.monotonic() - began
        if leave:
            return StreamedReply(200, text, tokens, first, time.monotonic() - began, left=True)
    order = kinds.startswith("r") and kinds.endswith("fud") and set(kinds[1:-3]) <= {"t"}
    return StreamedReply(200, text, tokens, first, time.monotonic() - began, order)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any] | None]:
    """Chunks of a stream, None at its end. Lines of the transfer coding stand between and are passed over."""
    while line := await reader.readline():
        if line.startswith(b"data: [DONE]"):
            yield None
            return
        elif line.startswith(b"data: "):
            yield json.loads(line[6:])
