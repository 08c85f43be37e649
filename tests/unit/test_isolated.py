"""Processes of their own for libraries without bounds."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from redraft.constraints.compile import regex
from redraft.constraints.compile.limits import GONE
from redraft.constraints.isolated import Helper, isolated
from redraft.errors import DeadlineError


def test_a_library_that_lies_where_only_the_caller_looks_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those that PYTHONPATH or `pip install --user` brought: every regular expression was refused there. And nothing
    in the folder that a caller is in stands in for a module."""
    monkeypatch.syspath_prepend(str(tmp_path / "brought"))
    package = tmp_path / "brought/some_library"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("value = 7\n")
    here = tmp_path / "here"
    here.mkdir()
    (here / "json.py").write_text("raise SystemExit('another json')\n")
    command = isolated("import json, some_library, sys; print(some_library.value, sys.argv[1:])", "some_library", 5, 6)
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("7 ['5', '6']\n", "", 0)


def test_all_tries_of_a_question_have_one_time() -> None:
    """One that ended its process had the whole time again in the next, while others waited for it."""
    dies = "import os, time\ndef answer(asked):\n time.sleep(asked)\n asked and os.kill(os.getpid(), 9)\n return 1\n"
    helper = Helper(dies, "json", 9, 1 << 30)
    assert helper.ask(b"0", 9.0) == b"1\n"
    assert helper.ask(b"2", 3.0) is None
    helper.end()


def test_a_question_ends_when_its_caller_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of rows was ended by Ctrl-C only behind the schemas that were compiled."""
    monkeypatch.setattr("redraft.constraints.isolated.LOOK_UP_SEC", 0.1)
    helper = Helper("import time\ndef answer(asked):\n time.sleep(asked)\n return asked\n", "json", 60, 1 << 30)
    gone = threading.Event()
    token = GONE.set(gone)
    timer = threading.Timer(0.5, gone.set)
    timer.start()
    try:
        began = time.monotonic()
        with pytest.raises(DeadlineError, match="has left"):
            helper.ask(b"50", 50.0)
        assert time.monotonic() < began + 20
    finally:
        GONE.reset(token)
    assert helper.ask(b"0.3", 50.0) == b"0.3\n"  # by another process
    helper.end()


def test_what_may_take_long_holds_up_no_short_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns of one client, half a second each in the process for short ones, held up another's first schema."""
    monkeypatch.setattr(regex._QUICK, "ask", Mock(side_effect=AssertionError))
    assert regex.whole_match(r".{1,255}x").matches(b"ax")
    with pytest.raises(AssertionError):
        regex.whole_match(r"[a-z]{1,255}q")


def test_regular_expressions_share_a_process_and_outlive_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """To begin one takes 50 milliseconds, and a schema may have twenty of them."""
    monkeypatch.setattr(regex, "MOMENT_SEC", 60.0)
    pids = list[int]()
    for texts in (["a", "bb"], ["b"], ["cd", "ce"]):
        pattern = "|".join(texts)
        table, finals = regex._run(pattern)
        assert regex._QUICK._process is not None
        pids.append(regex._QUICK._process.pid)
        for text in (*texts, "", "x", "aaa", "c"):
            state = 0
            for byte in text.encode():
                state = -1 if state == -1 else int(table[state, byte])
            assert (state in finals) == (text in texts), text
        if len(pids) == 2:
            regex._QUICK._process.kill()
    first, second, third = pids
    assert first == second != third
