"""One process that serves: the socket opens at once, the model loads behind it, and a signal lets answers finish.

SIGTERM, SIGHUP, Ctrl-C    no new requests (503 with Retry-After); what is under way gets `drain_sec`; then the end
one as it loads            the end, after at most LAST_SEC
a second one               the end now, at the latest after LAST_SEC, whatever hangs
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from redraft.engine.request import Options, Request
from redraft.errors import RedraftError, RequestError, RunError
from redraft.operations.engine import Engine
from redraft.server.http.app import create_app
from redraft.server.http.connections import BACKLOG, guarded
from redraft.server.http.errors import ApiError
from redraft.server.http.limits import HEAD_BYTES
from redraft.server.http.log import LibraryLines, Log
from redraft.server.http.relay import Relay
from redraft.server.http.service import Service

Begun = Callable[["Server", str], None]
Loader = Callable[[Callable[[int, int], None]], Engine]
"""Loads the engine, and reports (elements placed, elements in all)."""

POLL_SEC, LAST_SEC = 0.05, 3.0
_MALLOC = {"MALLOC_ARENA_MAX": (-8, 2), "MALLOC_MMAP_THRESHOLD_": (-3, 4 * 2**20)}
"""Settings of glibc by their variables: numbers in malloc.h, and values. Blocks from 4 MiB on lie beside the heap,
which they would tear holes into, unless it has such a hole already."""
TRIM_SEC = 5.0
"""How often memory that is not used any more goes back to the system."""
SWITCH_SEC = 0.0001
"""How long a thread of Python holds its lock while others wait. A fiftieth of the usual: the event loop and the engine
take it many times for each request, and a constraint that is being compiled never lets go by itself."""
REFUSED = {errno.EADDRINUSE: "another program has that port", errno.EACCES: "this user may not have that port"}


def serve(
    service: Service,
    load: Loader,
    *,
    host: str,
    port: int,
    log: Log,
    ready: Callable[[Engine, str], None],
) -> None:
    """Load and serve until a signal. `ready` is called with the engine and the URL once requests are answered.

    Raises RequestError if the address cannot be had, and whatever loading raises.
    """

    loading = None

    def begun(server: Server, url: str) -> None:
        nonlocal loading
        loading = threading.Thread(target=_load, args=(service, load, server, lambda e: ready(e, url)), daemon=True)
        loading.start()

    mind_memory()
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).handlers = [LibraryLines(log)]
    with _hang_up():
        run(create_app(service, log), service, host, port, begun)
    if loading is not None:
        loading.join(LAST_SEC)
        if loading.is_alive():  # Python's own end within a forward would be an abort
            os._exit(0)
    with contextlib.suppress(RedraftError, ApiError):
        service.engine.loop.stop()


def mind_memory() -> None:
    """Let glibc's threads share two heaps, put large blocks beside them, and give back what is free, unless
    the environment says otherwise. It would give each thread a heap of its own, up to eight a core, and what requests
    need for a moment tears holes into all of them: a sixth of the memory of a server under load."""
    for variable, (number, value) in _MALLOC.items():
        if variable not in os.environ:
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).mallopt(number, value)
    threading.Thread(target=_keep_trimming, daemon=True).start()


def trim() -> None:
    """Give back what the C library keeps of freed memory, once for each thread that ever used some: a few large bodies
    left a process twice as large for good. Other libraries than glibc do so themselves."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _keep_trimming() -> None:
    while True:
        time.sleep(TRIM_SEC)
        trim()


