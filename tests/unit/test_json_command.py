"""`redraft json`: the terse form of a schema, one text, many texts, and what goes wrong with some of them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.__main__ import main
from redraft.cli import common
from redraft.cli.constraint_flags import read_schema
from redraft.engine.request import Generation, Request, ResolvedRequest
from redraft.errors import RequestError, RunError
from redraft.operations import read_back
from redraft.operations.engine import Engine
from redraft.operations.read_back import Opinion
from redraft.tasks import task
from redraft.trace.file import read_trace

SENTENCE = "Send 417 melu to Karomi."
SCHEMA = "who, qty int, item"
PUZZLES = ("--model", "nano-sudoku")  # the answers of these weights are known


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Put bytes on stdin."""

    def pipe(raw: bytes) -> None:
        buffer = io.BytesIO(raw)
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=buffer, isatty=lambda: False))

    return pipe


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str], str]:
    code = main(["json", "--threads", "1", "--seed", "1", *words])
    reported = capsys.readouterr()
    return code, reported.out.splitlines(), reported.err


def test_a_sentence_becomes_an_object(capsys: pytest.CaptureFixture[str], piped: Callable[[bytes], None]) -> None:
    piped(f"{SENTENCE}\n".encode())
    code, out, err = run(capsys, *PUZZLES, "--schema", SCHEMA, "--instruction", "record")
    assert (code, out, err) == (0, ['{"who":"Karomi","qty":417,"item":"melu"}'], "")


def test_a_program_may_wait_for_the_answer_to_each_line() -> None:
    """None came before 32 lines were in."""
    words = [*PUZZLES, "--schema", SCHEMA, "--instruction", "record", "--threads", "1", "--seed", "1", "--many"]
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-m", "redraft", "json", *words], stdin=pipe, stdout=pipe) as asked:
        assert asked.stdin is not None
        assert asked.stdout is not None
        for _ in range(2):
            asked.stdin.write(f"{SENTENCE}\n".encode())
            asked.stdin.flush()
            assert asked.stdout.readline() == b'{"who":"Karomi","qty":417,"item":"melu"}\n'
        asked.stdin.close()
        assert asked.wait(60) == 0


def test_many_lines_keep_their_places(capsys: pytest.CaptureFixture[str], piped: Callable[[bytes], None]) -> None:
    """More lines than run at a time, some of them no text; the same answers as each alone."""
    stream = task("records").examples("held_out", 3)
    examples = [next(stream) for _ in range(40)]
    lines = [example.prompt.split("\n")[1].encode() for example in examples]
    lines[3], lines[37] = b"", b"\xff"
    piped(b"\n".join(lines))
    code, out, err = run(capsys, *PUZZLES, "--schema", SCHEMA, "--instruction", "record", "--many")
    assert code == 3
    assert [i for i, line in enumerate(out) if line == "null"] == [3, 37]
    right = [line == example.answer for line, example in zip(out, examples, strict=True)]
    assert sum(right) >= 35
    assert err.splitlines() == [
        "redraft: line 4: it is empty; some text is needed",
        "redraft: line 38: it is not UTF-8 (byte 0 is 0xff)",
    ]
    piped(lines[5])
    main(["json", *PUZZLES, "--threads", "1", "--seed", "6", "--schema", SCHEMA, "--instruction", "record"])
    assert capsys.readouterr().out.splitlines() == [out[5]]


def test_a_line_of_many_may_be_a_text_in_json(
    capsys: pytest.CaptureFixture[str], piped: Callable[[bytes], None]
) -> None:
    """Else a text of several lines has no room on one; and in a pipe nothing said that some answers are a guess."""
    piped(b'"Send 3 apples\\nto Maria."\n{"text": "Send 3 apples to Maria."}\n{"text": 1}\nhello\n')
    code, out, err = run(capsys, "--schema", SCHEMA, "--many")
    assert (code, out[:3]) == (3, ['{"who":"Maria","qty":3,"item":"apples"}'] * 2 + ["null"])
    assert "line 3: it is an object whose text is no string" in err
    assert "1 of the answers have values that are a guess; --json names them" in err


def test_more_fields_than_nano_was_taught_are_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    for fields, is_said in (("a, b, c, d, e", False), ("a, b, c, d, e, f", True)):
        _, _, err = run(capsys, "--schema", fields, SENTENCE, "--max-tokens", "64")
        assert ("nano was taught at most 5 fields at once" in err) == is_said


