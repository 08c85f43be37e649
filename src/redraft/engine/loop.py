"""The loop that turns: take what the scheduler picks, run it, tell each request what came of it.

One loop serves one model. `tick` is one forward; a caller may turn it by hand, or `start` a thread that does. Requests
may be submitted and aborted from any thread, without waiting for a forward: both are mail, which the next tick takes.
Everything else happens in the tick. What goes wrong inside one request's listener ends that request and no other.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from redraft.diffusion.noise import SeededNoise
from redraft.engine.events import Block, Event, Finished
from redraft.engine.prefixes import Prefixes
from redraft.engine.request import FinishReason, Request
from redraft.engine.runner import Runner
from redraft.engine.scheduler import Batch, Scheduler
from redraft.model.gemma import DiffusionGemma

Listener = Callable[[Event], None]


@dataclass
class _Ticket:
    request: Request
    listener: Listener
    drafts: bool
    deadline: float | None


@dataclass(frozen=True)
class LoopConfig:
    """Bounds: rows per forward, requests at a time, requests in the queue, bytes of kept prefixes.

    `policy` says which requests go together. The default of `max_rows` is the knee measured for nano on two cores
    (`redraft bench --knee`); another model or machine has its own.
    """

    max_rows: int = 384
    max_running: int = 64
    max_waiting: int = 4096
    policy: str = "mixed"
    prefix_bytes: int = 256 * 2**20


DEFAULT_LOOP = LoopConfig()


class Loop:
    """Many requests, one model."""

    def __init__(
        self, model: DiffusionGemma, config: LoopConfig = DEFAULT_LOOP, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.runner = Runner(model, Prefixes(config.prefix_bytes))
        self.scheduler = Scheduler(
            max_rows=config.max_rows,
            max_running=config.max_running,
            max_waiting=config.max_waiting,
            policy=config.policy,
        )
        self.clock = clock
        self.forwards = 0
        self._tickets: dict[int, _Ticket] = {}
        self._numbers = itertools.count()
        # The mail is what other threads may touch at any time; it is held for an instant, never during a forward.
        self._mail = threading.Condition()
        self._arrived: list[tuple[int, int | None]] = []
        self._aborted: set[int] = set()
        self._turn_lock = threading.RLock()
        self._inside = False
        self._thread: threading.Thread | None = None
        self._stopping = False
        self.failure: Exception | None = None

    def submit(self, request: Request, listener: Listener, *, drafts: bool = False, behind: int | None = None) -> int:
        """Queue a request; `listener` is called with its events from whoever turns the loop. Raises BusyError.

        `behind` names an earlier request with the same prompt, a variant of which this is: if that one is still to
        encode its prompt, this one waits and takes it over.
        """
        deadline = None if request.deadline_sec is None else self.clock() + request.deadline_sec
        with self._mail:
            self.scheduler.check_room(len(self._arrived))
            number = next(self._numbers)
            self._tickets[number] = _Ticket(request, listener, drafts, deadline)
            self._arrived.append((number, behind))
            self._mail.notify()
        return number

    def abort(self, number: int) -> None:
        """End a request before the next forward; it is told Finished("aborted") and nothing else from now on.

        One that is unknown or finished is left alone, so an abort may come too late without harm.
        """
        with self._mail:
            if number in self._tickets:
                self._aborted.add(number)
                self._mail.notify()
        if self._thread is None and not self._inside:
            self._collect()

    def tick(self) -> bool:
        """One forward, if there is anything to run. Returns whether any request is left."""
        with self._turn_lock:
            self._inside = True
            try:
                self._collect()
                self._retire()
                self._admit()
                self._forward(self.scheduler.next())
                return bool(self._tickets)
            finally:
                self._inside = False

    def drain(self) -> None:
        """Turn until nothing is left."""
        while self.tick():
            pass

    def start(self) -> None:
        """Turn the loop on a thread of its own, which sleeps while there is nothing to do."""
        with self._mail:
            if self._thread is None:
                self._stopping = False
                self._thread = threading.Thread(target=self._turn, name="redraft-loop", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the thread after its current forward. Requests left are kept; `start` goes on with them."""
        with self._mail:
            thread, self._thread, self._stopping = self._thread, None, True
            self._mail.notify_all()
        if thread is not None:
            thread.join()

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
        assert self._tickets.keys() == self.scheduler.running.keys() | self.scheduler.waiting.keys() | arrived

    def _turn(self) -> None:
        while True:
            with self._mail:
                while not self._tickets and not self._stopping:
                    self._mail.wait()
                if self._stopping:
                    return
            try:
                self.tick()
            except Exception as error:  # a failure of ours must not leave anyone waiting for ever
                self.failure = error
                for number in list(self._tickets):
                    self._end(number, "error")

    def _collect(self) -> None:
        """Take the mail: queue what has arrived, end what is no longer wanted."""
        with self._mail:
            arrived, self._arrived = self._arrived, []
            aborted, self._aborted = self._aborted, set()
        for number, behind in arrived:
            request = self._tickets[number].request
            same = behind in self._tickets and self._tickets[behind].request.prompt == request.prompt
            same = same and request.width > 0  # a causal one needs its own logits of the prompt's last token
            self.scheduler.add(number, len(request.prompt), request.width, behind=behind if same else None)
        for number in aborted:
            self._end(number, "aborted")

    def _admit(self) -> None:
        for number in self.scheduler.admit():
            ticket = self._tickets[number]
            noise = SeededNoise(ticket.request.seed)
            self.scheduler.skip(number, self.runner.open(number, ticket.request, noise, drafts=ticket.drafts))
        self._share_prompts()

    def _forward(self, batch: Batch) -> None:
        if not batch:
            return
        told = self.runner.run(batch)
        self.forwards += 1
        for piece in batch:
            self.scheduler.ran(piece, self.runner.lanes[piece.number].width)
        self._share_prompts()
        for piece in batch:
            if piece.number not in self._aborted:  # a listener may have aborted it a moment ago
                self._tell(piece.number, told.get(piece.number, []))

    def _share_prompts(self) -> None:
        """Let variants take over the prompt of the request they stand behind, once it is encoded."""
        for entry in list(self.scheduler.running.values()):
            if entry.behind is None or entry.behind not in self.runner.lanes:
                continue
            ahead = self.runner.lanes[entry.behind]
            if ahead.prefix.length == len(ahead.prompt):
                self.runner.share(entry.behind, entry.number)
                self.scheduler.release(entry.number)
            elif ahead.read == len(ahead.prompt):  # it has gone on to commit a block: too late to share
                self.scheduler.detach(entry.number)

    def _retire(self) -> None:
        """End what has run out of time, before rows are chosen."""
        for number, ticket in list(self._tickets.items()):
            if ticket.deadline is not None and self.clock() >= ticket.deadline:
                self._end(number, "deadline")

    def _end(self, number: int, reason: FinishReason) -> None:
        lane = self.runner.lanes.get(number)
        events = lane.cut_short() if lane is not None and reason == "deadline" else []
        commits = 0 if lane is None else lane.blocks
        self._tell(number, [*events, Finished(reason, commits)])

    def _tell(self, number: int, events: list[Event]) -> None:
        """Pass events on; keep the scheduler's books; forget the request after its last event."""
        ticket = self._tickets.get(number)
        if ticket is None:
            return
        for event in events:
            try:
                ticket.listener(event)
            except Exception:  # a listener is the caller's code: its failure is its own request's, not the loop's
                self._forget(number)
                return
            if isinstance(event, Finished):
                self._forget(number)
                return
            if isinstance(event, Block) and number in self.runner.lanes:
                self.scheduler.commit(number, self.runner.lanes[number].waiting, ticket.request.width)

    def _forget(self, number: int) -> None:
        self._tickets.pop(number, None)
        self.scheduler.remove(number)
        self.runner.close(number)
