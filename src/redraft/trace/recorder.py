"""Writes what a tap tells into a trace, as it happens."""

from __future__ import annotations

import time

from redraft.engine.engine import Engine
from redraft.engine.events import Block, Draft, Event, Finished
from redraft.trace.frames import Frames, block_frame
from redraft.engine.loop import Listener
from redraft.engine.request import ResolvedRequest
from redraft.trace.file import TraceFile
from redraft.trace.folder import TraceFolder
from redraft.trace.lines import Begun, Drafted, Ended, Settled, Taken

DIGITS = 6
"""Of an entropy, behind the point."""


class Recorder:
    """A trace of all requests that go through a tap: `Tap(engine.loop, recorder.opened, recorder.won)`."""

    def __init__(self, file: TraceFile, engine: Engine) -> None:
        self._file, self._text, self._began = file, engine.text, time.monotonic()
        self._frames = Frames(engine.text, engine.config.generation.eos_token_ids, DIGITS)

    def opened(self, index: int, request: ResolvedRequest) -> Listener:
        """Write that a request begins; what is returned writes what becomes of it. Raises RunError for a full disk."""
        prompt = self._text.decode(list(request.prompt), skip_special=False)
        self._file.write(
            Begun(
                index=index,
                ms=self._ms(),
                seed=request.seed,
                width=request.width,
                max_tokens=request.max_tokens,
                ends=sorted(request.eos),
                prompt=prompt,
                prompt_tokens=len(request.prompt),
            )
        )
        blocks: list[Block] = []

        def listen(event: Event) -> None:
            if isinstance(event, Draft):
                frame = self._frames.of(index, event)
                ids = [event.tokens[at] for at in frame["positions"]]
                self._file.write(Drafted(**frame, ms=self._ms(), ids=ids))
            elif isinstance(event, Block):
                blocks.append(event)
                self._file.write(Settled(**block_frame(self._text, event), index=index, ms=self._ms()))
            elif isinstance(event, Finished):
                self._file.write(
                    Ended(
                        index=index,
                        ms=self._ms(),
                        finish=event.reason,
                        text=self._text.decode([token for block in blocks for token in block.tokens]),
                        steps=[block.steps for block in blocks],
                        commits=event.commits,
                        error=None if event.error is None else str(event.error),
                    )
                )

        return listen

    def won(self, index: int) -> None:
        """Write that of several competing requests this one won. Raises RunError for a full disk."""
        self._file.write(Taken(index=index, ms=self._ms()))

    def _ms(self) -> float:
        return round(1e3 * (time.monotonic() - self._began), 3)


class Apart:
    """The same with a trace for each request, in a folder: `Tap(engine.loop, apart.opened, apart.won)`."""

    def __init__(self, folder: TraceFolder, engine: Engine) -> None:
        self._folder, self._engine, self._newest = folder, engine, dict[int, Recorder]()

    def opened(self, index: int, request: ResolvedRequest) -> Listener:
        """As a recorder's, in the next file."""
        recorder = self._newest[index] = Recorder(self._folder.begin(), self._engine)
        self._newest.pop(index - self._folder.most, None)
        return recorder.opened(0, request)

    def won(self, index: int) -> None:
        """As a recorder's, in the file of that request, if it is kept."""
        if (recorder := self._newest.get(index)) is not None:
            recorder.won(0)
