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


@pytest.mark.parametrize(("says", "wanted"), [("echo 550.54.15; echo 550.54.15", "550.54.15"), ("exit 9", "unknown")])
def test_a_record_taken_on_a_gpu_names_its_driver(
    says: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{says}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for name, value in (("is_available", True), ("get_device_name", "a card"), ("get_device_capability", (9, 0))):
        monkeypatch.setattr(f"torch.cuda.{name}", lambda *_, value=value: value)
    found = machine()
    assert (found["gpu"], found["driver"], found["compute"]) == ("a card", wanted, "9.0")
    assert "cuda" in found


def test_writing_again_replaces(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    write_record(some_record(), path)
    write_record(msgspec.structs.replace(some_record(), name="other"), path)
    assert read_record(path).name == "other"


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


def test_a_record_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="No such file"):
        read_record(tmp_path / "absent.json")


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


def test_a_record_into_a_file_as_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "speed.json", tmp_path):
        with pytest.raises(RecordError, match="a folder"):
            write_record(some_record(), place)


def test_writing_touches_no_file_of_the_callers(tmp_path: Path) -> None:
    """The file written first was once called speed.new, which a caller's file may be called, too."""
    (tmp_path / "speed.new").write_text("mine")
    write_record(some_record(), tmp_path / "speed.json")
    assert (tmp_path / "speed.new").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["speed.json", "speed.new"]


def test_the_commit_of_another_repository_is_not_ours(tmp_path: Path) -> None:
    """Installed into the virtual environment of a project, a record named that project's commit."""
    package = tmp_path / "project" / "lib" / "redraft"
    shutil.copytree(Path(record.__file__).parents[1], package, ignore=shutil.ignore_patterns("assets", "__pycache__"))
    git = ["git", "-C", str(tmp_path / "project"), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        subprocess.run([*git, *words], check=True)
    ask = "from redraft.measure import record; print(record.__file__, record._commit())"
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    told = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.split() == [str(package / "measure" / "record.py"), "unknown"]
