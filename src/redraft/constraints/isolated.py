"""Programs for a library that can neither be interrupted nor given a bound on memory: a process of its own runs it.

Such a process is isolated: it reads no folder that a caller happens to be in, and no variable. So it knows neither
PYTHONPATH nor a user's own packages, and is given the folder of the library. `isolated` is the command of one that does
one thing. A `Helper` answers one question after another: to begin a process takes longer than most answers.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from redraft.constraints.compile.limits import LOOK_UP_SEC, is_gone
from redraft.errors import BusyError, DeadlineError

_FIND = "import sys; sys.path.append(sys.argv.pop())\n"
_BOOT_SEC = 60.0
TRIES = 3
"""Processes that one question is asked of, where somebody ends them."""
_ANSWER = """
import contextlib, json, resource, sys, time
most_sec, most_bytes = map(int, sys.argv[1:])
def limit(what, most):
    hard = resource.getrlimit(what)[1]
    soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
    with contextlib.suppress(ValueError):  # the system knows none of this kind
        resource.setrlimit(what, (soft, hard))
limit(resource.RLIMIT_AS, most_bytes)
print("{}", flush=True)
for line in sys.stdin.buffer:
    asked = json.loads(line)
    limit(resource.RLIMIT_CPU, int(time.process_time()) + most_sec + 1)
    print(json.dumps(answer(asked)), flush=True)
"""
"""Behind a program that defines `answer`. What runs on when nobody listens any more ends by its processor time."""


def isolated(code: str, library: str, *arguments: int) -> list[str]:
    """The command of a process that runs `code`, which may import `library` and has the arguments in sys.argv."""
    return [sys.executable, "-I", "-c", _FIND + code, *map(str, arguments), _folder_of(library)]


@cache
def _folder_of(library: str) -> str:
    found = find_spec(library)
    assert found is not None, "it is a dependency"
    assert found.origin is not None, "it is a package with a file"
    return str(Path(found.origin).resolve().parents[1])


class Helper:
    """A process that answers questions, one at a time: lines of JSON. It is begun at the first, and anew behind one for
    which it took too long. A question takes at most `most_sec` of the processor, the process `most_bytes` of memory.

    Who asks has turns for it (`compile/limits.py`): it knows nothing of threads."""

    def __init__(self, code: str, library: str, most_sec: int, most_bytes: int) -> None:
        self._command = (code + _ANSWER, library, most_sec, most_bytes)
        self._process: subprocess.Popen[bytes] | None = None
        self._owner, self._owes = os.getpid(), False

    def ask(self, question: bytes, seconds: float) -> bytes | None:
        """The answer; None if there was none in so many seconds of all tries, or no memory. Of one thread at a time.

        Raises DeadlineError where its caller leaves meanwhile, and BusyError where somebody else, such as a system that
        is out of memory, ends TRIES processes."""
        assert b"\n" not in question, "a question is a line"
        if self._owes:  # an interrupt came before an answer, which would be taken for that to this question
            self.end()
        left = seconds
        for _ in range(TRIES):
            used, self._owes = self._owner == os.getpid() and self._process is not None, True
            process = self._running()
            began = time.monotonic()
            found = None if process is None else self._answer(process, question, began + left)
            left -= time.monotonic() - began
            if found:
                self._owes = False
                return found
            was_ended = found is not None and self._was_ended()
            self.end()
            # One that has answered before may have kept memory of earlier questions.
            if found is None or left <= 0 or not (used or was_ended):
                return None
        raise BusyError(f"something ended {TRIES} processes that worked on a constraint; try again soon")

    def _answer(self, process: subprocess.Popen[bytes], question: bytes, until: float) -> bytes | None:
        try:
            return _line(process, until) if _write(process, question + b"\n", until) else None
        except BrokenPipeError:
            return b""

    def _was_ended(self) -> bool:
        """Whether a process that says nothing more was killed from outside; its own bounds end it by other signals."""
        try:
            return self._process is not None and self._process.wait(1.0) in (-signal.SIGKILL, -signal.SIGTERM)
        except subprocess.TimeoutExpired:
            return False

    def _running(self) -> subprocess.Popen[bytes] | None:
        """The process; None if it does not start."""
        if self._owner != os.getpid():  # the process is that of the program that this is a fork of
            if self._process is not None:
                self._process.returncode = 0  # it is not this one's to wait for
            self._process, self._owner = None, os.getpid()
        if self._process is None:
            pipe, none = subprocess.PIPE, subprocess.DEVNULL
            try:
                self._process = subprocess.Popen(
                    isolated(*self._command),
                    bufsize=0,  # a fork would have a copy of what had not been sent, and send it, too
                    stdin=pipe,
                    stdout=pipe,
                    stderr=none,
                    start_new_session=True,  # Ctrl-C is for the program that asks
                )
            except OSError as error:
                raise BusyError(f"no process to work on a constraint could be begun ({error.strerror})") from None
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
            atexit.register(self.end)
            if _line(self._process, time.monotonic() + _BOOT_SEC) is None:
                self.end()
        return self._process

    def end(self) -> None:
        """End the process, if there is one."""
        process, self._process, self._owes = self._process, None, False
        if process is not None and self._owner == os.getpid():
            process.kill()
            with suppress(BrokenPipeError), process:  # closes the pipes, and waits
                pass
            atexit.unregister(self.end)


def _write(process: subprocess.Popen[bytes], line: bytes, until: float) -> bool:
    """Whether a process took a line in time: one that stands still reads no more than a pipe holds."""
    assert process.stdin is not None
    left, poll = memoryview(line), select.poll()
    poll.register(process.stdin, select.POLLOUT)
    while left:
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            return False
        with suppress(BlockingIOError):
            left = left[os.write(process.stdin.fileno(), left) :]
    return True


def _line(process: subprocess.Popen[bytes], until: float) -> bytes | None:
    """The next line that a process writes; empty if it has ended, None if there is none in time. Raises DeadlineError
    where the caller has left."""
    assert process.stdout is not None
    found, poll = bytearray(), select.poll()
    poll.register(process.stdout, select.POLLIN)
    while not found.endswith(b"\n"):
        left = until - time.monotonic()
        if not poll.poll(max(0.0, min(left, LOOK_UP_SEC)) * 1000):
            if is_gone():  # `ask` ends the process before its next question
                raise DeadlineError("whoever asked has left")
            if left > LOOK_UP_SEC:
                continue
            return None
        part = os.read(process.stdout.fileno(), 1 << 16)
        if not part:
            return b""
        found += part
    return bytes(found)
