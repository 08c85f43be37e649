"""Input that adversaries found: it took all memory or minutes, lost what was typed, or meant something else."""

from __future__ import annotations

import asyncio
import json
import math
import os
import pickle
import threading
import time
import tracemalloc
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from socket import socketpair
from typing import Any
from unittest.mock import Mock

import pytest
from tests.helpers import beside, nano_copy, python, tiny_checkpoint
from tests.training import SHAPE

from redraft import load
from redraft.__main__ import main
from redraft.cli import eval as eval_verb
from redraft.cli.chat import ChatSession
from redraft.cli.file_lines import read_lines
from redraft.cli.main import build_parser
from redraft.cli.player import lines
from redraft.cli.rows import answer_rows
from redraft.config import GenerationConfig
from redraft.constraints.compile.ecma import IrregularError, _branches, ecma_search
from redraft.constraints.compile.grammar import read_grammar
from redraft.constraints.compile.regex import whole_match
from redraft.constraints.compile.schema import compile_schema
from redraft.constraints.compile.template import read_template
from redraft.constraints.schemas import plain_schema
from redraft.constraints.sources import choices_source
from redraft.constraints.validation import check_readable
from redraft.engine import dial, knee
from redraft.engine.handle import Handle
from redraft.engine.request import Generation, Options, Request
from redraft.errors import (
    ConfigError,
    ConstraintError,
    DeadlineError,
    RecipeError,
    RecordError,
    RedraftError,
    RequestError,
    RunError,
    TextError,
    UnsatisfiedError,
)
from redraft.files import alone, copy_files, is_free
from redraft.measure.evals import compared, evaluate_rows
from redraft.measure.record import read_record
from redraft.operations.decide import read_form
from redraft.operations.questions import Question, decide_questions
from redraft.server.http.errors import ApiError
from redraft.template import ChatTemplate
from redraft.trace.file import TraceFile
from redraft.trace.folder import TraceFolder
from redraft.trace.lines import VERSION, Begun, Drafted, Header, Settled
from redraft.trace.recording import Recording
from redraft.tune.data import Feed, _counts
from redraft.tune.recipe import Recipe, read_recipe
from redraft.tune.sources import RowsSource, parse_row
from redraft.tune.train import LOG, train
from redraft.weights.load import load_model
from redraft.weights.save import save_model

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


def test_lengths_of_many_states_and_groups_in_groups_keep_nobody_waiting() -> None:
    """A thousand passes over 48,000 states were 17 seconds, and each of 240 groups was gone through anew."""
    many = whole_match(r"(\p{L}|\p{N}|_)+ (\p{L}{1,40} ){1,2}")
    began = time.monotonic()
    assert not many.is_within(1000)
    assert time.monotonic() - began < SOON_SEC
    with pytest.raises(IrregularError, match="inside it"):
        ecma_search("(" * 240 + "^a" + "|b" * 20_000 + ")" * 240)
    assert time.monotonic() - began < SOON_SEC


def test_frames_of_a_trace_share_the_text_before_them() -> None:
    """20 MB of a block's text once for each frame behind it took all memory."""
    begun = Begun(index=0, ms=0, seed=0, width=1, max_tokens=9, ends=[1], prompt="", prompt_tokens=1)
    recording, values = Recording(begun), {"entropy": [0.0], "accepted": [True], "forced": []}
    pieces = {"tokens": [5], "pieces": ["a" * 1000], "entropy": [0.0], "settled_at": [1], "changes": [0]}
    recording.take(Settled(index=0, ms=0, block=0, steps=1, settled=True, **pieces))
    for step in (1, 2, 3):
        drafted = {"positions": [0], "tokens": ["x"], "ids": [step]} | values
        recording.take(Drafted(index=0, ms=0, block=1, step=step, width=1, end=None, **drafted))
    assert len({id(frame.pieces) for frame in recording.frames}) == 1
    assert recording.frames[-1].before(2000) == "a" * 1000


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
    assert found.returncode == 2
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


@pytest.fixture
def panicking(tmp_path: Path) -> Path:
    """nano with a tokenizer whose library panics at one text, which is no Exception of Python's."""
    folder = nano_copy(tmp_path / "panicking")
    file = folder / "tokenizer.json"
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pre_tokenizer": split}))
    return folder