def run(app: ASGIApp, service: Service | Relay, host: str, port: int, begun: Begun, last_sec: float = LAST_SEC) -> None:
    """Serve an application until a signal. `begun` is called with the server and its URL when the socket listens;
    `last_sec` is what a process has left after a second signal.

    Raises RequestError for an address that cannot be had, and the failure of the service.
    """
    listening = listen(host, port)
    warnings.filterwarnings("ignore", module=r"PIL|redraft\.images")  # one image can make 65,000, which Python keeps
    name = host if ":" not in host else f"[{host}]"
    config = uvicorn.Config(
        app,
        loop="asyncio",  # others take the signals' socket for themselves
        http=guarded(service.settings.limits),
        backlog=BACKLOG,
        h11_max_incomplete_event_size=HEAD_BYTES,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        lifespan="off",
        timeout_keep_alive=30,
    )
    server = Server(config, service)
    try:
        begun(server, f"http://{name}:{listening.getsockname()[1]}")
        with _second_signal(last_sec):
            server.run(sockets=[listening])
    finally:
        listening.close()
    if service.failure is not None:
        raise service.failure


@contextlib.contextmanager
def _second_signal(last_sec: float) -> Iterator[None]:
    """Within this, a second signal ends the process even if its event loop or its end hangs: the system writes the
    number of each signal to a socket, and a thread counts them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)

    def count() -> None:
        seen = 0
        while seen < 2 and (numbers := reading.recv(16)):
            seen += sum(number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) for number in numbers)
        reading.close()
        if seen >= 2:
            time.sleep(last_sec)
            os._exit(1)

    threading.Thread(target=count, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        writing.close()


@contextlib.contextmanager
def _hang_up() -> Iterator[None]:
    """Within this a hang-up does what SIGTERM does, unless it is ignored, as under `nohup`. Not for a fleet: a terminal
    that closes ends Ray's own processes with the command, and nothing is left to drain."""
    before = signal.getsignal(signal.SIGHUP)
    if before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ended(_: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGTERM)
        handler(signal.SIGTERM, frame) if callable(handler) else signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGHUP, ended)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before or signal.SIG_DFL)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises RequestError."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:  # a name too long for DNS is the latter
        why = REFUSED.get(getattr(error, "errno", None) or 0)
        remedy = "give another --port, or --port 0 for a free one" if why else "give --host an address of this machine"
        why = why or getattr(error, "strerror", None) or str(error)
        raise RequestError(f"cannot listen on {host} port {port}: {why}; {remedy}") from None
    listening.set_inheritable(True)
    # Connections inherit it. Else the body of an answer waits 40 ms for the reader to acknowledge its head, because
    # asyncio, which would see to it, knows only sockets that were made with their protocol's number.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _load(service: Service, load: Loader, server: Server, ready: Callable[[Engine], None]) -> None:
    """Load, and turn the loop on its thread."""
    try:
        engine = load(service.progress)
        begin(engine)
    except RedraftError as error:
        service.failure = error
    except Exception as error:
        service.failure = RunError(f"loading failed, {type(error).__name__}: {error}")
    else:
        settle()
        service.ready(engine)
        ready(engine)
        return
    service.phase = "failed"
    server.should_exit = True


def settle() -> None:
    """Take what is loaded out of the garbage collector's sight: it looked through all of it, 0.2 seconds in which
    nobody was answered, whenever requests had made a quarter as much."""
    gc.collect()
    gc.freeze()


def begin(engine: Engine) -> None:
    """Start the loop, and run one short answer: the first forward of a process is slower than all others."""
    sys.setswitchinterval(SWITCH_SEC)
    engine.loop.start()
    engine.run(Request([engine.text.bos_token_id], Options(max_tokens=1, steps=2, seed=0)))


class Server(uvicorn.Server):
    """uvicorn, with a way to stop that lets the socket answer 503 while answers finish."""

    def __init__(self, config: uvicorn.Config, service: Service | Relay) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second ends."""
        if self.service.phase in ("draining", "failed"):
            self.should_exit = self.force_exit = True
            return
        self.service.drain()
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        until = time.monotonic() + self.service.settings.limits.drain_sec
        while self.service.under_way and time.monotonic() < until:
            time.sleep(POLL_SEC)
        time.sleep(POLL_SEC)  # the last bytes of the last answer
        self.should_exit = True
        time.sleep(max(0.0, until - time.monotonic()))
        self.service.abandon()
        self.force_exit = True  # a client that does not read the end of its answer has no longer either
