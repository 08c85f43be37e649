"""The commands as their callers see them: what goes to stdout, what to stderr, and the exit code."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from rich.console import Console
from tests.helpers import PROMPT, ROOT, Shell, edit_tensors, nano_copy, python, released_json

import redraft.cli.display
from redraft.__main__ import main
from redraft.cli import demo
from redraft.cli.flags import BACKEND, MODEL, PACKING, SAMPLING, TOPICS
from redraft.cli.main import build_parser
from redraft.errors import CallerError, RedraftError, UnsatisfiedError
from redraft.tasks import task

COMMANDS = (
    *("demo", "generate", "json", "chat", "decide", "infill", "fill", "edit", "watch"),
    *("serve", "run", "connect", "doctor"),
    *("eval", "inspect", "verify", "bench", "tune", "quantize", "pull", "help"),
)

Captured = pytest.CaptureFixture[str]


def process(*words: str, stdin: bytes = b"", **options: Any) -> subprocess.CompletedProcess[bytes]:
    """A real process, as a shell would start it."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(command, input=stdin, env=environment, timeout=120, check=False, **streams)


def set_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))


def refused(capsys: Captured, *words: str, code: int = 2) -> str:
    """Run, and check that the error is what every error must be: nothing on stdout, one line on stderr, a code."""
    capsys.readouterr()
    assert main(list(words)) == code
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("redraft: "), err
    assert "Traceback" not in err
    assert "internal error" not in line or code == 1, line
    return line


# -- help --------------------------------------------------------------------------------------------------------------


def helped(capsys: Captured, *words: str) -> str:
    with pytest.raises(SystemExit) as leaving:
        main([*words, "--help"])
    assert leaving.value.code == 0
    return capsys.readouterr().out


def test_help_lists_every_command(capsys: Captured) -> None:
    printed = helped(capsys)
    assert [name for name in COMMANDS if f"\n    {name} " not in printed] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_and_its_flags(capsys: Captured, name: str) -> None:
    printed = helped(capsys, name)
    assert printed.startswith(f"usage: redraft {name}")
    flags = set(re.findall(r"^  (--[a-z-]+)(?: [A-Z]+)?(?:\n| {2,})", printed, re.MULTILINE))
    assert {"--json", "--debug"} <= flags


