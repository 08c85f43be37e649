"""One process that serves: the socket opens at once, the model loads behind it, and a signal lets answers finish.

SIGTERM, Ctrl-C    no new requests (503 with Retry-After); what is under way gets `drain_sec`; then the end
a second one       the end now
"""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from redraft.engine.request import Options, Request
from redraft.errors import RedraftError, RequestError, RunError
from redraft.operations.engine import Engine
from redraft.server.app import create_app
from redraft.server.log import Log
from redraft.server.service import Service

Loader = Callable[[Callable[[int, int], None]], Engine]
"""Loads the engine; told where to report (elements placed, elements in all)."""

POLL_SEC = 0.05
MAX_HEAD_BYTES = 64 * 2**10
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
    """Serve until a signal. `ready` is told the engine and the URL once requests are answered.

    Raises RequestError if the address cannot be had, and whatever loading raises.
    """

    def begun(server: _Server, url: str) -> None:
        threading.Thread(target=_load, args=(service, load, server, lambda e: ready(e, url)), daemon=True).start()

    _run(create_app(service, log), service, host, port, begun)
    with contextlib.suppress(RedraftError):
        service.engine.loop.stop()


@contextlib.contextmanager
def hosted(service: Service, engine: Engine, log: Log) -> Iterator[str]:
    """Serve an engine that is loaded, whose loop this starts, from a thread of this process; the URL. Raises
    what opening its socket raises."""
    begun = SimpleQueue[tuple[_Server, str] | BaseException]()

    def work() -> None:
        try:
            _run(create_app(service, log), service, "127.0.0.1", 0, lambda server, url: begun.put((server, url)))
        except BaseException as error:  # told to whoever waits for it to begin
            begun.put(error)

    thread = threading.Thread(target=work, daemon=True)
    _begin(engine)
    service.ready(engine)
    thread.start()
    if isinstance(told := begun.get(), BaseException):
        raise told
    server, url = told
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join()


def _run(app: ASGIApp, service: Service, host: str, port: int, begun: Callable[[_Server, str], None]) -> None:
    """The socket, and everything that is asked on it. Raises RequestError, and what came of what was `begun`."""
    listening = listen(host, port)
    name = host if ":" not in host else f"[{host}]"
    config = uvicorn.Config(
        app,
        http="h11",
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        lifespan="off",
        timeout_keep_alive=30,
    )
    server = _Server(config, service)
    try:
        begun(server, f"http://{name}:{listening.getsockname()[1]}")
        server.run(sockets=[listening])
    finally:
        listening.close()
    if service.failure is not None:
        raise service.failure


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises RequestError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = None
    try:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except (OSError, UnicodeError) as error:  # a name too long for DNS is the latter
        if listening is not None:
            listening.close()
        said = REFUSED.get(getattr(error, "errno", None) or 0)
        remedy = "give another --port, or --port 0 for a free one" if said else "give --host an address of this machine"
        said = said or getattr(error, "strerror", None) or str(error)
        raise RequestError(f"cannot listen on {host} port {port}: {said}; {remedy}") from None
    listening.set_inheritable(True)
    return listening


def _load(service: Service, load: Loader, server: _Server, ready: Callable[[Engine], None]) -> None:
    """Load, warm up, and turn the loop on its thread."""
    try:
        engine = load(service.progress)
        _begin(engine)
    except RedraftError as error:
        service.failure = error
    except Exception as error:
        service.failure = RunError(f"loading failed, {type(error).__name__}: {error}")
    else:
        service.ready(engine)
        ready(engine)
        return
    service.phase = "failed"
    server.should_exit = True


def _begin(engine: Engine) -> None:
    engine.loop.start()
    warm_up(engine)


def warm_up(engine: Engine) -> None:
    """One short answer: the first forward of a process is slower than all others."""
    engine.run(engine.resolve(Request([engine.text.bos_token_id], Options(max_tokens=1, steps=2, seed=0))))


class _Server(uvicorn.Server):
    """uvicorn, with a way to stop that lets the socket answer 503 while answers finish."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second ends."""
        if self.service.phase in ("draining", "failed") or self.service.under_way == 0:
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
        self.force_exit = True  # whoever does not read what has been written to the end has no longer either

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, without raising the signal again behind a clean stop."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    return host in ("localhost", "::1") or host.startswith("127.")
