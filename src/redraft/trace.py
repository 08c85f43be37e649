"""A trace: what happened on every canvas of a run, a line of JSON an event, to be gone through later.

    {"trace": 1, …}                 which program, command and model, with which options
    {"type": "request", …}          a canvas is begun; `index` tells it from others of the run
    {"type": "draft", …}            a step of it: what reads otherwise, and of every position its doubt
    {"type": "block", …}            it has settled
    {"type": "finished", …}         nothing more follows of it

docs/traces.md has every key. A line is written whole or not at all, as soon as the event has happened.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from redraft.errors import RequestError, RunError, TraceError

VERSION = 1


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line. `options` are those of the command that were given."""

    trace: int
    redraft: str
    command: str
    model: str
    taken: str
    options: dict[str, Any]


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """A request: `width` positions a canvas (0: from left to right), at most `max_tokens` tokens behind the prompt.

    `ends` are the ids that end an answer.
    """

    index: int
    ms: float
    seed: int
    width: int
    max_tokens: int
    ends: list[int]
    prompt: str
    prompt_tokens: int


class Drafted(msgspec.Struct, frozen=True, kw_only=True, tag="draft"):
    """A step. `positions` read otherwise than in the line before, as `tokens` and `ids`; `end` is the first end token.

    Of all positions `entropy`, in nats, and `accepted`; `forced` are those where the language, not the model, chose.
    """

    index: int
    ms: float
    block: int
    step: int
    width: int
    end: int | None
    positions: list[int]
    tokens: list[str]
    ids: list[int]
    entropy: list[float]
    accepted: list[int]
    forced: list[int]

    def __post_init__(self) -> None:
        if not len(self.positions) == len(self.tokens) == len(self.ids):
            raise ValueError("positions, tokens and ids are not equally many")
        if not len(self.entropy) == len(self.accepted) == self.width:
            raise ValueError(f"entropy and accepted must have {self.width} values, one a position")
        if any(not 0 <= at < self.width for at in (*self.positions, *self.forced, self.end or 0)):
            raise ValueError(f"a position is not from 0 to {self.width - 1}, the last of the canvas")


class Settled(msgspec.Struct, frozen=True, kw_only=True, tag="block"):
    """A block: its tokens, which will not change, their pieces of text, and of each what `Generation` tells."""

    index: int
    ms: float
    block: int
    tokens: list[int]
    pieces: list[str]
    entropy: list[float]
    settled_at: list[int]
    changes: list[int]
    steps: int
    settled: bool


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """The end of a request, with its whole text; `error` says what went wrong, where the reason is "error"."""

    index: int
    ms: float
    finish: str
    text: str
    steps: list[int]
    commits: int
    error: str | None = None


Line = Begun | Drafted | Settled | Ended


@dataclass(frozen=True)
class Frame:
    """A canvas after a step, whole, behind the text of the blocks `before` it.

    `changed` marks readings that differ from the frame before, if that was of the same canvas.
    """

    drafted: Drafted
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    changed: tuple[bool, ...]
    before: str

    @property
    def end(self) -> int:
        """Positions up to the end of the answer."""
        return self.drafted.width if self.drafted.end is None else self.drafted.end

    @property
    def text(self) -> str:
        """What the answer reads now."""
        return self.before + "".join(self.tokens[: self.end])


def apart(one: Frame, other: Frame) -> list[int]:
    """Positions at which two canvases read differently; those that only one of them has are among them."""
    both = zip(one.ids, other.ids, strict=False)
    least, most = sorted((len(one.ids), len(other.ids)))
    return [at for at, (a, b) in enumerate(both) if a != b] + list(range(least, most))


