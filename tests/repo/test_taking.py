"""Every record has the command that takes it again, and what was cut off goes on where it was."""

from __future__ import annotations

import shlex

import pytest

import take as taking
from redraft.cli.main import build_parser
from redraft.measure.record import read_record


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
