"""`redraft infill`, `redraft edit` and `generate -n`: a place in a file, the diff, the file written in one move."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest
from tests.helpers import Shell

from redraft.cli.file_lines import read_lines
from redraft.errors import RequestError, RunError

CODE = b"def area(radius):\r\n    return radius\r\n\r\n\tprint(area(2))"
QUICK = ("--seed", "1", "--steps", "2")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "area.py"
    path.write_bytes(CODE)
    return path


@pytest.mark.parametrize(
    ("lines", "spans"),
    [
        ("1", [b"def area(radius):"]),
        ("2", [b"return radius"]),
        ("3", [b""]),
        ("4", [b"print(area(2))"]),
        ("1-2", [b"def area(radius):\r\n    return radius"]),
        ("1,2-4", [b"def area(radius):", b"return radius\r\n\r\n\tprint(area(2))"]),
    ],
)
def test_lines_are_spans_without_the_first_indentation_and_the_last_line_end(
    code: Path, lines: str, spans: list[bytes]
) -> None:
    assert [CODE[low:high] for low, high in read_lines(f"{code}:{lines}").spans] == spans


@pytest.mark.parametrize(
    ("content", "lines", "words"),
    [
        (CODE, ":5", "line 5 does not exist;"),
        (CODE, ":2-9", "line 9 does not exist;"),
        (CODE + b"\n", ":5", "has 4 lines"),
        (CODE, ":0", "the lines are '0'"),
        (CODE, ":3-2", "the lines are '3-2'"),
        pytest.param(CODE, ":" + "9" * 5000, "write ranges from a first to a last line", id="digits"),
        (CODE, ":1--2", "the lines are '1--2'"),
        (CODE, ":2,1", "must follow each other and not overlap"),
        (CODE, ":1-2,2", "must follow each other and not overlap"),
        (CODE, ":", "the place is"),
        (CODE, "", "write a file and its lines"),
        (b"", ":1", "is empty"),
        (b"\x7fELF\0\0", ":1", "is binary (byte 4 is 0)"),
        (b"caf\xe9\n", ":1", "is not UTF-8 (byte 3 is 0xe9)"),
    ],
)
@pytest.mark.parametrize("command", ["infill", "edit"])
def test_a_place_that_is_not_there_is_refused(
    command: str, content: bytes, lines: str, words: str, tmp_path: Path, shell: Shell
) -> None:
    path = tmp_path / "area.py"
    path.write_bytes(content)
    out, err = shell([command, f"{path}{lines}"], 2)
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, shell: Shell) -> None:
    assert "No such file" in shell(["infill", f"{tmp_path}/absent.py:1"], 2).err
    assert "Is a directory" in shell(["infill", f"{tmp_path}:1"], 2).err
    assert "has over 67108864 bytes" in shell(["edit", "/dev/zero:1"], 2).err, "it was read until memory ran out"


@pytest.mark.parametrize("words", [("infill", "--max-tokens", "4"), ("edit", "--strength", "0.9")])
def test_the_diff_makes_the_file_that_write_writes(words: tuple[str, ...], code: Path, shell: Shell) -> None:
    """`patch` is the witness that the diff is one."""
    command, *flags = words
    diff = shell([command, f"{code}:2", *flags, *QUICK]).out
    assert code.read_bytes() == CODE, "nothing is written without --write"
    code.chmod(0o640)
    link = code.with_name("link.py")
    link.symlink_to(code)
    reported = json.loads(shell([command, f"{link}:2", *flags, *QUICK, "--write", "--json"]).out)
    written = code.read_bytes()
    assert link.is_symlink()
    assert stat.S_IMODE(code.stat().st_mode) == 0o640
    assert sorted(path.name for path in code.parent.iterdir()) == ["area.py", "link.py"], "a temporary file was left"
    assert written.startswith(b"def area(radius):\r\n    ")
    assert written.endswith(b"\r\n\r\n\tprint(area(2))")
    assert reported["written"] is True
    code.write_bytes(CODE)
    if shutil.which("patch") is None:
        pytest.skip("no patch on this machine")
    subprocess.run(["patch", "--binary", str(code)], input=diff.encode(), check=True, capture_output=True)
    assert code.read_bytes() == written


def test_a_file_that_changed_meanwhile_is_left_alone(code: Path) -> None:
    source = read_lines(f"{code}:1")
    code.write_bytes(b"somebody else's work\n")
    with pytest.raises(RequestError, match="has changed since it was read"):
        source.write(b"ours")
    assert code.read_bytes() == b"somebody else's work\n"
    code.unlink()
    with pytest.raises(RunError, match="could not be written: No such file"):
        source.write(b"ours")
    assert list(code.parent.iterdir()) == []


def test_a_diff_is_of_what_changed_alone(tmp_path: Path) -> None:
    """100,000 lines of which many are the same took 22 seconds, and 899 KB for one change. `diff -u` says the same."""
    lines = [f"line {i % 110}\n" for i in range(100_000)]
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("".join(lines))
    lines[50_000] = "another\n"
    two.write_text("".join(lines))
    began = time.monotonic()
    found = read_lines(f"{one}:50001").diff(two.read_bytes())
    assert time.monotonic() - began < 5
    theirs = subprocess.run(["diff", "-u", one, two], capture_output=True, text=True, check=False).stdout
    assert found.splitlines()[2:] == theirs.splitlines()[2:]


def test_a_written_file_keeps_its_owner(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[tuple[int, int]]()
    monkeypatch.setattr("redraft.cli.file_lines.os.chown", lambda _, user, group: given.append((user, group)))
    read_lines(f"{code}:1").write(b"new\n")
    assert given == [(code.stat().st_uid, code.stat().st_gid)]


def test_a_file_that_is_read_only_stays(code: Path) -> None:
    code.chmod(0o444)
    with pytest.raises(RunError, match="could not be written: it is read-only; it is as it was"):
        read_lines(f"{code}:1").write(b"new\n")
    assert code.read_bytes() == CODE


def test_a_byte_order_mark_stands_before_the_first_line(code: Path) -> None:
    code.write_bytes(b"\xef\xbb\xbf" + CODE)
    assert [read_lines(f"{code}:{line}").spans[0][0] for line in (1, 2)] == [3, 3 + CODE.index(b"return")]
