"""`redraft run`: every row answered once, in order, whatever interrupts it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import threading
import time
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import Shell, python
from tests.server.conftest import ANSWER, USER

from redraft.__main__ import main
from redraft.cli import rows as rows_module
from redraft.cli.earlier import earlier_of
from redraft.cli.row import MOST_HELD_BYTES, image_bytes, rows_of, with_images
from redraft.cli.rows import Done, answer_rows, run_batch
from redraft.constraints.compile.limits import check_time
from redraft.engine.request import Options
from redraft.errors import BusyError, DeadlineError, RequestError, RunError
from redraft.operations.engine import Engine
from redraft.options import MOST_STEPS_IN_ALL
from redraft.server.http.errors import ApiError
from redraft.server.http.service import KEPT_THREADS, Service
from redraft.server.http.settings import Settings
from redraft.server.openai import batch, chat
from redraft.server.openai.batch import MOST_LINE_BYTES
from redraft.server.openai.exchange import Work

SETTINGS = ("--seed", "0", "--threads", "1")


@pytest.fixture
def service(nano: Engine) -> Service:
    made = Service(Settings(names=("nano", "*")))
    made.ready(nano)
    return made


@pytest.fixture
def run(service: Service, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Write rows, answer them, read the answers."""

    def answered(rows: list[Any], **options: Any) -> list[dict[str, Any]]:
        source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        source.write_text("\n".join(lines) + "\n")
        run_batch(service, source, target, **{"seed": 0, "at_once": 8, **options})
        return [json.loads(line) for line in target.read_text().splitlines()]

    return answered


def said(line: dict[str, Any]) -> str:
    choice = line["response"]["body"]["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def test_both_forms_are_answered_in_order(run: Callable[..., Any]) -> None:
    body = {"model": "whatever", "messages": USER}
    rows = [
        {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body},
        {"messages": USER, "seed": 3},
        {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"prompt": "record\n", "max_tokens": 4}},
        {"prompt": "record\n", "max_tokens": 4, "seed": 2},
        {"custom_id": "e", "body": body | {"seed": 0}},  # the body says which url it is for
    ]
    found = run(rows)
    assert [line["custom_id"] for line in found] == ["a", "2", "c", "4", "e"]
    assert [said(line) for line in (found[0], found[1], found[4])] == [ANSWER] * 3
    assert said(found[2]) == said(found[3]), "row 3 has the seed 0 + 2"
    assert found[1]["response"]["body"]["choices"][0]["canvas"]["seed"] == 3


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ("{", "invalid_json"),
        ("[1]", "invalid_json"),
        ({"messages": []}, "invalid_value"),
        ({"messages": USER, "nonsense": 1}, "unsupported_parameter"),
        ({"messages": USER, "stream": True}, None),
        ({"custom_id": "x", "url": "/v1/embeddings", "body": {}}, None),
        ({"prompt": "a", "suffix": "b"}, None),
        ({"method": "DELETE", "prompt": "a"}, None),
        ({"custom_id": "x", "url": "/v1/completions", "body": 3}, "invalid_value"),
        ({"body": {"prompt": "a"}, "prompt": "b"}, None),  # which was dropped
        ({"id": 1, "text": "a"}, None),
        ({"custom_id": {"a": 1}, "prompt": "a"}, None),  # which was written as Python does
        ({"custom_id": True, "prompt": "a"}, None),
    ],
)
def test_a_bad_row_is_an_answer_of_its_own(run: Callable[..., Any], row: Any, code: str | None) -> None:
    bad, good = run([row, {"messages": USER}])
    assert bad["response"]["status_code"] == 400
    assert bad["response"]["body"]["error"]["code"] == code
    assert bad["custom_id"] in ("1", "x")
    assert said(good) == ANSWER


