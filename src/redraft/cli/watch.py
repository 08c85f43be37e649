"""Shows a canvas settling in a terminal, in place: what it reads now, what changed, what was accepted.

bold on colour   changed since the last step        plain   accepted, its sample stays for the next step
dim              not accepted: random noise is shown to the model there, the reading lives in its soft embedding
underlined       the language chose it, not the model
·                an end token; the answer ends before the first
"""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text as Line

from redraft.cli.screen import canvas_line
from redraft.engine.events import Block, Draft, Event
from redraft.engine.request import Request
from redraft.text import Text


class Watch:
    """A context manager around a run. On a terminal it redraws in place; elsewhere it prints a line per step."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.console = Console(file=sys.stderr, highlight=False)
        self.live = Live(console=self.console, auto_refresh=False, transient=False)
        self.settled = Line()

    def __enter__(self) -> Watch:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Runs on ctrl-C too: the cursor comes back and the last canvas stays on screen.
        self.live.stop()

    def show(self, event: Event, request: Request) -> None:
        """Draw one event."""
        if isinstance(event, Draft):
            mean = sum(event.entropy) / len(event.entropy)
            head = f"block {event.block}  step {event.step:>2}  {mean:.3f} nats  "
            self._draw(Line(head, style="cyan") + Line("\n") + self.settled + self._canvas(event, request))
        elif isinstance(event, Block):
            self.settled += Line(self.text.decode(event.tokens))
            self._draw(self.settled)

    def _draw(self, line: Line) -> None:
        if self.console.is_terminal:
            self.live.update(line, refresh=True)
        else:
            self.console.print(line.plain.replace("\n", "⏎"), soft_wrap=True)

    def _canvas(self, draft: Draft, request: Request) -> Line:
        pieces = [None if token in request.eos else self.text.decode([token]) for token in draft.tokens]
        return canvas_line(pieces, draft.changed, draft.accepted, draft.forced)