def test_a_tokenizer_that_panics_is_an_error_of_the_text(panicking: Path, tmp_path: Path) -> None:
    """It passed every `except Exception`: a batch ended there, and again when it was resumed."""
    engine = load(str(panicking))
    for work in (engine.text.places, lambda text: engine.text.encode(text, bos=False)):
        with pytest.raises(RequestError, match="the tokenizer fails at this text"):
            work("x" * 60)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": text, "max_tokens": 2}) + "\n" for text in ("a", "x" * 60, "b")))
    main(["run", str(rows), str(tmp_path / "out.jsonl"), "--model", str(panicking)])
    found = [json.loads(line)["response"]["status_code"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert found == [200, 400, 200]


@pytest.mark.parametrize("depth", [0, 40])
def test_messages_that_hold_themselves_are_refused(depth: int) -> None:
    """The texts in them were looked for without end; of lists that share their parts there are 2^40."""
    content: list[object] = ["a"]
    for _ in range(depth):
        content = [content, content]
    if not depth:
        content.append(content)
    with pytest.raises(RequestError, match="parts, or hold themselves"):
        load("nano").generate([{"role": "user", "content": content}])


def test_rows_of_eval_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All lines were read before the first was looked at, and blank ones without end."""
    (tmp_path / "rows").write_text("x\n" + "\n" * 20)
    with pytest.raises(RecipeError, match="line 1: not JSON"):
        eval_verb.run(eval_words(tmp_path / "rows"))
    (tmp_path / "rows").write_text("\n" * 20)
    monkeypatch.setattr(eval_verb, "MOST_ROWS", 10)
    with pytest.raises(RequestError, match="has over 10 lines; score its first N rows"):
        eval_verb.run(eval_words(tmp_path / "rows"))


def eval_words(rows: Path) -> Namespace:
    return build_parser().parse_args(["eval", "--file", str(rows)])


def test_of_bad_rows_only_the_first_are_kept(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("x\n" * 5000)
    with pytest.raises(RecipeError, match=r"line 5: not JSON .*; and 995 more bad rows, behind which no more was read"):
        RowsSource(tmp_path / "rows.jsonl", 0)


@pytest.mark.parametrize(
    ("right", "answer", "exact"),
    [
        ('{"a":1}', '{"a":true}', False),
        ("[0]", "[false]", False),
        ("[1]", "[1.0]", True),
        ('{"a":[1]}', '{"a":[1,2]}', False),
    ],
)
def test_true_is_not_one(right: str, answer: str, exact: bool) -> None:
    assert compared(right, answer).exact is exact


@pytest.mark.parametrize("how", ["removed", "cut"])
def test_an_output_that_was_changed_meanwhile_is_said_to_be(how: str, tmp_path: Path) -> None:
    """The rest of the rows went into a file without a name, or behind a hole, and the run said that all was well."""
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text("{}\n" * 3)

    async def answered(row: bytes, number: int) -> tuple[int, dict[str, object]]:
        if how == "removed":
            out.unlink(missing_ok=True)
        elif number:
            os.truncate(out, 0)
        return 200, {}

    with pytest.raises(RunError, match="was removed or changed while it was written"):
        answer_rows(answered, rows, out, at_once=1)


def test_shares_that_add_up_to_infinity_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    files = 'files = { "a" = 1e308, "./a" = 1e308 }'
    path.write_text(f'name = "x"\nstart = "nano"\n[data]\n{files}\n[train]\nsteps = 1\nbatch_size = 1\n')
    with pytest.raises(RecipeError, match="the share of a is 1e\\+308; it must be above 0, at most 1e\\+09"):
        read_recipe(path)


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Of two only the last was looked at for changes."""
    feed = Feed.__new__(Feed)
    feed.base = Mock(digests={})
    one, two = (Named("rows.jsonl", digest) for digest in "ab")
    feed.recipe, feed.sources = read_recipe(Path("recipes/nano.toml").resolve()), [(one, 1.0), (two, 1.0)]
    other = Feed.__new__(Feed)
    other.sources, feed._stage = [(Named("other.jsonl", "c"), 1.0)], lambda step: other
    assert feed.digests(1) == {"rows.jsonl": "a", "rows.jsonl (2)": "b"}
    plain = {"rows.jsonl": "a", "rows.jsonl (2)": "b"}
    by_stage = {f"{name} from step 0": digest for name, digest in plain.items()}
    by_stage |= {f"other.jsonl from step {begins}": "c" for begins in (600, 1500)}
    assert feed.digests(2000) == plain | {"other.jsonl": "c"} | by_stage, "probes are of the first"
    assert [name for name, _ in feed.named()] == ["rows.jsonl", "rows.jsonl (2)"], "by which a probe reports them"


class Named:
    """A source of a name."""

    def __init__(self, name: str, digest: str) -> None:
        self.name, self.digest = name, digest


def test_only_the_end_of_a_long_text_is_shown_before_each_canvas() -> None:
    """A block of 5 MB was printed with each of 400 steps."""
    begun = Begun(index=0, ms=0, seed=0, width=1, max_tokens=9, ends=[1], prompt="", prompt_tokens=1)
    recording, values = Recording(begun), {"entropy": [0.0], "accepted": [True], "forced": []}
    pieces = {"tokens": [5], "pieces": ["a" * 10**5], "entropy": [0.0], "settled_at": [1], "changes": [0]}
    recording.take(Settled(index=0, ms=0, block=0, steps=1, settled=True, **pieces))
    drafted = {"positions": [0], "tokens": ["b"], "ids": [5]} | values
    recording.take(Drafted(index=0, ms=0, block=1, step=1, width=1, end=None, **drafted))
    (last,) = lines([("", recording)])
    assert 1000 < len(last) < 1200
    assert "…a" in last


@pytest.mark.parametrize("pieces", [["a" * 10**7], [*"ab"] * 10**5])
def test_a_step_is_shown_without_a_look_at_all_text_before_it(pieces: list[str]) -> None:
    """It was joined anew for each of 10,000 steps, which took the square of their number."""
    begun = Begun(index=0, ms=0, seed=0, width=1, max_tokens=9, ends=[1], prompt="", prompt_tokens=1)
    recording, values = Recording(begun), {"entropy": [0.0], "accepted": [True], "forced": []}
    for block, piece in enumerate(pieces):
        settled = {"tokens": [5], "pieces": [piece, ""], "entropy": [0.0], "settled_at": [1], "changes": [0]}
        recording.take(Settled(index=0, ms=0, block=block, steps=1, settled=True, **settled))
    drafted = {"positions": [0], "tokens": ["b"], "ids": [5]} | values
    recording.take(Drafted(index=0, ms=0, block=len(pieces), step=1, width=1, end=None, **drafted))
    tracemalloc.start()
    try:
        assert next(lines([("", recording)])).endswith(pieces[-1][-1] + "b")
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()
    assert recording.frames[0].text == "".join(pieces) + "b"


@pytest.mark.parametrize("pattern", ["^[a-z]+$", "a$", "(a+)+$", "^a", r"\Aa\Z"])
def test_anchors_are_refused_with_what_to_do(pattern: str) -> None:
    with pytest.raises(ConstraintError, match=r"leave \^, \$, \\A, \\z and \\Z out"):
        whole_match(pattern)


@pytest.mark.parametrize("pattern", ["[" + r"\a" * 5000, "[" * 100_000, "[^]" * 30_000, "(" * 100_000])
def test_what_is_wrong_with_a_regex_is_found_in_a_moment(pattern: str) -> None:
    """A regular expression that looked for anchors held the server for good."""
    began = time.monotonic()
    with pytest.raises(ConstraintError):
        whole_match(pattern)
    assert time.monotonic() - began < SOON_SEC


@pytest.mark.parametrize(
    ("pattern", "said"), [("(?=a)b", "look-around"), (r"(a)\1", "back reference"), (r"a\b", "border")]
)
def test_what_no_automaton_keeps_is_named(pattern: str, said: str) -> None:
    with pytest.raises(ConstraintError, match=said):
        whole_match(pattern)


def test_a_template_that_nests_too_deep_is_at_fault_itself() -> None:
    with pytest.raises(TextError, match="nests too deep; correct the template"):
        ChatTemplate("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "chat_template.jinja")


def test_what_a_killed_save_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    tiny_checkpoint(tiny := tmp_path / "tiny")
    for name in ("left", "held", "mine"):
        (tmp_path / f".model.saving-{name}").mkdir()
    (tmp_path / ".model.saving-mine" / "thesis.txt").touch()
    for name in ("model.safetensors", ".tmpb4mt3s"):  # the second is the library's half of the first
        (tmp_path / ".model.saving-left" / name).touch()
    with alone(tmp_path / ".model.saving-held", tmp_path):
        save_model(load_model(tiny)[0], tmp_path / "model", generation=GenerationConfig())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".model.saving-held",
        ".model.saving-mine",
        "model",
        "tiny",
    ]


def test_names_that_steer_a_terminal_are_tamed_by_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = nano_copy(tmp_path / "nano")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"\x1b]0;owned\x07": 1}))
    assert main(["inspect", str(folder)]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["ValueError", "GeneratorExit", "SystemExit", "KeyboardInterrupt"])
