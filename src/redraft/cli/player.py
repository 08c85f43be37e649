"""Recordings of canvases on a terminal, step by step, under the reader's keys; elsewhere a line a step."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text as Line

from redraft.cli.common import tame
from redraft.cli.display import canvas_line
from redraft.trace.recording import Frame, Recording, apart, first_apart

KEYS = {b" ": "pause", b"\x1b[C": "on", b"l": "on", b"\x1b[D": "back", b"h": "back", b"\x1b[H": "first"}
KEYS |= {b"\x1b[1~": "first", b"\x1b[4~": "last"}  # as screen and tmux send home and end
KEYS |= {b"\x1b[F": "last", b"+": "faster", b"-": "slower", b"q": "leave", b"\x04": "leave", b"": "leave"}

MOST_BEFORE, MOST_IN_LINE = 4000, 1000
"""Characters that are shown before a canvas on a terminal, and in the line of a step."""

Named = Sequence[tuple[str, Recording]]


@dataclass
class Playback:
    """Where a reader is: the step on view, whether it moves on by itself, and how fast, in steps a second."""

    last: int
    speed: float
    at: int = 0
    plays: bool = True

    def press(self, key: str) -> None:
        """What a key does."""
        if key == "pause":
            self.plays = not self.plays
            self.at = 0 if self.plays and self.at == self.last else self.at
        elif key in ("on", "back", "first", "last"):
            self.plays = False
            self.at = {"on": min(self.last, self.at + 1), "back": max(0, self.at - 1), "first": 0}.get(key, self.last)
        elif key in ("faster", "slower"):
            self.speed = min(1000.0, max(0.01, self.speed * (2 if key == "faster" else 0.5)))


def play(recordings: Named, speed: float) -> None:
    """Show one recording, or two side by side, on stdout; until the reader leaves, if there are keys to leave by."""
    console = Console(highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        for line in lines(recordings):
            print(line)
        return
    place = Playback(max(len(recording.frames) for _, recording in recordings) - 1, speed)
    with _keys() as fd, Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(screen(recordings, place), refresh=True)
            if fd is None and place.at == place.last:
                return
            key = _wait(fd, 1 / place.speed if place.plays else None)
            if key == "leave":
                return
            if key is not None:
                place.press(key)
            elif place.plays and place.at < place.last:
                place.at += 1
            place.plays = place.plays and (place.at < place.last or key is not None)


def lines(recordings: Named) -> Iterator[str]:
    """A line a step; of two recordings one of each, and where they part."""
    for at in range(max(len(recording.frames) for _, recording in recordings)):
        for name, recording in recordings:
            if at < len(recording.frames):
                frame = recording.frames[at]
                text = (Line(_before(frame, MOST_IN_LINE)) + _canvas(recording, frame, ())).plain.replace("\n", "⏎")
                yield (f"{name}  " if len(recordings) > 1 else "") + f"{_head(frame)}  {text}"
    if len(recordings) > 1:
        yield _parting(recordings)


def screen(recordings: Named, place: Playback) -> RenderableType:
    """What is on view."""
    frames = [recording.frames[min(place.at, len(recording.frames) - 1)] for _, recording in recordings]
    marked = set(apart(frames[0], frames[1])) if len(recordings) > 1 else set[int]()
    shown = []
    for (name, recording), frame in zip(recordings, frames, strict=True):
        head = Line(f"{name}  {_head(frame)}\n", style="cyan")
        shown.append(head + Line(_before(frame, MOST_BEFORE)) + _canvas(recording, frame, marked))
    grid = Table.grid(expand=True, padding=(0, 2))
    for _ in shown:
        grid.add_column(ratio=1)
    grid.add_row(*shown)
    foot = f"{place.at + 1} of {place.last + 1}{'' if place.plays else ', paused'}, {place.speed:g} a second"
    return Group(grid, Line(f"{foot}  {_parting(recordings)}" if len(recordings) > 1 else foot, style="dim"))


def _head(frame: Frame) -> str:
    drafted = frame.drafted
    return f"block {drafted.block}  step {drafted.step:>2}  {sum(drafted.entropy) / drafted.width:.3f} nats"


def _before(frame: Frame, most: int) -> str:
    """The end of what stands before a canvas."""
    end = frame.before(most + 1)
    return "…" * (len(end) > most) + tame(end[-most:])


def _canvas(recording: Recording, frame: Frame, marked: Collection[int]) -> Line:
    ends, drafted = set(recording.begun.ends), frame.drafted
    pieces = [None if number in ends else token for number, token in zip(frame.ids, frame.tokens, strict=True)]
    forced = set(drafted.forced)
    return canvas_line(pieces, frame.changed, drafted.accepted, [at in forced for at in range(drafted.width)], marked)


def _parting(recordings: Named) -> str:
    found = first_apart(recordings[0][1], recordings[1][1])
    if found is None:
        return "they read the same at every step"
    at, positions = found
    some = ", ".join(map(str, positions[:8])) + (", …" if len(positions) > 8 else "")
    return f"first apart at step {at + 1}, position{'s' if len(positions) > 1 else ''} {some}"


@contextmanager
def _keys() -> Iterator[int | None]:
    """Where single keys can be read, if stdin is a terminal; its settings are restored at the end."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield None
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _wait(fd: int | None, seconds: float | None) -> str | None:
    """The next key that means something, None after that long without one."""
    if fd is None:
        time.sleep(seconds or 0)
        return None
    ends = None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if ends is None else max(0.0, ends - time.monotonic())
        if not select.select([fd], [], [], left)[0]:
            return None
        key = KEYS.get(os.read(fd, 8))
        if key is not None:
            return key
