"""A text file and the lines of it that a command works on: FILE:10-20, read, shown as a diff, written back whole."""

from __future__ import annotations

import codecs
import difflib
import errno
import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from redraft.cli.common import decoded, read_file
from redraft.errors import RequestError, RunError
from redraft.files import in_place_of

PLACE = re.compile(r"(?P<file>.+):(?P<lines>[\d,-]+)", re.DOTALL)
LINES = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
CONTEXT = 3
"""Lines of a diff around each change."""
PLACE_HELP = "a file and its lines, counted from 1, both ends included, as notes.py:10-20 or notes.py:7"


@dataclass(frozen=True)
class TextFile:
    """A file as it was read, and the (start, end) bytes of the chosen lines.

    A span leaves out the indentation of its first line, a byte order mark and the line end of its last.
    """

    path: Path
    data: bytes
    spans: tuple[tuple[int, int], ...]

    def diff(self, data: bytes) -> str:
        """A unified diff from the file to `data`."""
        before, after = (re.findall(r"[^\n]*\n|[^\n]+", each.decode("utf-8")) for each in (self.data, data))
        # The library takes the square of their number for what is the same above and below.
        above = max(0, _same(before, after) - CONTEXT)
        below = max(0, _same(before[above:][::-1], after[above:][::-1]) - CONTEXT)
        old, new = (each[above : len(each) - below] for each in (before, after))
        found = difflib.unified_diff(old, new, fromfile=str(self.path), tofile=str(self.path), n=CONTEXT)
        return "".join(_shifted(line, above) for line in found)

    def write(self, data: bytes) -> None:
        """Put `data` in the file's place in one move, with the file's own mode; a link stays a link.

        Raises RequestError if the file is not what was read any more, RunError if the disk refuses.
        """
        target = self.path.resolve()
        try:
            if not target.stat().st_mode & 0o222 or not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, "it is read-only")
            with in_place_of(target, 0o600) as beside:  # nobody else's to read before it has the file's own mode
                with beside.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                old = target.stat()
                with suppress(OSError):  # who may not give it away keeps it
                    os.chown(beside, old.st_uid, old.st_gid)
                beside.chmod(stat.S_IMODE(old.st_mode))
                if target.read_bytes() != self.data:
                    raise RequestError(f"{self.path} has changed since it was read; nothing was written, run again")
        except OSError as error:
            raise RunError(f"{self.path} could not be written: {error.strerror}; it is as it was") from None


def read_lines(place: str, *, to_write: bool = False, may_be_whole: bool = False) -> TextFile:
    """Read what FILE:LINES names; LINES may be several ranges, in order, as 3,10-12. FILE alone `may_be_whole`.

    Raises RequestError for a place that is spelt otherwise or does not exist, for a file that is not UTF-8 text and,
    where it is `to_write`, for a pipe or a device.
    """
    is_whole = may_be_whole and os.path.isfile(place)  # noqa: PTH113  # which raises nothing for a name that is too long
    found = PLACE.fullmatch(place)
    if found is None and not is_whole:
        if may_be_whole and not os.path.lexists(place):
            raise RequestError(f"{place} does not exist; write a file, or a file and its lines, as notes.py:10-20")
        raise RequestError(f"the place is {place!r}; write a file and its lines, as notes.py:10-20")
    path = Path(place if found is None or is_whole else found["file"])
    if to_write and path.exists() and not path.is_file():
        raise RequestError(f"{path} is no regular file, which --write could replace; leave --write out")
    data = read_file(path, str(path))
    _check_text(path, data)
    if found is None or is_whole:
        return TextFile(path, data, (_bare(data, 0, len(data)),))
    return TextFile(path, data, tuple(_spans(path, data, found["lines"])))


def _same(one: Sequence[str], other: Sequence[str]) -> int:
    """How many lines are the same in both from the beginning on."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _shifted(line: str, above: int) -> str:
    """A line of a diff of what is behind so many lines."""
    if line.startswith("@@ "):
        return re.sub(r"([-+])(\d+)", lambda at: f"{at[1]}{int(at[2]) + above}", line)
    return line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"


def _check_text(path: Path, data: bytes) -> None:
    if not data:
        raise RequestError(f"{path} is empty; some text is needed")
    if b"\0" in data:
        raise RequestError(f"{path} is binary (byte {data.index(0)} is 0); only text can be worked on")
    decoded(data, str(path))


def _spans(path: Path, data: bytes, wanted: str) -> list[tuple[int, int]]:
    starts = [0, *(match.end() for match in re.finditer(b"\n", data))]
    if starts[-1] == len(data):
        starts.pop()
    spans: list[tuple[int, int]] = []
    above = 0
    for part in wanted.split(","):
        match = LINES.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last:
            raise RequestError(f"the lines are {wanted!r}; write ranges from a first to a last line, as 3,10-12")
        if last > len(starts):
            raise RequestError(f"line {last} does not exist; {path} has {len(starts)} lines")
        if first <= above:
            raise RequestError(f"the lines are {wanted!r}; ranges must follow each other and not overlap")
        above = last
        spans.append(_bare(data, starts[first - 1], starts[last] if last < len(starts) else len(data)))
    return spans


def _bare(data: bytes, start: int, end: int) -> tuple[int, int]:
    """The span of some lines without the first one's indentation and the last one's end."""
    start += 0 if start else len(data) - len(data.removeprefix(codecs.BOM_UTF8))
    text = data[start:end].removesuffix(b"\n").removesuffix(b"\r")
    return start + len(text) - len(text.lstrip(b" \t")), start + len(text)