def test_a_run_that_does_not_begin_takes_nothing_of_others_with_it(kind: str, tmp_path: Path) -> None:
    """It removed the folder that it had made, and all that others had put there meanwhile; or left its own files."""
    (tmp_path / "rows.py").write_text(
        f"import pathlib\ndef rows(split, seed):\n    pathlib.Path({str(tmp_path)!r}, 'runs', 'mine.txt').touch()\n"
        f"    raise {kind}('no')\n"
    )
    path = tmp_path / "recipe.toml"
    data = f'generators = {{ "{tmp_path}/rows.py:rows" = 1.0 }}'
    path.write_text(f'name = "x"\nstart = "nano-sudoku"\n[data]\n{data}\n[train]\nsteps = 1\nbatch_size = 1\n')
    interrupted = kind == "KeyboardInterrupt"
    with pytest.raises(KeyboardInterrupt if interrupted else RecipeError, match="no"):
        train(read_recipe(path), tmp_path / "runs" / "a")
    assert [one.name for one in (tmp_path / "runs").iterdir()] == ["mine.txt"]


def test_a_checkpoint_that_no_run_made_is_not_trained_over(tmp_path: Path) -> None:
    path, folder = tmp_path / "recipe.toml", nano_copy(tmp_path / "nano")
    data = "tasks = { records = 1.0 }"
    path.write_text(f'name = "x"\nstart = "nano-sudoku"\n[data]\n{data}\n[train]\nsteps = 1\nbatch_size = 1\n')
    before = {one.name: one.read_bytes() for one in folder.iterdir()}
    with pytest.raises(RecipeError, match=r"holds .* and no log of a run, which would be lost"):
        train(read_recipe(path), folder)
    assert {one.name: one.read_bytes() for one in folder.iterdir()} == before