def test_rows_with_large_images_are_few_at_a_time(tmp_path: Path) -> None:
    """64 rows of eight held seven gigabytes, since their bytes were counted without their images."""
    (tmp_path / "a.png").write_bytes(bytes(100))
    for row in ({"image": "a.png"}, {"image": ["a.png"] * 3}, {"body": {"image": ["a.png"]}}):
        names = row.get("body", row)["image"]
        assert image_bytes(json.dumps(row).encode(), tmp_path) == (100 if names == "a.png" else 100 * len(names))
    for odd in (b'{"image": null}', b'{"image": ["none.png"]}', b'{"image"', b'"image"', b'{"image": [5]}', b"{}"):
        assert image_bytes(odd, tmp_path) == 0
    (tmp_path / "b.png").touch()
    os.truncate(tmp_path / "b.png", MOST_HELD_BYTES + 1)
    with pytest.raises(ApiError, match="bytes of files; at most"):
        with_images(json.dumps({"messages": USER, "image": "b.png"}).encode(), tmp_path)
    os.truncate(tmp_path / "b.png", 31 * 2**20)  # which as base64 was longer than a URL may be, and not named
    with pytest.raises(ApiError, match=r"b\.png has over 25165724 bytes; send a smaller image"):
        with_images(json.dumps({"messages": USER, "image": "b.png"}).encode(), tmp_path)


def test_an_image_that_is_null_is_none(run: Callable[..., Any]) -> None:
    """As tables write empty cells."""
    (found,) = run([{"messages": USER, "image": None}])
    assert said(found) == ANSWER


def test_a_misspelt_field_of_a_row_is_answered_as_over_http(run: Callable[..., Any]) -> None:
    """It said "leave it out", where HTTP names the field that was meant."""
    (bad,) = run([{"messages": USER, "temprature": 1}])
    said = "temprature is not a field of this endpoint; did you mean 'temperature'?"
    assert bad["response"]["body"]["error"]["message"] == said


def test_more_rows_are_never_read_than_run_at_once(service: Service, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"messages": USER}) + "\n" * 3 + (json.dumps({"messages": USER}) + "\n") * 29)
    most = 0

    def reported(done: Done) -> None:
        nonlocal most
        most = max(most, service.under_way)

    (link := tmp_path / "link.jsonl").symlink_to("out.jsonl")  # which is not there yet
    done = run_batch(service, source, link, seed=0, at_once=4, report=reported)
    assert (done.rows, done.errors) == (30, 0)
    assert (tmp_path / "out.jsonl").read_bytes().count(b"\n") == 30
    assert most <= 4


def test_rows_that_vanish_while_they_are_read_are_no_success(service: Service, tmp_path: Path) -> None:
    """It ended with fewer rows and 0, as if the file had never had more."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    row = json.dumps({"prompt": "record\n", "max_tokens": 1, "user": "x" * 4000}) + "\n"
    source.write_text(row * 100)

    def cut(done: Done) -> None:
        os.truncate(source, len(row) * 50)

    with pytest.raises(RunError, match=r"in.jsonl was cut short while it was read"):
        run_batch(service, source, target, seed=0, at_once=4, report=cut)
    source.write_text(row * 100)
    assert run_batch(service, source, target, seed=0, at_once=4).rows == 100, "and it goes on when it is whole again"


@pytest.mark.parametrize("change", ["other rows", "half a row", "more rows"])
def test_rows_that_change_while_they_are_read_are_no_success(service: Service, tmp_path: Path, change: str) -> None:
    """Rows of two files were answered in one output, or a row of which half was written, and it ended with 0."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    row = json.dumps({"prompt": "record\n", "max_tokens": 1, "user": "x" * 2000}) + "\n"
    source.write_text(row * 8 + (row[:99] if change == "half a row" else row))

    def rewrite(done: Done) -> None:
        if done.rows == 9:
            source.write_text((row.replace("x", "y") if change == "other rows" else row) * 30)

    refused = pytest.raises(RunError, match=r"was changed while it was read: row \d+ of .* is not the one that")
    with nullcontext() if change == "more rows" else refused:
        assert run_batch(service, source, target, seed=0, at_once=1, report=rewrite).rows >= 9


