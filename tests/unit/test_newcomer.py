"""What somebody meets who has just installed this: help, what the small model knows, a canvas slow enough to follow."""

from __future__ import annotations

import argparse
import io
import json
import re
import runpy
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.helpers import ROOT, Shell

import redraft
import redraft.cli.display
from redraft.__main__ import main
from redraft.cli import common, run, tune
from redraft.cli.constraint_flags import read_schema
from redraft.cli.json import _requests, fields_among
from redraft.cli.rows import Done
from redraft.constraints.compile.moments import DATE, clocks_of, dates_of, moments_of
from redraft.constraints.compile.stated import unstated
from redraft.constraints.compile.template import read_template
from redraft.constraints.compile.verbatim import formatted_in
from redraft.constraints.schemas import plain_schema
from redraft.constraints.sources import schema_source
from redraft.engine.request import Options, Request
from redraft.errors import ConstraintError, RequestError
from redraft.operations import read_back
from redraft.operations.edit import Edit
from redraft.tasks import names, task
from redraft.tasks.task import split_of
from redraft.text import Message

Captured = pytest.CaptureFixture[str]


def test_the_name_alone_is_answered_with_the_help(shell: Shell) -> None:
    out, err = shell([], 2)
    assert out == "", "a pipe behind it gets nothing"
    assert "redraft demo" in err


def test_nothing_is_said_in_words(capsys: Captured, tmp_path: Path) -> None:
    """An empty line looks like a fault, and so does an empty diff; rows in place of a recipe were a fault of TOML."""
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "a.csv").write_text("text,who\nHi,Ann\n")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "training-log.jsonl").touch()
    for words, code, said in (
        (["generate", "hi", "--regex", "x{0}"], 0, "the answer is empty"),
        (["infill", f"{tmp_path}/a.txt:2", "--regex", "two"], 0, "the new text is the one that was there"),
        (["tune", "mine.jsonl", "--out", f"{tmp_path}/out"], 2, "files = { 'mine.jsonl' = 1.0 }"),
        (["tune", f"{tmp_path}/a.csv", "--out", f"{tmp_path}/out"], 2, "a.csv is a table; docs/tuning.md makes rows"),
        (["eval", "--model", f"{tmp_path}/new"], 2, "new/config.json does not exist; redraft tune has not ended there"),
    ):
        assert main([*words, "--seed", "1"] if code == 0 else words) == code
        out, err = capsys.readouterr()
        assert not out.strip()
        assert said in err


def test_what_is_mistaken_is_answered_with_what_to_write(shell: Shell, tmp_path: Path) -> None:
    rows, empty = tmp_path / "rows.jsonl", tmp_path / "empty.env"
    rows.write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    empty.touch()
    for words, said in (
        (["run", str(rows), "-"], "a run goes on from what its files have"),
        (
            ["fill", "--text", "Port is 80", "port={{port int}}"],
            "the template has {{port int}}; write the hole as {{port: int}}",
        ),
        (["decide", "q", "--choice", "a", "--choice", "a"], "--choice is 2 times 'a' alone"),
        (["edit", str(empty), "--instruction", "Set port to 1."], "is empty; some text is needed"),
        (["edit", f"{tmp_path}/none.env", "--instruction", "Set port to 1."], "does not exist; write a file"),
    ):
        assert said in shell(words, 2).err


# -- what nano was taught ----------------------------------------------------------------------------------------------


def test_what_nano_is_said_to_know_is_what_its_tasks_ask() -> None:
    """Each of its tasks' prompts begins in one of the ways; each way is some task's. Copies are asked for by nobody."""
    for model, begins in common.TAUGHT.items():
        asked = [next(iter(task(name).examples("held_out", 0))).prompt for name in names(model) if name != "copy"]
        assert all(prompt.startswith(begins) for prompt in asked)
        assert all(any(prompt.startswith(one) for prompt in asked) for one in begins)


