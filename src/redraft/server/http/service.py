"""One server's state, which all its routes share."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from contextvars import Context, copy_context
from dataclasses import replace
from functools import partial
from typing import Literal, TypeVar, TypeVarTuple

from starlette.requests import Request
from starlette.types import Scope

from redraft.constraints.compile.limits import CALLER, DEFAULT_LIMITS, GONE, PREPARING, UNTIL, time_limit
from redraft.engine.scope import CancelScope, Observer
from redraft.errors import RedraftError, awaited
from redraft.operations.engine import Engine
from redraft.server.http.errors import ApiError
from redraft.server.http.limits import Entrance
from redraft.server.http.metrics import Metrics
from redraft.server.http.settings import Settings
from redraft.server.http.sse import unless_gone

T = TypeVar("T")
Given = TypeVarTuple("Given")
LEAST_BUSY_SEC, MOST_BUSY_SEC, MOST_REST_SEC, RECENT_SEC = 0.02, 0.5, 2.0, 10.0
KEPT_THREADS, POOL_SEC = 64, 10.0
"""A pool of so many threads stays; one that has had more may be replaced after so many seconds."""
LARGE_BODY = 2**18
"""Bytes of a body behind which its caller's next one waits until it is read: many at once, sent by a caller from whom
nothing was known yet, kept others waiting for seconds."""
Phase = Literal["loading", "ready", "draining", "failed"]


def stopping() -> ApiError:
    """The refusal of a server that is being ended. New each time: an exception keeps the frames of every raise."""
    return ApiError(503, "the server is stopping; use another one", code="draining", retry_sec=5)


class _Pool(ThreadPoolExecutor):
    """Threads, begun as they are needed. Where the system begins no more, work waits for those there are."""

    _waiting = 0  # works for which no thread was begun: each is counted as an idle one when it is done

    def _adjust_thread_count(self) -> None:
        while self._waiting and self._idle_semaphore.acquire(timeout=0):
            self._waiting -= 1
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                self._work_queue.get_nowait()  # nobody would do it, or after its caller was refused
                raise
            self._waiting += 1


class Service:
    """Engine, settings, figures and admission. All but `ready` and `progress` runs on the event loop."""

    def __init__(self, settings: Settings, observed: Callable[[Engine], Engine] = lambda engine: engine) -> None:
        """`observed` returns the engine in the scope that all requests run in."""
        self.settings, self.metrics, self.admission = settings, Metrics(), Entrance(settings.limits)
        self.phase: Phase = "loading"
        self.abandoned = False
        self.done, self.total = 0, 0
        self.failure: RedraftError | None = None
        self._observed = observed
        self._engine: Engine | None = None
        self._threads = self._pool()
        self._most_threads, self._pooled = 0, time.monotonic()
        self._beginner = _Pool(1, "beginner")
        self._aside: ThreadPoolExecutor | None = None
        self._working = Counter[object]()  # requests on threads, of each caller
        self._rests = dict[object, float]()  # until when callers rest who kept the interpreter busy
        self._resting = 0  # requests that wait for that
        self._seen = dict[object, float]()  # when callers last asked for something
        self._leaving = set[Callable[[], None]]()  # each is called where such a request's client has left

    async def on_thread(
        self,
        request: Request,
        work: Callable[[*Given], T],
        *given: *Given,
        in_turn: bool = True,
        gone: Callable[[], None] = lambda: None,
    ) -> T:
        """What some work of a request's own returns: its template, tokens and constraint, `in_turn` among the callers'.
        An operation, which mostly waits for the engine, is not. If the client leaves, `gone` is called, and what waits
        for a turn or compiles ends. Raises ApiError if too much is under way, or half as much of this caller."""
        most, whose = self.settings.limits.in_flight, caller_of(request.scope)
        rested = await self._rested(request, whose, is_large=_size(request) >= LARGE_BODY)
        if self._working.total() >= 2 * most or self._working[whose] >= most:
            raise ApiError(503, "too many requests are being read; try again soon", code="queue_full", retry_sec=1)
        context, left = copy_context(), threading.Event()
        context.run(self.name_caller, request)
        context.run(GONE.set, left)
        limits = replace(DEFAULT_LIMITS, seconds=self.settings.limits.request_sec)

        def timed() -> T:
            turn = PREPARING.turn(secrets.token_hex(), counted=False, size=_size(request)) if in_turn else nullcontext()
            with turn, self._tiring(whose, rested), time_limit(limits):  # compiling takes no longer than an answer may
                return awaited(work, *given)

        def leave() -> None:
            left.set()
            gone()

        async def begun() -> T:
            # Not on this thread: who begins one waits until it runs, behind all others that would.
            begin = partial(self._begin, context, timed, self._working.total())
            return await asyncio.wrap_future(await asyncio.get_running_loop().run_in_executor(self._beginner, begin))

        self._working[whose] += 1
        self._leaving.add(leave)
        try:
            return await unless_gone(request, begun(), leave)
        finally:
            self._leaving.discard(leave)
            self._working -= Counter([whose])  # who has none left is forgotten

    async def aside(self, work: Callable[[*Given], T], *given: *Given, size: int) -> T:
        """As `on_thread`, for a row of `size` bytes in a batch, which bounds what is under way; it is ended with its
        task, and small ones come first of those on threads."""
        context, left = copy_context(), threading.Event()
        context.run(GONE.set, left)
        context.run(CALLER.set, "rows")  # of which some have begun at a time, as of any caller's

        def done() -> T:
            with PREPARING.turn(secrets.token_hex(), counted=False, size=size):
                return awaited(work, *given)

        self._aside = self._aside or _Pool(KEPT_THREADS, "row")
        try:
            return await asyncio.wrap_future(self._aside.submit(context.run, done))
        finally:
            left.set()

    def _pool(self) -> ThreadPoolExecutor:
        """Threads for as many requests as there may be."""
        return _Pool(2 * self.settings.limits.in_flight, "request")

    def _begin(self, context: Context, work: Callable[[], T], under_way: int) -> Future[T]:
        """Begin one more of so many works on a thread. Behind a burst those of one pool end, some 90 KB each, and
        others begin; what still runs on them goes on."""
        now = time.monotonic()
        if self._most_threads > KEPT_THREADS and under_way < self._most_threads // 8 and now > self._pooled + POOL_SEC:
            self._threads.shutdown(wait=False)
            self._threads, self._most_threads, self._pooled = self._pool(), 0, now
        self._most_threads = max(self._most_threads, under_way)
        return self._threads.submit(context.run, work)

    async def _rested(self, request: Request, whose: object, *, is_large: bool) -> bool:
        """Return when a caller may keep the interpreter busy again, if there are others: little runs meanwhile.
        A request rests once, and goes on if its client leaves or the server stops. Those that wait leave one by one.
        Whether the caller's next one waits for this one, which is so if it rested or `is_large`."""
        now, first = time.monotonic(), not request.scope["state"].get("begun")
        request.scope["state"]["begun"] = True
        self._seen = {who: at for who, at in self._seen.items() if at > now - RECENT_SEC} | {whose: now}
        for who in [who for who in [*self._rests] if who not in self._seen]:
            self._rests.pop(who, None)
        if not first or len(self._seen) < 2:
            return False
        if self._rests.get(whose, 0.0) <= now:
            self._rests |= {whose: now + MOST_BUSY_SEC} if is_large else {}
            return is_large
        gone, end = asyncio.Event(), now + self.settings.limits.request_sec / 2  # the answer needs some, too

        async def rest() -> None:
            while (left := min(self._rests.get(whose, 0.0), end) - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    # The one ahead may be done long before; so many look for it that it is no work.
                    await asyncio.wait_for(gone.wait(), min(left, max(0.05, self._resting / 2000)))
                if gone.is_set() or self.phase == "draining":
                    return

        self._resting += 1
        try:
            await unless_gone(request, rest(), gone.set)
        finally:
            self._resting -= 1
        if self.phase == "draining":
            raise stopping()
        self._rests[whose] = time.monotonic() + MOST_BUSY_SEC  # the caller's next one waits until this one is done
        return True

    @contextmanager
    def _tiring(self, whose: object, rested: bool) -> Iterator[None]:
        """Work of a caller, on a thread, who rests twice as long behind it."""
        began = time.thread_time()
        try:
            yield
        finally:
            took, now = time.thread_time() - began, time.monotonic()
            if rested or took > LEAST_BUSY_SEC:
                until = now if rested else max(now, self._rests.get(whose, 0.0))
                self._rests[whose] = min(until + 2 * min(took, MOST_BUSY_SEC), now + MOST_REST_SEC)

    def name_caller(self, request: Request | None) -> None:
        """Say in this context whose work it is, and until when they wait: callers take turns in some of it."""
        CALLER.set(None if request is None else caller_of(request.scope))
        UNTIL.set(time.monotonic() + self.settings.limits.request_sec)

    def ready(self, engine: Engine) -> None:
        """The model is loaded and its loop turns."""
        self._engine = self._observed(engine)
        self.metrics.watch(engine)
        if self.phase == "loading":
            self.phase = "ready"

    def progress(self, done: int, total: int) -> None:
        """Elements loaded, and in all."""
        self.done, self.total = done, total

    def abandon(self) -> None:
        """End what is still worked on, as if every client had left: a thread that goes on keeps the process."""
        self.abandoned = True
        for leave in list(self._leaving):
            leave()

    def drain(self) -> None:
        """Take no new requests."""
        self.phase = "draining"

    @property
    def engine(self) -> Engine:
        """The engine. Raises ApiError while there is none."""
        if self._engine is None:
            share = f" ({self.done / self.total:.0%})" if self.total else ""
            raise ApiError(503, f"the model is loading{share}; try again soon", code="loading", retry_sec=2)
        return self._engine

    @property
    def body_bytes(self) -> int:
        """Most bytes of a request's body."""
        limits = self.settings.limits
        takes_images = self._engine is not None and self._engine.vision is not None
        return max(limits.body_bytes, limits.image_body_bytes) if takes_images else limits.body_bytes

    @property
    def under_way(self) -> int:
        """Answers on their way, and requests that are still being read."""
        return self.admission.under_way + self._working.total() + self._resting

    def enter(self, answers: int, request: Request | None) -> ExitStack:
        """Room for answers to an HTTP request, until it is closed. Raises ApiError if there is none."""
        if self.phase == "draining":
            raise stopping()
        return self.admission.enter(answers, _key(request))

    def scope(self, request: Request | None, *observers: Observer) -> CancelScope:
        """A scope of a request's own. All requests of one API key are one caller's; without keys each is its own."""
        return CancelScope(*observers, parent=self.engine.scope, caller=_key(request))

    def check_name(self, name: str | None) -> None:
        """Raise ApiError for a model that this server does not have."""
        names = self.settings.names
        if name is not None and name not in names and "*" not in names:
            known = ", ".join(names)
            message = f"the model {name!r} does not exist; this server has {known}"
            raise ApiError(404, message, param="model", code="model_not_found")


def caller_of(scope: Scope) -> object:
    """Whose request it is: a key's, or without keys an address's."""
    client = scope.get("client")
    number: int | None = scope["state"].get("key")
    return (client[0] if client else "") if number is None else number


def _size(request: Request) -> int:
    """Bytes of its body: what is small is read before what is large."""
    size: int = request.scope["state"].get("bytes", 0)
    return size


def _key(request: Request | None) -> int | None:
    """Which of the API keys a request has."""
    number: int | None = None if request is None else request.scope["state"].get("key")
    return number


def service_of(request: Request) -> Service:
    """The server that a request came to."""
    service: Service = request.app.state.service
    return service


def note_prompts(request: Request, prompts: Sequence[object]) -> None:
    """Add prompts to the request's line of the log, if the log is to have them."""
    if service_of(request).settings.log_prompts:
        request.scope["state"]["log"]["prompts"] = prompts
