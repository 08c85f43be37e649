"""Every record has the command that takes it again, and what was cut off goes on where it was."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import take as taking
from redraft.cli.main import build_parser
from redraft.measure import record
from redraft.measure.record import read_record

SCRIPT = """
import json, pathlib, subprocess, sys
path = pathlib.Path(sys.argv[-1])
commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
path.write_text(json.dumps({"name": path.stem, "taken": "2026-01-02", "commit": commit, "machine": {}, "workload": {},
                            "figures": {}, "summary": []}))
sys.exit(sys.argv[1] == "fails" and not pathlib.Path("mended").exists())
"""


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_table_has_every_record_once() -> None:
    found = {path.stem: read_record(path).name for path in (taking.ROOT / "bench" / "records").glob("*.json")}
    assert len({take.name for take in taking.TABLE}) == len(taking.TABLE)
    assert not found.keys() - {take.name for take in taking.TABLE}, "add a row to bench/take.py"
    assert all(name == stem for stem, name in found.items()), "a file is called what its record is called"


@pytest.mark.parametrize("take", [take for take in taking.TABLE if take.command], ids=lambda take: take.name)
def test_its_command_is_one_there_is(take: taking.Take) -> None:
    program, *words = [*shlex.split(take.command), "--record", str(take.path)]
    if program == "redraft":
        build_parser().parse_args(words)
    else:
        source = (taking.ROOT / words[0]).read_text(encoding="utf-8")
        if "from command import" in source:
            source += (taking.ROOT / "bench" / "command.py").read_text(encoding="utf-8")
        assert all(f'add_argument("{word}"' in source for word in words if word.startswith("--"))


def test_what_is_of_this_commit_is_not_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["taking.py", *words])
        code = taking.main()
        lines = capfd.readouterr().out.splitlines()
        return code, [line.split("] ")[1].split(":")[0] for line in lines if line.startswith("[")]

    (tmp_path / "bench" / "records").mkdir(parents=True)
    (tmp_path / "take.py").write_text(SCRIPT)
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    first = git(tmp_path, "rev-parse", "HEAD")
    takes = [taking.Take(name, 1, f"python take.py {word}") for name, word in (("a", "runs"), ("b", "fails"))]
    monkeypatch.setattr(taking, "ROOT", tmp_path)
    monkeypatch.setattr(taking, "TABLE", [*takes, taking.Take("c", 1, "", "a friend")])
    assert run() == (1, ["a", "b"]), "a failure ends nothing but itself"
    (tmp_path / "bench" / "records" / "b.json").unlink()
    (tmp_path / "mended").touch()
    assert run() == (0, ["b"])
    assert run("--again", "a") == (0, ["a"])
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "two")
    assert run("--since", first) == (0, [])
    assert run("[ac]") == (0, ["a"]), "what needs something first is told, not run"
    for words in (["d"], ["--since", "nowhere"]):
        with pytest.raises(SystemExit, match="2"):
            run(*words)


def test_a_record_is_no_change_of_the_code_that_ran(tmp_path: Path) -> None:
    """The second of two records taken behind one another said "dirty", because the first had been written."""
    package = tmp_path / "src" / "redraft"
    ignored = shutil.ignore_patterns("assets", "__pycache__")
    shutil.copytree(Path(record.__file__).parents[1], package, ignore=ignored)
    written = [tmp_path / "bench" / "records" / "a.json", package / "assets" / "nano" / "dial.json"]
    for path in written:
        path.parent.mkdir(parents=True)
        path.write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        git(tmp_path, *words)

    def commit() -> str:
        ask = "from redraft.measure import record; print(json.dumps(record._commit()))"
        environment = os.environ | {"PYTHONPATH": str(package.parent)}
        command = [sys.executable, "-c", f"import json; {ask}"]
        told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return str(json.loads(told.stdout))

    for path in written:
        path.write_text("2")
    assert commit() == git(tmp_path, "rev-parse", "--short=12", "HEAD")
    (package / "errors.py").write_text((package / "errors.py").read_text() + "# changed\n")
    assert commit().endswith(" dirty")
