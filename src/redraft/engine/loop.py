"""The engine's loop: run the batch that the scheduler picks, and tell each request its events.

One loop serves one model. `tick` is one forward; a caller may call it, or `start` a thread that does. Requests may be
submitted and aborted from any thread, without waiting for a forward: both are put down as mail, which the next tick
takes. Everything else happens in the tick.

Every request is told Finished once, whatever happens. What goes wrong in opening one, in its own step or in its
listener ends that request and no other; a forward that fails ends those that were in it. They hear of the cause in
Finished.error.

A listener that wakes another thread asks for it with `soon`: Python's lock, which that thread will want, is free in a
forward's long operations and wanted all the time between two forwards.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from redraft.diffusion.noise import SeededNoise
from redraft.engine.events import Block, Event, Finished
from redraft.engine.prefixes import Prefixes
from redraft.engine.request import FinishReason, Request
from redraft.engine.runner import Runner
from redraft.engine.scheduler import Batch, Scheduler
from redraft.errors import RequestError, RunError
from redraft.model.gemma import DiffusionGemma

Listener = Callable[[Event], None]


@dataclass
class _Ticket:
    request: Request
    listener: Listener
    drafts: bool
    deadline: float | None
    began: float
    untold: int = 0  # canvas rows in forwards that no token has come of


@dataclass(frozen=True)
class LoopConfig:
    """Bounds: rows per forward, requests at a time, requests in the queue, bytes of kept prefixes.

    `max_rows` None is what `redraft bench --knee` measured for the checkpoint on this machine where `load` finds it
    (engine/knee.py), else DEFAULT_CANVASES canvases. `prefix_bytes` None is room for a prompt of a few thousand tokens
    (engine/prefixes.py). `policy` says which requests go together. `graphs` lets a GPU repeat the steps of up to
    eight canvases as one graph; experimental.
    """

    max_rows: int | None = None
    max_running: int = 64
    max_waiting: int = 4096
    policy: str = "mixed"
    prefix_bytes: int | None = None
    graphs: bool = False


DEFAULT_CANVASES = 12
"""Canvases in a forward where nobody has measured. It is beyond nano's knee on a CPU (bench/records/knee.json), for
with more arithmetic to spare a device has its knee further on; `redraft bench --knee` says where."""

DEFAULT_LOOP = LoopConfig()


class Loop:
    """Many requests, one model.

    It counts its forwards and the rows in them, encoded ones and those of canvases. Of the latter, `wasted_rows` are
    those of ended requests from which no token was told, because it stood behind the answer's end or was never final.
    """

    def __init__(
        self, model: DiffusionGemma, config: LoopConfig = DEFAULT_LOOP, clock: Callable[[], float] = time.monotonic
    ) -> None:
        rows = config.max_rows
        if config.graphs and model.device.type != "cuda":
            raise RequestError(f"graphs is True and the model runs on {model.device}; leave it out, or use a GPU")
        prefixes = Prefixes(model.config.layers, model.dtype.itemsize, config.prefix_bytes)
        self.runner = Runner(model, prefixes, graphs=config.graphs)
        self.scheduler = Scheduler(
            max_rows=DEFAULT_CANVASES * model.config.canvas_length if rows is None else rows,
            max_running=config.max_running,
            max_waiting=config.max_waiting,
            policy=config.policy,
        )
        self.clock = clock
        self.forwards = self.encoded_rows = self.canvas_rows = self.wasted_rows = 0
        self._tickets: dict[int, _Ticket] = {}
        self._numbers = itertools.count()
        # The mail is what other threads may touch at any time; it is held for an instant, never during a forward.
        self._mail = threading.Condition()
        self._arrived: list[tuple[int, int | None]] = []
        self._aborted: set[int] = set()
        # Whoever holds the turn may touch everything else.
        self._turn_lock = threading.Lock()
        self._turner: int | None = None
        self._thread: _Thread | None = None
        self._wakes: list[Callable[[], object]] = []

    def submit(self, request: Request, listener: Listener, *, drafts: bool = False, behind: int | None = None) -> int:
        """Queue a request; `listener` is called with its events from whoever turns the loop. Raises BusyError.

        `behind` names an earlier request with the same prompt, a variant of which this is: if that one is still to
        encode its prompt, this one waits and takes it over.
        """
        began = self.clock()
        deadline = None if request.deadline_sec is None else began + request.deadline_sec
        with self._mail:
            self.scheduler.check_room(len(self._arrived))
            number = next(self._numbers)
            self._tickets[number] = _Ticket(request, listener, drafts, deadline, began)
            self._arrived.append((number, behind))
            self._mail.notify()
        return number

    def abort(self, number: int) -> None:
        """End a request before the next forward; it is told Finished("aborted") and nothing else from now on.

        If nobody is inside a tick, that is here and now, for there may never be another. One that is unknown or
        finished is left alone, so an abort may come too late without harm.
        """
        with self._mail:
            if number in self._tickets:
                self._aborted.add(number)
                self._mail.notify_all()
        with self._turn(wait=False) as ours:
            if ours:
                self._collect()

    def soon(self, wake: Callable[[], object]) -> None:
        """From a listener: call this when the next forward has begun, or when the turn ends if none follows. From
        elsewhere: call it now. What it raises is lost: it must not be what ends a request."""
        if self._turner == threading.get_ident():
            self._wakes.append(wake)
        else:
            wake()

    def won(self, number: int) -> None:
        """Of several competing requests this one's answer was used: news for a tap (engine/tap.py)."""

    def tick(self) -> bool:
        """One forward, if there is anything to run. Returns whether any request is left.

        An error ends the requests it concerns and is told to them; only what is no error passes, like Ctrl-C.
        """
        self._refuse_reentry()
        batch = None
        with self._turn():
            try:
                self._collect()
                self._retire()
                self._admit()
                batch = self.scheduler.next()
                self._forward(batch)
            except BaseException as error:  # a failure of ours must not leave anyone waiting for ever
                self._fail(self._tickets if batch is None else [piece.number for piece in batch], error)
                if not isinstance(error, Exception):
                    raise
        return bool(self._tickets)

    def drain(self) -> None:
        """Turn until nothing is left."""
        while self.tick():
            pass

    def turn_until(self, ready: Callable[[], bool]) -> None:
        """Turn until `ready`. Returns at once where a thread turns: there is nothing to do then but to wait for it."""
        self._refuse_reentry()
        while not ready() and not self.is_turning:
            self.tick()

    def wait_for_room(self) -> None:
        """Return when the queue may take a request, which another may have taken by then."""
        self.turn_until(self._has_room)
        with self._mail:
            self._mail.wait_for(lambda: self._has_room() or not self.is_turning)

    def start(self) -> None:
        """Turn the loop on a thread of its own, which sleeps while there is nothing to do."""
        with self._mail:
            if self._thread is None or self._thread.stopping:
                self._thread = _Thread(self._keep_turning)
                self._thread.start()

    def stop(self) -> None:
        """End the thread after its current forward; requests left are told Finished("error")."""
        self._refuse_reentry()
        with self._mail:
            thread = self._thread
            if thread is None:
                return
            thread.stopping = True
            self._mail.notify_all()
        thread.join()
        with self._turn():
            with self._mail:
                if self._thread is not thread:
                    return  # it has been started again meanwhile, and goes on with them
                # Whoever submitted before this is told; whoever does after it will see that no thread turns.
                self._thread, left = None, list(self._tickets)
            self._fail(left, RunError("the loop was stopped while this request was running; start it and ask again"))

    @property
    def is_turning(self) -> bool:
        """Whether a thread turns the loop."""
        return self._thread is not None

    def check(self) -> None:
        """Raise AssertionError if scheduler, runner and tickets disagree."""
        self.scheduler.check()
        self.runner.check()
        assert self.runner.lanes.keys() == self.scheduler.running.keys()
        arrived = {number for number, _ in self._arrived}
        assert self._tickets.keys() - arrived == self.scheduler.running.keys() | self.scheduler.waiting.keys()

    @contextmanager
    def _turn(self, *, wait: bool = True) -> Iterator[bool]:
        """Hold the turn; yields whether it could be had, which is only in doubt without `wait`."""
        ours = self._turn_lock.acquire(blocking=wait)
        if not ours:
            yield False
            return
        self._turner = threading.get_ident()
        try:
            yield True
        finally:
            if not (self.is_turning and self._tickets):
                self._wake()
            self._turner = None
            self._turn_lock.release()
            with self._mail:
                self._mail.notify_all()  # there may be room in the queue

    def _wake(self) -> None:
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            with suppress(Exception):  # whom it would have woken is gone
                wake()

    def _refuse_reentry(self) -> None:
        if self._turner == threading.get_ident():
            raise RequestError(
                "a listener, which runs inside a forward's turn, called the engine; it may submit and abort: call "
                "the rest when the listener has returned, or from another thread"
            )

    def _has_room(self) -> bool:
        return len(self.scheduler.waiting) + len(self._arrived) < self.scheduler.max_waiting

    def _keep_turning(self, thread: _Thread) -> None:
        while True:
            with self._mail:
                self._mail.wait_for(lambda: self._tickets or thread.stopping)
                if thread.stopping:
                    return
            with suppress(BaseException):  # an exit that a listener asked for has ended its request: that is enough
                self.tick()

    def _collect(self) -> None:
        """Take the mail: queue what has arrived, end what is no longer wanted. Some may have ended on their way."""
        with self._mail:
            arrived, self._arrived = self._arrived, []
            aborted, self._aborted = self._aborted, set()
        for number, behind in arrived:
            if number not in self._tickets:
                continue
            request = self._tickets[number].request
            same = behind in self._tickets and self._tickets[behind].request.prompt == request.prompt
            same = same and request.width > 0  # a causal one needs its own logits of the prompt's last token
            self.scheduler.add(number, len(request.prompt), request.width, behind=behind if same else None)
        for number in aborted:
            self._end(number, "aborted")

    def _admit(self) -> None:
        for number in self.scheduler.admit():
            ticket = self._tickets[number]
            try:
                noise = SeededNoise(ticket.request.seed)
                self.scheduler.skip(number, self.runner.open(number, ticket.request, noise, drafts=ticket.drafts))
                self.runner.time(number, ticket.began, self.clock)
            except Exception as error:  # whatever opening it met, memory or its own values, is told to it alone
                self._fail([number], error)
        self._share_prompts()

    def _forward(self, batch: Batch) -> None:
        if not batch:
            self._wake()
            return
        told = self.runner.run(batch, self._wake)
        self.forwards += 1
        for piece in batch:
            lane = self.runner.lanes[piece.number]
            self.scheduler.ran(piece, lane.width, lane.waiting)
            self.encoded_rows += piece.encode
            self.canvas_rows += piece.canvas
            self._tickets[piece.number].untold += piece.canvas
        self._share_prompts()
        for piece in batch:
            self._tell(piece.number, told.get(piece.number, []))

    def _share_prompts(self) -> None:
        """Let variants take over the prompt of the request they stand behind, once it is encoded."""
        for entry in list(self.scheduler.running.values()):
            if entry.behind is None or entry.behind not in self.runner.lanes:
                continue
            ahead = self.runner.lanes[entry.behind]
            if ahead.prefix.length == len(ahead.prompt):
                try:
                    self.runner.share(entry.behind, entry.number)
                    self.scheduler.release(entry.number, prompt=0)
                except Exception as error:  # memory for the copy: the taker's loss, not the giver's
                    self._fail([entry.number], error)
            elif ahead.read == len(ahead.prompt):  # it has gone on to commit a block: too late to share
                self.scheduler.release(entry.number, prompt=entry.prompt)

    def _retire(self) -> None:
        """End what has run out of time, before rows are chosen."""
        for number, ticket in list(self._tickets.items()):
            if ticket.deadline is not None and self.clock() >= ticket.deadline:
                self._end(number, "deadline")

    def _fail(self, numbers: Iterable[int], error: BaseException) -> None:
        for number in list(numbers):
            self._end(number, "error", error)

    def _end(self, number: int, reason: FinishReason, error: BaseException | None = None) -> None:
        events = self.runner.cut_short(number) if reason == "deadline" else []
        self._tell(number, [*events, self._finished(number, reason, error)])

    def _finished(self, number: int, reason: FinishReason, error: BaseException | None = None) -> Finished:
        lane = self.runner.lanes.get(number)
        return Finished(reason, 0 if lane is None else lane.blocks, error)

    def _tell(self, number: int, events: list[Event]) -> None:
        """Pass events on; keep the scheduler's books; forget the request after its last event."""
        ticket = self._tickets.get(number)
        if ticket is None:
            return
        for event in events:
            # A listener, its own or another's, may have aborted it a moment ago.
            last = self._finished(number, "aborted") if number in self._aborted else event
            ticket.untold -= last.rows if isinstance(last, Block) else 0
            try:
                ticket.listener(last)
            except Exception as error:  # a listener is the caller's code: its failure is its own request's
                if not isinstance(last, Finished):
                    last = self._finished(number, "error", error)
                    with suppress(Exception):
                        ticket.listener(last)
            if isinstance(last, Finished):
                self._forget(number)
                return

    def _forget(self, number: int) -> None:
        ticket = self._tickets.pop(number, None)
        self.wasted_rows += 0 if ticket is None else ticket.untold
        self.scheduler.remove(number)
        self.runner.close(number)


class _Thread(threading.Thread):
    """One thread that turns a loop. The wish that it stop is its own, so a later thread never takes it for its."""

    def __init__(self, turn: Callable[[_Thread], None]) -> None:
        super().__init__(name="redraft-loop", daemon=True)
        self.turn, self.stopping = turn, False

    def run(self) -> None:
        self.turn(self)