def test_every_question_of_a_conversation_is_of_its_split() -> None:
    conversations = runpy.run_path(str(ROOT / "recipes" / "turns.py"))["conversations"]
    for split in ("train", "held_out"):
        rows = list(islice(conversations(split, 0), 60))
        assert rows == list(islice(conversations(split, 0), 60)), "a seed is a promise"
        assert {len(row["messages"]) for row in rows} == {4, 6}
        firsts = set()
        for row in rows:
            roles = [message["role"] for message in row["messages"]]
            texts = [message["content"] for message in row["messages"]]
            assert roles == ["user", "assistant"] * (len(roles) // 2)
            for asked, answer in zip(texts[::2], texts[1::2], strict=True):
                first, _, rest = asked.partition("\n")
                firsts.add(first)
                keys = re.findall(r'"who":"(\w+)"', answer) if first in ("record", "list") else []
                keys += [rest] if first == "sudoku" else []
                assert {split_of(key) for key in keys} <= {split}
        assert firsts == {one.strip() for one in common.TAUGHT["nano-sudoku"]}


def test_nano_answers_further_questions_of_a_conversation() -> None:
    """Of questions that it answers nearly always when they are asked alone."""
    engine, right, asked = redraft.load("nano-sudoku"), 0, 0
    examples = task("records").examples("held_out", 4)
    for seed in range(6):
        messages = list[Message]()
        for example in islice(examples, 3):
            messages.append({"role": "user", "content": example.prompt})
            done = engine.run(engine.resolve(Request(messages, chat=True, options=Options(seed=seed, preset="fast"))))
            right, asked = right + (done.text == example.answer), asked + 1
            messages.append({"role": "assistant", "content": done.text})
    assert right >= asked - 3, f"{right} of {asked}"


ASKED = [
    "generate",
    "hello",
    "--chat",
    "--model",
    "nano-sudoku",
    "--steps",
    "1",
    "--max-tokens",
    "2",
    "--preset",
    "reference",
]


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (ASKED, True),
        (["generate", "Repair the JSON:\n{", "--steps", "1"], True),  # --chat was forgotten
        (["generate", "Repair the JSON:\n{", "--steps", "1", "--chat"], False),
        (["generate", "Repair the JSON:\n{", "--steps", "1", "--chat", "--model", "nano-sudoku"], True),
        (["generate", "record\nSend 417 melu to Karomi.", "--chat", "--model", "nano-sudoku"], False),
        (["decide", "Is 7 prime?"], True),
        (["json", "Send 3 apples to Maria.", "--schema", "who", "--instruction", "record", "--max-tokens", "24"], True),
    ],
)
def test_who_asks_nano_for_what_it_cannot_is_told(
    words: list[str], printed: bool, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    monkeypatch.setattr(common, "at_a_terminal", lambda: True)
    lines = shell([*words, "--threads", "1"]).err.splitlines()
    assert any(bounds in line for line in lines for bounds in common.BOUNDS.values()) == printed


@pytest.mark.parametrize("text", ['{"a":"x","qty":2}', "port: 80"])
def test_an_edit_of_a_record_is_not_said_to_be_beyond_nano(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    monkeypatch.setattr(common, "at_a_terminal", lambda: True)
    (tmp_path / "a").write_text(f"{text}\n")
    said = shell(["edit", f"{tmp_path / 'a'}:1", "--seed", "1", "--instruction", "Set qty to 5.", "--threads", "1"]).err
    assert common.BOUNDS["nano"] not in said


PEM = 'PORT=3000\nKEY="-----BEGIN KEY-----\nMIIBVgIBADANBg\nkqhkiG9w0BAQ\n-----END KEY-----"\nDEBUG=false\n'


@pytest.mark.parametrize(
    "text",
    [
        "some words\n",
        PEM,
        "flask==2.2.0\nrequests>=2.31\n",
        "FROM python:3.12\nENV PORT=80\nCMD run\n",
        "server {\n  listen 80;\n}\n",
        '{"who":"Ada","qty":7}\n{"who":"Bo","qty":3}\n',
        '[{"name":"a","qty":1},{"name":"b","qty":2}]',
        '{"a": {"port": 80}, "b": {"port": 81}}',
        '<a>\n  <b port="80"/>\n</a>\n',
    ],
)
def test_nano_edits_no_other_lines(text: str, tmp_path: Path, shell: Shell) -> None:
    """They were replaced by letters of nonsense, and written."""
    (tmp_path / "a").write_text(text)
    words = [
        "edit",
        str(tmp_path / "a"),
        "--seed",
        "1",
        "--instruction",
        "Set PORT to 4000",
        "--write",
        "--threads",
        "1",
    ]
    assert "nor one record" in shell(words, code=2).err
    assert (tmp_path / "a").read_text() == text


@pytest.mark.parametrize(
    ("pointers", "found"),
    [([], []), (["/tags/1", "/age"], ["age", "tags"]), ([""], [])],  # the last of an answer that is no record
)
def test_a_value_that_is_a_guess_is_named(pointers: list[str], found: list[str]) -> None:
    assert fields_among(read_schema("name?, age int, tags str[]"), pointers) == found
    assert fields_among({"type": "array"}, pointers) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("who qty item", "put commas between fields"),
        ("first name, age int", "write a name of two words as first_name"),
        ("who, items list", r"a list of texts is str\[\]"),
        (
            '{"who":"string","qty":"int"}',
            "'who' and what stands beside it are no keywords of JSON Schema",
        ),
    ],
)
def test_what_is_nearly_a_schema_is_refused_with_the_way_to_write_it(given: str, said: str) -> None:
    with pytest.raises(ConstraintError, match=said):
        read_schema(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("./nosuch", "--schema nosuch cannot be read"),
        ("-", "--schema - cannot be read"),
        ("s.yaml", "is no JSON; convert it"),
        ("models.py", "is Python; write what YourModel.model_json_schema"),
    ],
)
def test_a_schema_that_is_a_files_name_is_no_field(
    given: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """It became the name of a field."""
    monkeypatch.chdir(tmp_path)
    for name in ("s.yaml", "models.py"):
        (tmp_path / name).write_text("type: object")
    assert main(["json", "--schema", given, "Tom lives in Rome."]) == 2
    assert said in capsys.readouterr().err


def test_a_comma_behind_the_last_field_is_none() -> None:
    assert read_schema("name, age int, ") == read_schema("name, age int")


def test_fields_of_fields_come_on_one_line() -> None:
    """A line break in an answer broke files of a record a line."""
    inner = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "at": inner}, "required": ["name", "at"]}
    nano = redraft.load("nano")
    for seed in range(3):
        text = nano.extract("Tom lives in Leeds.", schema, seed=seed).text
        assert text == json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)


