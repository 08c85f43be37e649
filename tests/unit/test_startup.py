"""The script that measures how long a stranger waits before a first step: it sees one, and notices a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

import startup
from redraft.errors import RunError


@pytest.fixture(autouse=True)
def _source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(startup.ROOT / "src"))


def test_a_first_step_is_seen_and_timed() -> None:
    """How many seconds is the machine's: what they go to is looked at in test_cli.py, by what a command imports."""
    assert startup.first_step_sec() > 0


def test_a_command_that_fails_is_not_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(startup, "PROMPT", "")
    with pytest.raises(RunError, match="and not with its first step"):
        startup.first_step_sec()
    (tmp_path / "Makefile").write_text("demo:\n\tfalse\n")
    with pytest.raises(RunError, match="make demo failed"):
        startup.made(str(tmp_path), "demo")
