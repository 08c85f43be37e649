"""A folder of traces, one a request, of which only the newest are kept."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from pathlib import Path

from redraft.errors import RedraftError, RequestError, RunError
from redraft.trace.file import TraceFile
from redraft.trace.lines import Ended, Header, Line

DIGITS = 8
NONE = -1
"""What is no file."""


class TraceFolder:
    """Files 00000001.jsonl and so on, at most `most` of them; those of an earlier run count, too."""

    def __init__(self, path: Path, header: Header, most: int) -> None:
        """Raises RequestError for a place that cannot be written."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._kept = deque(sorted(path.glob(f"{'[0-9]' * DIGITS}.jsonl")))
        except OSError as error:
            raise RequestError(f"the folder {path} cannot be made: {error.strerror}; name another") from None
        self._path, self._header, self._most = path, header, most
        self._number = int(self._kept[-1].stem) if self._kept else 0
        TraceFile(self._next, header).close()  # what cannot be written is said before anything is asked
        self._next.unlink()

    @property
    def _next(self) -> Path:
        return self._path / f"{self._number + 1:0{DIGITS}}.jsonl"

    def begin(self) -> TraceFile:
        """The next file, which closes itself at the end of its request; the oldest goes, if there are too many."""
        while len(self._kept) >= self._most:
            with suppress(OSError):  # somebody else has taken it away
                self._kept.popleft().unlink()
        self._kept.append(self._next)
        self._number += 1
        return _File(self._kept[-1], self._header)


class _File(TraceFile):
    """What cannot be written is lost, with all that is behind it, and no request with it."""

    def __init__(self, path: Path, header: Header) -> None:
        self._file = NONE
        with suppress(RedraftError):
            super().__init__(path, header)

    def write(self, line: Header | Line) -> None:
        """One line, if there is a file."""
        if self._file == NONE:
            return
        try:
            super().write(line)
            over = isinstance(line, Ended)
        except RunError:
            over = True
        if over:
            self.close()
            self._file = NONE