def test_a_table_is_no_file_of_rows(tmp_path: Path, capsys: Captured) -> None:
    """Every line of it became an error row, behind a model that was loaded for nothing."""
    table = tmp_path / "orders.csv"
    table.write_text("id,text\n1,Send 3 apples to Maria.\n")
    assert main(["run", str(table), str(tmp_path / "out.jsonl")]) == 2
    assert "is a table; a row is a JSON object. redraft json --many reads a text a line" in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()


def test_guesses_are_said_also_in_a_pipe_and_not_of_other_models(capsys: Captured) -> None:
    common.say_guesses(argparse.Namespace(model="./mine"), ["age"])
    common.say_guesses(argparse.Namespace(model="nano"), [])
    assert capsys.readouterr().err == ""
    common.say_guesses(argparse.Namespace(model="nano"), ["age"])
    assert "a guess: age; nano is small and often wrong, and a field with ? may be null" in capsys.readouterr().err


def test_programs_are_told_of_their_answer_alone(capsys: Captured) -> None:
    assert main([*ASKED, "--model", "nano-sudoku", "--threads", "1"]) == 0
    assert capsys.readouterr().err == "redraft: cut at 2 tokens; --max-tokens allows for more\n"


# -- a canvas to follow ------------------------------------------------------------------------------------------------


