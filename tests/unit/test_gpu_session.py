"""The script that measures on a GPU: its commands are ones the program has, and a cut session goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from redraft.cli.main import build_parser

ROOT = Path(__file__).resolve().parents[2]
if shutil.which("bash") is None or shutil.which("timeout") is None:
    pytest.skip("there is no bash with a timeout", allow_module_level=True)


def session(out: Path, python: str) -> str:
    """What the script says when `python` is another program."""
    command = ["bash", str(ROOT / "bench" / "gpu_session.sh"), str(out)]
    found = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHON": python}, capture_output=True, text=True, timeout=60, check=True
    )
    return found.stdout


def test_its_commands_exist_and_what_is_there_is_not_measured_again(tmp_path: Path) -> None:
    session(tmp_path, "false")
    assert not (tmp_path / "nano.json").exists()
    assert (tmp_path / "device-26b.json.failed").exists(), "what fails is to be tried again"
    session(tmp_path, "echo")
    written = {path.name: path.read_text().split() for path in tmp_path.glob("*.json")}
    assert len(written) == 10
    for first, second, *arguments in written.values():
        if first == "-m":
            assert second == "redraft"
            build_parser().parse_args(arguments)
        else:
            assert (ROOT / first).is_file()
    assert not list(tmp_path.glob("*.json.failed"))
    again = session(tmp_path, "false")
    assert again.count("there already") >= len(written)
    limits = [int(line.split()[3]) for line in session(tmp_path / "new", "true").splitlines() if " at most " in line]
    assert len(limits) == 16
    assert sum(limits) <= 30 * 60
