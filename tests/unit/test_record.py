"""A benchmark record on disk: it comes back as it was, or it is refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redraft.errors import RecordError, RunError
from redraft.measure import record
from redraft.measure.record import Record, machine, new_record, read_record, write_record
from redraft.measure.training import training_record


def some_record() -> Record:
    return new_record(
        "speed",
        workload={"model": "nano", "runs": 3},
        figures={"ms": 1.5, "pairs": [[1, 2.5]], "peak": {"ours": 10}, "note": "é €"},
        summary=[("One answer", "1.5 ms"), ("Peak", "10 MiB")],
    )


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    """The version of torch is a class that could not be written: every record failed."""
    wanted = some_record()
    path = tmp_path / "new" / "folder" / "speed.json"
    write_record(wanted, path)
    assert read_record(path) == wanted
    assert [one.name for one in path.parent.iterdir()] == ["speed.json"]


def test_a_record_says_what_ran_and_where() -> None:
    kept = some_record()
    assert len(kept.taken.split("-")) == 3
    assert kept.commit
    assert {"processor", "cores", "threads", "cpu_features", "python", "torch"} <= kept.machine.keys()
    assert json.loads(json.dumps(machine())) == machine(), "plain JSON values only"


def change(key: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda content: content.update({key: value})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (change("speed", 3), "unknown field `speed`"),
        (lambda content: content.pop("commit"), "missing required field `commit`"),
        (change("summary", [{"figure": "a", "value": "b", "unit": "c"}]), "unknown field `unit`"),
        (change("summary", "fast"), r"\$.summary"),
        (change("machine", None), r"\$.machine"),
    ],
)
def test_a_record_of_another_form_is_refused(
    damage: Callable[[dict[str, Any]], object], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "speed.json"
    write_record(some_record(), path)
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=words):
        read_record(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"speed"', b"\xff\xfe", b'{"name": "\xff"}'])
def test_a_damaged_record_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match="is not a benchmark record"):
        read_record(path)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "speed.json"
    write_record(some_record(), path)
    before = path.read_bytes()

    def full(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    for target in (path, tmp_path / "another.json"):
        with pytest.raises(RunError, match="No space left on device"):
            write_record(msgspec.structs.replace(some_record(), name="other"), target)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_commit_of_another_repository_is_not_ours(tmp_path: Path) -> None:
    """Installed into the virtual environment of a project, a record named that project's commit."""
    package = tmp_path / "project" / "lib" / "redraft"
    shutil.copytree(Path(record.__file__).parents[1], package, ignore=shutil.ignore_patterns("assets", "__pycache__"))
    git = ["git", "-C", str(tmp_path / "project"), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        subprocess.run([*git, *words], check=True)
    ask = "from redraft.measure import record; print(record.__file__, record._commit())"
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    reported = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    assert reported.stdout.split() == [str(package / "measure" / "record.py"), "unknown"]


def test_what_is_no_record_is_never_written_over(tmp_path: Path) -> None:
    notes, pipe, link = (tmp_path / name for name in ("notes.json", "pipe", "link.json"))
    notes.write_text("precious", encoding="utf-8")
    os.mkfifo(pipe)
    for path, reason in ((notes, "no record"), (pipe, "a pipe or a device")):
        with pytest.raises(RecordError, match=reason):
            write_record(some_record(), path)
    assert notes.read_text(encoding="utf-8") == "precious"
    link.symlink_to(tmp_path / "there.json")
    write_record(some_record(), link)
    assert link.is_symlink()
    assert read_record(tmp_path / "there.json") == some_record()


@pytest.mark.parametrize("rows", [b"", b'{"step": 1}', b"\xff", b"\0\0", b"[1]", b'{"step": 1, "seconds": "x"}'])
def test_no_record_is_made_of_a_log_that_is_none(rows: bytes, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(rows)
    with pytest.raises(RecordError, match="is not the log of a run"):
        training_record(tmp_path / "log", workload={"recipe": "x"}, batch=1, seconds=1.0, ran=1)
