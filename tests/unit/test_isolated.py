"""Processes of their own for libraries without bounds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from redraft.constraints.isolated import isolated


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