def small_recipe(folder: Path, data: str = "tasks = { records = 1.0 }", train: str = "") -> Recipe:
    """A run of two steps."""
    path = folder / "recipe.toml"
    steps = "steps = 2\nbatch_size = 1\nwarmup = 1\nthreads = 1\nprobe_every = 100\nprobe_examples = 1"
    path.write_text(f'name = "x"\n{SHAPE}\n[data]\n{data}\n[train]\n{steps}\n{train}\n')
    return read_recipe(path)


NEEDED = ("model-00001-of-00002.safetensors", "tokenizer.json", "config.json", "generation_config.json", LOG)


@pytest.mark.parametrize("name", [*NEEDED, "adapter/adapter_config.json", "mine.safetensors.index.json"])
def test_a_file_that_a_run_would_write_is_nobody_elses(name: str, tmp_path: Path) -> None:
    """Weights and tokenizers that lay there without a config were written over, and shards removed."""
    mine = tmp_path / "out" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(RecipeError, match=f"out holds {name} and no log of a run, which would be lost; give another"):
        train(small_recipe(tmp_path), tmp_path / "out")
    assert [one for one in (tmp_path / "out").rglob("*") if one.is_file()] == [mine]
    assert mine.read_text() == "mine"
    if name == LOG:  # another program's
        mine.write_text(row := '{"step": 1, "loss": 2.5}\n')
        with pytest.raises(RecipeError, match="and no log of a run"):
            train(small_recipe(tmp_path), tmp_path / "out")
        assert mine.read_text() == row