@pytest.mark.parametrize("name", [{}, {"custom_id": "a"}])
def test_a_row_that_was_edited_is_refused_by_its_number(
    run: Callable[..., Any], tmp_path: Path, name: dict[str, str]
) -> None:
    """Its old answer was kept, and no error was raised."""
    rows = [{"prompt": "record\n", "max_tokens": 2, **name} for _ in range(3)]
    run(rows)
    before = (tmp_path / "out.jsonl").read_bytes()
    with pytest.raises(RequestError, match=r"row 2 of .*in\.jsonl is not the one .* keep the first 1 lines"):
        run([rows[0], rows[1] | {"max_tokens": 3}, rows[2]])
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_a_row_whose_seed_is_null_has_the_runs(run: Callable[..., Any]) -> None:
    """It had one at random, and another when the run was resumed."""
    rows = [{"messages": USER, **more} for more in ({}, {"seed": None}, {"seed": 2})]
    assert [line["response"]["body"]["choices"][0]["canvas"]["seed"] for line in run(rows, seed=5)] == [5, 6, 2]


def test_rows_of_much_are_few_at_a_time(monkeypatch: pytest.MonkeyPatch, service: Service, tmp_path: Path) -> None:
    """64 of 16 MiB were under way together."""
    monkeypatch.setattr("redraft.cli.rows.MOST_HELD_BYTES", 10_000)
    (tmp_path / "in").write_text((json.dumps({"prompt": "a", "user": "b" * 900}) + "\n") * 40)
    under_way, most = 0, 0

    async def answered(row: bytes, number: int) -> Any:
        nonlocal under_way, most
        under_way += 1
        await asyncio.sleep(0.001)
        most, under_way = max(most, under_way), under_way - 1
        return 200, {}

    assert answer_rows(answered, tmp_path / "in", tmp_path / "out", at_once=64).rows == 40
    assert most <= 12


def test_a_refused_row_is_not_read_for_its_name(run: Callable[..., Any]) -> None:
    """16 MiB of brackets took 600 MB and up to seven seconds in which no other row went on."""
    row = '{"custom_id": "a", "image": "b", "prompt": [' + "[[]]," * 3_000_000 + "1]}"
    tracemalloc.start()
    (found,) = run([row])
    assert tracemalloc.get_traced_memory()[1] < 8 * len(row)
    tracemalloc.stop()
    assert (found["custom_id"], found["response"]["status_code"]) == ("1", 400)


@pytest.mark.parametrize("name", ["custom_id", "url", "method"])
def test_what_is_long_in_a_row_does_not_come_back(run: Callable[..., Any], name: str) -> None:
    (found,) = run([{"messages": USER, name: "a" * 10**6}])
    assert found["response"]["body"]["error"]["param"] == name
    assert len(json.dumps(found)) < 1000


def test_an_output_goes_on_behind_rows_that_end_otherwise(run: Callable[..., Any], tmp_path: Path) -> None:
    """Line ends and blank lines are no edit; each line tells which row it answers."""
    rows = [json.dumps({"prompt": "record\n", "max_tokens": tokens, "ignore_eos": True}) for tokens in (1, 2)]
    run([rows[0] + "\r"])
    found = run(["", f"  {rows[0]}", "", rows[1]])
    assert [line["row_sha256"] for line in found] == [hashlib.sha256(row.encode()).hexdigest() for row in rows]
    assert [line["response"]["body"]["usage"]["completion_tokens"] for line in found] == [1, 2]


OTHERS = b'{"id": "batch_req_wnaDys", "answer": "precious"}'
"""As lines of OpenAI's own outputs begin."""


