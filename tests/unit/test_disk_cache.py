"""Compiled languages on disk: a damaged or swapped file is as good as none."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.helpers import BYTES

from redraft.constraints import disk_cache
from redraft.constraints import language as compiling
from redraft.constraints.language import Language, Source, Vocabulary, ready
from redraft.constraints.sources import choices_source, schema_source
from redraft.errors import ConstraintError

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "oddity": 1}


def spelt(text: str) -> list[int]:
    return [byte + 2 for byte in text.encode()]


def right(language: Language) -> bool:
    return language.holds(spelt('{"a":1}')) and not language.holds(spelt('{"a":"1"}'))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of sources that were compiled and not read."""
    kinds, compile_it = list[str](), compiling._compiled

    def count(source: Source, *more: object) -> object:
        kinds.append(source.kind)
        return compile_it(source, *more)  # type: ignore[arg-type]  # as they come

    monkeypatch.setattr(compiling, "_compiled", count)
    return kinds


def test_a_language_is_compiled_once(tmp_path: Path, counted: list[str]) -> None:
    made = [ready(schema_source(SCHEMA), BYTES, kept_in=tmp_path) for _ in range(3)]
    assert counted == ["schema"]
    assert all(right(one) and one.ignored == ("/oddity",) and not one.checked for one in made)
    assert len(list(tmp_path.iterdir())) == 1


def test_flipped_bytes_anywhere_are_noticed(tmp_path: Path, counted: list[str]) -> None:
    """They were zlib.error, TypeError or IndexError until somebody deleted the file."""
    ready(schema_source(SCHEMA), BYTES, kept_in=tmp_path)
    (path,) = tmp_path.iterdir()
    whole, source = path.read_bytes(), random.Random(0)
    for trial in range(150):
        data = bytearray(whole)
        for _ in range(source.randint(1, 4)):
            data[source.randrange(len(data))] ^= 1 << source.randrange(8)
        if bytes(data) == whole:
            continue
        path.write_bytes(data if trial % 5 else data[: source.randrange(len(data))])
        counted.clear()
        assert right(ready(schema_source(SCHEMA), BYTES, kept_in=tmp_path))
        assert counted == ["schema"]
        assert path.read_bytes() == whole, "and it is repaired"


def test_whatever_fails_in_reading_it_is_compiled_anew(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython 3.11's parser is not safe in several threads: once in 6,000 requests a whole file gave this error."""

    def load(*_: object, **__: object) -> None:
        raise SystemError("AST constructor recursion depth mismatch (before=57, after=59)")

    ready(schema_source(SCHEMA), BYTES, kept_in=tmp_path)
    monkeypatch.setattr("redraft.constraints.disk_cache.np.load", load)
    assert right(ready(schema_source(SCHEMA), BYTES, kept_in=tmp_path))
    assert counted == ["schema", "schema"]


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, counted: list[str]) -> None:
    ready(schema_source(SCHEMA), BYTES, kept_in=tmp_path)
    (path,) = tmp_path.iterdir()
    path.unlink()
    os.mkfifo(path)
    assert right(ready(schema_source(SCHEMA), BYTES, kept_in=tmp_path))
    assert counted == ["schema"] * 2
    assert path.is_file()


def test_a_file_in_the_place_of_another_is_never_used(tmp_path: Path) -> None:
    """It gave an invalid answer without an error."""
    sources = [choices_source(["yes"]), choices_source(["no"])]
    for source in sources:
        ready(source, BYTES, kept_in=tmp_path)
    one, other = sorted(tmp_path.iterdir())
    swapped = one.read_bytes(), other.read_bytes()
    one.write_bytes(swapped[1])
    other.write_bytes(swapped[0])
    for source, word in zip(sources, ("yes", "no"), strict=True):
        found = ready(source, BYTES, kept_in=tmp_path)
        assert found.holds(spelt(word))
        assert not found.holds(spelt("no" if word == "yes" else "yes"))


def test_another_tokenizer_has_a_language_of_its_own(tmp_path: Path) -> None:
    other = Vocabulary((None, None, *(bytes([byte ^ 1]) for byte in range(256))), BYTES.ends, BYTES.tail)
    ready(choices_source(["yes"]), BYTES, kept_in=tmp_path)
    assert not ready(choices_source(["yes"]), other, kept_in=tmp_path).holds(spelt("yes"))


def test_a_refusal_is_kept_too(tmp_path: Path, counted: list[str]) -> None:
    """A schema that took eight seconds to refuse took them each time anew."""
    source = schema_source({"allOf": [{"type": "string"}, {"type": "null"}]})
    said = []
    for _ in range(2):
        with pytest.raises(ConstraintError) as error:
            ready(source, BYTES, kept_in=tmp_path)
        said.append(str(error.value))
    assert counted == ["schema"]
    assert said[0] == said[1]
    assert "contradict" in said[0]


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    assert right(ready(schema_source(SCHEMA), BYTES, kept_in=place))


def test_the_folder_has_a_bound_and_what_was_read_last_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [choices_source([f"choice {i}"]) for i in range(6)]
    for source in sources:
        ready(source, BYTES, kept_in=tmp_path)
    begun = tmp_path / f".{'0f' * 32}.language.{'0f' * 4}"
    begun.write_bytes(b"by a program that was killed")
    for i, path in enumerate([begun, *tmp_path.glob("*.language")]):
        os.utime(path, (i * disk_cache.LEFT_SEC, i * disk_cache.LEFT_SEC))
    oldest = min(tmp_path.glob("*.language"), key=lambda path: path.stat().st_mtime)
    for source in sources:
        if oldest.stat().st_mtime <= disk_cache.LEFT_SEC:
            ready(source, BYTES, kept_in=tmp_path)
    monkeypatch.setattr(disk_cache, "MOST_FILES", 2)
    disk_cache.make_room(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert oldest.exists()
    monkeypatch.setattr(disk_cache, "MOST_BYTES", 0)
    disk_cache.make_room(tmp_path)
    assert not list(tmp_path.iterdir())


def test_files_of_other_names_are_somebodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder may be a link to one with a thesis in it, which went an hour behind the last entry."""
    names = {"thesis.txt", ".hidden", "mine.language", f".{'0f' * 32}.language.mine"}
    for name in names:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    ready(choices_source(["a"]), BYTES, kept_in=tmp_path)
    monkeypatch.setattr(disk_cache, "MOST_BYTES", 0)
    disk_cache.make_room(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_folder_of_somebody_else_is_read(tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ready(schema_source(SCHEMA), BYTES, kept_in=tmp_path)
    monkeypatch.setattr(os, "utime", Mock(side_effect=PermissionError(errno.EPERM, "not the owner")))
    assert right(ready(schema_source(SCHEMA), BYTES, kept_in=tmp_path))
    assert counted == ["schema"]


def test_a_full_disk_keeps_no_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", Mock(side_effect=OSError(errno.ENOSPC, "no space left")))
    assert right(ready(schema_source(SCHEMA), BYTES, kept_in=tmp_path))
    assert not list(tmp_path.iterdir())