def test_a_run_goes_on_where_it_was_killed_before_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And begins beside files that are none of its own."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").touch()
    with monkeypatch.context() as patch:
        patch.setattr(Feed, "ahead", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(small_recipe(tmp_path), tmp_path / "out")
    assert {"notes.txt", "tokenizer.json", LOG} <= {one.name for one in (tmp_path / "out").iterdir()}
    train(small_recipe(tmp_path), tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_refused_run_leaves_a_finished_one_as_it_is(tmp_path: Path) -> None:
    """Its tokenizer became that of the other recipe; where its state was removed, its weights did, too."""
    train(small_recipe(tmp_path), out := tmp_path / "out")
    (out / "tokenizer_config.json").write_text((out / "tokenizer_config.json").read_text() + " ")
    before = {one.name: one.read_bytes() for one in out.iterdir()}
    with pytest.raises(RecipeError, match="belongs to another recipe"):
        train(small_recipe(tmp_path, train="lr = 0.5"), out)
    (out / "training-state.pt").rename(tmp_path / "training-state.pt")
    with pytest.raises(RecipeError, match=r"out holds a finished model and no training-state\.pt, .* give another"):
        train(small_recipe(tmp_path, train="lr = 0.5"), out)
    (tmp_path / "training-state.pt").rename(out / "training-state.pt")
    assert {one.name: one.read_bytes() for one in out.iterdir()} == before


def test_a_process_for_samples_that_is_killed_is_named(tmp_path: Path) -> None:
    """It was an internal error; memory is what such a process runs out of."""
    (tmp_path / "rows.py").write_text(
        "import multiprocessing, os\ndef rows(split, seed):\n    if multiprocessing.parent_process():\n"
        '        os.kill(os.getpid(), 9)\n    return iter([{"prompt": "a", "response": "b"}] * 99)\n'
    )
    recipe = small_recipe(tmp_path, f'generators = {{ "{tmp_path}/rows.py:rows" = 1.0 }}', "workers = 1")
    with pytest.raises(RunError, match=r"prepares samples was killed, .* lower \[train\] workers or batch_size"):
        train(recipe, tmp_path / "out")


def test_such_a_kill_while_the_state_is_written_is_no_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.save", Mock(side_effect=RuntimeError("DataLoader worker (pid 1) is killed by signal")))
    with pytest.raises(RunError, match="prepares samples was killed"):
        train(small_recipe(tmp_path), tmp_path / "out")


def test_a_fork_does_not_hold_what_its_parent_locked(tmp_path: Path) -> None:
    """The processes that prepare samples kept the folder of a killed run for seconds."""
    mine, its = socketpair()
    with alone(tmp_path, tmp_path):
        if not (child := os.fork()):
            its.send(b"it runs")
            its.recv(1)
            os._exit(0)
        mine.recv(7)
        assert not is_free(tmp_path)
    free = is_free(tmp_path)
    mine.send(b"x")
    os.waitpid(child, 0)
    mine.close()
    its.close()
    assert free


def test_a_file_is_copied_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk cut the tokenizer of a finished checkpoint, and what was linked from elsewhere was written over."""
    source, target, elsewhere = tmp_path / "source", tmp_path / "target", tmp_path / "elsewhere"
    for folder, said in ((source, "new"), (target, "old"), (elsewhere, "mine")):
        folder.mkdir()
        (folder / "a").write_text(said)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", Mock(side_effect=OSError(28, "No space left")))
        with pytest.raises(OSError, match="No space"):
            copy_files(["a"], source, target)
        (target / "b").write_text("same")
        (source / "b").write_text("same")
        copy_files(["b"], source, target)
    assert (target / "a").read_text() == "old"
    (target / "a").unlink()
    (target / "a").symlink_to(elsewhere / "a")
    copy_files(["a", "none"], source, target)
    assert ((target / "a").read_text(), (elsewhere / "a").read_text()) == ("new", "mine")


@pytest.mark.parametrize(("number", "size"), [(5, 8), (6, 9), (7, 3), (2, 3)])
def test_every_source_gets_its_share_in_the_long_run(number: int, size: int) -> None:
    """The last of equal sources was never drawn, or less than never."""
    found = [_counts(size, [1.0] * number, seed) for seed in range(4000)]
    assert {sum(counts) for counts in found} == {size}
    assert {count for counts in found for count in counts} == {size // number, size // number + 1}
    assert [sum(counts) / 4000 for counts in zip(*found, strict=True)] == pytest.approx(
        [size / number] * number, rel=0.1
    )
    assert found[:9] == [_counts(size, [1.0] * number, seed) for seed in range(9)]


@pytest.mark.parametrize(
    ("size", "shares", "wanted"),
    [
        (1, [1, 1], [0.5, 0.5]),
        (4, [9, 1], [3.6, 0.4]),
        (4, [1, 1, 14], [0.25, 0.25, 3.5]),
        (4, [7, 1, 1, 1], [2.8, 0.4, 0.4, 0.4]),
        (32, [0.01, 0.99], [0.32, 31.68]),
        (1, [2], [1.0]),
    ],
)
def test_a_source_of_less_than_half_a_sample_a_step_gets_its_share(
    size: int, shares: list[float], wanted: list[float]
) -> None:
    """It was drawn at no step."""
    found = [_counts(size, shares, seed) for seed in range(4000)]
    assert {sum(counts) for counts in found} == {size}
    assert [sum(counts) / 4000 for counts in zip(*found, strict=True)] == pytest.approx(wanted, rel=0.1)
    assert found[:9] == [_counts(size, shares, seed) for seed in range(9)]


@pytest.mark.parametrize(
    ("size", "shares", "counts"),
    [
        (5, [2, 3], [2, 3]),
        (4, [0.4, 0.6], [2, 2]),
        (32, [0.72, 0.04, 0.04, 0.2], [23, 1, 1, 7]),
        (6, [3.5, 2.5], [4, 2]),
    ],
)
def test_shares_that_were_rounded_well_are_rounded_as_ever(size: int, shares: list[float], counts: list[int]) -> None:
    """A run that has begun goes on with the same samples."""
    assert all(_counts(size, shares, seed) == counts for seed in range(20))


def test_a_run_does_not_write_into_its_own_rows(tmp_path: Path) -> None:
    (rows := tmp_path / "rows.jsonl").write_text('{"id": "batch_req_1", "prompt": "mine')
    (tmp_path / "link.jsonl").hardlink_to(rows)
    for out in (rows, tmp_path / "link.jsonl"):
        with pytest.raises(RequestError, match="is not a regular file beside the rows, which resuming needs; name one"):
            answer_rows(Mock(), rows, out, at_once=1)
    assert rows.read_text() == '{"id": "batch_req_1", "prompt": "mine'


def test_a_folder_of_traces_may_hold_other_files_of_such_names(tmp_path: Path) -> None:
    """Shards of rows are named alike: they were removed as old traces."""
    head = Header(trace=VERSION, redraft="0", command="serve", model="nano", taken="", options={})
    for number in (1, 2):
        (tmp_path / f"0000000{number}.jsonl").write_text('{"prompt": "mine"}\n')
    shelf = TraceFolder(tmp_path, head, 1, 10, print)
    for _ in range(3):
        shelf.begin().close()
    (tmp_path / "00000005.jsonl").write_text("mine, since it began")
    shelf.begin().close()
    shelf.close()
    names = ["00000001.jsonl", "00000002.jsonl", "00000005.jsonl", "00000006.jsonl"]
    assert sorted(one.name for one in tmp_path.iterdir()) == names


def test_traces_are_numbered_behind_ours_alone_and_over_no_file(tmp_path: Path) -> None:
    """Behind a stranger's 99999999 came nine digits, which a second run did not see and wrote over."""
    head = Header(trace=VERSION, redraft="0", command="serve", model="nano", taken="", options={})
    (tmp_path / "99999999.jsonl").write_text("mine")
    (tmp_path / "00000001.jsonl").symlink_to(tmp_path / "absent")
    for _ in range(3):
        shelf = TraceFolder(tmp_path, head, 3, 10**6, print)
        (tmp_path / "100000001.jsonl").write_text("mine, since it began")
        shelf.begin().close()
        shelf.close()
        TraceFile(tmp_path / "100000000.jsonl", head).close()
    names = {"00000001", "99999999", *(f"10000000{last}" for last in "0123")}
    assert {path.stem for path in tmp_path.iterdir()} == names, "00000002 was the oldest"


def test_saving_removes_no_weights_but_an_earlier_saves(tmp_path: Path) -> None:
    tiny_checkpoint(tiny := tmp_path / "tiny")
    for name in ("model-mine.safetensors", "model-00001-of-00002.safetensors"):
        (tiny / name).touch()
    (tiny / "model-00001-of-00002.safetensors").unlink()
    save_model(load_model(tiny)[0], tiny, generation=GenerationConfig())
    assert (tiny / "model-mine.safetensors").exists()


@pytest.mark.parametrize("deep", [10**5])
def test_files_that_nest_too_deep_are_damaged_ones(deep: int, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("[" * deep)
    with pytest.raises(RecordError, match="is not a benchmark record"):
        read_record(path)
    with pytest.raises(ValueError, match="nests too deep"):
        knee._read(path)
    with pytest.raises(RequestError, match="is no table of settings"):
        dial._read(path, 0, "")


def test_a_long_class_of_a_pattern_takes_as_long_as_it_is_long() -> None:
    began = time.monotonic()
    _branches("[" + "a-" * 31_000 + "]")
    assert time.monotonic() - began < SOON_SEC


@pytest.mark.parametrize("pattern", ["|".join([r"\w"] * 4000), "|".join([r"\w{20}"] * 2000), "(?i)" + r"\pL" * 9000])
def test_a_long_pattern_is_read_by_a_process_of_its_own(pattern: str) -> None:
    """The library held Python's lock for as long as it read it: nobody was answered, and no signal ended that."""
    gaps, last, stop = list[float](), [time.monotonic()], threading.Event()

    def tick() -> None:
        while not stop.wait(0.01):
            gaps.append(time.monotonic() - last[0])
            last[0] = time.monotonic()

    with beside(tick):
        with suppress(ConstraintError):
            check_readable({"type": "integer", "pattern": pattern})
        stop.set()
    assert max(gaps) < 1.0


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("a{{x|y}}b", ["a", ["x", "y"], "b"]),
        ("{{a", ["{{a"]),
        ("{{{a}}}", ["", ["{a"], "}"]),
        ("}}{{|}}", ["}}", ["", ""], ""]),
    ],
)
def test_forms_are_cut_at_their_slots(text: str, form: list[object]) -> None:
    assert read_form(text) == form


@pytest.mark.parametrize("turns", [False, True])
def test_an_answer_may_be_read_again(turns: bool) -> None:
    """A second reader waited for ever, or turned a loop that had nothing to do."""
    engine = load("nano-sudoku")
    if turns:
        engine.loop.start()
    handle = engine.submit(Request("sudoku", Options(max_tokens=2, seed=1)))
    first = handle.result()
    assert handle.result() == first
    assert [event.reason for event in handle.events()] == ["length"]
    handle = engine.submit(Request("sudoku", Options(max_tokens=2, seed=1)))
    assert [event.reason for event in list(handle.events())[-1:]] == ["length"]
    assert handle.result().tokens == first.tokens, "its events were read"
    late = Options(seed=1, deadline_sec=1e-9)
    handle = engine.submit(Request("sudoku", late, constraint=engine.language(choices_source(["yes", "no"]))))
    for _ in range(2):
        with pytest.raises(DeadlineError):
            handle.result()
    if turns:
        found, handle = [], engine.submit(Request("sudoku", Options(max_tokens=2, seed=1)))
        readers = [threading.Thread(target=lambda: found.append(handle.result().text), daemon=True) for _ in range(3)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(60)
        assert found == [first.text] * 3
        handle = engine.submit(Request("sudoku", Options(max_tokens=2, seed=1)))
        assert asyncio.run(twice(handle)) == [first.text] * 2
    for interrupt, kept in ((KeyboardInterrupt, RunError), (ValueError, ValueError)):
        handle = engine.submit(Request("sudoku", Options(max_tokens=2, seed=1)))
        handle.answer._check_read = Mock(side_effect=interrupt)  # type: ignore[method-assign]  # raised within the check
        with pytest.raises(interrupt):
            handle.result()
        with pytest.raises(kept):
            handle.result()
    engine.loop.stop()


async def twice(handle: Handle) -> list[str]:
    return [found.text for found in await asyncio.gather(handle.aresult(), handle.aresult())]


def test_whoever_reads_the_end_while_it_is_checked_has_the_verdict(engine: Engine) -> None:
    """It had the answer as if it were valid: the first reader was still asking the validator."""
    schema = {
        "type": "array",
        "items": {"type": "integer", "minimum": 1, "maximum": 3},
        "minItems": 3,
        "maxItems": 3,
        "uniqueItems": True,
    }
    request = Request("x", Options(seed=3, max_tokens=30), schema=schema)
    with pytest.raises(UnsatisfiedError):
        engine.run(request)

    async def read_twice() -> list[Any]:
        handle = engine.submit(request)
        return await asyncio.gather(handle.aresult(), handle.aresult(), return_exceptions=True)

    async def read_again() -> list[Any]:
        handle = engine.submit(request)
        first = asyncio.create_task(handle.aresult())
        while not handle.answer.blocks:
            await asyncio.sleep(0.001)
        first.cancel()
        await asyncio.wait([first])
        return await asyncio.gather(handle.aresult(), return_exceptions=True)

    for _ in range(5):
        assert [*map(type, asyncio.run(read_twice()))] == [UnsatisfiedError] * 2
        assert not any(isinstance(found, Generation) and found.finish == "stop" for found in asyncio.run(read_again()))
    engine.loop.stop()


def test_every_error_travels_between_processes() -> None:
    """One that could not be made anew had a pool of processes wait for ever."""
    errors: list[Exception] = [UnsatisfiedError("text", ["reason"]), ApiError(503, "busy", code="full", retry_sec=2)]
    errors += [kind("said") for kind in every(RedraftError) if kind is not UnsatisfiedError]
    assert len(errors) > 9
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
        assert vars(again) == vars(error)


def every(kind: type[RedraftError]) -> list[type[RedraftError]]:
    return [kind, *(other for each in kind.__subclasses__() for other in every(each))]


@pytest.mark.parametrize(
    "schema", [{"const": float("nan")}, {"enum": [[float("inf")]]}, '{"const": NaN}', b'{"enum": [[1e999]]}']
)
def test_a_schema_with_what_is_no_number_of_json_is_refused(schema: Any) -> None:
    with pytest.raises(ConstraintError, match="not JSON"):
        plain_schema(schema)


def test_what_is_no_text_is_not_extracted_from() -> None:
    """A forgotten field of a row, None, became data: its name was read."""
    engine = load("nano-sudoku")
    for text in (None, 5, b"x", ["a"]):
        with pytest.raises(RequestError, match="must be a string"):
            engine.extract(text, "who")  # type: ignore[arg-type]  # as a program without types does
    with pytest.raises(RequestError, match="one text"):
        next(engine.map("ab"))
    with pytest.raises(RequestError, match="one text"):
        engine.extract_many("ab", "who")
    for wrong in (0, math.nan, 1.5, True, "2"):  # of NaN texts at once none was asked, and no error was raised
        with pytest.raises(RequestError, match="at_once is "):
            engine.extract_many(["ab"], "who", at_once=wrong)  # type: ignore[arg-type]  # as a program without types does
    with pytest.raises(ConstraintError):
        engine.extract_many(["ab"], {"type": "objekt"})


def test_a_text_of_which_no_part_can_be_said_leaves_strings_free() -> None:
    """Control characters have no short form, so the schema was called contradictory."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 3}}, "required": ["a"]}
    held = compile_schema(schema | {"additionalProperties": False}, verbatim="a\x01b").dfa
    assert held.matches(b'{"a":"xyz"}')
    assert not compile_schema(schema | {"additionalProperties": False}, verbatim="a-b").dfa.matches(b'{"a":"xyz"}')


def test_a_hole_may_be_named_in_other_letters() -> None:
    """A name in Chinese was text around no hole."""
    template = read_template("{{姓名: string(1..9)}}, {{größe: int}}")
    assert [hole.name for hole in template.holes] == ["姓名", "größe"]
