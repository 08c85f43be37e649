"""Writes what the program prints into README.md: each block of `$ redraft` commands, and the Python block's comment.

    python bench/transcripts.py
    python bench/transcripts.py --check      write nothing; exit 1 if a transcript is out of date

Figures are the last thing that processors agree on: a check compares shares to two digits and leaves entropies out.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "README.md"
BLOCK = re.compile(r"```text\n(\$ redraft .*?)```", re.DOTALL)
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
COMMENT = re.compile(r"(?m)(^print\(done\.text\)  # ).*$")


def taken(page: str) -> str:
    """The page with its transcripts as the program prints them now."""
    page = BLOCK.sub(lambda found: f"```text\n{_block(found[1])}```", page)
    return CODE.sub(lambda found: COMMENT.sub(lambda comment: comment[1] + _python(found[1]), found[0]), page)


def rounded(page: str) -> str:
    """A page without the digits that may differ between processors."""
    return re.sub(r"(?m)^(\d\.\d\d)\d\d  ", r"\1  ", re.sub(r"\d+\.\d+ nats", "nats", page))


def _block(block: str) -> str:
    return "".join(f"{line}\n{_printed(line)}" for line in block.splitlines() if line.startswith("$ redraft "))


def _printed(line: str) -> str:
    """What a command prints: its drafts if it shows them, else its result."""
    words = shlex.split(line.removeprefix("$ redraft ").replace("$'", "'"))
    words = [word.replace("\\n", "\n") for word in words]
    done = _run(["-m", "redraft", *words, "--threads", "1"])
    drafts = "".join(f"{one}\n" for one in done.stderr.splitlines() if " nats " in one)
    return drafts if "--watch" in words else done.stdout


def _python(code: str) -> str:
    return _run(["-c", code]).stdout.splitlines()[0]


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, env=environment)


def main() -> int:
    """Write, or compare; the exit code is 1 if a transcript is out of date."""
    parser = argparse.ArgumentParser(description="Take the transcripts of README.md again.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if one is out of date")
    page = PAGE.read_text(encoding="utf-8")
    wanted = taken(page)
    if parser.parse_args().check:
        return int(rounded(page) != rounded(wanted))
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
