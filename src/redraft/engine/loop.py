"""The engine's loop: run the batch that the scheduler picks, and pass on the events of each request.

One loop serves one model. `tick` is one forward; a caller may call it, or `start` a thread that does. Requests may be
submitted and aborted from any thread, without waiting for a forward: both are put down as mail, which the next tick
takes. Everything else happens in the tick.

Every request has one last event, Finished, whatever happens. What goes wrong in opening one, in its own step or in its
observers ends that request and no other; a forward that fails ends those that were in it. Their readers find the cause
in Finished.error.
"""

from __future__ import annotations

import atexit
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress

from redraft.engine.admission import Admission
from redraft.engine.causal import CausalSequence
from redraft.engine.events import Block, Event, Finished
from redraft.engine.handle import Handle, Inbox
from redraft.engine.memory import ledger_of
from redraft.engine.prefixes import Prefixes
from redraft.engine.request import FinishReason, ResolvedRequest
from redraft.engine.runner import Runner
from redraft.engine.scheduler import Batch, Scheduler
from redraft.engine.scope import CancelScope
from redraft.engine.sequence import CanvasSequence, Sequence
from redraft.engine.settings import CALLERS_ROWS, DEFAULT_LOOP, LoopConfig, default_rows, extra_rows
from redraft.engine.turn import Turn
from redraft.errors import RequestError, RunError
from redraft.interrupts import Held
from redraft.model.gemma import DiffusionGemma
from redraft.text import Text

LOOK_UP_SEC = 1.0
"""How long a thread whose loop is gone goes on, at most."""


