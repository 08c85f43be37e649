"""Writes what an observer sees into a trace, as it happens."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from redraft.engine.engine import Core
from redraft.engine.events import Block, Draft, Event, Finished
from redraft.engine.scope import Observer, Submitted
from redraft.trace.file import TraceFile
from redraft.trace.folder import TraceFolder
from redraft.trace.frames import Frames, block_frame
from redraft.trace.lines import Begun, Drafted, Ended, Settled, Taken

DIGITS = 6
"""Decimal places of an entropy."""


@dataclass
class _Known:
    """A request by its number in order of their first events, and its blocks so far."""

    index: int
    blocks: list[Block] = field(default_factory=list)


class Recorder(Observer):
    """A trace of all requests of a scope: `engine.within(CancelScope(recorder))`. Raises RunError for a full disk."""

    def __init__(self, file: TraceFile, engine: Core) -> None:
        self._file, self._text, self._began, self._count = file, engine.text, time.monotonic(), 0
        self._frames = Frames(engine.text, engine.config.generation.eos_token_ids, DIGITS)
        self._known: WeakKeyDictionary[Submitted, _Known] = WeakKeyDictionary()

    def event(self, handle: Submitted, event: Event) -> None:
        """Write one event; before the first of a request, that it begins."""
        known = self._known.get(handle)
        if known is None:
            known = self._known[handle] = _Known(self._count)
            self._count += 1
            self._begin(handle, known.index)
        if isinstance(event, Draft):
            self._file.write(Drafted(**self._frames.of(known.index, event), ms=self._ms()))
        elif isinstance(event, Block):
            known.blocks.append(event)
            self._file.write(Settled(**block_frame(self._text, event), index=known.index, ms=self._ms()))
        elif isinstance(event, Finished):
            self._frames.forget(known.index)
            self._end(known, event)

    def won(self, handle: Submitted) -> None:
        """Write that of several competing requests this one won."""
        if (known := self._known.get(handle)) is not None:
            self._file.write(Taken(index=known.index, ms=self._ms()))

    def _begin(self, handle: Submitted, index: int) -> None:
        request = handle.request
        self._file.write(
            Begun(
                index=index,
                ms=self._ms(),
                seed=request.seed,
                width=request.width,
                max_tokens=request.max_tokens,
                ends=sorted(request.eos),
                prompt=self._text.decode(request.shown_prompt, skip_special=False),
                prompt_tokens=len(request.prompt),
            )
        )

    def _end(self, known: _Known, event: Finished) -> None:
        self._file.write(
            Ended(
                index=known.index,
                ms=self._ms(),
                finish=event.reason,
                text=self._text.decode([token for block in known.blocks for token in block.tokens]),
                steps=[block.steps for block in known.blocks],
                commits=event.commits,
                error=None if event.error is None else str(event.error),
            )
        )

    def _ms(self) -> float:
        return round(1e3 * (time.monotonic() - self._began), 3)


class FolderRecorder(Observer):
    """The same with a trace for each request, in a folder."""

    def __init__(self, folder: TraceFolder, engine: Core) -> None:
        self._folder, self._engine = folder, engine
        self._recorders: WeakKeyDictionary[Submitted, Recorder] = WeakKeyDictionary()

    def event(self, handle: Submitted, event: Event) -> None:
        """As a recorder's, in the next file for a request that begins."""
        recorder = self._recorders.get(handle)
        if recorder is None:
            recorder = self._recorders[handle] = Recorder(self._folder.begin(), self._engine)
        recorder.event(handle, event)

    def won(self, handle: Submitted) -> None:
        """As a recorder's, in the file of that request, if it is kept."""
        if (recorder := self._recorders.get(handle)) is not None:
            recorder.won(handle)
