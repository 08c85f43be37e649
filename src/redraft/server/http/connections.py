"""Connections, of which strangers may open any number: each has deadlines, all together and each address have a cap.

    waiting   for a request: IDLE_SEC without a byte, HEAD_SEC from its first byte to the end of its head
    body      BODY_SEC from the head to the end of the body
    answer    as long as the answer takes; but bytes that nobody takes off within `stall_sec` end it, and so do those
              that are taken at less than LEAST_RATE behind its end

At a cap a new connection takes the place of another of the address that has the most: of one whose refusal waits for
its turn, else of the one that has waited longest. So those who hold connections without asking anything keep nobody
out. Only if all are being answered it is closed.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import re
import resource
import time
from collections import Counter, defaultdict
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import h11
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.h11_impl import H11Protocol

from redraft.server.http.errors import ApiError
from redraft.server.http.limits import (
    HEAD_BYTES,
    HEAD_LINES,
    WAITS,
    ServerLimits,
    head_too_long,
    no_http,
    too_many_pieces,
    trailers_too_long,
)

IDLE_SEC, HEAD_SEC, BODY_SEC = 30.0, 15.0, 60.0
SWEEP_SEC = 0.5
CHOSEN = 64
"""Connections that are chosen at a time to make room, until the next sweep."""
BACKLOG, RESERVE = 128, 256
"""Connections that the system keeps waiting, and descriptors left for everything else."""
MOST_PIECES, PIECE_BYTES = 1024, 512
"""A body comes in at most so many pieces, and one more for each so many bytes of it. Chunks of 1,000 bytes are twice as
many pieces where each read brings a packet."""
LEAST_RATE, MOST_UNSENT = 2**16, 2**28
"""Bytes a second that a reader has to take of what is left of its answer; bytes of answers that one address may leave
unread, beyond which its largest one is ended."""
_BLANK = re.compile(rb"\n\r?\n")
LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def _whole(refusal: ApiError) -> bytes:
    """An answer that ends its connection, as bytes."""
    body = json.dumps(refusal.body).encode()
    head = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\nconnection: close\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def room_for(wanted: int, reserve: int = RESERVE) -> int:
    """How many connections there may be: those wanted, or what the system allows this process to open, but for what
    else it has open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = wanted + reserve
    if soft != resource.RLIM_INFINITY and soft < least:
        with suppress(OSError, ValueError):
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (least if hard == resource.RLIM_INFINITY else min(hard, least), hard)
            )
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == resource.RLIM_INFINITY else max(16, min(wanted, soft - reserve))


def guarded(limits: ServerLimits) -> type[H11Protocol]:
    """uvicorn's protocol for one server, whose connections have these limits."""
    return type("Guarded", (_Guarded,), {"guard": _Guard(limits)})