# -- a training run to follow ------------------------------------------------------------------------------------------

ROW = {"encode": 1.2, "denoise": 0.8, "norm": 1.0, "seconds": 2.0}
ROW |= {f"{shown} {noise}": 1.1 for shown in ("corrupted", "clean") for noise in ("low", "middle", "high")}


def test_a_schemas_file_may_begin_as_some_editors_begin_files(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text("\ufeff" + '{"type": "object"}', encoding="utf-8")
    assert read_schema(str(path)) == {"type": "object"}


def test_a_text_of_stdin_may_begin_as_some_editors_begin_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark stood in the name that was read out of the text."""
    stdin = SimpleNamespace(buffer=io.BytesIO("\ufeffAlice is 31.\n".encode()), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", stdin)
    assert common.read_prompt("-", None) == "Alice is 31."
    lines = Queue[Any]()
    lines.put((1, "\ufeffAlice is 31.\n".encode()))
    lines.put(None)
    assert list(_requests(lambda text, number: cast(Any, text), lines)) == ["Alice is 31."]  # --many


def test_a_documents_texts_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"said": "\x9b2J\x7f\x1b[2J é", "numbers": [1, 2]}
    common.print_json(value)
    shown = capsys.readouterr().out
    assert json.loads(shown) == value
    assert all(one.isprintable() or one == "\n" for one in shown)


# -- what a newcomer met -----------------------------------------------------------------------------------------------


LATE = ("2026-12-31T01", "2026-12-31T20", "2027-01-01T01")


@pytest.mark.parametrize(
    ("text", "moments"),
    [
        ("Call on 12 June 2026 at 2pm", ["2026-06-12T14:00:00Z"]),
        ("Call on 12 June 2026 at 2.30 p.m.", ["2026-06-12T14:30:00Z"]),
        ("Call on 12 June 2026 at noon", ["2026-06-12T12:00:00Z"]),
        ("12 June 2026: doors 19:00", ["2026-06-12T19:00:00Z"]),
        ("12 June 2026 at 14:30 CET.", ["2026-06-12T14:30:00+01:00", "2026-06-12T14:30:00+02:00"]),
        ("12 June 2026 at 2:30 pm EDT", ["2026-06-12T14:30:00-04:00"]),
        ("12 June 2026 14:30 (UTC+2)", ["2026-06-12T14:30:00+02:00"]),
        ("12 June 2026 at 14:30 +0200", ["2026-06-12T14:30:00+02:00"]),
        ("12 June 2026, 09:00-12:30", ["2026-06-12T09:00:00Z", "2026-06-12T12:30:00Z"]),
        ("Party 31 Dec 2026, 20:00 - 01:00", [f"{day}:00:00Z" for day in LATE]),
        ("12 June 2026 14:30 IST", []),
        ("12 June 2026, 10 or 11 am", []),
        ("Backup finished 2026-11-02 08:14:55, load 0.73", ["2026-11-02T08:14:55Z"]),
        ("2026-11-02 08:14:55 login from 10.0.0.7", ["2026-11-02T08:14:55Z"]),
        ("2026-11-02 08:14:55 WARN slow response after 23.10 ms", ["2026-11-02T08:14:55Z"]),
        ("2026-11-02T08:14:55Z GET /index 200 0.123s", ["2026-11-02T08:14:55Z"]),
        ("A gift due 2027-03-03 10:00, 12.50 EUR", ["2027-03-03T10:00:00Z"]),
        ("Delivery on 2027-03-03 at 10:00.", ["2027-03-03T10:00:00Z"]),
        ("Logged 2026-11-02 08:14:55, meeting at 9.30", []),
        ("2026-11-02 08:14:55 termin am 12.5.", []),
        ("2026-11-02 08:14:55 termin 12.5.", []),
        ("2026-11-02 08:14:55 und 5.11.26", []),
        ("2026-11-02 08:14:55 moved to 3.11", []),
        ("2026-11-02 08:14:55 closed, 9.15 Uhr", []),
        ("2026-11-02 08:14:55 closed, 10.30h", []),
        ("Delivery on 2027-03-03 at 9:30 in the evening", []),
    ],
)
def test_a_moment_as_iso_has_it_is_held_beside_other_numbers(text: str, moments: list[str]) -> None:
    """`load 0.73` was something that may be a time, and the stamp beside it became one of the year 21."""
    assert moments_of(text, dated=True) == moments
    if not DATE.search(text):
        return
    pairs = [f"{day}T{clock}" for day in dates_of(text) for clock in clocks_of(text)]
    assert all(moment.startswith(tuple(pairs)) for moment in moments)


@pytest.mark.parametrize(
    ("text", "dates", "clocks"),
    [
        ("Next attempt: 2026-11-05 between 10 and 12.", ["2026-11-05"], []),
        ("Next attempt: 05.11.2026 between 10 and 12.", ["2026-11-05"], []),
        ("Next try: 2026-11-05, 12 parcels.", ["2026-11-05"], []),
        ("It may arrive 2026-11-05 on the first floor.", ["2026-11-05"], []),
        ("3.4 kg, due 2026-11-05", ["2026-11-05"], []),
        ("Dock 4, arriving 14:30.", [], ["14:30"]),
        ("Doors 7, show 20:30", [], []),
        ("Moved from 2026-11-05 to next Friday.", [], []),
        ("2026-11-05, or the first of June", [], []),
        ("24 hours a week, 15.50 an hour. Apply by 30 September 2026.", ["2026-09-30"], []),
        ("Closed 23 Dec - 6 Jan 2027", ["2026-12-23", "2027-01-06", "2027-12-23", "2028-12-23"], []),
        ("tel 555-0187 by 9 November 2026", ["2026-11-09"], []),
        ("Score 3-1 on 9 November 2026", [], []),
        ("due 2026-11-05, or in may", [], []),
        *(
            (f"Signed 1 June 2026, {more}", [], [])
            for more in (
                "for two years",
                "annual renewal",
                "payable within 30d",
                "terms: net 30",
                "runs a quarter",
                "3 nights",
                "party on Halloween",
                "stay over New Year",
            )
        ),
        ("Signed 1 June 2026, 3 notes", ["2026-06-01"], []),
        ("The film runs 90 minutes from 18:45.", [], []),
        ("Train at 18:45, 20 min late", [], []),
        ("Train at 18:45, 20 mints", [], ["18:45"]),
    ],
)
def test_a_date_or_time_is_held_where_no_other_can_be_meant(text: str, dates: list[str], clocks: list[str]) -> None:
    """Words such as "next" and numbers such as a dock's freed it, and the answer was 1026-11-05."""
    assert (dates_of(text), clocks_of(text)) == (dates, clocks)


@pytest.mark.parametrize(
    ("text", "form", "may_be", "is_not"),
    [
        ("From 2026-11-05 to the 14th", "date", "2026-11-14", "1026-11-05"),
        ("Every second Monday. Next: 9 November 2026", "date", "2026-11-09", "1923-10-26"),
        ("The call is on 12 June 2026 at 14:30 IST", "date-time", "2026-06-12T14:30:00+05:30", "1923-06-12T11:30:00Z"),
        ("13:00 to 15:30, Elm Road 2 to 48", "time", "15:30:00Z", "18:30:01Z"),
        ("Paid 2024-01-02, due next month", "date", "2025-02-01", "0242-01-02"),
        ("dock at 4 or 14:30", "time", "16:00:00Z", "04:30:00-14:30"),
        ("2026-11-05 at 4 or 5", "date-time", "2026-11-05T16:00:00Z", "2026-11-05T16:00:00+14:30"),
    ],
)
def test_a_date_that_is_not_read_is_in_a_year_near_those_of_the_text(
    text: str, form: str, may_be: str, is_not: str
) -> None:
    held = formatted_in(text, form)
    assert (held.matches(may_be.encode()), held.matches(is_not.encode())) == (True, False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Der Bus fährt um 7:30 abends.", "07:30"),
        ("We meet ten minutes before 9:30.", "09:10"),
        ("The call is on 12 May 2026 at 9:30 am EST.", "2026-05-12T09:30:00Z"),
    ],
)
def test_another_time_than_the_figures_say_is_a_guess(text: str, value: str) -> None:
    assert unstated({"/at": value}, text) == {"/at"}


