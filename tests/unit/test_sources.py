"""Data of one's own: JSON lines, text, generators; what is read, what is scored, and what each bad row is told."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.training import SHAPE

from redraft.errors import RecipeError
from redraft.tune import sources
from redraft.tune.base import read_base
from redraft.tune.data import Feed
from redraft.tune.recipe import Recipe, read_recipe
from redraft.tune.sources import Conversation, FolderSource, GeneratorSource, Passage, RowsSource, _load
from redraft.weights.source import SINGLE, locate

RECIPE = """
name = "own"
start = "nano-sudoku"
[data]
{data}
[train]
steps = 1
batch_size = 4
"""


def recipe(folder: Path, data: str) -> Recipe:
    path = folder / "own.toml"
    path.write_text(RECIPE.format(data=data))
    return read_recipe(path)


def feed(folder: Path, data: str) -> Feed:
    found = recipe(folder, data)
    return Feed(found, read_base(found, folder))


def write_rows(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


CHAT = {
    "messages": [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "melu"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "Karomi 12"},
    ]
}


# -- rows --------------------------------------------------------------------------------------------------------------


def test_both_forms_of_a_row_are_read_with_their_line(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", {"prompt": "a", "response": "b"}, CHAT)
    path.write_text("\ufeff" + path.read_text() + "\n  \n")  # as some editors begin a file
    source = RowsSource(path, held_out=0)
    found = {sample.where: sample for sample in source.samples(0, 40) if isinstance(sample, Conversation)}
    assert sorted(found) == [f"{path}, line 1", f"{path}, line 2"]
    assert [m["content"] for m in found[f"{path}, line 1"].messages] == ["a", "b"]
    assert found[f"{path}, line 2"].messages == tuple(CHAT["messages"])
    assert source.samples(7, 5) == source.samples(7, 5) != source.samples(8, 5)


def test_held_out_rows_are_never_trained_on(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", *({"prompt": str(i), "response": "x"} for i in range(200)))
    source = RowsSource(path, held_out=5)
    kept = {sample.where for sample in source.held_out(1000) if isinstance(sample, Conversation)}
    seen = {s.where for seed in range(20) for s in source.samples(seed, 100) if isinstance(s, Conversation)}
    assert 20 <= len(kept) <= 60
    assert not kept & seen
    assert len(kept) + len(seen) == 200


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: the row is a list; it must be an object"),
        ('{"text": "a"}', "line 2: there are neither messages nor a prompt"),
        ('{"prompt": "a"}', "line 2: there is no response"),
        ('{"prompt": "a", "response": "  "}', "line 2: there is no response"),
        ('{"prompt": "a", "response": 3}', "line 2: there is no response"),
        ('{"messages": []}', "line 2: messages is not a list of messages"),
        ('{"messages": [{"role": "user"}]}', r"line 2: messages\[0\] must have a role and a content"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "line 2: there is no response; the last message"),
        ('{"prompt": "\\u00ff", "response": "a"}', None),
        (b"\xff\xfe".decode("latin-1"), "line 2: not"),
        ("[" * 100_000, "line 2: not JSON"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(row: str, said: str | None, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "response": "b"}\n' + row + "\n", encoding="latin-1")
    if said is None:
        RowsSource(path, held_out=0)
        return
    with pytest.raises(RecipeError, match=said):
        RowsSource(path, held_out=0)


def test_a_file_that_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="No such file"):
        RowsSource(tmp_path / "absent.jsonl", held_out=0)
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(RecipeError, match="has no rows to train on"):
        RowsSource(tmp_path / "empty.jsonl", held_out=0)


def test_no_pipe_is_waited_for_and_no_row_read_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe was waited for, and /dev/zero read into memory."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(RecipeError, match="is not a regular file"):
            RowsSource(path, held_out=0)
    rows = write_rows(tmp_path / "rows.jsonl", CHAT, CHAT | {"more": "a" * 1000})
    monkeypatch.setattr("redraft.tune.sources.MOST_ROW_BYTES", 500)
    with pytest.raises(RecipeError, match=r"rows\.jsonl, line 2 has over 500 bytes"):
        RowsSource(rows, held_out=0)


def test_a_row_that_was_replaced_since_the_start_is_named(tmp_path: Path) -> None:
    """Another row of the same length was trained on, and no error was raised."""
    rows = write_rows(tmp_path / "rows.jsonl", {"prompt": "a", "response": "one"})
    source = RowsSource(rows, held_out=0)
    assert len(source.samples(1, 2)) == 2
    write_rows(rows, {"prompt": "a", "response": "two"})
    with pytest.raises(RecipeError, match=r"rows\.jsonl, line 1 is no longer what it was"):
        source.samples(1, 2)
    rows.unlink()
    os.mkfifo(rows)  # which was waited for
    with pytest.raises(RecipeError, match=r"rows\.jsonl is no longer a regular file"):
        source.samples(1, 2)


def test_stages_read_what_they_share_once_and_what_no_step_needs_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", {"prompt": "a", "response": "one"})
    stage = '[[stages]]\nfrom_step = {at}\n[stages.data]\nfiles = {{ "{file}" = 1.0 }}\nheld_out = 0\n'
    text = RECIPE.format(data=f'files = {{ "{rows}" = 1.0 }}\nheld_out = 0').replace("steps = 1", "steps = 4")
    late = stage.format(at=4, file=tmp_path / "absent.jsonl")
    (tmp_path / "own.toml").write_text(text + stage.format(at=2, file=rows) + late)
    read, begin = list[Path](), RowsSource.__init__
    monkeypatch.setattr(
        RowsSource, "__init__", lambda self, path, kept: (read.append(path), begin(self, path, kept))[1]
    )
    found = read_recipe(tmp_path / "own.toml")
    Feed(found, read_base(found, tmp_path)).look_ahead(0)
    assert read == [rows]


def test_an_answer_that_is_too_long_is_named_by_its_line(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", {"prompt": "a", "response": "b" * 10**6})
    with pytest.raises(RecipeError, match=r"rows\.jsonl, line 1: the text has 1000000 characters"):
        feed(tmp_path, f'files = {{ "{path}" = 1.0 }}\nheld_out = 0').batches(0)


def test_a_recipe_that_nests_too_deep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text("a=" + "[" * 100_000, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"deep\.toml"):
        read_recipe(tmp_path / "deep.toml")


def test_what_would_take_for_ever_of_a_recipe_is_refused(tmp_path: Path) -> None:
    """Keys of 100,000 parts were read for minutes, and 50,000 layers trained; a name too long was our own error."""
    whole, layers = RECIPE.format(data="tasks = { records = 1.0 }"), ", ".join(['"full"'] * 1025)
    shape = SHAPE.replace('"sliding", "full", "sliding", "full"', layers)
    for text, said in (
        ("a." * 501 + "a = 1\n" + whole, "a line has over 500 dots"),
        (whole + "# more\n" * 10_000, "it has over 65536 characters"),
        (whole.replace('start = "nano-sudoku"', "") + shape, r"\[model\] layers is .{,220}; it must .* at most 1024"),
    ):
        (tmp_path / "much.toml").write_text(text)
        with pytest.raises(RecipeError, match=said):
            read_recipe(tmp_path / "much.toml")
    with pytest.raises(RecipeError, match="File name too long"):
        read_recipe(Path("a" * 5000))


def test_a_row_at_which_the_template_fails_is_named(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "a", "tool_calls": 5}, {"role": "assistant", "content": "b"}]
    path = write_rows(tmp_path / "rows.jsonl", {"messages": turns})
    with pytest.raises(RecipeError, match=r"rows\.jsonl, line 1: chat_template\.jinja, line 1: TypeError"):
        feed(tmp_path, f'files = {{ "{path}" = 1.0 }}\nheld_out = 0').batches(0)


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="needs /proc")
def test_no_file_without_bytes_is_read(tmp_path: Path) -> None:
    """/proc/kmsg is a regular file, and was waited for."""
    assert Path("/proc/version").read_bytes()
    with pytest.raises(RecipeError, match="has no rows to train on; it is empty"):
        RowsSource(Path("/proc/version"), held_out=0)
    (tmp_path / "link").symlink_to("/proc/version")
    with pytest.raises(RecipeError, match="holds no text to train on"):
        FolderSource(tmp_path, held_out=0)


# -- text --------------------------------------------------------------------------------------------------------------


def test_text_is_read_in_stretches(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("melu\n" * 2000)
    (tmp_path / "b.txt").write_text("Karomi")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / ".hidden").write_bytes(b"\xff")
    found = FolderSource(tmp_path, held_out=0).samples(0, 30)
    assert all(isinstance(sample, Passage) and sample.text for sample in found)
    source = FolderSource(tmp_path, held_out=0)
    assert found == source.samples(0, 30)
    (tmp_path / "in" / "a.txt").write_text("mela\n" * 2000)
    with pytest.raises(RecipeError, match=r"a\.txt is no longer what it was at the start"):
        source.samples(0, 30)


def test_a_file_is_read_once_a_step_and_hashed_only_after_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each passage read and hashed its whole file: a folder with one of 100 MB took 26 s a step."""
    for name in "ab":
        (tmp_path / name).write_text("".join(f"{name}{i:04}\n" for i in range(3000)))
    read, hashed, plain, digest = list[str](), list[bytes](), Path.read_text, sources._digest
    monkeypatch.setattr(Path, "read_text", lambda path, **way: read.append(path.name) or plain(path, **way))
    monkeypatch.setattr(sources, "_digest", lambda text: hashed.append(text) or digest(text))
    monkeypatch.setattr(sources, "time_ns", lambda: time.time_ns() + 3 * 10**9)  # as if the files were older
    source = FolderSource(tmp_path, held_out=0)
    read.clear()
    hashed.clear()
    for sample in source.samples(0, 30):
        assert isinstance(sample, Passage)
        path, _, start = sample.where.partition(", character ")
        assert plain(Path(path))[int(start) :].startswith(sample.text)
    assert (sorted(read), hashed) == (["a", "b"], [])
    before = (tmp_path / "a").stat()
    time.sleep(0.05)  # the clock of a file's times has ticks
    (tmp_path / "a").write_text("b" * before.st_size)
    os.utime(tmp_path / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(RecipeError, match="a is no longer what it was at the start"):
        source.samples(0, 30)


def test_a_file_that_changes_twice_in_a_tick_of_the_clock_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("melu")
    source, same = FolderSource(tmp_path, held_out=0), (tmp_path / "a").stat()
    monkeypatch.setattr(Path, "stat", lambda path, **_: same)
    (tmp_path / "a").write_text("mela")
    with pytest.raises(RecipeError, match="a is no longer what it was at the start"):
        source.samples(0, 1)


def test_files_are_held_out_by_their_text(tmp_path: Path) -> None:
    """Copies and their originals are on one side, whatever they are called."""
    for i in range(60):
        (tmp_path / f"{i}.txt").write_text(f"text {i}\n" * 4)
        (tmp_path / f"copy-{i}.md").write_text(f"\n text {i}\n" + f"text {i}\n" * 3)
    source = FolderSource(tmp_path, held_out=4)
    kept = {sample.where.partition(",")[0] for sample in source.held_out(1000)}
    seen = {sample.where.partition(",")[0] for seed in range(30) for sample in source.samples(seed, 60)}
    assert kept
    assert seen
    assert kept | seen == {str(path) for path in tmp_path.iterdir()}
    texts = [{Path(name).read_text().split()[1] for name in side} for side in (kept, seen)]
    assert not texts[0] & texts[1]
    assert 5 < len(texts[0]) < 30, "about one in four"
    assert source.held_out(7) == FolderSource(tmp_path, held_out=4).held_out(7)
    with pytest.raises(RecipeError, match=r"all of it is held out; set \[data\] held_out to 0"):
        FolderSource(tmp_path, held_out=1)
    rows = write_rows(tmp_path / "rows.jsonl", {"prompt": "a", "response": "b"})
    with pytest.raises(RecipeError, match=r"no rows to train on; all are held out; set \[data\] held_out to 0"):
        RowsSource(rows, held_out=1)


def test_a_folder_that_cannot_be_read_is_no_folder_without_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three quarters of the data were missing, without a word."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("melu")
    (tmp_path / "b.txt").write_text("Karomi")
    plain = os.scandir

    def scan(path: Any) -> Any:
        if Path(path).name == "in":
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path)

    monkeypatch.setattr(os, "scandir", scan)
    with pytest.raises(RecipeError, match="in cannot be read: Permission denied"):
        FolderSource(tmp_path, held_out=0)


