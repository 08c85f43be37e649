"""A folder of traces, one a request, of which only the newest are kept."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from redraft.errors import RedraftError, RequestError, RunError
from redraft.files import lock
from redraft.trace.file import TraceFile, is_trace
from redraft.trace.lines import Ended, Header, Line, Taken

DIGITS, NAME = 8, re.compile("[0-9]{8,}")
NONE = -1
"""In place of the handle of an open file."""


@dataclass(frozen=True)
class _Old:
    """A file of an earlier run."""

    path: Path
    size: int


class TraceFolder:
    """Files 00000001.jsonl and so on, those of earlier runs included.

    When a request begins, the oldest files are removed until there are fewer than `most`, of at most `most_bytes`. The
    first of the traces in a row that cannot be written is reported by `say`.
    """

    def __init__(self, path: Path, header: Header, most: int, most_bytes: int, say: Callable[[str], None]) -> None:
        """Raises RequestError for a folder that cannot be written, or that another program writes to."""
        self.most, self._path, self._header, self._most_bytes = most, path, header, most_bytes
        self._say, self._failing = say, False
        with ExitStack() as undo:
            try:
                path.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(path, os.O_RDONLY)
                undo.callback(os.close, self._lock)
                lock(self._lock, path)
                found = [file for file in path.glob("*.jsonl") if NAME.fullmatch(file.stem) and _is_ours(file)]
                ours = sorted(found, key=lambda file: int(file.stem))  # other files may have names like these
                self._kept = deque[_Old | _RequestFile](_Old(file, file.lstat().st_size) for file in ours)
            except OSError as error:
                raise RequestError(f"the folder {path} cannot be made: {error.strerror}; name another") from None
            self._number = int(ours[-1].stem) if ours else 0
            probe = TraceFile(self._next(), header, new=True)  # so that an error is raised before the first request
            probe.close()
            probe.path.unlink()
            undo.pop_all()

    def _next(self) -> Path:
        """The next name that no file has."""
        while os.path.lexists(found := self._path / f"{self._number + 1:0{DIGITS}}.jsonl"):
            self._number += 1
        return found

    def begin(self) -> TraceFile:
        """The next file, which closes itself at the end of its request. Removes the oldest files beyond the limits."""
        while self._kept and (len(self._kept) >= self.most or sum(file.size for file in self._kept) > self._most_bytes):
            old = self._kept.popleft().path
            with suppress(OSError):  # already removed by another program, or another's by now
                if _is_ours(old) or not old.stat().st_size:
                    old.unlink()
        file = _RequestFile(self._next(), self._header, self._written)
        self._number += 1
        self._kept.append(file)
        return file

    def _written(self, error: RedraftError | None) -> None:
        """What came of a trace. Of a disk that stays full there is one line, not one a request."""
        if error is not None and not self._failing:
            with suppress(OSError):  # the log may be on the same disk
                self._say(f"{error}; requests are answered, and their traces are lost until there is")
        self._failing = error is not None

    def close(self) -> None:
        """Unlock the folder."""
        os.close(self._lock)


def _is_ours(path: Path) -> bool:
    with suppress(OSError):
        return path.is_file() and is_trace(path)
    return False


class _RequestFile(TraceFile):
    """A trace that ends at the first error: no request fails because its trace cannot be written."""

    def __init__(self, path: Path, header: Header, ended: Callable[[RedraftError | None], None]) -> None:
        self._ended = ended
        try:
            super().__init__(path, header, new=True)
        except RedraftError as error:
            self._file = NONE
            ended(error)

    def write(self, line: Header | Line) -> None:
        """Write one line, if there is a file. It is closed when its request ends, and opened again if that won."""
        if isinstance(line, Taken):
            with suppress(OSError):
                self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        if self._file == NONE:
            return
        try:
            super().write(line)
            failed = None
        except RunError as error:
            failed = error
        if failed is not None or isinstance(line, Ended | Taken):
            self.close()
            self._file = NONE
            self._ended(failed)