@pytest.mark.parametrize(
    ("form", "text", "right"),
    [
        ("date-time", "Meeting 2026-11-05, 9.30 sharp", "2026-11-05T09:30:00Z"),
        ("date-time", "Meeting 2026-11-05, Beginn: 14.30", "2026-11-05T14:30:00Z"),
        ("date-time", "Parcel of 3.5 kg, 2026-11-05, at seven", "2026-11-05T19:00:00Z"),
        ("time", "Doors 2026-11-05, 19.30, show 20:30", "19:30:00Z"),
        ("date", "2026-11-05 Lieferung zum 11.12", "2026-12-11"),
        ("date", "Written 2026-11-05. Deadline is the tenth at noon.", "2026-11-10"),
        ("date", "2026-11-05; the fifteenth would work better", "2026-11-15"),
        ("date", "2026-11-05, due in a month please", "2026-12-05"),
        ("date", "2026-11-05, next march we move", "2027-03-01"),
        ("date", "Signed January 15, 2020. The term is 36 months from signing.", "2023-01-15"),
        ("date", "Founded in 1992. Audit on 3 June 26.", "2026-06-03"),
        ("date", "Bill no. 1845. Please pay by June 3.", "2026-06-03"),
        ("time", "Lab 2-4:30, building 7", "14:00:00Z"),
        ("time", "Counter 9-17:30", "09:00:00Z"),
        ("time", "Train 9h30, arrives 14:30", "09:30:00Z"),
        ("time", "Bus 9 Uhr, zurück 14:30", "09:00:00Z"),
        ("time", "Room 7, 8 or 9:30", "08:00:00Z"),
        ("date-time", "Kickoff 2026-11-05 at 4 pm EST", "2026-11-05T16:00:00-05:00"),
        ("date-time", "2026-11-05 16 Uhr MEZ", "2026-11-05T16:00:00+01:00"),
        ("date-time", "2026-11-05 at 9 UTC+2", "2026-11-05T09:00:00+02:00"),
        ("date-time", "20261105T090000+0200", "2026-11-05T09:00:00+02:00"),
        ("time", "9:30 Eastern or 10", "09:30:00-05:00"),
        ("date-time", "The call is on 12 May 2026 at 9:30 am EST.", "2026-05-12T09:30:00-05:00"),
        ("date-time", "2026-05-12, 14:30 (CET)", "2026-05-12T14:30:00+01:00"),
        ("date-time", "2026-05-12 14:30 (GMT+2)", "2026-05-12T14:30:00+02:00"),
        ("date-time", "2026-05-12 14:30, Tokyo time", "2026-05-12T14:30:00+09:00"),
        ("date-time", "We meet on 12 May 2026 at sunset.", "2026-05-12T20:00:00Z"),
        ("date", "On 5 May 1200 people came.", "2026-05-05"),
        ("date", "On 12 June 2500 units were shipped.", "2026-06-12"),
        ("date", "The shuttle leaves on 5 May 1830 sharp.", "2026-05-05"),
        ("date", "On 5 May 2000 people came.", "2026-05-05"),
        ("date-time", "12 June 2026 14:30 CST", "2026-06-12T14:30:00-06:00"),
        ("date-time", "12 June 2026 at 23:30 IST, in UTC", "2026-06-12T18:00:00Z"),
        ("date-time", "Created 2026-06-01 09:00. Due in 24 hours.", "2026-06-02T09:00:00Z"),
        ("date-time", "Created 2026-06-01 09:00. Due in 48 hours.", "2026-06-03T09:00:00Z"),
        ("time", "at nine seventeen or 9:30", "09:17:00Z"),
        ("time", "The bus leaves at seven past nine.", "09:07:00Z"),
        ("time", "Der Zug fährt um neun Uhr siebzehn.", "09:17:00Z"),
        ("time", "The training starts at 09:00 and lasts 1.5 hours.", "10:30:00Z"),
        ("time", "Start 09:13, runtime 1h23", "10:36:00Z"),
        ("date-time", '127.0.0.1 - - [12/May/2026:09:30:15 +0000] "GET /', "2026-05-12T09:30:15Z"),
        ("date-time", "DTSTART:20260512T093015Z", "2026-05-12T09:30:15Z"),
        ("date-time", "backup_2026-05-12_03-15-42.tar.gz", "2026-05-12T03:15:42Z"),
        ("date-time", "Submit by end of day on 12 May 2026.", "2026-05-12T23:59:59Z"),
        ("date-time", "The hearing is on 12 May 2026 at midday.", "2026-05-12T12:00:00Z"),
        ("date-time", "12 July 2026 at 10:00 CET", "2026-07-12T10:00:00+02:00"),
        ("date-time", "12 July 2026, 17:00 +0000", "2026-07-12T17:00:00Z"),
        ("date-time", "LH400 departs 12 May 2026 17:20, arrives 06:45.", "2026-05-13T06:45:00Z"),
        ("date", "Workshop Mon 11 and Tue 12 May 2026.", "2026-05-11"),
        ("date", "Posted 12 May 2026; RSVP by Sat.", "2026-05-16"),
        ("date", "Made on 1 June 2026, 36-month warranty", "2029-06-01"),
    ],
)
def test_what_is_not_read_for_certain_excludes_nothing_that_is_meant(form: str, text: str, right: str) -> None:
    held = formatted_in(text, form)
    assert held.is_empty or held.matches(right.encode())


