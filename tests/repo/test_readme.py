"""What the README shows is what happens: its Python block runs, its transcript is the program's own output."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from redraft.__main__ import main

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_python_example_prints_what_its_comment_says() -> None:
    (code,) = blocks("python")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[0] == re.search(r"# (\{.*\})", code)[1]


def test_the_transcripts_are_the_programs_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Drafts are compared, entropies are not: their last digit may round otherwise on another processor."""
    transcripts = [block for block in blocks("text") if block.startswith("$ redraft generate")]
    assert len(transcripts) == 2
    for transcript in transcripts:
        command, *shown = transcript.strip().split("\n")
        words = shlex.split(command.removeprefix("$ redraft ").replace("$'", "'"))
        main([*(word.replace("\\n", "\n") for word in words), "--threads", "1"])
        drafts = [line.split("nats")[1] for line in capsys.readouterr().err.splitlines() if "nats" in line]
        assert [line.split("nats")[1] for line in shown] == drafts


def test_every_linked_page_exists() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert links
    missing = [link for link in links if not (README.parent / link).exists()]
    assert not missing


def test_the_commands_to_try_answer_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Shares are compared to two digits, for the last ones may round otherwise on another processor."""
    block = next(block for block in blocks("text") if block.startswith("$ redraft json"))
    commands = [part.strip().split("\n") for part in block.split("$ redraft ") if part]
    assert len(commands) == 3
    for command, *shown in commands:
        words = shlex.split(command.replace("$'", "'"))
        assert main([*(word.replace("\\n", "\n") for word in words), "--threads", "1"]) == 0
        reported = capsys.readouterr().out.splitlines()
        assert [re.sub(r"^(\d\.\d\d)\d\d", r"\1", line) for line in reported] == [
            re.sub(r"^(\d\.\d\d)\d\d", r"\1", line) for line in shown
        ]
