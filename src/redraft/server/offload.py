"""Work that takes long leaves the event loop: large prompts to tokens, schemas to automata, gaps to be filled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

R = TypeVar("R")

SMALL_BYTES = 16 * 2**10
"""A body up to this size is read and made into tokens at once; a thread would cost more."""


async def offload(request: Request, work: Callable[[], R], *, slow: bool = False) -> R:
    """Do it here if the request is small and the work is not `slow`, otherwise on a thread."""
    length = request.headers.get("content-length", "")
    if not slow and length.isdigit() and int(length) <= SMALL_BYTES:
        return work()
    return await asyncio.to_thread(work)
