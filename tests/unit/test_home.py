"""What was worked out once is kept in one folder of the user's, and a user who has none loses only time."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

import redraft
from redraft.engine.knee import write_knee
from redraft.errors import RunError
from redraft.home import cache_folder


@pytest.mark.parametrize("named", [None, "", "not/absolute", "."])
def test_the_folder_is_in_the_home_unless_an_absolute_one_is_named(
    named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The XDG specification has a relative path ignored: it would be another folder wherever a command is started."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME")
    if named is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", named)
    assert cache_folder() == tmp_path / ".cache" / "redraft"


def test_a_user_without_a_home_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every load was an internal error, "Could not determine home directory"."""

    def nobody(_: int) -> None:
        raise KeyError("no such user")

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    assert redraft.load("nano-sudoku", report=told.append).generate("a", regex="b", max_tokens=4).text == "b"
    assert not [line for line in told if "cannot be used" in line]
    with pytest.raises(RunError, match=r"the knee cannot be kept in .*; set XDG_CACHE_HOME elsewhere"):
        write_knee("some key", 1)
    assert not list(tmp_path.iterdir())
