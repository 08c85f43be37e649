"""Connections of strangers: silent, dripping, idle and slow ones end, and keep nobody out."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import h11
import httpx2
import pytest
from tests.server.conftest import ANSWER, ROOT, USER, Process, end, ended, eventually

from redraft.server.http import connections
from redraft.server.http.limits import HEAD_LINES, ServerLimits
from redraft.server.http.process import listen

PATH = "/v1/chat/completions"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
KINDS = (b"", b"GET /live HT", HEAD + b"Content-Length: 100\r\n\r\n{", b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
FEW = """
import resource, sys
from redraft.__main__ import main
from redraft.server.http import connections
from redraft.server.http.process import listen
connections.IDLE_SEC, connections.HEAD_SEC, connections.BODY_SEC = {deadlines}
resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))
sys.exit(main(["serve", "--port", "0", "--threads", "1", "--quiet", "--model", "nano-sudoku", "--name", "nano"]))
"""


def test_an_answer_does_not_wait_for_its_head_to_be_acknowledged() -> None:
    """Head and body are two writes: without this the second waits some 40 ms for the reader's acknowledgement."""
    with closing(listen("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()):
        ours, _ = listening.accept()
        with ours:
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def begun(files: int, *deadlines: float) -> Process:
    """A server with few descriptors."""
    return served_by(FEW.format(files=files, deadlines=deadlines))


def served_by(program: str) -> Process:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    popen = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)
    assert popen.stdout is not None
    return Process(popen.stdout.readline().strip(), popen)


def opened(server: Process, *sent: bytes) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    link = socket.create_connection((host, int(port)), timeout=60)
    for part in sent:
        link.sendall(part)
    return link


def live(server: Process) -> bool:
    return httpx2.get(f"{server.url}/live", timeout=20).status_code == 200


def descriptors(server: Process) -> int:
    return len(list(Path(f"/proc/{server.popen.pid}/fd").iterdir()))


def is_closed(link: socket.socket) -> bool:
    link.settimeout(0.05)
    try:
        while link.recv(2**16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.fixture(scope="module")
def quick() -> Iterator[Process]:
    """Its deadlines are short."""
    process = begun(1024, 1.0, 1.0, 1.0)
    yield process
    end(process)


@pytest.mark.parametrize("sent", KINDS)
def test_a_connection_that_goes_no_further_ends(quick: Process, sent: bytes) -> None:
    """Silent, within its head, within its body, idle behind a reply."""
    with opened(quick, sent) as link:
        assert eventually(functools.partial(is_closed, link), 30)


def test_a_connection_that_drips_ends(quick: Process) -> None:
    """A byte now and then was enough to keep it for ever."""
    with opened(quick, HEAD) as link:

        def refuses() -> bool:
            time.sleep(0.2)
            try:
                link.sendall(b"a")
            except OSError:
                return True
            return False

        assert eventually(refuses, 30)


def test_a_body_of_two_lengths_is_refused_and_what_follows_it_is_not_read(quick: Process) -> None:
    """A proxy that goes by the other length would take the rest for somebody else's request (RFC 9112, 6.1)."""
    both = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with opened(quick, HEAD + both + b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as link:
        reply = b"".join(iter(lambda: link.recv(2**16), b""))
    assert reply.startswith(b"HTTP/1.1 400")
    assert b"two_lengths" in reply
    assert reply.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("head", [HEAD, b"GET /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_who_would_change_the_protocol_is_answered_at_once(quick: Process, head: bytes) -> None:
    """It was handed to the library for WebSockets, which waited for what did not come, and refused in plain text."""
    change = b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\n{}"
    with opened(quick, head + change) as link:
        link.settimeout(5)
        reply = link.recv(2**16)
        while b'{"error":{"message"' not in reply:
            reply += link.recv(2**16) or pytest.fail(f"no error in {reply!r}")


@pytest.mark.parametrize(
    ("limits", "refused", "left"),
    [
        ({"per_address": 3}, "", "a2 a3 b1 a4"),
        ({"per_address": 3}, "a2", "a1 a3 b1 a4"),
        ({"connections": 16}, "a2", "a1 a2 a3 b1 a4"),
        ({"per_address": 1}, "a2", "b1 a4"),
    ],
)
def test_an_address_that_holds_too_many_loses_one_refused_or_its_oldest(
    limits: dict[str, int], refused: str, left: str
) -> None:
    guard = connections._Guard(ServerLimits(**limits))

    class Waiting:
        gives_way, is_idle = True, True
        loop = asyncio.new_event_loop()

        def __init__(self, name: str) -> None:
            self.name, self.address, self.since, self.is_refused = name, name[0], float(name[1]), name == refused

        def end(self) -> None:
            guard.drop(self)  # type: ignore[arg-type]  # all that the guard asks of one

    for name in ("a1", "a2", "a3", "b1", "a4"):
        guard.take(Waiting(name))  # type: ignore[arg-type]
    Waiting.loop.close()
    assert " ".join(one.name for one in guard.open) == left  # type: ignore[attr-defined]


def test_many_new_ones_make_the_oldest_go_without_looking_at_all_each_time() -> None:
    """300 new connections a second of one address held the event loop, and so /live, for seconds."""
    guard, looked, gone, loop = connections._Guard(ServerLimits(per_address=900)), [0], list[int](), Mock()

    class Waiting:
        is_refused, is_idle, address, since = False, True, "a", 0.0

        def __init__(self, number: int) -> None:
            self.number, self.loop = number, loop

        @property
        def gives_way(self) -> bool:
            looked[0] += 1
            return self.number % 10 > 0  # the others are being answered

        def end(self) -> None:
            gone.append(self.number)
            guard.drop(self)  # type: ignore[arg-type]  # all that the guard asks of one

    for number in range(1200):
        guard.take(new := Waiting(number))  # type: ignore[arg-type]  # as above
        if number == 5:
            begins = new
        if number == 902:  # 64 have been chosen, of which two are gone
            begins.since = 1.0
    assert gone == [number for number in range(400) if number % 10 and number != 5][:300]
    assert len(guard.open) == 900
    assert looked[0] < 10 * 900


@pytest.mark.slow
def test_connections_beyond_the_descriptors_keep_nobody_out() -> None:
    """1,100 of them reset everybody else's while they lasted. Some are silent, some drip, some have asked before."""
    server = begun(1024, 900.0, 900.0, 900.0)
    before = descriptors(server)
    links = []
    for i in range(2000):
        links.append(opened(server, KINDS[i % 4]))
        if i % 200 == 0:
            assert live(server)
    began = time.monotonic()
    body = {"messages": USER, "seed": 7}
    told = httpx2.post(server.url + PATH, json=body, timeout=60).json()
    assert told["choices"][0]["message"]["content"] == ANSWER
    assert time.monotonic() - began < 10
    assert descriptors(server) < 1024 - connections.RESERVE // 2
    for link in links:
        link.close()
    assert eventually(lambda: descriptors(server) <= before + 4, 30), "descriptors are left open"
    assert end(server) == 0


def test_a_reader_that_takes_no_bytes_is_not_waited_for_for_ever(quick: Process) -> None:
    """A reply larger than the buffers between the two, which nobody reads."""
    before = descriptors(quick)
    links = [opened(quick, b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200) for _ in range(3)]
    try:
        assert eventually(lambda: descriptors(quick) <= before, 180)
    finally:
        for link in links:
            link.close()


@pytest.mark.parametrize(("size", "whole"), [(1000, True), (4096, True), (64, False)])
def test_a_body_in_chunks_of_a_kilobyte_is_read_packet_by_packet(size: int, whole: bool) -> None:
    parser, left = connections._Parser(), 2**22
    parser.receive_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    parser.next_event()
    sent = b"%x\r\n%b\r\n" % (size, b"a" * size) * (left // size) + b"0\r\n\r\n"
    with nullcontext() if whole else pytest.raises(h11.RemoteProtocolError, match="pieces"):
        for at in range(0, len(sent), 1448):
            parser.receive_data(sent[at : at + 1448])
            while (event := parser.next_event()) is not h11.NEED_DATA and not isinstance(event, h11.EndOfMessage):
                left -= len(event.data)
        assert left < size


def test_who_sends_what_is_too_long_learns_of_what(quick: Process) -> None:
    """A body in small chunks, and trailers of many lines, got "Invalid HTTP request received." and a reset."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    trailers = b"0\r\n" + b"a: b\r\n" * (HEAD_LINES + 1) + b"\r\n"
    for sent, code in (
        (head + b"1\r\n \r\n" * 2000, "body_in_pieces"),
        (head + trailers, "trailers_too_large"),
        (b"?\r\n\r\n", "no_http"),
    ):
        with opened(quick, sent) as link:
            said, _, body = b"".join(iter(lambda: link.recv(2**16), b"")).partition(b"\r\n\r\n")
        assert b"application/json" in said
        assert json.loads(body)["error"]["code"] == code


def test_a_long_head_behind_a_body_is_counted_alone() -> None:
    """The empty line that ends a chunked body was counted with the lines of the next head."""
    lines = connections._Lines()
    lines += b"\r\nGET / HTTP/1.1\r\n" + b"a: b\r\n" * (HEAD_LINES - 2) + b"\r\n"
    assert lines.maybe_extract_lines() == []
    assert len(lines.maybe_extract_lines() or []) == HEAD_LINES - 1


@pytest.mark.parametrize(("rate", "whole"), [(2 * connections.LEAST_RATE, True), (connections.LEAST_RATE // 2, False)])
def test_a_reader_that_takes_bytes_gets_the_whole_answer_unless_it_is_too_slow(rate: int, whole: bool) -> None:
    """One of 270 KB a second lost two thirds of 32 MB, 30 seconds after the last byte had been queued."""
    one: Any = object.__new__(connections.guarded(ServerLimits()))
    size = 2**25
    one.cycle, one.transport = Mock(response_complete=True), Mock()
    one.address, one.since, one._stuck_since, one._begun, one.unsent = "a", 0.0, 0.0, False, size
    one._owed, left, now, ends = size, size, 0.0, list[float]()
    one.end = lambda: ends.append(now)
    while left > 0 and not ends:
        one.transport.get_write_buffer_size.return_value = left
        one.check(now, 30.0)
        now, left = now + 5.0, left - 5 * rate
    assert (not ends) == whole
    assert whole or ends[0] < size / connections.LEAST_RATE + 60


def test_answers_that_one_address_leaves_unread_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = connections._Guard(ServerLimits())
    monkeypatch.setattr(connections, "MOST_UNSENT", 10)
    ends = list[int]()
    for number, (address, unsent) in enumerate([("a", 4), ("a", 5), ("a", 3), ("b", 9), ("b", 0)]):
        one = Mock(address=address, unsent=unsent, end=Mock(side_effect=lambda number=number: ends.append(number)))
        guard.open[one] = None
    guard._end_unread()
    assert ends == [1]


HANGS = """
import signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup, and then a hang-up is for nobody
from redraft.__main__ import main
from redraft.server.http.service import Service
Service.check_name = lambda self, name: time.sleep(900) if name == "hang" else None
sys.exit(main(["serve", "--port", "0", "--threads", "1", "--quiet", "--model", "nano-sudoku", "--name", "nano"]))
"""


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_second_signal_ends_a_server_whose_loop_hangs(kind: signal.Signals) -> None:
    """Neither had any effect."""
    server = served_by(HANGS)
    body = b'{"model": "hang", "input": "a", "questions": [{"type": "predicate", "instructions": "b"}]}'
    head = HEAD.replace(PATH.encode(), b"/v1/decisions") + b"Content-Length: %d\r\n\r\n" % len(body)
    link = opened(server, head + body)
    time.sleep(0.5)
    with pytest.raises(httpx2.TimeoutException):
        httpx2.get(f"{server.url}/live", timeout=1)
    for _ in range(2):
        server.popen.send_signal(kind)
        time.sleep(1)  # two that come while a machine stands still are one
    began = time.monotonic()
    assert ended(server) != 0
    assert time.monotonic() - began < 30
    link.close()
