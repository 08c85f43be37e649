"""Input that adversaries found: it took all memory or minutes, lost what was typed, or meant something else."""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from pathlib import Path

import pytest
from tests.helpers import nano_copy, python

from redraft import load
from redraft.__main__ import main
from redraft.cli.chat import ChatSession
from redraft.cli.file_lines import read_lines
from redraft.config import GenerationConfig
from redraft.constraints.compile.grammar import read_grammar
from redraft.constraints.compile.regex import whole_match
from redraft.constraints.compile.template import read_template
from redraft.engine.request import Options
from redraft.errors import ConfigError, ConstraintError, RecipeError, RequestError
from redraft.measure.evals import evaluate_rows
from redraft.operations.questions import Question, decide_questions
from redraft.trace.lines import Begun, Drafted, Settled
from redraft.trace.recording import Recording
from redraft.tune.recipe import read_recipe
from redraft.tune.sources import parse_row

SOON_SEC = 5.0
"""Each of these took from fifteen seconds to minutes."""


def test_a_template_takes_as_long_as_it_is_long() -> None:
    """Of spaces in a kind that there is not, and behind two brackets that are no hole."""
    began, spaces = time.monotonic(), " " * 100_000
    with pytest.raises(ConstraintError, match="hole 'a'"):
        read_template("x {{a: int" + spaces + "y}} z {{b: int}}")
    assert [hole.name for hole in read_template("x {{a" + spaces + "y }} z {{b: int}}").holes] == ["b"]
    assert time.monotonic() - began < SOON_SEC


def test_kinds_of_holes_go_up_to_the_first_end_and_lose_the_space_around_them() -> None:
    found = read_template("{{ a : int }}, {{b:regex(x{2})}}; {{ c: enum(p|q)\n}}")
    assert [hole.name for hole in found.holes] == ["a", "b", "c"]
    with pytest.raises(ConstraintError, match=r"hole '\{\{a: int \{\{b' in line 2"):
        read_template("\n{{a: int {{b: int}}")


def test_a_grammar_takes_as_long_as_it_is_long_and_names_lines_all_the_same() -> None:
    began = time.monotonic()
    read_grammar('start: "a"\n' + "".join(f'r{i}: "b"\n' for i in range(30_000)))
    assert time.monotonic() - began < SOON_SEC
    with pytest.raises(ConstraintError, match="line 3: '%"):
        read_grammar('start: "a"\n\n%')


@pytest.mark.parametrize("pattern", ["a)|(b", "a)?(b", "[)]a)(b", r"\(a)(b"])
def test_a_regex_that_closes_what_it_has_not_opened_is_no_other_regex(pattern: str) -> None:
    """It closed the group that is put around it, and stood for another language."""
    with pytest.raises(ConstraintError, match="a group that it has not opened"):
        whole_match(pattern)


@pytest.mark.parametrize(("pattern", "text"), [(r"\)", ")"), ("[)(]", ")"), ("[^])]", "a"), ("(a(b)[]()])", "ab)")])
def test_brackets_that_are_characters_close_nothing(pattern: str, text: str) -> None:
    dfa = whole_match(pattern)
    assert dfa.accepts[dfa.step(0, text.encode())]


def test_anchors_are_refused_with_what_to_do() -> None:
    with pytest.raises(ConstraintError, match=r"leave \^, \$, \\A and \\z out"):
        whole_match("^[a-z]+$")


def test_frames_of_a_trace_share_the_text_before_them() -> None:
    """20 MB of a block's text once for each frame behind it took all memory."""
    begun = Begun(index=0, ms=0, seed=0, width=1, max_tokens=9, ends=[1], prompt="", prompt_tokens=1)
    recording, values = Recording(begun), {"entropy": [0.0], "accepted": [True], "forced": []}
    pieces = {"tokens": [5], "pieces": ["a" * 1000], "entropy": [0.0], "settled_at": [1], "changes": [0]}
    recording.take(Settled(index=0, ms=0, block=0, steps=1, settled=True, **pieces))
    for step in (1, 2, 3):
        drafted = {"positions": [0], "tokens": ["x"], "ids": [step]} | values
        recording.take(Drafted(index=0, ms=0, block=1, step=step, width=1, end=None, **drafted))
    assert len({id(frame.before) for frame in recording.frames}) == 1


def test_a_conversation_is_saved_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = ChatSession((), ({"role": "user", "content": "hi"},), Options())
    there = tmp_path / "there.json"
    there.write_text("mine")
    with pytest.raises(RequestError, match="File exists; name another file"):
        talk.after("/save", str(there))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RequestError, match="No space left"):
        talk.after("/save", str(tmp_path / "new.json"))
    monkeypatch.undo()
    assert not (tmp_path / "new.json").exists()
    talk.after("/save", str(tmp_path / "new.json"))
    assert json.loads((tmp_path / "new.json").read_text())[0]["content"] == "hi"
    assert there.read_text() == "mine"