def test_an_empty_text_and_names_in_place_of_a_schema_are_refused_in_python_too() -> None:
    engine = redraft.load("nano")
    with pytest.raises(RequestError, match="text to extract from is empty"):
        engine.extract(" \n", "who, qty int")
    with pytest.raises(ConstraintError, match="'who' and what stands beside it are no keywords"):
        engine.extract("Send 3 apples to Maria.", {"who": "str", "qty": "int"})
    with pytest.raises(ConstraintError, match="are no keywords"):
        engine.extract_many(["Send 3 apples to Maria."], {"who": "str"})
    (found,) = engine.extract_many([""], "who")
    assert isinstance(found, RequestError)


def test_a_text_of_two_bytes_a_character_is_refused_once(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first line was an error, and the others were answered with zeros between their letters."""
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a"}\n' * 3, encoding="utf-16")
    assert "is UTF-16 text; save it as UTF-8" in shell(["run", str(file), str(tmp_path / "out.jsonl")], 2).err
    assert "is UTF-16 text; save it as UTF-8" in shell(["eval", "--file", str(file)], 2).err
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(file.read_bytes()), isatty=lambda: False))
    out, err = shell(["json", "--schema", "who", "--many"], 3)
    assert (out.strip(), err.count("UTF-16")) == ("null", 1)


def test_a_run_says_how_far_it_is_and_how_it_goes_on(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "EVERY_SEC", 0)

    def work(error: BaseException) -> None:
        with run._bar(9) as report:
            report(Done(1, 0))
            report(Done(2, 0))
            raise error

    with pytest.raises(KeyboardInterrupt, match="behind 2 of 9 rows; the same command goes on"):
        work(KeyboardInterrupt())
    assert "redraft: 2 of 9 rows" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        work(SystemExit(143))  # as SIGTERM raises it
    assert "interrupted behind 2 of 9 rows; the same command goes on" in capsys.readouterr().err


def test_a_tune_without_a_terminal_shows_progress_by_time(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "EVERY_SEC", 0)
    shown = tune.Progress()
    for step in (1, 2, 3):
        shown(step, 9, {"encode": 1.0})
    assert capsys.readouterr().err.count("redraft: step ") == 3


def test_the_name_of_a_file_in_place_of_a_text_is_noted(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "mail.txt").write_text("Send 3 apples to Maria.")
    said = shell(["json", "--schema", "who", "--seed", "1", str(tmp_path / "mail.txt")]).err
    assert "mail.txt is taken as the text itself; to read the file of that name, put < in front" in said


def test_rows_of_many_may_have_more_than_a_text(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object without a text was the text, and its id the number that was asked for."""
    lines = b'{"id": 7, "text": "Alice is 31."}\n{"id": 8, "message": "Bob is 5."}\n{"text": null}\n'
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(lines), isatty=lambda: False))
    out, err = shell(["json", "--seed", "1", "--schema", "name, age int", "--many"], 3)
    assert out.splitlines() == ['{"name":"Alice","age":31}', "null", "null"]
    assert "line 2: it is an object without a text; write" in err
    assert "line 3: it is an object whose text is no string; write" in err