def test_the_help_of_generate_fits_a_page(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """It had 96 lines, most of them flags that few ever set."""
    monkeypatch.setenv("COLUMNS", "80")
    assert len(helped(capsys, "generate").splitlines()) < 60


def test_a_topic_has_every_flag_that_a_verb_does_not_show(shell: Shell) -> None:
    for topic in TOPICS:
        printed = shell(["help", topic]).out
        group = {"sampling": SAMPLING, "model": (*MODEL, *PACKING), "backend": BACKEND}[topic]
        assert [flag.name for flag in group if f"\n  {flag.name}" not in printed] == []


def test_help_of_a_verb_is_its_own_help(capsys: Captured, shell: Shell) -> None:
    assert shell(["help", "infill"]).out == helped(capsys, "infill")
    assert "verbs:" in shell(["help"]).out
    assert "there is no help on 'smapling'" in refused(capsys, "help", "smapling")


@pytest.mark.parametrize("verb", ["inspect", "verify", "serve", "quantize --plan int8 --out x", "pull"])
def test_a_model_may_be_named_by_its_flag_or_in_its_place(verb: str) -> None:
    words = verb.split()
    for model in (["some/model"], ["--model", "some/model"]):
        assert build_parser().parse_args([*words, *model]).model == "some/model"


def test_no_flag_is_without_a_word_of_help() -> None:
    (commands,) = (action for action in build_parser()._actions if action.dest == "==SUPPRESS==" or action.choices)
    assert set(commands.choices) == set(COMMANDS)
    silent = [(name, a.dest) for name, one in commands.choices.items() for a in one._actions if not a.help]
    assert silent == []


def imported(*words: str) -> set[str]:
    """The packages beside Python's own that a command of these words imports."""
    look = f"""
import atexit, sys
before = {{*sys.modules}}
atexit.register(lambda: print(*{{name.partition(".")[0] for name in {{*sys.modules}} - before}}, file=sys.stderr))
from redraft.__main__ import main
sys.exit(main({words!r}))
"""
    done = process("-c", look)
    assert done.returncode == 0, done.stderr
    return {*done.stderr.decode().splitlines()[-1].split()} - sys.stdlib_module_names


def test_help_imports_nothing_and_an_answer_what_it_needs() -> None:
    """Imports are nearly all of the time until either is there: torch at the top of a module costs every call a second.

    The time itself is the machine's, and `bench/startup.py` measures it.
    """
    assert imported("--help") == {"redraft"}
    slow = {"transformers", "huggingface_hub", "pydantic", "fastapi", "uvicorn", "httpx2", "outlines_core", "scipy"}
    found = imported("generate", "--chat", PROMPT, "--seed", "1", "--threads", "1")
    assert {"torch", "redraft"} <= found
    assert not found & slow


# -- every error is one line and a code --------------------------------------------------------------------------------


def all_errors(base: type[RedraftError] = RedraftError) -> Iterator[type[RedraftError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from all_errors(kind)


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> list[str]:
    """The words of a command that fails with this error."""
    monkeypatch.setattr("redraft.config.read_config", Mock(side_effect=error))
    return ["inspect", "nano"]


@pytest.mark.parametrize("kind", sorted(set(all_errors()) - {UnsatisfiedError}, key=str))
def test_the_exit_code_says_whose_fault_it_is(
    kind: type[RedraftError], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    words = failing(monkeypatch, kind("this is\nwrong"))
    wanted = 2 if issubclass(kind, CallerError) else 1
    assert refused(capsys, *words, code=wanted) == "redraft: this is wrong"
    with pytest.raises(kind):
        main([*words, "--debug"])


def test_an_answer_that_passes_no_check_is_our_failure(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    words = failing(monkeypatch, UnsatisfiedError("the attempt", ["too long", "no\nverb"]))
    assert "(too long; no verb)" in refused(capsys, *words, code=1)


@pytest.mark.parametrize("error", [KeyError("a"), ValueError("two\nlines"), RuntimeError(), OSError("odd"), OSError()])
def test_an_error_nobody_expected_is_one_line_too(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    words = failing(monkeypatch, error)
    assert "--debug" in refused(capsys, *words, code=1)
    with pytest.raises(type(error)):
        main([*words, "--debug"])


def test_an_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    words = failing(monkeypatch, KeyboardInterrupt())
    assert refused(capsys, *words, code=130) == "redraft: interrupted"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.setattr(sys, "argv", ["redraft", *words])
    try:
        assert main() == 130
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL, "another one prints no traceback"
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert "interrupted" in capsys.readouterr().err
    monkeypatch.setattr("redraft.cli.main.build_parser", Mock(side_effect=KeyboardInterrupt))
    assert refused(capsys, "demo", code=130) == "redraft: interrupted"  # while the verbs are imported


def test_threads_that_wait_give_up_their_core() -> None:
    """Beside a busy program nano took fifty times as long: a thread span on the core of the one that it waited for."""
    look = "import os, sys, redraft; print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))"
    assert python(look).stdout == "False 2000\n"
    assert python(look, GOMP_SPINCOUNT="7").stdout == "False 7\n"


def test_results_are_not_lost_where_output_is_closed() -> None:
    words = f"{sys.executable} -m redraft --version >&-"
    done = subprocess.run(words, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "standard output is closed" in done.stderr


def test_a_folder_that_was_removed_is_said(tmp_path: Path) -> None:
    """torch's libraries ended the process with lines of their own."""
    words = f"cd {tmp_path} && mkdir a && cd a && rmdir ../a && {sys.executable} -m redraft generate hi"
    done = subprocess.run(words, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "redraft: the current folder was removed; cd to one that exists\n")


def test_notes_do_not_stand_among_results_where_stderr_is_closed() -> None:
    words = f"{sys.executable} -m redraft generate --seed 1 --max-tokens 1 --steps 1 --preset nothing 2>&-"
    done = subprocess.run(words, shell=True, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")


def test_what_a_file_says_does_not_steer_the_terminal(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "schema.json").write_text('{"type": "\\u001b[31mE\\u009b"}')
    line = refused(capsys, "json", "--schema", str(tmp_path / "schema.json"), "text")
    assert not {"\x1b", "\x9b"} & {*line}


def test_a_word_that_is_no_text_is_one_line(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    words = failing(monkeypatch, UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "no"))
    assert "is not UTF-8 text; write it in UTF-8" in refused(capsys, *words)


def test_a_reader_that_goes_away_is_not_an_error_to_shout_about() -> None:
    """What print had buffered was written at exit, where Python reports a broken pipe with a traceback of its own."""
    reader, writer = os.pipe()
    os.close(reader)
    done = process("-m", "redraft", "inspect", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        done = process("-m", "redraft", "inspect", stdout=full)
    assert done.returncode == 1
    assert done.stderr == b"redraft: the output: No space left on device; make room and run it again\n"


# -- prompts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"caf\xe9", "stdin is not UTF-8 (byte 3 is 0xe9)"), (b"", "stdin is empty"), (b" \n\t", "stdin is empty")],
)
@pytest.mark.parametrize("argument", [[], ["-"]])
def test_a_bad_stdin_is_refused(
    argument: list[str], content: bytes, words: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    set_stdin(monkeypatch, content)
    assert words in refused(capsys, "generate", *argument)


@pytest.mark.parametrize("words", [["--file", "/dev/zero"], ["--grammar", "/dev/zero", "x"]])
def test_a_file_without_end_is_refused(words: list[str], capsys: Captured) -> None:
    """It was read until memory ended."""
    assert "/dev/zero has over 67108864 bytes" in refused(capsys, "generate", *words)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["chat"], "the turn"),
        (["eval", "--file", "/dev/zero"], "line 1 of --file /dev/zero"),
    ],
)
def test_a_line_without_end_is_refused(
    words: list[str], name: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """It was read until memory ended, 24 GB of it."""
    with Path("/dev/zero").open(encoding="utf-8") as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        assert f"{name} has over 67108864 bytes, more than any context holds" in refused(capsys, *words)


def test_rows_without_end_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path) -> None:
    row = json.dumps({"prompt": "record\n", "response": "x"}) + "\n"
    (tmp_path / "rows").write_text(row * 9)
    monkeypatch.setattr("redraft.cli.eval.MOST_ROWS_BYTES", 5 * len(row))
    words = ["eval", "--model", "nano-sudoku", "--file", str(tmp_path / "rows")]
    assert f"has over {5 * len(row)} bytes; score its first N rows by --count N" in refused(capsys, *words)
    assert main([*words, "--count", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["count"] == 2


def test_a_terminal_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    set_stdin(monkeypatch, b"")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert "no prompt" in refused(capsys, "generate")
    monkeypatch.setattr(sys, "stdin", None)  # as `<&-` leaves it
    assert "no prompt" in refused(capsys, "generate")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["generate", ""], "the prompt is empty"),
        (["generate", "hi", "--threads", "100000"], "--threads is 100000; it must be from 1 to 1024"),
        (["generate", "hi", "--model", "~nosuchuser/x"], "no model '~nosuchuser/x'"),
        (["generate", "a" * 5000], "context is"),
        (["generate", "caf\udce9"], "surrogate"),
        (["generate", "hi", "--model", "no-such-model"], "no model 'no-such-model'"),
        (["generate", "hi", "--model", "no/such-model"], "redraft pull no/such-model"),
        (["generate", "hi", "--max-tokens", "0"], "max_tokens is 0"),
        (["generate", "hi", "--max-tokens", "1000000000"], "lower max_tokens (1000000000)"),
        (["generate", "hi", "--steps", "0"], "steps is 0"),
        (["generate", "hi", "--entropy-bound", "0"], "entropy_bound is 0.0"),
        (["generate", "hi", "--entropy-bound", "nan"], "entropy_bound is nan"),
        (["generate", "hi", "--seed", "-1"], "seed is -1"),
        (["generate", "hi", "--device", "moon"], "device 'moon' cannot be used"),
        (["generate", "hi", "--device", "meta"], "device 'meta' cannot be used"),
        (["generate", "hi", "--stop", ""], "stop[0] is empty"),
        (["generate", "hi", "-n", "3", "--keep", "5"], "--keep is 5 and -n is 3"),
        (["fill", ""], "the template is empty"),
        (["fill", "{{a: int}}", "--check", ""], "--check is ''"),
        (["fill", "{{a: int}}", "--check", "'"], "correct its quotes"),
        (["run", str(ROOT / "README.md"), "out.jsonl", "--seed", "-1"], "--seed is -1"),
        (["connect", "openai", "--name", " "], "--name is ' '"),
        (["quantize", "nano", "--plan", "int8", "--out", "/dev/null/x"], "cannot be made: Not a directory"),
        (["demo", "--count", "0"], "--count is 0"),
        (["eval", "--count", "-3"], "--count is -3"),
        (["eval", "--task", "chess"], "task is 'chess'; known: records"),
        (["eval", "--task", "recrods"], "did you mean 'records'?"),
        (["generate", "hi", "--accept", "confidense:0.9"], "did you mean 'confidence'?"),
        (["generate", "hi", "--plan", "nvpf4"], "did you mean 'nvfp4'?"),
        (["fill", "{{a: itn}}"], "did you mean 'int'?"),
        (["bench", "--scenario", "togethr"], "did you mean 'together'?"),
        (["bench", "--runs", "0"], "--runs is 0"),
        (["bench", "--device", "cuda"], "--device is 'cuda'"),
        (["bench", "--dial", "--runs", "3"], "--runs was given with --dial"),
        (["bench", "--rate", "3"], "--rate is that of the Poisson stream"),
        (["bench", "--record", "."], ". is a folder"),
        (["bench", "--record-dir", str(ROOT / "README.md")], "is not a folder"),
        (["eval", "--record", str(ROOT / "README.md" / "x.json")], "is not a folder"),
        (["inspect", "--memory", "0"], "--memory is 0.0"),
        (["inspect", "--memory", "nan"], "--memory is nan"),
        (["verify", "--steps", "0"], "steps is 0"),
        (["pull", "not-a-repository"], "not-a-repository"),
    ],
)
def test_a_mistake_in_the_call_is_named(words: list[str], said: str, capsys: Captured) -> None:
    line = refused(capsys, *words)
    assert said in line
    assert len(line) < 500, "a terminal's line, not a page"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["genrate"], "there is no verb 'genrate'; did you mean 'generate'? See `redraft --help`"),
        (["generate", "x", "--max-tokns", "5"], "unknown flag --max-tokns 5; did you mean '--max-tokens'? See"),
        (["generate", "x", "--preset", "fats"], "did you mean 'fast'?"),
        (["generate", "x", "y"], "unknown word y; see `redraft generate --help`"),
        (["inspect", "nano", "--model", "other"], "two models were given, 'nano' and 'other'; leave one out"),
        (["demo", "--count", "many"], "--count"),
        (["inspect", "--memory", "big"], "--memory"),
        (["generate", "hi", "--seed", "0.5"], "--seed"),
        (["generate", "hi", "--dtype", "float16"], "--dtype"),
        (["generate", "hi", "--preset", "turbo"], "--preset"),
        (["generate", "hi", "--wishes", "3"], "unknown flag --wishes 3; see `redraft generate --help`"),
        (["json", "--seeed", "1", "a text"], "unknown flag --seeed; did you mean '--seed'? See"),
        (["json", "--shema", "who", "a text"], "unknown flag --shema; did you mean '--schema'? See"),
        (["frobnicate"], "no verb 'frobnicate'"),
        (["tune", "nano", "--out", ""], "--out: the name is empty; give a folder"),
    ],
)
def test_a_word_that_the_parser_refuses_is_named(words: list[str], said: str, capsys: Captured) -> None:
    """argparse prints the whole usage, which for `generate` is 23 lines, before the one that says what is wrong."""
    with pytest.raises(SystemExit) as leaving:
        main(words)
    assert leaving.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"redraft: [^\n]+(; s|\? S)ee `redraft[^`\n]* --help`\n", err), err
    assert said in err


def test_a_folder_without_a_config_is_refused(tmp_path: Path, capsys: Captured) -> None:
    for words in (["generate", "hi", "--model"], ["inspect"], ["verify"]):
        assert "config.json does not exist" in refused(capsys, *words, str(tmp_path))


def test_a_model_without_a_template_still_continues_text(tmp_path: Path, capsys: Captured) -> None:
    nano_copy(tmp_path, without="chat_template.jinja")
    assert "no chat template" in refused(capsys, "generate", "hi", "--chat", "--model", str(tmp_path))
    assert main(["generate", "hi", "--max-tokens", "2", "--steps", "2", "--model", str(tmp_path)]) == 0


# -- generate ----------------------------------------------------------------------------------------------------------


def generated(capsys: Captured, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["generate", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("threads", [1, 2])
def test_json_tells_how_many_threads_there_were(capsys: Captured, threads: int) -> None:
    """They are chosen by how idle the machine is, and a seed repeats an answer only with as many."""
    try:
        assert generated(capsys, PROMPT, "--chat", "--threads", str(threads))["threads"] == threads
    finally:
        torch.set_num_threads(1)


def test_an_answer_is_the_same_from_argument_file_and_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    (tmp_path / "prompt").write_text(PROMPT + "\n")
    printed = generated(capsys, PROMPT, "--chat", "--seed", "7")["text"]
    for words in ([PROMPT], ["--file", str(tmp_path / "prompt")], ["-"], []):
        set_stdin(monkeypatch, PROMPT.encode() + b"\n")
        assert main(["generate", *words, "--chat", "--seed", "7"]) == 0
        out, err = capsys.readouterr()
        assert out == printed + "\n"
        assert "Traceback" not in err


def test_json_has_these_keys_and_adds_up(capsys: Captured) -> None:
    found = generated(capsys, PROMPT, "--chat", "--seed", "7")
    assert set(found) >= {
        "text",
        "tokens",
        "entropy",
        "finish",
        "seed",
        "prompt_tokens",
        "steps",
        "commits",
        "seconds",
        "first_text_sec",
        "tokens_per_forward",
        "tokens_per_pass",
    }
    assert found["seed"] == 7
    assert len(found["entropy"]) == len(found["tokens"])
    assert found["finish"] in ("stop", "length")
    assert found["tokens_per_forward"] == round(len(found["tokens"]) / sum(found["steps"]), 3)
    passes = sum(found["steps"]) + found["commits"]
    assert found["tokens_per_pass"] == round(len(found["tokens"]) / passes, 3)
    assert 0 <= found["first_text_sec"] <= found["seconds"]


def test_watching_off_a_terminal_is_a_line_per_step(capsys: Captured) -> None:
    wanted = generated(capsys, PROMPT, "--chat", "--seed", "7")
    assert main(["generate", PROMPT, "--chat", "--seed", "7", "--watch"]) == 0
    out, err = capsys.readouterr()
    assert out == wanted["text"] + "\n", "only the answer goes to stdout"
    steps = re.findall(r"^block 0  step +(\d+)  \d+\.\d{3} nats", err, re.MULTILINE)
    assert [int(step) for step in steps] == list(range(1, wanted["steps"][0] + 1))
    assert "\x1b" not in err


def test_watching_on_a_terminal_ends_with_the_answer(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    drawn = io.StringIO()
    screen = Console(file=drawn, force_terminal=True, width=100, _environ={"TERM": "xterm"})
    monkeypatch.setattr(redraft.cli.display, "Console", lambda **options: screen)
    answer = shell(["generate", PROMPT, "--chat", "--seed", "7", "--watch"]).out.removesuffix("\n")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.getvalue()).replace("\r", "")
    assert plain.rstrip("\n").endswith(answer)


# -- the other commands ------------------------------------------------------------------------------------------------


def test_inspect_describes_the_model_in_the_package(shell: Shell) -> None:
    found = json.loads(shell(["inspect", "nano", "--json"]).out)
    assert found["parameters_total"] == sum(found["parameters_by_group"].values())
    assert sum(found["stored_bytes"].values()) >= 2 * found["parameters_total"]
    assert found["unknown_config_keys"] == []
    assert f"parameters total: {found['parameters_total']:,}\n" in shell(["inspect", "nano"]).out


def test_inspect_needs_no_weights(tmp_path: Path, shell: Shell) -> None:
    """What a model needs is asked before 50 GB are fetched."""
    (tmp_path / "config.json").write_text(json.dumps(released_json()))
    found = json.loads(shell(["inspect", str(tmp_path), "--json", "--memory", "24", "--memory", "80"]).out)
    assert found["parameters_total"] == 25_250_986_812
    assert found["stored_bytes"] == "unknown: the folder has no weights"
    plain = next(row for row in found["fits"] if row["numbers"] == "bfloat16")
    assert (round(plain["weights_gb"], 1), plain["most"]["24 GB"]) == (50.5, {"context": 0, "contexts": 0})
    # 30 GB are left and a token takes 20,480 bytes: the whole context fits, one of 8192 tokens over 30 times.
    assert plain["most"]["80 GB"]["context"] == 262_144
    assert 30 < plain["most"]["80 GB"]["contexts"] < 30e9 / (8192 * 20_480)
    printed = shell(["inspect", str(tmp_path), "--memory", "24", "--memory", "80"]).out
    assert "stored bytes: unknown: the folder has no weights" in printed
    assert re.search(r"^  bfloat16 +50\.5 GB +- +262,144 / \d+$", printed, re.MULTILINE)
    assert max(map(len, printed.partition("fits:")[2].splitlines())) <= 120


@pytest.mark.filterwarnings("default")  # theirs are not ours to fix
def test_verify_finds_the_model_in_the_package_equal_to_transformers(shell: Shell) -> None:
    pytest.importorskip("transformers")
    found = json.loads(shell(["verify", "nano", "--json"]).out)
    assert found["agrees"]
    assert 0 < found["ours"]["median"] <= found["limit"]["median"] < 1e-5
    assert all(one["argmax"] == 1.0 for one in found["passes"])


@pytest.mark.filterwarnings("default")
def test_verify_exits_1_where_the_numbers_differ(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr("redraft.measure.verify.MULTIPLE", 0.0)
    assert "does not run here as it does in transformers" in shell(["verify", "nano", "--steps", "1"], 1).err


@pytest.mark.parametrize("command", [["generate", "hi", "--model"], ["verify"], ["eval", "--count", "1", "--model"]])
def test_weights_that_are_nan_are_one_line(command: list[str], tmp_path: Path, capsys: Captured) -> None:
    nano_copy(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors["model.decoder.norm.weight"][3:4].fill_(float("nan")))
    line = refused(capsys, *command, str(tmp_path))
    assert "model.decoder.norm.weight holds NaN or infinity" in line


def test_verify_with_an_older_transformers_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    older = ModuleType("transformers")
    older.__version__ = "4.57.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", older)
    for command in ("verify", "bench"):
        line = refused(capsys, command, code=1)
        assert "transformers 4.57.0 has no DiffusionGemma" in line
        assert "pip install transformers==5.23.0" in line


def test_verify_without_transformers_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "pip install transformers==5.23.0" in refused(capsys, "verify", "nano", code=1)


def test_demo_is_repeated_by_its_seed(shell: Shell) -> None:
    found = []
    for _ in range(2):
        found.append(json.loads(shell(["demo", "--count", "1", "--json", "--seed", "3"]).out))
    for row in found[0]["rows"] + found[1]["rows"]:
        assert row.pop("tokens_per_sec") >= 0
    assert found[0] == found[1]
    assert found[0]["seed"] == 3
    asked = [name for tasks in demo.ASKED.values() for name in tasks]
    assert [row["task"] for row in found[0]["rows"]] == asked
    for name, row in zip(asked, found[0]["rows"], strict=True):
        example = next(task(name).examples("held_out", 3))
        assert row["input"] == example.prompt.split("\n", 1)[1]
        assert row["exact"] == task(name).score(example, row["answer"]).exact


def test_eval_scores_and_records(tmp_path: Path, shell: Shell) -> None:
    from redraft.measure.record import read_record

    path = tmp_path / "new" / "record.json"
    words = ["eval", "--model", "nano-sudoku", "--count", "2", "--task", "records", "--steps", "2"]
    words += ["--record", str(path)]
    (found,) = json.loads(shell([*words, "--json"]).out)
    assert (found["task"], found["count"]) == ("records", 2)
    assert found["exact"] in (0.0, 0.5, 1.0)
    assert found["mean_steps"] <= 2
    assert read_record(path).figures["records"] == found


# -- tune --------------------------------------------------------------------------------------------------------------

RECIPE = """
name = "tiny"
[model]
hidden_size = 16
intermediate_size = 16
moe_intermediate_size = 8
num_heads = 2
num_experts = 2
top_k_experts = 1
layers = ["sliding", "full"]
head_dim = 4
full_head_dim = 8
num_kv_heads = 1
window = 8
max_positions = 128
canvas_length = 24
[data]
tasks = { records = 1.0 }
[train]
steps = 2
batch_size = 2
threads = 1
probe_examples = 1
[sampling]
max_denoising_steps = 2
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[model]", "[model", "line 3"),
        ("hidden_size = 16", "hidden_sizes = 16", "hidden_sizes"),
        ("hidden_size = 16", "hidden_size = 0", "hidden_size is 0"),
        ("name =", "names =", "names"),
        ('["sliding", "full"]', '["full", "sliding"]', "layers is ['full', 'sliding']"),
        ('["sliding", "full"]', '["slide", "full"]', "layers is ['slide', 'full']"),
        (
            "num_heads = 2",
            "num_heads = 3\nnum_full_kv_heads = 2",
            "num_full_kv_heads is 2; it must divide num_heads (3)",
        ),
        ("num_kv_heads = 1", "num_kv_heads = 4", "num_kv_heads is 4"),
        ("\nhead_dim = 4", "\nhead_dim = 5", "head_dim is 5"),
        ("top_k_experts = 1", "top_k_experts = 3", "top_k_experts is 3"),
        ("window = 8", "window = -1", "window is -1"),
        ("records = 1.0", "chess = 1.0", "task is 'chess'; known: records"),
        ("records = 1.0", "records = 0.0", "share of records is 0.0"),
        ("{ records = 1.0 }", "{}", "at least one task"),
        ("steps = 2\nb", "steps = -2\nb", "steps is -2"),
        ("batch_size = 2", "batch_size = 0", "batch_size is 0"),
        ("batch_size = 2", "batch_size = 2\nbetas = [0.9, 1.0]", "betas is 1.0; it must be from 0 to below 1"),
        ("batch_size = 2", "batch_size = 2\nema = 1.5", "ema is 1.5; it must be from 0 to below 1"),
        ("batch_size = 2", "batch_size = 2\nlr = 1e30", "lr is 1e+30; it must be from 1e-12 to 1"),
        ("batch_size = 2", "batch_size = 2\nclip = nan", "clip is nan; it must be at least 1e-12"),
        ("max_denoising_steps = 2", "max_denoising_steps = 0", "[sampling] max_denoising_steps is 0"),
        ("max_denoising_steps = 2", "entropy_bound = 0.0", "[sampling] entropy_bound is 0.0"),
        ("canvas_length = 24", "canvas_length = 4", "raise [data] widths or most_blocks, or [model]"),
        ("canvas_length = 24", "canvas_length = 129", "[model] canvas_length is 129; at most the context"),
        ("threads = 1", "threads = 1000000", "threads is 1000000; it must be from 1 to 1024"),
        ("max_denoising_steps = 2", "max_new_tokens = 128", "[sampling] max_new_tokens is 128"),
    ],
)
def test_a_recipe_that_cannot_be_trained_is_refused(
    old: str, new: str, said: str, tmp_path: Path, capsys: Captured
) -> None:
    assert RECIPE.count(old) == 1
    (tmp_path / "recipe.toml").write_text(RECIPE.replace(old, new))
    assert said in refused(capsys, "tune", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "out"))


def test_tune_trains_and_says_where_the_result_is(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    words = ["tune", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "out")]
    out, err = shell(words)
    assert out == f"{tmp_path / 'out'}\n"
    assert "step 2/2" in err
    assert json.loads(shell([*words, "--json"]).out)["folder"] == str(tmp_path / "out")
