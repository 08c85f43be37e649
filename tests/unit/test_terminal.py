"""What a person at a terminal sees: a real process on a real (pseudo) terminal, interrupted by a real signal."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from tests.helpers import ROOT

pty = pytest.importorskip("pty", reason="needs a pseudo terminal")
SHOWN, HIDDEN = b"\x1b[?25h", b"\x1b[?25l"


def read_until(screen: int, wanted: bytes | None, seen: bytes = b"", seconds: float = 300.0) -> bytes:
    """What the process draws, until `wanted` is among it, or until it closes the terminal."""
    ends = time.monotonic() + seconds
    while wanted is None or wanted not in seen:
        assert time.monotonic() < ends, f"waited {seconds} s for {wanted!r}, saw {seen!r}"
        if select.select([screen], [], [], 0.1)[0]:
            try:
                drawn = os.read(screen, 65_536)
            except OSError:  # Linux says EIO where the other side is closed
                drawn = b""
            if not drawn:
                assert wanted is None, f"the process ended before {wanted!r}: {seen!r}"
                return seen
            seen += drawn
    return seen


def test_an_interrupt_while_watching_gives_the_terminal_back(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a canvas: cursor back, settings as before, exit 130, one line, no file left behind."""
    screen, terminal = pty.openpty()
    before = termios.tcgetattr(screen)
    # A cap of thousands of steps that no canvas can settle before: there is time to interrupt.
    words = ["generate", "Ka", "--watch", "--steps", "9000", "--entropy-bound", "1e-9", "--temperature", "10"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "redraft", *words, "--threads", "1", "--seed", "1"],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=terminal,
        cwd=tmp_path,
        env=environment,
    )
    os.close(terminal)  # so that the screen ends when the process does
    try:
        seen = read_until(screen, b"step  3")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=300)
        after = termios.tcgetattr(screen)
        seen = read_until(screen, None, seen)
    finally:
        process.kill()
        process.wait()
        os.close(screen)
    assert (process.returncode, out) == (130, b"")
    assert after == before
    assert seen.rfind(HIDDEN) < seen.rfind(SHOWN), "the cursor stayed hidden"
    assert seen.endswith(b"redraft: interrupted\r\n")
    assert b"Traceback" not in seen
    assert list(tmp_path.iterdir()) == []