def test_an_edit_that_changes_nothing_says_of_what_nothing_came(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "app.yaml").write_text("port: 80\nhost: a\n")
    said = shell(["edit", f"{tmp_path}/app.yaml", "--seed", "1", "--instruction", "Set timeout to 30."]).err
    assert 'nothing came of "Set timeout to 30"; unless it says so already' in said


@pytest.mark.parametrize(
    ("schema", "said"),
    [("a float|int", "'float|int' are types; a field has one"), ("a str|null", "'str|null' are types")],
)
def test_types_are_nothing_to_choose_from(schema: str, said: str) -> None:
    with pytest.raises(ConstraintError, match=re.escape(said)):
        plain_schema(schema)
    assert plain_schema("how email|text, as 'int'|'float'")["properties"] == {
        "how": {"enum": ["email", "text"]},
        "as": {"enum": ["int", "float"]},
    }


def test_choices_of_a_template_may_be_written_as_a_schemas() -> None:
    assert read_template("{{size: S|M|L}}").holes[0].dfa.matches(b"M")
    assert not read_template("{{size: S | M|L}}").holes[0].dfa.matches(b"S ")
    with pytest.raises(ConstraintError, match="are kinds; a hole has one"):
        read_template("{{size: int|float}}")


def test_what_a_text_leaves_no_choice_of_is_no_guess() -> None:
    """Of 65 right fields of a newcomer 20 were called a guess, some of which had been held to one value."""
    text = "Order A-5520 has shipped via DHL, tracking 00340434161094."
    done = redraft.load("nano").extract(text, "carrier DHL|UPS|DPD|GLS, tracking", seed=1)
    assert (json.loads(done.text)["carrier"], "/carrier" in (done.guesses or ())) == ("DHL", False)
    source = schema_source("day date, who DHL|UPS, other DHL|GLS?, name", verbatim="")
    held = replace(source, verbatim="DHL on 2026-11-05")
    values = {"/day": "2026-11-05", "/who": "DHL", "/other": None, "/name": "DHL"}
    assert read_back._settled(held, values) == {"/who"}
    assert read_back._settled(source, values) == frozenset()
    twice = replace(schema_source("now open|closed, before open|closed"), verbatim="The ticket is open.")
    assert read_back._settled(twice, {"/now": "open", "/before": "open"}) == frozenset(), "of which is it said?"


def test_a_json_file_stays_one(tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """`edit --write` left `"aat": ` in place of a line."""
    file = tmp_path / "shop.json"
    file.write_text('{"vat": 0.19}\n')
    done = Edit(b'{"vat": \n', "", "", 1, 1, 0)
    monkeypatch.setattr("redraft.operations.engine.Engine.edit", lambda *_, **__: done)
    words = ["edit", str(file), "--instruction", "The vat is now 0.07."]
    assert "is JSON and would not be any more, so nothing is written" in shell([*words, "--write"], 1).err
    assert file.read_text() == '{"vat": 0.19}\n'
    shell(words)
