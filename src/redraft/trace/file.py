"""A trace as a file: written line by line as events happen, read back whole or not at all."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import msgspec

from redraft.errors import RequestError, RunError, TraceError
from redraft.files import lock
from redraft.trace.lines import VERSION, Begun, Header, Line
from redraft.trace.recording import Recording, Trace

MOST_HEADER_BYTES, MOST_BYTES = 2**20, 2**28
"""Of the first line, and of all others: read, they take up to seventeen times as much."""


class TraceFile:
    """A trace being written at `path`, line by line; `size` is its bytes."""

    def __init__(self, path: Path, header: Header, *, new: bool = False) -> None:
        """Raises RequestError for a path that cannot be written, that another program is writing, or whose file is not
        a trace; for a `new` one of any file that exists."""
        self.path, self.size = path, 0
        with ExitStack() as undo:
            try:
                if not new and path.is_file() and path.stat().st_size and not is_trace(path):
                    raise RequestError(
                        f"{path} holds something else than a trace, which would be lost; name another file"
                    )
                flags = os.O_CREAT | (os.O_EXCL if new else os.O_NONBLOCK)  # a pipe may have no reader
                self._file = os.open(path, os.O_WRONLY | flags, 0o666)
                undo.callback(os.close, self._file)
                if new:
                    undo.callback(path.unlink, missing_ok=True)
                os.set_blocking(self._file, True)
                if path.is_file():
                    lock(self._file, path)
                    os.ftruncate(self._file, 0)
            except OSError as error:
                raise RequestError(f"the trace {path} cannot be written: {error.strerror}; name another file") from None
            self.write(header)
            undo.pop_all()

    def write(self, line: Header | Line) -> None:
        """Write one line. Raises RunError if the disk is full, and leaves whole lines."""
        data = msgspec.json.encode(line) + b"\n"
        try:
            written = os.write(self._file, data)
            while written < len(data):  # the second call raises the error of a short write
                written += os.write(self._file, data[written:])
        except OSError as error:
            if self.path.is_file():
                os.ftruncate(self._file, self.size)
            raise RunError(f"the trace {self.path} cannot be written on: {error.strerror}; make room") from None
        self.size += len(data)

    def close(self) -> None:
        """End the trace."""
        os.close(self._file)


def is_trace(path: Path) -> bool:
    """Whether a file begins as one of this or an earlier version, and not merely with a key of that name."""
    with path.open("rb") as file:
        line = file.readline(MOST_HEADER_BYTES)
    try:
        found = msgspec.json.decode(line, type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return found.trace <= VERSION


def read_trace(path: Path) -> Trace:
    """A trace from a file. Raises TraceError with the number of the line that cannot be used."""
    recordings: dict[int, Recording] = {}
    try:
        with path.open("rb") as file:
            header = _header(path, file.readline(MOST_HEADER_BYTES))
            left, number = MOST_BYTES, 1
            while line := file.readline(left + 1):
                left, number = left - len(line), number + 1
                try:
                    if left < 0:
                        raise ValueError(f"the trace has over {MOST_BYTES} bytes up to there; give its first lines")
                    _take(recordings, msgspec.json.decode(line, type=Line))
                except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError) as error:
                    raise TraceError(f"line {number} of {path} cannot be used: {error}") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    found = tuple(recording for recording in recordings.values() if recording.frames)
    if not found:
        raise TraceError(f"{path} holds no step of a canvas; there is nothing to show")
    others = (one.ended.text for one in recordings.values() if one.taken and not one.frames and one.ended is not None)
    return Trace(header, found, next(others, None))


def _take(recordings: dict[int, Recording], line: Line) -> None:
    if line.index in recordings:
        recordings[line.index].take(line)
    elif isinstance(line, Begun):
        recordings[line.index] = Recording(line)
    else:
        raise ValueError(f"request {line.index} has not begun")


def _header(path: Path, line: bytes) -> Header:
    """The first line; its version is checked before the rest of it."""
    try:
        found = msgspec.json.decode(line)
        version = found.get("trace") if isinstance(found, dict) else None
        if type(version) is int and version != VERSION:
            raise TraceError(
                f"{path} is a trace of version {version}; this program reads version {VERSION}: use one that wrote it"
            )
        return msgspec.convert(found, Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"line 1 of {path} is not the head of a trace: {error}") from None