def test_what_a_text_has_copied_into_an_answer_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for extra in ([], ["--json"]):
        code, out, _ = run(capsys, *PUZZLES, "--schema", '{"const": "a\x9bb\x7f"}', "a", *extra)
        assert (code, '"a\\u009bb\\u007f"' in out[0]) == (0, True)


def test_a_line_too_long_takes_no_answer_before_it_away(
    capsys: pytest.CaptureFixture[str], piped: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "MOST_READ", 100)
    piped(f"{SENTENCE}\n{'a' * 101}\n{SENTENCE}".encode())
    code, out, err = run(capsys, *PUZZLES, "--schema", SCHEMA, "--instruction", "record", "--many")
    assert (code, out) == (3, ['{"who":"Karomi","qty":417,"item":"melu"}', "null"])
    assert err.endswith("more than any context holds; give less: nothing behind it was read\n")


@pytest.mark.parametrize(
    ("words", "reads"), [([], True), (["--no-read-back"], False), (PUZZLES, False), ([*PUZZLES, "--read-back"], True)]
)
def test_answers_are_read_back_each_behind_its_own_line(
    words: Sequence[str],
    reads: bool,
    capsys: pytest.CaptureFixture[str],
    piped: Callable[[bytes], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By nano, unless it is not wanted; by other models if it is."""
    heard = []

    def spy(engine: Engine, request: Request, done: Generation) -> Opinion:
        heard.append(request.prompt)
        return Opinion(replace(done, text='{"size":"L"}'), (0.0,) * len(done.tokens))

    monkeypatch.setattr(read_back, "second_opinion", spy)
    piped(b"one\n\nthree\n")
    code, out, _ = run(capsys, *words, "--schema", "size S|M", "--steps", "1", "--many", "--instruction", "")
    assert (code, heard) == (3, ["one", "three"] if reads else [])
    assert [line == '{"size":"L"}' for line in out] == [reads, False, reads]
    heard.clear()
    code, out, _ = run(capsys, *words, "--schema", "size S|M", "--steps", "1", "--json", "a text")
    assert (len(heard), '"likely":{"/size":1.0}' in out[0]) == (int(reads), reads)


def test_a_reading_that_fails_takes_no_answer_away(
    capsys: pytest.CaptureFixture[str], piped: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace on a full disk ended the whole of --many, though the answers were there."""

    def fail(*_: object) -> Opinion:
        raise RunError("the trace cannot be written on")

    monkeypatch.setattr(read_back, "second_opinion", fail)
    words = [*PUZZLES, "--schema", SCHEMA, "--instruction", "record", "--read-back"]
    piped(f"{SENTENCE}\n{SENTENCE}\n".encode())
    assert run(capsys, *words, "--many") == (0, 2 * ['{"who":"Karomi","qty":417,"item":"melu"}'], "")
    assert run(capsys, *words, SENTENCE)[:2] == (0, ['{"who":"Karomi","qty":417,"item":"melu"}'])
    monkeypatch.setattr(read_back, "second_opinion", Mock(side_effect=[ValueError("odd"), RunError("full")]))
    piped(f"{SENTENCE}\n{SENTENCE}\n".encode())
    code, out, err = run(capsys, *words, "--many")
    assert (code, out) == (3, ["null", '{"who":"Karomi","qty":417,"item":"melu"}'])
    assert "line 1: the program failed: ValueError: odd" in err


def test_a_trace_has_the_answer_that_was_taken(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had the canvas's alone, where another was printed."""
    likely = iter([(-2.0,), (-1.0,)])

    def answers(asked: ResolvedRequest, read: Generation) -> tuple[float, ...]:
        return next(likely) * (len(read.prompt_logprobs) - len(asked.prompt) + 1)

    monkeypatch.setattr(read_back, "_read", answers)
    trace = tmp_path / "steps.jsonl"
    words = [*PUZZLES, "--schema", SCHEMA, "--instruction", "record", "--read-back", "--trace", str(trace)]
    code, out, _ = run(capsys, *words, SENTENCE)
    assert code == 0
    assert (read_trace(trace).instead or "").replace(" ", "") == out[0]
    for extra in ([], ["--json"]):
        assert main(["watch", str(trace), *extra]) == 0
        reported = capsys.readouterr()
        assert (read_trace(trace).instead or "") in (json.loads(reported.out)["instead"] if extra else reported.err)


def test_a_sentence_is_watched_and_traced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, piped: Callable[[bytes], None]
) -> None:
    """Every step on stderr and in the file; the answer alone on stdout. Of many texts no canvas can be watched."""
    words = [*PUZZLES, "--schema", SCHEMA, "--instruction", "record", "--watch"]
    code, out, err = run(capsys, *words, "--trace", str(tmp_path / "steps.jsonl"), SENTENCE)
    steps = [line for line in err.splitlines() if line.startswith("block 0  step")]
    drafts = (tmp_path / "steps.jsonl").read_text().count('"type":"draft"')
    assert (code, out) == (0, ['{"who":"Karomi","qty":417,"item":"melu"}'])
    assert len(steps) == drafts > 0
    assert out[0] in steps[-1]
    piped(b"a\n")
    assert "--watch and --many" in run(capsys, *words, "--many")[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--schema", "who, who"], "names 'who' twice; leave one out"),
        (["--schema", "size S||L"], "'S||L' has an empty or a repeated text"),
        (["--schema", "a nonsense"], "'a' has type 'nonsense'; types: str"),
        (["--schema", ""], "'' is no field"),
        (["--schema", "name: str, age: itn"], "'age' has type 'itn'"),
        (["--schema", "name: strng"], "did you mean 'string'?"),
        (["--schema", ", ".join(f"{'x' * 300}{i} nonsense" for i in range(2))], "has type 'nonsense'"),
        (["--schema", "a", "--seed", "-1"], "seed is -1"),
        (["--schema", "none.json"], "none.json cannot be read"),
        (["--schema", "{"], "not JSON"),
        (["--schema", '{"type": "nonsense"}'], "is no JSON Schema"),
        (["--schema", '{"type": "objekt"}'], 'schema at #/type is no JSON Schema: "objekt" is no type; types: array,'),
        (["--schema", '{"properties": {"a": {"anyOf": 5}}}'], "anyOf is 5; it must be a JSON list"),
        (["--schema", "a", "--many"], "--many reads its texts from stdin; leave the argument out"),
        (["--schema", "a", "--max-tokens", "1"], "max_tokens leaves 1 tokens and the shortest valid answer has"),
    ],
)
def test_a_mistake_in_the_call_is_reported(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *words, "some text")
    assert (code, out) == (2, [])
    assert said in err
    assert err.count("\n") == 1


def test_a_schema_may_come_from_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """As `<(command)` gives one, which was taken for a field's name."""
    out, into = os.pipe()
    os.write(into, b'{"enum": ["abc"]}')
    os.close(into)
    assert run(capsys, "--schema", f"/dev/fd/{out}", "some text")[:2] == (0, ['"abc"'])
    os.close(out)


def test_the_terse_form_means_what_it_says() -> None:
    """Against a validator that knows nothing of it."""
    schema = read_schema("who, age int?, size S|M|L, tags str[], born date, ok? bool, marks enum a | b[]")
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    right: dict[str, object] = {"who": "x", "size": "M", "tags": ["a"], "born": "2026-01-31", "marks": ["a", "b"]}
    right |= {"age": None, "ok": None}
    assert validator.is_valid(right)
    assert validator.is_valid(right | {"age": 3, "ok": True})
    wrong: list[dict[str, object]] = [{"age": "3"}, {"size": "X"}, {"tags": "a"}, {"born": "31.1."}, {"more": 1}]
    wrong += [{"marks": ["c"]}, {"ok": 1}]
    for changed in wrong:
        assert not validator.is_valid(right | changed)
    for name in right:
        assert not validator.is_valid({key: value for key, value in right.items() if key != name})
    assert read_schema("tags str*") == read_schema("tags str[]") == read_schema("tags[]")
    assert read_schema("name: str, age?: integer, ok: boolean") == read_schema("name, age int?, ok bool")


def test_a_folder_is_no_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a field of that name, unless it ended in .json. A field may be called as a folder here is."""
    (tmp_path / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_schema("notes")["required"] == ["notes"]
    for name in (str(tmp_path / "notes"), "notes/", "./notes"):
        with pytest.raises(RequestError, match="notes cannot be read: Is a directory"):
            read_schema(name)


@given(st.text(max_size=40))
def test_any_text_is_a_schema_or_refused(said: str) -> None:
    try:
        found = read_schema(said)
    except RequestError:
        return
    assert not isinstance(found, dict) or found.get("type") in (None, "object")