@pytest.mark.parametrize(
    "held", [b"precious", b"precious\n", b'{"id": 1}\n', b'{"prompt": "a"}', b"[]\n{}", b"\xff\n", OTHERS]
)
def test_a_file_that_is_no_output_stays_as_it_is(run: Callable[..., Any], tmp_path: Path, held: bytes) -> None:
    """What had no line end was taken for a line that was cut short, and removed."""
    (tmp_path / "out.jsonl").write_bytes(held)
    with pytest.raises(RequestError, match=r"line 1 of .* is not of a run's output"):
        run([{"messages": USER}] * 3)
    assert (tmp_path / "out.jsonl").read_bytes() == held


def test_a_long_line_of_an_output_is_not_read_whole_nor_written(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 3 GB was read whole when the run was resumed."""
    row = {"prompt": "record\n", "ignore_eos": True}
    rows = [row | {"max_tokens": 1}, row | {"max_tokens": 30, "logprobs": 5}]
    monkeypatch.setattr("redraft.cli.rows.MOST_ANSWER_BYTES", 1500)
    short, long = run(rows)
    assert short["response"]["status_code"] == 200
    assert long["response"]["status_code"] == 400
    assert "at most 1500" in long["response"]["body"]["error"]["message"]
    held = b'{"id": "batch_req_1' + b" " * 1500
    (tmp_path / "out.jsonl").write_bytes(held)
    with pytest.raises(RequestError, match=r"line 1 of .* has over 1500 bytes"):
        run(rows)
    assert (tmp_path / "out.jsonl").read_bytes() == held


def test_a_line_whose_end_an_editor_took_is_kept(run: Callable[..., Any], tmp_path: Path) -> None:
    rows = [{"prompt": "record\n", "max_tokens": 2}] * 2
    run(rows[:1])
    target = tmp_path / "out.jsonl"
    first = target.read_bytes()
    target.write_bytes(first.rstrip(b"\n"))
    run(rows)
    assert target.read_bytes().startswith(first)
    assert len(target.read_bytes().splitlines()) == 2


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_a_line_that_was_cut_short_is_done_again(run: Callable[..., Any], tmp_path: Path, cut: int) -> None:
    rows = [{"prompt": "record\n", "max_tokens": 2}] * 2
    whole, target = run(rows), tmp_path / "out.jsonl"
    first, second = target.read_bytes().splitlines(keepends=True)
    target.write_bytes(first + second[:cut])
    assert [said(line) for line in run(rows)] == [said(line) for line in whole]


def test_the_exit_code_tells_that_rows_have_no_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was 0. A later run counts what an earlier one has met."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    good, bad = json.dumps({"prompt": "record\n", "max_tokens": 2}), json.dumps({"prompt": "a", "nonsense": 1})
    command = ["run", str(source), str(target), "--seed", "1", "--threads", "1"]
    for lines, code, errors in (([good], 0, 0), ([good, bad, good], 3, 1), ([good, bad, good], 3, 1)):
        source.write_text("\n".join(lines))
        assert main([*command, "--json"]) == code
        reported = json.loads(capsys.readouterr().out)
        assert (reported["rows"], reported["errors"]) == (len(lines), errors)
    assert main(command) == 3
    assert "3 rows, 1 with an error in place of an answer; 0 tokens" in capsys.readouterr().err


def test_an_output_is_continued_with_the_settings_it_was_begun_with(tmp_path: Path, shell: Shell) -> None:
    """Half an output by one model or seed and half by another looked like a whole one."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps({"messages": USER}) + "\n", encoding="utf-8")
    words = ["run", str(source), str(target), "--threads", "1", "--seed"]
    assert main([*words, "1"]) == 0
    before = target.read_bytes()
    assert "was begun with seed 1, now 2: go on with the same, or name another output" in shell([*words, "2"], 2).err
    assert target.read_bytes() == before
    assert main([*words, "1"]) == 0


def test_the_first_rows_without_an_answer_are_named(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f'{{"wrong{i}": 1}}\n' for i in range(5)))
    lines = shell(["run", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")], 3).err.splitlines()
    assert [line.partition(": ")[2].partition(":")[0] for line in lines[1:4]] == ["row 1", "row 2", "row 3"]
    assert "and 2 more, each with its error in" in lines[4]


# The command as it is, but for a kill right behind its eighth line; one from outside may come behind the last.
KILLED = """
import os, signal, sys
from redraft.__main__ import main
from redraft.cli import rows

def done(rows, *more, made=rows.Done):
    if rows == 8:
        os.kill(os.getpid(), signal.SIGKILL)
    return made(rows, *more)

rows.Done = done
sys.exit(main())
"""


def test_a_kill_loses_nothing_and_does_nothing_twice(service: Service, tmp_path: Path) -> None:
    """Cut off, once in the middle of a line, the file is what an uninterrupted run writes."""
    source, target, whole = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "whole.jsonl"))
    row = {
        "messages": [{"role": "user", "content": "go on"}],
        "max_tokens": 16,
        "max_steps": 3,
        "canvas": {"width": 16},
    }
    source.write_text("".join(json.dumps({"custom_id": f"r{i}"} | row) + "\n" for i in range(80)))
    killed = python(KILLED, "run", str(source), str(target), *SETTINGS, "--model", "nano-sudoku")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = target.read_bytes()
    assert done.count(b"\n") == 8
    target.write_bytes(done + done[:50])  # as if the kill had come in the middle of a line
    for path in (target, whole):
        assert run_batch(service, source, path, seed=0, at_once=16).errors == 0
    reported = [[json.loads(line) for line in path.read_text().splitlines()] for path in (target, whole)]
    assert [line["custom_id"] for line in reported[0]] == [f"r{i}" for i in range(80)]
    assert [said(line) for line in reported[0]] == [said(line) for line in reported[1]]