# -- generators --------------------------------------------------------------------------------------------------------


def test_a_generator_is_called_with_split_and_seed(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text(
        "def rows(split, seed):\n    while True:\n        yield {'prompt': split, 'response': str(seed)}\n"
    )
    source = GeneratorSource(f"{tmp_path}/make.py:rows")
    (one,) = source.samples(7, 1)
    (other,) = source.held_out(1)
    assert isinstance(one, Conversation)
    assert isinstance(other, Conversation)
    assert [m["content"] for m in one.messages] == ["train", "7"]
    assert other.messages[0]["content"] == "held_out"


def test_a_generators_file_may_have_dataclasses(tmp_path: Path) -> None:
    """They look for the module that they are of."""
    (tmp_path / "make.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    a: int\n"
        "def rows(split, seed):\n    while True:\n        yield {'prompt': 'p', 'response': str(A(seed).a)}\n"
    )
    (one,) = GeneratorSource(f"{tmp_path}/make.py:rows").samples(7, 1)
    assert isinstance(one, Conversation)
    assert one.messages[1]["content"] == "7"
    first, second = (_load(f"{tmp_path}/make.py:{name}") for name in ("rows", "A"))
    assert first.__globals__["A"] is second, "what one function makes is of the class that the other knows"


# -- what a run depends on ---------------------------------------------------------------------------------------------


def test_files_of_one_name_in_several_stages_are_told_apart(tmp_path: Path) -> None:
    """A run went on with other rows, where a later stage had a file of the same name."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_rows(tmp_path / folder / "rows.jsonl", {"prompt": folder, "response": "b"})
    stage = f'held_out = 0\n[[stages]]\nfrom_step = 1\n[stages.data]\nfiles = {{ "{tmp_path}/b/rows.jsonl" = 1.0 }}'
    data = f'files = {{ "{tmp_path}/a/rows.jsonl" = 1.0 }}\n{stage}\nheld_out = 0'

    def digests(step: int) -> dict[str, str]:
        found = recipe(tmp_path, data)
        return Feed(found, read_base(found, tmp_path)).digests(step)

    early, late = digests(1), digests(2)
    assert early["rows.jsonl"] == late["rows.jsonl from step 0"] != late["rows.jsonl"]
    assert late["rows.jsonl"] == late["rows.jsonl from step 1"]
    write_rows(tmp_path / "a/rows.jsonl", {"prompt": "b", "response": "b"})  # as the other one
    assert digests(2) == late | {"rows.jsonl from step 0": late["rows.jsonl"]}


@pytest.mark.parametrize("name", ["tokenizer.json", SINGLE])
def test_a_run_depends_on_its_start(tmp_path: Path, name: str) -> None:
    """It went on, on weights that were others: a state has only those that are trained."""
    start = Path(shutil.copytree(locate("nano-sudoku"), tmp_path / "start"))
    write_rows(tmp_path / "rows.jsonl", {"prompt": "a", "response": "b"})

    def digests() -> dict[str, str]:
        data = f'files = {{ "{tmp_path}/rows.jsonl" = 1.0 }}\nheld_out = 0'
        (tmp_path / "own.toml").write_text(RECIPE.format(data=data).replace("nano-sudoku", str(start)))
        found = read_recipe(tmp_path / "own.toml")
        return Feed(found, read_base(found, tmp_path)).digests(0)

    before = digests()
    whole = (start / name).read_bytes()
    (start / name).write_bytes(whole[:-9] + bytes(9) if name == SINGLE else whole + b" ")
    assert {name for name, digest in digests().items() if digest != before[name]} == {f"the start {start}"}


# -- rows of tokens ----------------------------------------------------------------------------------------------------


def test_of_a_conversation_the_last_answer_is_scored_or_all(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "chat.jsonl", CHAT)
    sample = Conversation(tuple(CHAT["messages"]), "here")
    for turns, wanted in (("last", ["Karomi 12"]), ("all", ["melu", "Karomi 12"])):
        data = f'files = {{ "{path}" = 1.0 }}\nheld_out = 0\nturns = "{turns}"\nfit_share = 1.0'
        one = feed(tmp_path, data)
        row = one.row(sample, Random(0), 256)
        said = [one.text.decode([t for t in spot.target if t != 1]) for spot in row.spots]
        assert said == wanted
        for spot, text in zip(row.spots, said, strict=True):
            before = [*CHAT["messages"]][: 1 if text == "melu" else 3]
            assert list(row.clean[: spot.start]) == one.text.chat(before)
            answer = one.text.encode(text, bos=False)
            assert list(row.clean[spot.start : spot.start + len(answer)]) == answer


def test_every_block_of_a_long_answer_is_scored_behind_what_comes_before(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", {"prompt": "a", "response": "0123456789" * 5})
    data = f'files = {{ "{path}" = 1.0 }}\nheld_out = 0\nwidths = [16]\nmost_blocks = 4'
    one = feed(tmp_path, data)
    (sample,) = one.sources[0][0].samples(0, 1)
    row = one.row(sample, Random(0), 16)
    assert [spot.start - row.spots[0].start for spot in row.spots] == [0, 16, 32, 48]
    assert [spot.content for spot in row.spots] == [16, 16, 16, 3]
    target = [t for spot in row.spots for t in spot.target]
    assert target == [*one.text.encode("0123456789" * 5, bos=False), *[1] * 14]
    with pytest.raises(RecipeError, match=r"line 1: the answer has 50 tokens and one for its end; 3 canvases of 16"):
        feed(tmp_path, data.replace("most_blocks = 4", "most_blocks = 3")).row(sample, Random(0), 16)


def test_an_earlier_answer_may_take_no_more_canvases_than_the_last_one(tmp_path: Path) -> None:
    """It took any number, of the width that fitted the last one; a row may stand in a file that is drawn hours later.
    Where a long prompt leaves no room for a width, it is not the last answer's."""
    said = [{**turn, "content": "0123456789" * 5} if turn["content"] == "melu" else turn for turn in CHAT["messages"]]
    path = write_rows(tmp_path / "rows.jsonl", {"messages": said})
    data = f'files = {{ "{path}" = 1.0 }}\nheld_out = 0\nturns = "all"\nwidths = [16]\nmost_blocks = 3'
    (sample,) = feed(tmp_path, data).sources[0][0].samples(0, 1)
    for changed, widths in (
        (("= 3", "= 3"), [16]),
        (("= 3", "= 4"), [16] * 5),
        (("= 3", "= 1\nfit_share = 1.0"), [64] * 2),
    ):
        row = feed(tmp_path, data.replace(*changed)).row(sample, Random(0), 16)
        assert [len(spot.target) for spot in row.spots] == widths
    (vast,) = feed(tmp_path, data).sources[0][0].samples(0, 1)
    vast.messages[1]["content"] = "0123456789" * 40
    row = feed(tmp_path, data.replace("= 3", "= 1\nfit_share = 1.0")).row(vast, Random(0), 8)
    assert [len(spot.target) for spot in row.spots] == [16], "what is left out asks for no width"
    long = replace(sample, messages=({"role": "user", "content": "7" * 900}, *sample.messages[1:]))
    row = feed(tmp_path, data.replace("= 3", "= 1\nfit_share = 1.0")).row(long, Random(0), 16)
    assert [len(spot.target) for spot in row.spots] == [16]


def test_a_passage_fills_canvases_from_somewhere_on(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("def area(r):\n    return 3 * r ** 2\n" * 40)
    one = feed(tmp_path, f'folders = {{ "{tmp_path / "text"}" = 1.0 }}\nwidths = [16]\nmost_blocks = 3')
    for batch in one.batches(0):
        for owner, start, target in zip(batch.owner, batch.start, batch.target, strict=True):
            assert batch.clean[owner, start : start + 16].tolist() == target.tolist()
            assert bool(batch.scored[owner, 1])
