"""Shows a canvas settling in a terminal, in place: what it reads now, what changed, what was accepted.

bold on colour   changed since the last step        plain   accepted, its sample stays for the next step
dim              not accepted: the model sees random noise there, and this reading in its soft embedding
underlined       the constraint chose it, not the model
·                an end token; the answer ends before the first
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Collection, Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text as Line

from redraft.cli.common import tame
from redraft.engine.events import Block, Draft, Event
from redraft.engine.request import Generation, Request, ResolvedRequest
from redraft.engine.scope import CancelScope, Observer, Submitted
from redraft.operations.engine import Engine
from redraft.text import Text

PACE, LONGEST = 0.25, 3.0
"""Seconds that a step stays on a terminal, and the most that steps not shown yet take after the answer."""


MOST_ENDS = 16
"""End tokens after the answer that are shown one by one; a wide canvas has hundreds."""


class Watch(Observer):
    """A context manager around a run. On a terminal it redraws in place; elsewhere it prints a line per step.

    A small model's steps come faster than they can be followed, so the answer runs ahead: no step waits for the screen.
    """

    def __init__(self, text: Text, *, answer_follows: bool = False) -> None:
        """With `answer_follows` the caller prints the answer, and only the number of steps stays on the terminal."""
        self.text = text
        self.answer_follows = answer_follows
        self.console = Console(file=sys.stderr, highlight=False)
        self.live = Live(console=self.console, auto_refresh=False, transient=False)
        self.head, self.settled = Line(), Line()
        self.ahead, self.due = deque[Line](), 0.0

    def __enter__(self) -> Watch:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Runs on ctrl-C too: the cursor comes back and the last canvas stays on screen.
        try:
            if kind is not None and self.ahead:
                self.live.update(self.ahead[-1])
            elif kind is None and self.console.is_terminal:
                self._catch_up()
        finally:
            self.live.stop()

    def event(self, handle: Submitted, event: Event) -> None:
        """Draw one event."""
        request = handle.request
        if isinstance(event, Draft):
            mean = sum(event.entropy) / len(event.entropy)
            self.head = Line(f"block {event.block}  step {event.step:>2}  {mean:.3f} nats  ", style="cyan")
            self._draw(self.head, self.settled + self._canvas(event, request))
        elif isinstance(event, Block):
            self.settled += Line(tame(self.text.decode(event.tokens)))
            self._draw(Line(), self.settled)

    def _draw(self, head: Line, body: Line) -> None:
        if not self.console.is_terminal:
            self.console.print((head.plain + body.plain).replace("\n", "⏎"), soft_wrap=True)
            return
        self.ahead.append(Line("\n").join([self.head, body]))
        if time.monotonic() >= self.due:
            self._next(PACE)

    def _catch_up(self) -> None:
        pace = min(PACE, LONGEST / max(1, len(self.ahead)))
        while self.ahead:
            time.sleep(max(0.0, self.due - time.monotonic()))
            self._next(pace)
        if self.answer_follows:
            self.live.update(self.head)

    def _next(self, pace: float) -> None:
        self.live.update(self.ahead.popleft(), refresh=True)
        self.due = time.monotonic() + pace

    def _canvas(self, draft: Draft, request: ResolvedRequest) -> Line:
        pieces = [None if token in request.eos else self.text.decode([token]) for token in draft.tokens]
        return canvas_line(pieces, draft.changed, draft.accepted, draft.forced)


def watched(engine: Engine, request: Request | ResolvedRequest, *, answer_follows: bool = False) -> Generation:
    """Answer a request while its canvas is on show."""
    with Watch(engine.text, answer_follows=answer_follows) as watch:
        return engine.within(CancelScope(watch, parent=engine.scope)).generate(request)


def canvas_line(
    pieces: Sequence[str | None],
    changed: Sequence[bool],
    accepted: Sequence[int],
    forced: Sequence[bool],
    marked: Collection[int] = (),
) -> Line:
    """A canvas as a line; None for an end token. `marked` places stand out from all others."""
    line = Line()
    answer = max((i + 1 for i, piece in enumerate(pieces) if piece is not None), default=0)
    for i, piece in enumerate(pieces[:answer]):
        if piece is None:
            line.append("·", style="dim")
            continue
        style = (
            "black on yellow" if i in marked else "bold white on blue" if changed[i] else "" if accepted[i] else "dim"
        )
        line.append(tame(piece) or "�", style=f"{style} underline" if forced and forced[i] else style)
    ends = len(pieces) - answer
    return line.append("·" * ends if ends <= MOST_ENDS else f"·×{ends}", style="dim")