DEEP = "gate:" * 500 + "factor"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [-1]},
        {"prompt": [2**32]},
        {"prompt": [2**63]},
        {"messages": USER, "n": 2**63},
        {"messages": USER, "n": 10**6},
        {"messages": USER, "canvas": {"accept": [DEEP]}},
        {"messages": USER, "canvas": {"accept": ["gate:1e300:factor"]}},
        {"custom_id": "a\ud800", "url": "/v1/completions", "body": {"prompt": "a\ud800"}},
        '{"prompt": ' + "[" * 10_000 + "]" * 10_000 + "}",
        '{"prompt": "a", "seed": ' + "9" * 5000 + "}",
    ],
    ids=str,
)
def test_a_hostile_row_is_an_error_row_and_the_run_goes_on(run: Callable[..., Any], row: Any) -> None:
    """The run ended, or hung, and stopped at that row again when it was resumed."""
    bad, good = run([row, {"messages": USER}])
    assert bad["response"]["status_code"] == 400
    assert said(good) == ANSWER


def test_whatever_a_row_raises_is_its_error(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prepare, met = chat.prepare, list[type[Exception] | None]()

    def broken(*given: Any) -> Any:
        error = [KeyError, OverflowError, RecursionError, MemoryError, UnicodeError, ZeroDivisionError, None][len(met)]
        met.append(error)
        if error is not None:
            raise error("of /home/somebody")
        return prepare(*given)

    monkeypatch.setattr(chat, "prepare", broken)
    found = run([{"messages": USER}] * 7, at_once=1)
    assert [line["response"]["status_code"] for line in found] == [500, 400, 400, 400, 400, 500, 200]
    assert "somebody" not in str(found[0]), "a failure of ours does not describe this machine"


def test_a_line_without_end_is_an_error_row_and_is_not_read_whole(run: Callable[..., Any], tmp_path: Path) -> None:
    """3 GB were read into memory. Resumed, it is still that row."""
    long = '{"prompt": "' + "a" * (3 * MOST_LINE_BYTES) + '"}'
    found = run([long, {"messages": USER}])
    assert [line["response"]["status_code"] for line in found] == [400, 200]
    assert str(len(long) + 1) in found[0]["response"]["body"]["error"]["message"]
    assert run([long, {"messages": USER}]) == found
    with (tmp_path / "in.jsonl").open("rb") as file:
        assert max(len(row.data) for row in rows_of(file)) < 2000
    (line,) = rows_of(BytesIO(long.encode()))
    assert (line.digest, found[0]["row_sha256"]) == (hashlib.sha256(long.encode()).hexdigest(),) * 2, "without its end"
    with pytest.raises(RequestError, match=r"row 1 of .* is not the one"):
        run([long.replace("a", "b"), {"messages": USER}])


def test_a_refusal_that_passes_is_no_answer(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something had ended the processes that compile; the row had that for its answer for ever."""
    busy, work = [2], batch._work

    def refused(*given: Any) -> Work:
        if busy[0]:
            busy[0] -= 1
            raise BusyError("something ended it; try again soon")
        return work(*given)

    monkeypatch.setattr(batch, "WAITS_SEC", (0, 0, 0))
    monkeypatch.setattr(batch, "_work", refused)
    rows = [{"prompt": "a", "max_tokens": 2}] * 2
    assert [line["response"]["status_code"] for line in run(rows, at_once=1)] == [200, 200]
    (tmp_path / "out.jsonl").unlink()
    busy[0] = 3
    assert [line["response"]["status_code"] for line in run(rows, at_once=1)] == [503, 200], (
        "no row stops a run for good"
    )


# The command as it is, but for a kill at a moment drawn at random, within a line that is being written, too.
ANY_TIME = """
import os, random, signal, sys, threading, time
from redraft.__main__ import main
from redraft.cli import rows

async def first(*given):
    if not begun:
        begun.append(threading.Timer(random.Random(int(sys.argv.pop())).uniform(0.0, 0.6), end))
        begun[0].start()
    return await answer(*given)

def end():
    os.kill(os.getpid(), signal.SIGKILL)

begun, answer, rows.answer_row = [], rows.answer_row, first
sys.exit(main(sys.argv[1:-1]))
"""


@pytest.mark.slow
def test_kills_at_any_moment_leave_every_row_once_and_in_order(tmp_path: Path) -> None:
    """Hostile rows among them have their errors where they belong."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    good = {"messages": [{"role": "user", "content": "go on"}], "max_tokens": 16, "max_steps": 3}
    bad: list[Any] = [{"prompt": [-1]}, {"prompt": "a", "n": 2**63}, {"messages": USER, "canvas": {"accept": [DEEP]}}]
    rows = [(bad[i % 3] if i % 20 == 7 else good) | {"custom_id": f"r{i}"} for i in range(80)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    killed = 0
    for i in range(3):
        done = python(ANY_TIME, "run", str(source), str(target), *SETTINGS, str(i))
        assert done.returncode in (-signal.SIGKILL, 3), done.stderr
        killed += done.returncode < 0
    assert killed
    assert main(["run", str(source), str(target), *SETTINGS]) == 3
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert [line["custom_id"] for line in found] == [f"r{i}" for i in range(80)]
    assert [line["response"]["status_code"] for line in found] == [400 if i % 20 == 7 else 200 for i in range(80)]


FULL = """
import resource, sys
from redraft.__main__ import main
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))
sys.exit(main(sys.argv[1:]))
"""


def test_a_full_disk_ends_a_run_that_goes_on_later(run: Callable[..., Any], tmp_path: Path) -> None:
    rows = [{"prompt": "record\n", "max_tokens": 2, "seed": i} for i in range(12)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["run", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--threads", "1"]
    done = python(FULL, *words)
    assert done.returncode == 1
    assert "the output cannot be written" in done.stderr
    assert main(words) == 0
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["custom_id"] for line in found] == [str(i + 1) for i in range(12)]


def test_an_output_that_may_not_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"prompt": "a"}) + "\n")
    assert main(["run", str(tmp_path / "in.jsonl"), "/proc/version"]) in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1


def test_an_output_that_ended_early_gives_its_answers_to_another(run: Callable[..., Any], tmp_path: Path) -> None:
    """With the seeds of their places, so that the whole is what one run would have written."""
    rows = [{"prompt": "record\n", "max_tokens": 4, "n": 99 if i == 2 else 1} for i in range(4)]
    whole, target = run(rows), tmp_path / "out.jsonl"
    first, second, *_ = target.read_bytes().splitlines(keepends=True)
    old, place = tmp_path / "old.jsonl", (tmp_path / "in.jsonl", target)
    old.write_bytes(first + second[:50])
    with earlier_of(str(old), *place, {}) as earlier:
        data = json.dumps(rows[0]).encode()
        assert [earlier(number, data) is None for number in range(4)] == [False, True, True, True]
        with pytest.raises(RunError, match="was changed while answers were taken over"):
            earlier(0, data.replace(b"record", b"others")).read()  # the row was edited behind the first look
        target.unlink()
        found = run(rows, earlier=earlier)
    assert found[0] == whole[0]
    assert [said(found[i]) for i in (1, 3)] == [said(whole[i]) for i in (1, 3)]
    assert [line["response"]["status_code"] for line in found] == [200, 200, 400, 200]
    assert old.read_bytes() == first + second[:50]
    old.write_bytes(json.dumps(json.loads(first) | {"row_sha256": "0" * 64}).encode() + b"\n")
    with pytest.raises(RequestError, match=r"--answered is .*old\.jsonl, of which no line answers the row of"):
        earlier_of(str(old), *place, {}).__enter__()
    old.write_bytes(json.dumps(json.loads(first) | {"settings": {"seed": 3}}).encode() + b"\n")
    with pytest.raises(RequestError, match=r"old\.jsonl was begun with seed 3, now 4"):
        earlier_of(str(old), *place, {"seed": 4}).__enter__()


def test_an_answer_has_so_many_steps_in_all(nano: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 900 canvases of 10,000 steps each would have taken a day, and the rows behind it waited."""
    never = Options(min_tokens=6, canvas=1, entropy_bound=1e-300, temperature=10.0, cooling=40, preset="reference")
    asked = {"max_tokens": 6, "seed": 1, "steps": 40, "options": never}
    assert list(nano.generate("record\n", **asked).steps) == [40] * 6
    monkeypatch.setattr("redraft.engine.request.MOST_STEPS_IN_ALL", 90)
    done = nano.generate("record\n", **asked)
    assert (list(done.steps), done.finish, len(done.tokens)) == ([40, 40, 10, 1, 1, 1], "length", 6)
    wide = replace(never, min_tokens=0, canvas=16)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "required": ["a", "b"],
    }
    monkeypatch.setattr("redraft.engine.request.MOST_STEPS_IN_ALL", 3)
    held = nano.generate("record\n", schema=schema, seed=1, steps=40, max_tokens=64, options=wide)
    assert isinstance(json.loads(held.text)["a"], int)
    assert list(held.steps)[:1] == [3]


def test_the_answers_of_a_row_share_its_steps(service: Service) -> None:
    """64 answers had 50,000 steps each, so one row kept the others of a night waiting for more than a day."""
    body = {"prompt": "record\n", "max_tokens": 64, "canvas": {"width": 16}}
    (one,) = batch._work(service, json.dumps(body).encode(), 1).requests
    many = batch._work(service, json.dumps(body | {"n": 64}).encode(), 1).requests
    assert one.most_steps == MOST_STEPS_IN_ALL
    assert {each.most_steps for each in many} == {MOST_STEPS_IN_ALL // 64}
    both = batch._work(service, json.dumps(body | {"n": 32, "prompt": ["a", "b"]}).encode(), 1).requests
    assert {each.most_steps for each in both} == {MOST_STEPS_IN_ALL // 64}
    # An answer with the usual 48 steps for each of its 50 canvases is not cut because others were asked for, too.
    long = batch._work(service, json.dumps(body | {"n": 64, "max_tokens": 800}).encode(), 1).requests
    assert {each.most_steps for each in long} == {48 * 50}


@pytest.mark.parametrize("at_once", [2, 64])
def test_a_row_of_many_answers_leaves_room_for_others(at_once: int, tmp_path: Path) -> None:
    """One of as many as may be under way kept all others from being begun until it ended."""
    rows = [{"prompt": "slow", "n": 64}, *({"prompt": f"{i}"} for i in range(9))]
    (tmp_path / "in").write_text("".join(json.dumps(row) + "\n" for row in rows))
    others = 0

    async def answered(row: bytes, number: int) -> Any:
        nonlocal others
        async with asyncio.timeout(20):
            while b"slow" in row and others < 9:
                await asyncio.sleep(0.01)
        others += 1
        return 200, {}

    assert answer_rows(answered, tmp_path / "in", tmp_path / "out", at_once=at_once).errors == 0


def test_a_row_is_prepared_beside_the_others_and_ends_with_its_task(service: Service) -> None:
    """Schemas were compiled on the event loop: others stood still for nine seconds each, and Ctrl-C was not heard."""
    begun, ended = threading.Event(), threading.Event()

    def compiles() -> None:
        begun.set()
        until = time.monotonic() + 20
        try:
            while time.monotonic() < until:
                check_time()
                time.sleep(0.01)
        except DeadlineError:
            ended.set()

    seen = list[str]()

    async def beside() -> None:
        for _ in range(3):
            seen.append(await service.aside(lambda: threading.current_thread().name, size=1))
        assert len({name.rpartition("_")[0] for name in seen}) == 1
        assert service._aside is not None
        assert service._aside._max_workers == KEPT_THREADS
        slow = asyncio.create_task(service.aside(compiles, size=9))
        await asyncio.to_thread(begun.wait, 20)
        assert await asyncio.wait_for(batch.answer(service, b'{"prompt": "a", "max_tokens": 1}', 1), 20)
        assert not ended.is_set()
        slow.cancel()
        assert await asyncio.to_thread(ended.wait, 20)

    asyncio.run(beside())


def test_answers_that_wait_are_bytes(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As objects they took twenty times as much and counted as nothing: 64 rows of 64 answers took gigabytes."""
    (tmp_path / "in.jsonl").write_text(json.dumps({"messages": USER}) + "\n")
    seen = list[Any]()
    each = rows_module._each

    def noted(answered: Any, *rest: Any) -> Any:
        async def one(row: bytes, number: int) -> Any:
            seen.append((await answered(row, number))[1])
            return 200, seen[-1]

        return each(one, *rest)

    monkeypatch.setattr(rows_module, "_each", noted)
    run_batch(service, tmp_path / "in.jsonl", tmp_path / "out.jsonl", seed=0, at_once=1)
    assert isinstance(seen[0], bytes)
    assert said(json.loads((tmp_path / "out.jsonl").read_text())) == ANSWER


def test_a_file_that_is_missing_hides_no_size_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """63 large files and a missing one were read whole before that was refused; of a million names each was looked
    for."""
    monkeypatch.setattr("redraft.cli.row.MOST_HELD_BYTES", 5000)
    (tmp_path / "a.png").write_bytes(bytes(6000))
    row = {"messages": USER, "image": ["a.png", "missing.png"]}
    with pytest.raises(ApiError, match="image names 6000 bytes of files; at most 5000"):
        with_images(json.dumps(row).encode(), tmp_path)
    assert image_bytes(json.dumps(row).encode(), tmp_path) == 6000
    monkeypatch.setattr("redraft.cli.row.named_from", lambda *_: pytest.fail("it was looked for"))
    assert image_bytes(json.dumps(row | {"image": ["a.png"] * 65}).encode(), tmp_path) == 0


def test_a_line_end_is_no_part_of_a_rows_size() -> None:
    (row,) = rows_of(BytesIO(b"a" * MOST_LINE_BYTES + b"\n"))
    assert row.size == MOST_LINE_BYTES