def test_a_pipe_is_not_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RequestError, match="no regular file, which --write could replace"):
        read_lines(f"{tmp_path / 'pipe'}:2", to_write=True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[sampling]\nmax_denoising_steps = 1000000000000", "max_denoising_steps is 1000000000000; it must be from 1"),
        ("[sampling]\nentropy_bound = inf", "entropy_bound is inf"),
        ("[sampling]\nconfidence_threshold = inf", "confidence_threshold is inf"),
        ("[objective]\ndraws = 1000000000", r"\[objective\] draws is 1000000000; it must be from 1 to 1024"),
        ("[objective]\ndraws = 0x" + "f" * 5000, "draws is 0xf"),
        ("[objective]\ndraws = " + "9" * 5000, "recipe.toml"),
    ],
)
def test_numbers_that_no_run_can_have_are_refused_by_name(line: str, said: str, tmp_path: Path) -> None:
    """The first had a probe go on for ever; the second made a checkpoint that nothing could read."""
    path = tmp_path / "recipe.toml"
    path.write_text(
        f'name = "x"\nstart = "nano"\n[data]\ntasks = {{ records = 1.0 }}\n[train]\nsteps = 1\nbatch_size = 1\n{line}'
    )
    with pytest.raises(RecipeError, match=said):
        read_recipe(path)


def test_a_checkpoints_own_settings_have_bounds() -> None:
    with pytest.raises(ConfigError, match="max_denoising_steps is 10001; it must be from 1 to 10000"):
        GenerationConfig(max_denoising_steps=10_001)


@pytest.mark.parametrize("row", [{"prompt": "\ud800", "response": "b"}, {"prompt": "a", "response": "\ud800"}])
def test_a_row_with_half_a_character_is_refused_before_any_step(row: dict[str, str]) -> None:
    with pytest.raises(RecipeError, match="rows, line 7: a text has an unpaired surrogate"):
        parse_row(json.dumps(row).encode(), "rows, line 7")


def test_a_row_that_cannot_be_asked_is_named_before_any_is_answered() -> None:
    """It took with it what had been answered."""
    rows = [[{"role": "user", "content": text}, {"role": "assistant", "content": "y"}] for text in ("a", "x " * 9000)]
    with pytest.raises(RequestError, match=r"row 2: the (text|prompt) has"):
        evaluate_rows(load("nano"), "rows", rows, progress=lambda *_: pytest.fail("a row was answered"))


def test_an_output_in_another_encoding_is_named() -> None:
    """A text that it cannot hold was said not to be UTF-8."""
    code = "import sys; from redraft.__main__ import main; sys.exit(main())"
    found = python(code, "generate", "--chat", "--choice", "é", "hi", PYTHONIOENCODING="ascii")
    assert found.returncode == 1
    assert found.stderr.startswith("redraft: the output's encoding, ascii, has no ")


def test_an_answer_that_was_cut_by_its_deadline_is_not_called_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--chat", "--deadline", "1e-6", "x"]) == 0
    assert "as the time was up; --deadline allows for more" in capsys.readouterr().err


def test_a_grammar_may_have_the_line_ends_of_windows() -> None:
    assert read_grammar('start: "a" | b\r\n\r\nb: "c" // more\r\n') == read_grammar('start: "a" | b\n\nb: "c"\n')


def test_doctor_goes_on_behind_a_link_to_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = nano_copy(tmp_path / "nano")
    (folder / "more.safetensors").symlink_to(tmp_path / "nothing")
    assert main(["doctor", "--model", str(folder), "--port", "0"]) == 1
    assert "port: 0 is free" in capsys.readouterr().out


def test_questions_on_one_canvas_let_others_go_first_between_them() -> None:
    """Their choices were encoded three times each without a pause: 3 seconds of another client's."""
    calls = list[int]()
    questions = [Question(f"Which {i}?", ["yes", "no"]) for i in range(8)]
    engine = load("nano-sudoku")
    decide_questions(engine, lambda said: [{"role": "user", "content": said}], questions, check=lambda: calls.append(0))
    assert len(calls) >= 3 * 8


@pytest.mark.parametrize(("flag", "value"), [("batch", 10**9), ("context", 2**41)])
def test_a_ledger_of_more_requests_than_there_can_be_is_refused(flag: str, value: int) -> None:
    from redraft.cli import inspect as command

    given = Namespace(model="nano", memory=[1.0], plan=None, constrained=False, device="cpu", json=True)
    given = Namespace(
        **vars(given) | {"context": None, "batch": None, "no_graphs": False, "dtype": "auto", flag: value}
    )
    with pytest.raises(RequestError, match=f"--{flag} is {value}; it must be from 1 to"):
        command.run(given)