@dataclass
class Film:
    """One request of a trace: its frames, its blocks, and its end, if it came to one."""

    begun: Begun
    frames: list[Frame] = field(default_factory=list)
    blocks: list[Settled] = field(default_factory=list)
    ended: Ended | None = None

    @property
    def finish(self) -> str:
        """Why it ended."""
        return "cut off" if self.ended is None else self.ended.finish

    def take(self, line: Line) -> None:
        """Its next line. Raises ValueError for one that cannot follow."""
        if self.ended is not None or isinstance(line, Begun):
            raise ValueError(f"request {line.index} has ended" if self.ended else f"request {line.index} begins twice")
        if isinstance(line, Ended):
            self.ended = line
        elif isinstance(line, Settled):
            self.blocks.append(line)
        else:
            self.frames.append(self._frame(line))

    def _frame(self, line: Drafted) -> Frame:
        last = self.frames[-1] if self.frames else None
        if last is not None and last.drafted.block != line.block:
            last = None if line.step == 1 else replace(last, ids=())  # a canvas that flows goes on counting
        if line.step != (1 if last is None else last.drafted.step + 1):
            raise ValueError(f"step {line.step} of request {line.index} does not follow what is before it")
        if last is not None and len(last.ids) == line.width:
            tokens, ids = list(last.tokens), list(last.ids)
        elif len(line.positions) == line.width:
            tokens, ids = [""] * line.width, [0] * line.width
        else:
            raise ValueError(f"a new canvas of {line.width} positions is told only {len(line.positions)} of them")
        for at, token, number in zip(line.positions, line.tokens, line.ids, strict=True):
            tokens[at], ids[at] = token, number
        past = () if last is None else last.ids
        changed = tuple(at < len(past) and number != past[at] for at, number in enumerate(ids))
        before = "".join(piece for block in self.blocks if block.block < line.block for piece in block.pieces)
        return Frame(line, tuple(tokens), tuple(ids), changed, before)


def first_apart(one: Film, other: Film) -> tuple[int, list[int]] | None:
    """The first place among the frames of two films where they read differently, and the positions; None if they never
    do. A film that ends sooner goes on reading as it did last."""
    for at in range(max(len(one.frames), len(other.frames))):
        found = apart(one.frames[min(at, len(one.frames) - 1)], other.frames[min(at, len(other.frames) - 1)])
        if found:
            return at, found
    return None


@dataclass(frozen=True)
class Trace:
    """A trace that was read. `films` are those that took a step, in the order in which they began."""

    header: Header
    films: tuple[Film, ...]

    @property
    def main(self) -> Film:
        """The one to show first: of several that competed one that was told to its end, the longest."""
        return max(self.films, key=lambda film: (film.finish not in ("aborted", "error", "cut off"), len(film.frames)))


class TraceFile:
    """A trace being written, line by line."""

    def __init__(self, path: Path, header: Header) -> None:
        """Raises RequestError for a place that cannot be written, or that holds something else than a trace."""
        try:
            if path.is_file() and path.stat().st_size and not path.read_bytes()[:9] == b'{"trace":':
                raise RequestError(f"{path} holds something else than a trace, which would be lost; name another file")
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        except OSError as error:
            raise RequestError(f"the trace {path} cannot be written: {error.strerror}; name another file") from None
        self._path, self._size = path, 0
        self.write(header)

    def write(self, line: Header | Line) -> None:
        """One line, in one piece. Raises RunError where there is no room for it, and leaves whole lines behind."""
        data = msgspec.json.encode(line) + b"\n"
        try:
            written = os.write(self._file, data)
            while written < len(data):  # what is in the way says so at the second try
                written += os.write(self._file, data[written:])
        except OSError as error:
            if self._path.is_file():
                os.ftruncate(self._file, self._size)
            raise RunError(f"the trace {self._path} cannot be written on: {error.strerror}; make room") from None
        self._size += len(data)

    def close(self) -> None:
        """No more will come."""
        os.close(self._file)


def read_trace(path: Path) -> Trace:
    """A trace from a file. Raises TraceError with the number of the line that cannot be used."""
    films: dict[int, Film] = {}
    try:
        with path.open("rb") as file:
            header = _header(path, file.readline())
            for number, line in enumerate(file, start=2):
                try:
                    _take(films, msgspec.json.decode(line, type=Line))
                except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
                    raise TraceError(f"line {number} of {path} cannot be used: {error}") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    found = tuple(film for film in films.values() if film.frames)
    if not found:
        raise TraceError(f"{path} holds no step of a canvas; there is nothing to show")
    return Trace(header, found)


def _take(films: dict[int, Film], line: Line) -> None:
    if line.index in films:
        films[line.index].take(line)
    elif isinstance(line, Begun):
        films[line.index] = Film(line)
    else:
        raise ValueError(f"request {line.index} has not begun")


def _header(path: Path, line: bytes) -> Header:
    """The first line; its version is looked at before anything else of it."""
    try:
        told = msgspec.json.decode(line)
        version = told.get("trace") if isinstance(told, dict) else None
        if type(version) is int and version != VERSION:
            raise TraceError(
                f"{path} is a trace of version {version}; this program reads version {VERSION}: use one that wrote it"
            )
        return msgspec.convert(told, Header)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TraceError(f"line 1 of {path} is not the head of a trace: {error}") from None
