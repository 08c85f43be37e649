"""Runs the examples of README.md and the tutorials, and writes what they print into the pages.

    python bench/transcripts.py                    all pages; blocks that are marked slow keep their output
    python bench/transcripts.py --slow             also run those: a training run, Ray, minutes
    python bench/transcripts.py --check            write nothing; exit 1 if a page is out of date

The blocks of a page run in order, in one empty folder. A `text` block holds `$ command` lines for bash, each before
what it printed. A `sh` block is run as a whole, and what it prints is not shown. A `python` block runs in the page's
namespace; the comment behind a `print(…)` is what it printed. An HTML comment above a block says what else to do with
it:

    <!-- file: NAME -->       write it to this file
    <!-- serves -->           start the server of each line; the page's requests go to the first line's
    <!-- slow: REASON -->     run it with --slow alone; `slow serves` starts its server then, and
                              `slow alone` ends the page's servers first
    <!-- not run: REASON -->  the tests only parse it; tests/repo/test_readme.py lists all of these

Figures are the last thing that processors agree on: a check compares shares to two digits and leaves entropies out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs/tutorials").glob("*.md")))
BLOCK = re.compile(
    r"(?:<!-- (?P<mark>file|serves|slow serves|slow alone|slow|not run)(?:: (?P<what>[^>]+))? -->\n)?"
    r"```(?P<kind>\w+)\n(?P<body>.*?)```",
    re.DOTALL,
)
SLOW = ("slow", "slow serves", "slow alone")
COMMAND = re.compile(r"(?m)^\$ (?:.*\\\n)*.*$")  # a backslash at a line's end continues it
CURL = 'curl() { command curl --fail-with-body "$@"; }'  # a refusal is a failure
SCRIPT = re.compile(r"(?m)^(?:.*\\\n)*.+$")
PRINTED = re.compile(r"(?m)^( *print\(.*\)  # ).*$")
# `redraft serve` as it stands, and the other server of a page about two.
ADDRESS = re.compile(r"localhost:8642|127\.0\.0\.1:8(?:642|000)\b")


def taken(page: str, *, slow: bool = False, prepare: Callable[[Path], object] = str) -> str:
    """The page with its outputs as they are now; `prepare` puts what its reader has into the folder."""
    with tempfile.TemporaryDirectory() as folder, Session(Path(folder), slow=slow) as session:
        prepare(session.folder)
        return BLOCK.sub(session.block, page)


def commands(found: re.Match[str]) -> list[str]:
    """The commands of a block, without their output."""
    if found["kind"] == "sh":
        return SCRIPT.findall(found["body"])
    return [command.removeprefix("$ ") for command in COMMAND.findall(found["body"])]


def rounded(page: str) -> str:
    """A page without the digits that may differ between processors."""
    return re.sub(r"(?m)^(\d\.\d\d)\d\d  ", r"\1  ", re.sub(r"\d+\.\d+ nats", "nats", page))


class Session(contextlib.ExitStack):
    """What the blocks of one page share: a folder, a Python namespace, a server."""

    def __init__(self, folder: Path, *, slow: bool) -> None:
        super().__init__()
        self.slow = slow
        self._names: dict[str, Any] = {"__name__": "page"}
        self._address = "localhost:8642"
        self._servers = self.enter_context(contextlib.ExitStack())
        self.folder = folder / "work"
        self.folder.mkdir()
        for name, module in (("redraft", " -m redraft"), ("pip", " -m pip"), ("python", "")):
            program = folder / name
            program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{module} "$@"\n', encoding="utf-8")
            program.chmod(0o755)
        source = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        # `pip install` looks whether what it is asked for is there: a page changes no environment.
        settings = {"OMP_NUM_THREADS": "1", "PIP_DRY_RUN": "1", "PIP_NO_INDEX": "1", "PIP_QUIET": "1"}
        self._environment = os.environ | {"PATH": path, "PYTHONPATH": source} | settings

    def block(self, found: re.Match[str]) -> str:
        """Run one block; returns it with what it printed."""
        mark, kind, body = found["mark"], found["kind"], found["body"]
        if mark == "slow alone":
            self._servers.close()
        if mark == "file":
            (self.folder / found["what"]).write_text(body, encoding="utf-8")
        elif mark == "not run" or (mark in SLOW and not self.slow):
            pass
        elif mark in ("serves", "slow serves"):
            for line in reversed(commands(found)):
                self._serve(line)
        elif kind == "python":
            body = self._python(body)
        elif kind == "sh":
            self._shell(f"set -e\n{CURL}\n{body}")
        elif kind == "text" and body.startswith("$ "):
            body = "".join(f"$ {line}\n{self._shell(line)}" for line in commands(found))
        return found[0].replace(found["body"], body)

    def _shell(self, line: str) -> str:
        """What a command prints: its drafts if it shows them, else its result."""
        words = ["bash", "-c", ADDRESS.sub(self._address, line)]
        silent = subprocess.DEVNULL
        done = subprocess.run(
            words, cwd=self.folder, env=self._environment, stdin=silent, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{line}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        drafts = "".join(f"{one}\n" for one in done.stderr.splitlines() if " nats " in one)
        return drafts if "--watch" in line else done.stdout

    def _python(self, code: str) -> str:
        shown = io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(shown):
            exec(compile(ADDRESS.sub(self._address, code), "block", "exec"), self._names)
        lines = iter(shown.getvalue().splitlines())
        code = PRINTED.sub(lambda found: found[1] + next(lines), code)
        if more := list(lines):
            raise RuntimeError(f"a block prints {more} without a comment to hold it")
        return code

    def _serve(self, line: str) -> None:
        """Start the server on a free port, and wait for it."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = [sys.executable, "-m", *shlex.split(line, comments=True), "--port", str(port), "--quiet"]
        silent = subprocess.DEVNULL
        server = self._servers.enter_context(
            subprocess.Popen(words, cwd=self.folder, env=self._environment, stdout=silent, stderr=silent)
        )
        self._servers.callback(server.terminate)
        self._address = f"localhost:{port}"
        for _ in _seconds(600):  # two replicas on a busy core
            if server.poll() is not None:
                break
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{self._address}/ready"):
                return
        raise RuntimeError(f"{line}: no answer from {self._address}")


def _seconds(count: int) -> Iterator[int]:
    for second in range(count):
        yield second
        time.sleep(1)


def main() -> int:
    """Write, or compare; the exit code is 1 if a page is out of date."""
    parser = argparse.ArgumentParser(description="Take the examples of README.md and the tutorials again.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if one is out of date")
    parser.add_argument("--slow", action="store_true", help="also run what takes minutes")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="these alone")
    arguments = parser.parse_args()
    stale = 0
    for path in arguments.pages or PAGES:
        page = path.read_text(encoding="utf-8")
        wanted = taken(page, slow=arguments.slow)
        if rounded(page) != rounded(wanted):
            stale = 1
            print(path)
        if not arguments.check:
            path.write_text(wanted, encoding="utf-8")
    return stale if arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
