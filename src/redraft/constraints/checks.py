"""Checks of finished texts beside a schema's own: whatever a command says.

A command is not trusted: its output is read as it comes and only the head of it kept, its time is bounded, and when it
has ended, or has to, everything that it started is ended with it.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import re
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, cast

from redraft.constraints.places import Span, span_of, unfenced
from redraft.constraints.validation import Problem
from redraft.errors import RequestError, RunError

Check = Callable[[str], Sequence[Problem | str]]
"""What is wrong with a text: problems with their place, or reasons alone; nothing if it is right."""

MOST_SECONDS = 10.0
"""A check that takes longer has failed."""

MOST_KEPT = 1 << 16
"""Bytes of what a command says on a stream that are read for complaints; the rest is thrown away."""


def command_check(command: Sequence[str], seconds: float = MOST_SECONDS) -> Check:
    """A check by a command that reads the text on stdin; any exit code but 0 is a complaint, stderr says which.

    A line of stderr may name what is wrong, by a JSON pointer or a line, as "/qty: too large" or "line 3: no such
    name"; without one, all of the text is wrong.
    """

    def run(text: str) -> list[Problem]:
        with tempfile.TemporaryFile() as given:
            given.write(text.encode())
            given.seek(0)
            with _started(command, given) as process:
                heads = _heads(process, time.monotonic() + seconds)
        if heads is None:
            raise RunError(f"the check {command[0]!r} took over {seconds:g} seconds; make it quicker")
        if process.returncode < 0:
            raise RunError(f"the check {command[0]!r} was ended by signal {-process.returncode}; correct it")
        if not process.returncode:
            return []
        said = next(filter(None, heads), b"").decode(errors="replace").strip()
        placed = [Problem(line[:300], span) for line in said.splitlines() if (span := _named(text, line))]
        return placed or [Problem(said[:300] or f"{command[0]} ended with {process.returncode}")]

    return run


def line_span(text: str, number: int) -> Span | None:
    """Where a line of that number stands, counted from 1, its end not counted; None if there is none."""
    lines = list(io.StringIO(text, newline=""))  # as Python's parser counts them; splitlines has more ends
    if not 1 <= number <= len(lines):
        return None
    begin = sum(map(len, lines[: number - 1]))
    return begin, begin + len(lines[number - 1].rstrip("\r\n"))


def _named(text: str, line: str) -> Span | None:
    """Where the part of a text stands that a complaint begins with the name of, if it does."""
    if found := re.match(r"line (\d+)\b", line):
        return line_span(text, int(found[1][:18]))
    if found := re.match(r"((?:/[^/\s:]*)+):", line):
        try:
            value, path = json.loads(unfenced(text)), list[str | int]()
            for step in found[1].split("/")[1:]:
                at = isinstance(value, list) and step.isdecimal()
                path.append(int(step) if at else step.replace("~1", "/").replace("~0", "~"))
                value = value[path[-1]]
            return span_of(text, path)
        except (ValueError, LookupError, TypeError, RecursionError):
            return None
    return None


@contextmanager
def _started(command: Sequence[str], given: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a group of its own, which is ended on the way out; also if this process ends first."""
    pipe, starting, started = subprocess.PIPE, threading.Lock(), list[subprocess.Popen[bytes]]()

    def end() -> None:
        free = starting.acquire(timeout=1.0)  # it may have begun, and its number is not known yet
        with suppress(ProcessLookupError, PermissionError):  # the second is macOS's word where all in it are dead
            for process in started:
                os.killpg(process.pid, signal.SIGKILL)
        if free:
            starting.release()

    atexit.register(end)
    try:
        try:
            with starting:
                started.append(subprocess.Popen(command, stdin=given, stdout=pipe, stderr=pipe, process_group=0))
        except (OSError, ValueError) as error:
            raise RequestError(f"the check {command[0]!r} cannot be run: {getattr(error, 'strerror', error)}") from None
        with started[0] as process:
            try:
                yield process
            finally:
                end()  # before it is waited for: until then its number is nobody else's
    finally:
        atexit.unregister(end)


def _heads(process: subprocess.Popen[bytes], until: float) -> list[bytes] | None:
    """What a process says first on stderr and on stdout, when it has ended; None if it has not by then.

    Its own end counts, not that of the pipes, which something that it left behind may hold.
    """
    heads, ended = [b"", b""], False
    with selectors.DefaultSelector() as speaking:
        for i, pipe in enumerate((process.stderr, process.stdout)):
            speaking.register(cast(IO[bytes], pipe), selectors.EVENT_READ, i)
        while not ended:
            if time.monotonic() > until:
                return None
            ended = _has_ended(process)
            for key, _ in speaking.select(0 if ended else 0.02):  # one read empties a pipe
                said = os.read(key.fd, MOST_KEPT)
                if not said:
                    speaking.unregister(key.fileobj)
                heads[key.data] = (heads[key.data] + said)[:MOST_KEPT]
    return heads


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has, without waiting for it where the system can tell (macOS from Python 3.13 on)."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    return process.poll() is not None