class Loop:
    """Many requests, one model.

    It counts its forwards and the rows in them, encoded ones and those of canvases. Of the latter, `wasted_rows` are
    those of ended requests from which no token was emitted, because it stood behind the answer's end or was never
    final. Without the model's `text` its handles have events alone.
    """

    def __init__(
        self,
        model: DiffusionGemma,
        config: LoopConfig = DEFAULT_LOOP,
        clock: Callable[[], float] = time.monotonic,
        *,
        text: Text | None = None,
    ) -> None:
        rows = default_rows(model.config, model.device.type) if config.max_rows is None else config.max_rows
        wanted = model.device.type == "cuda" if config.graphs is None else config.graphs
        graphs = wanted and model.kernels.layer is not None  # which reads from memory what its rows see
        if wanted and model.device.type != "cuda":
            raise RequestError(f"graphs is True and the model runs on {model.device}; leave it out, or use a GPU")
        if config.memory is not None and (type(config.memory) is not int or config.memory < 1):
            raise RequestError(f"memory is {config.memory!r}; it must be an integer of at least 1 (bytes)")
        prefixes = Prefixes(model.config.layers, model.dtype.itemsize, config.prefix_bytes)
        self.runner = Runner(model, prefixes, graphs=graphs)
        self.runner.no_graphs = "the kernel of a layer is not used" if wanted and not graphs else ""
        self.scheduler = Scheduler(
            max_rows=rows,
            max_running=config.max_running,
            max_waiting=config.max_waiting,
            share=CALLERS_ROWS if model.device.type == "cpu" else None,
        )
        ledger = ledger_of(model, memory=config.memory, max_rows=rows, graphs=graphs)
        self.admission = Admission(self.scheduler, self.runner, ledger)
        self.clock, self.text = clock, text
        self.forwards = self.encoded_rows = self.canvas_rows = self.wasted_rows = 0
        self._numbers = itertools.count()
        # The mail is what other threads may touch at any time; it is held for an instant, never during a forward.
        self._mail = threading.Condition()
        self._arrived, self._aborted = list[Sequence](), set[Sequence]()
        # The thread that holds the turn may touch everything else.
        self._turn = Turn(self._mail)
        self._thread: _Thread | None = None

    def submit(
        self,
        request: ResolvedRequest,
        scope: CancelScope | None = None,
        *,
        drafts: bool = False,
        behind: Handle | None = None,
        inbox: Inbox[Hashable] | None = None,
        key: Hashable = None,
        wait: bool = False,
    ) -> Handle:
        """Queue a request. Raises BusyError for a full queue unless it may `wait`; RunError in an ended scope or fork.

        RequestError for a request that would not fit in memory alone. `drafts` is whether its reader wants them.
        `behind` is an earlier request with the same prompt, a variant of which this is: if that one is still to encode
        its prompt, this one waits and takes it over. With an `inbox` its events come there, under a `key`, by default
        the handle.
        """
        self._refuse_fork()
        began = self.clock()
        sequence = (CausalSequence if request.causal else CanvasSequence)(
            request=request,
            number=next(self._numbers),
            drafts=drafts or (scope is not None and bool(scope.observers)),
            began=began,
            deadline=None if request.deadline_sec is None else began + request.deadline_sec,
            behind=None if behind is None else behind.sequence,
        )
        sequence.caller = sequence if scope is None else scope.caller
        sequence.extra = extra_rows(request, self.runner.model, self.scheduler.max_rows)
        handle = Handle(self, sequence, scope=scope, text=self.text, drafts=drafts, inbox=inbox, key=key)
        sequence.deliver = handle.deliver
        self.admission.check(sequence)
        if scope is not None:
            scope.add(handle)
        try:
            while not self._queue(sequence, wait=wait):
                self._wait_for_room()
        except BaseException as error:
            if scope is not None:
                scope.remove(handle)
            if not isinstance(error, Exception):  # Ctrl-C: it may be queued, and nobody would read it
                self.abort(sequence)
            raise
        return handle

    def abort(self, sequence: Sequence) -> None:
        """End a request before the next forward; its last event is Finished("aborted"), unless it has had it.

        If no thread is inside a tick, that is here and now, for there may never be another.
        """
        if sequence.finished or self._is_forked:
            return
        with Held():
            with self._mail:
                self._aborted.add(sequence)
                self._mail.notify_all()
            with self._turn.held(wait=False) as ours:
                if ours:
                    self._collect()

    def tick(self) -> bool:
        """One forward, if there is anything to run. Returns whether any request is left.

        An error ends the requests it concerns; only what is no error passes. Ctrl-C waits for the end of the forward.
        """
        self._refuse_reentry()
        batch: Batch | None = None
        with Held(), self._turn.held():
            try:
                self._collect()
                self._retire()
                self._admit()
                batch = self.scheduler.next()
                if batch:
                    self._forward(batch)
                else:
                    self._fail(*self.admission.starved())
            except BaseException as error:  # a failure of ours must not leave a reader waiting for ever
                self._fail(self._all() if batch is None else [piece.sequence for piece in batch], error)
                if not isinstance(error, Exception):
                    raise
        return self.is_busy

    def drain(self) -> None:
        """Turn until nothing is left."""
        while self.tick():
            pass

    def turn_until(self, ready: Callable[[], bool]) -> None:
        """Turn until `ready`. Returns at once where a thread turns: there is nothing to do then but to wait for it."""
        self._refuse_reentry()
        while not ready() and not self.is_turning:
            self.tick()

    def start(self) -> None:
        """Turn the loop on a thread of its own, which sleeps while there is nothing to do. Raises RunError in a fork of
        a process that has such a thread, and when the program ends."""
        self._refuse_fork()
        if self._turn.ends:
            raise RunError("the program ends, and its loop cannot be started any more; ask from its main thread")
        with self._mail:
            if self._thread is None or self._thread.stopping:
                self._thread = _Thread(weakref.ref(self), self._mail)
                self._thread.start()
                atexit.register(self._thread.end)  # before the turn is taken for good: what runs gets its end

    def stop(self) -> None:
        """End the thread after its current forward; requests left end with an error. In a fork there is none."""
        if self._is_forked:
            return
        self._refuse_reentry()
        with self._mail:
            if (thread := self._thread) is None:
                return
            thread.stopping = True
            self._mail.notify_all()
        thread.join()
        with self._turn.held():
            with self._mail:
                if self._thread is not thread:
                    return  # it has been started again meanwhile, and goes on with them
                # What was submitted before this ends; who submits after it will see that no thread turns.
                self._thread, left = None, self._all()
            self._fail(left, RunError("the loop was stopped while this request was running; start it and ask again"))

    @property
    def is_turning(self) -> bool:
        """Whether a thread turns the loop."""
        return self._thread is not None

    @property
    def is_busy(self) -> bool:
        """Whether any request is left."""
        return bool(self._arrived or self.scheduler.waiting or self.scheduler.running)

    @property
    def num_bytes(self) -> int:
        """Bytes of the keys and values of running requests."""
        return sum(one.prefix.num_bytes for one in list(self.scheduler.running.values()) if one.opened)

    def check(self) -> None:
        """Raise AssertionError if the books contradict themselves."""
        self.scheduler.check()
        self.runner.prefixes.check()
        for one in (*self.scheduler.waiting.values(), *self.scheduler.running.values()):
            assert not one.finished, f"request {one.number} has ended and is kept"
        for one in self.scheduler.running.values():
            assert one.opened, f"request {one.number} runs and was not opened"
            one.check()

    def _all(self) -> list[Sequence]:
        """Every request that has not ended."""
        return [*self.scheduler.running.values(), *self.scheduler.waiting.values(), *self._arrived]

    def _queue(self, sequence: Sequence, *, wait: bool) -> bool:
        """Put a sequence into the mail; False if it has to wait for room."""
        with Held(), self._mail:
            if not wait:
                self.scheduler.check_room(len(self._arrived))
            elif not self._has_room():
                return False
            self._arrived.append(sequence)
            self._mail.notify()
        return True

    def _wait_for_room(self) -> None:
        """Return when the queue may take a request, which another may have taken by then."""
        self.turn_until(self._has_room)
        with self._mail:
            self._mail.wait_for(lambda: self._has_room() or not self.is_turning)

    def _has_room(self) -> bool:
        return len(self.scheduler.waiting) + len(self._arrived) < self.scheduler.max_waiting

    @property
    def _is_forked(self) -> bool:
        return self._turn.is_lost(threaded=self.is_turning)

    def _refuse_fork(self) -> None:
        if self._is_forked:
            known = "this process is a fork of one whose thread turns the engine, and has no such thread"
            raise RunError(f"{known}: load an engine in the child, or fork before the parent's loop starts")

    def _refuse_reentry(self) -> None:
        self._refuse_fork()
        if self._turn.is_mine:
            raise RequestError(
                "an observer, which runs inside a forward's turn, called the engine; it may submit and abort: call "
                "the rest when it has returned, or from another thread"
            )

    def _collect(self) -> None:
        """Take the mail: queue what has arrived, end what was aborted. Some may have ended on their way."""
        with self._mail:  # until all are in the queue: what counts neither there nor in the mail would pass its bound
            arrived, self._arrived = self._arrived, []
            aborted, self._aborted = self._aborted, set()
            for one in arrived:
                if not one.finished:
                    self.scheduler.add(one)
        for one in arrived:
            ahead = one.behind
            same = ahead is not None and not ahead.finished and ahead.request.shares_prompt(one.request)
            if not (same and one.request.width):  # a causal one needs its own logits of the prompt's last token
                one.behind = None
        for one in aborted:
            self._end(one, "aborted")

    def _admit(self) -> None:
        for one, error in self.admission.admit():
            if error is not None:
                self._fail([one], error)
            elif isinstance(one, CanvasSequence):
                one.keep_time(self.clock)
        self._share_prompts()

    def _forward(self, batch: Batch) -> None:
        shortages = self.runner.shortages
        found = self.runner.run(batch)
        self.admission.narrow(batch) if self.runner.shortages > shortages else self.admission.widen()
        self.forwards += 1
        for piece in batch:
            self.encoded_rows += piece.encode
            self.canvas_rows += piece.canvas
            piece.sequence.unread += piece.canvas
        self._share_prompts()
        for piece, events in zip(batch, found, strict=True):
            self._emit(piece.sequence, events)

    def _share_prompts(self) -> None:
        """Let variants take over the prompt of the request they stand behind, once it is encoded."""
        for one in list(self.scheduler.running.values()):
            if (ahead := one.behind) is None:
                continue
            if ahead.number in self.scheduler.waiting:  # put back for lack of memory: it may wait for this one
                one.behind = None
            elif ahead.opened and ahead.read == len(ahead.prompt):
                one.behind = None
                is_there = ahead.prefix.length == ahead.read  # else it has gone on to commit a block: too late
                if is_there and (error := self.runner.share(ahead, one)) is not None:
                    self._fail([one], error)

    def _retire(self) -> None:
        """End what has run out of time, before rows are chosen."""
        for one in self._all():
            if one.deadline is not None and self.clock() >= one.deadline:
                self._end(one, "deadline")

    def _fail(self, sequences: Iterable[Sequence], error: BaseException) -> None:
        for one in list(sequences):
            self._end(one, "error", error)

    def _end(self, sequence: Sequence, reason: FinishReason, error: BaseException | None = None) -> None:
        events = self.runner.cut_short(sequence) if reason == "deadline" and not sequence.finished else []
        self._emit(sequence, [*events, Finished(reason, sequence.blocks, error)])

    def _emit(self, sequence: Sequence, events: list[Event]) -> None:
        """Pass events on; forget the sequence after its last event."""
        if sequence.finished:
            return
        for event in events:
            # An observer, of this request or of another, may have aborted it a moment ago.
            last = Finished("aborted", sequence.blocks) if sequence in self._aborted else event
            sequence.unread -= last.rows if isinstance(last, Block) else 0
            try:
                sequence.deliver(last)
            except Exception as error:  # an observer is the caller's code: its failure is its own request's
                if not isinstance(last, Finished):
                    last = Finished("error", sequence.blocks, error)
                    sequence.deliver(last)
            finally:
                if isinstance(last, Finished):
                    self._forget(sequence)
            if isinstance(last, Finished):
                return

    def _forget(self, sequence: Sequence) -> None:
        sequence.close()
        self.wasted_rows += sequence.unread
        self.scheduler.remove(sequence)
        self.admission.leave(sequence)
        self.runner.forget()
        for other in (*self.scheduler.waiting.values(), *self.scheduler.running.values()):
            if other.behind is sequence:
                other.behind = None


class _Thread(threading.Thread):
    """One thread that turns a loop while somebody has it. The wish that it stop is its own, not a later thread's."""

    def __init__(self, loop: Callable[[], Loop | None], mail: threading.Condition) -> None:
        super().__init__(name="redraft-loop", daemon=True)
        self._loop, self._mail, self.stopping = loop, mail, False

    def run(self) -> None:
        """Turn, or sleep and look up now and then whether the loop is still there."""
        while (loop := self._loop()) is not None:
            with self._mail:
                if self.stopping:
                    break
                if not (loop.is_busy or loop._aborted):
                    del loop
                    self._mail.wait(LOOK_UP_SEC)
                    continue
            with suppress(BaseException):  # an exit that an observer asked for has ended its request: that is enough
                loop.tick()
        atexit.unregister(self.end)

    def end(self) -> None:
        """Stop the loop, if it is still there."""
        if (loop := self._loop()) is not None:
            loop.stop()