class _Guard:
    """All connections of a server."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits, self.most = limits, room_for(limits.connections)
        self.per_address = min(limits.per_address, self.most)
        self.open: dict[_Guarded, None] = {}
        self._counts = Counter[str]()
        self._chosen = defaultdict[str, list[tuple[float, _Guarded]]](list)  # by address, the last goes first
        self._sweeping = False

    def take(self, new: _Guarded) -> None:
        """One more; another has to go if they are too many."""
        self.open[new] = None
        self._counts[new.address] += 1
        if self._counts[new.address] > self.per_address:
            self._end_one(new, new.address)
        elif len(self.open) > self.most:
            self._end_one(new, max(self._counts, key=self._counts.__getitem__))
        if not self._sweeping:
            self._sweeping = True
            new.loop.call_later(SWEEP_SEC, self._sweep, new.loop)

    def drop(self, one: _Guarded) -> None:
        """One less."""
        if one in self.open:
            del self.open[one]
            self._counts[one.address] -= 1
            if not self._counts[one.address]:
                del self._counts[one.address]

    def _end_one(self, new: _Guarded, address: str) -> None:
        """Where they come by hundreds a second, those that go are chosen some at a time: to look through all for each
        takes milliseconds of the event loop. One that has begun something new since then stays."""
        left = self._chosen[address]
        while left:
            since, one = left.pop()
            if one in self.open and one.gives_way and one.since == since:
                one.end()
                return
        waiting = (one for one in self.open if one is not new and one.address == address and one.gives_way)
        first = heapq.nsmallest(CHOSEN, waiting, key=lambda one: (not one.is_refused, not one.is_idle, one.since))
        left += [(one.since, one) for one in reversed(first[1:])]
        (first[0] if first else new).end()

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        self._chosen.clear()  # others may be refused, or wait for longer, by now
        for one in list(self.open):
            one.check(now, self.limits.stall_sec)
        self._end_unread()
        self._sweeping = bool(self.open)
        if self._sweeping:
            loop.call_later(SWEEP_SEC, self._sweep, loop)

    def _end_unread(self) -> None:
        """End what is too much for the memory, should slow readers leave it there."""
        unread = defaultdict[str, list[_Guarded]](list)
        for one in self.open:
            if one.unsent:
                unread[one.address].append(one)
        for ones in unread.values():
            ones.sort(key=lambda one: one.unsent)
            while sum(one.unsent for one in ones) > MOST_UNSENT:
                ones.pop().end()


class _Lines(ReceiveBuffer):
    """What has been read and not parsed, of which a head and the trailers of a body are split into lines. Each line
    costs microseconds, and 600 heads of 64 KiB that had nothing else held up the event loop for a minute."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """The lines up to an empty one, if that is there. Raises h11.RemoteProtocolError if they are too many."""
        if self._data.count(b"\n") > HEAD_LINES and not self._data.startswith((b"\n", b"\r\n")):
            blank = _BLANK.search(self._data)
            if self._data.count(b"\n", 0, blank.end() if blank else None) > HEAD_LINES:
                raise h11.RemoteProtocolError(f"over {HEAD_LINES} lines", error_status_hint=431)
        return super().maybe_extract_lines()


class _Parser(h11.Connection):
    """Refuses a body of very many small pieces. Each is an event of its own, 20 microseconds of the event loop, and one
    read may bring 40,000. `refusal` is what a client gets behind an error: what is too long is no less HTTP."""

    _pieces = _bytes = 0

    def __init__(self) -> None:
        super().__init__(h11.SERVER, HEAD_BYTES)
        self._receive_buffer = _Lines()
        self.refusal = no_http("it cannot be read")

    def next_event(self) -> Any:
        """The next one. Raises h11.RemoteProtocolError."""
        in_head = self.their_state is h11.IDLE
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.refusal = no_http(str(error))
            if error.error_status_hint == 431:
                self.refusal = head_too_long() if in_head else trailers_too_long()
            raise
        if isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._pieces, self._bytes = self._pieces + 1, self._bytes + len(event.data)
            if self._pieces > MOST_PIECES + self._bytes // PIECE_BYTES:
                self.refusal = too_many_pieces(MOST_PIECES, PIECE_BYTES)
                raise h11.RemoteProtocolError(self.refusal.message)
        return event


class _Guarded(H11Protocol):
    """One connection. `since` is when it began to wait for what it waits for; `unsent` bytes are not taken yet, and
    `_owed` ones were not when its answer was complete."""

    guard: _Guard
    conn: _Parser

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self.conn = _Parser()
        self.address = self.client[0] if self.client else ""
        self.since = self._stuck_since = time.monotonic()
        self._begun, self.unsent, self._owed = False, 0, 0
        self.guard.take(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.guard.drop(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes: the first ones of a head, and the end of a head, begin something new to wait for."""
        before = self.is_idle
        if before and not self._begun:
            self._begun, self.since = True, time.monotonic()
        super().data_received(data)
        if before and not self.is_idle:
            self._begun, self.since = False, time.monotonic()

    def on_response_complete(self) -> None:
        self.since, self._begun = time.monotonic(), False
        self._owed = self.transport.get_write_buffer_size()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """What was sent is no HTTP, or too long; where an answer has begun, nothing more can be said."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(_whole(self.conn.refusal))
            self.transport.close()
        else:
            self.transport.abort()
        if self.cycle is not None:  # an answer that comes later has nowhere to go
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _should_upgrade(self) -> bool:
        """Never: who would change over to WebSockets is answered as if they had not asked."""
        return False

    @property
    def is_idle(self) -> bool:
        """Whether it has no request, or only part of a head."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_answered(self) -> bool:
        """Whether a whole request is being answered."""
        return not self.is_idle and not self.cycle.more_body

    @property
    def is_refused(self) -> bool:
        """Whether it waits for its turn to be refused."""
        return not self.is_idle and bool(self.scope["state"].get(WAITS))

    @property
    def gives_way(self) -> bool:
        """Whether another may have its place."""
        return not self.is_answered or self.is_refused

    def check(self, now: float, stall_sec: float) -> None:
        """End it if it is late."""
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent != self.unsent:
            self.unsent, self._stuck_since = unsent, now
        allowed = self._owed / LEAST_RATE if unsent and self.is_idle else 0.0
        allowed += BODY_SEC if not self.is_idle else HEAD_SEC if self._begun else IDLE_SEC
        late = not self.is_answered and now - self.since > allowed
        if late or now - self._stuck_since > stall_sec:
            self.end()

    def end(self) -> None:
        """Close it now; one that has begun to ask learns why."""
        with suppress(Exception):  # it may be closing
            if (self._begun or not self.is_idle) and not self.is_answered and not self.unsent:
                self.transport.write(LATE)
        self.guard.drop(self)
        self.transport.abort()
