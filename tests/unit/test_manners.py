"""Flags for what models are used to: a code block around JSON, choices in any case, thinking ahead of the answer.

nano writes none of it, so what it says is written by the test and checked against the language that it was asked for; a
checkpoint that thinks is nano with two marks in place of two bytes that no text here has, and a switch in its template.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from tests.helpers import ANSWER, PROMPT, Shell, nano_copy

import redraft
from redraft.__main__ import main
from redraft.engine.answer import Answer
from redraft.engine.events import Block, Finished
from redraft.engine.request import Generation, ResolvedRequest
from redraft.operations.engine import Engine

pytestmark = pytest.mark.usefixtures("own_cache")

FIELDS = "who, qty int, item"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """nano with marks of thinking and a template that can turn it on."""
    folder = nano_copy(tmp_path_factory.mktemp("thinker"))
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    plain = dict(tokenizer["added_tokens"][0])
    for byte, mark in (("<0xF3>", "<|channel>"), ("<0xF4>", "<channel|>")):
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary[mark] = vocabulary.pop(byte)
        tokenizer["added_tokens"].append(plain | {"id": vocabulary[mark], "content": mark})
    file.write_text(json.dumps(tokenizer))
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{%- if enable_thinking -%}{%- endif -%}")
    return folder


def saying(monkeypatch: pytest.MonkeyPatch, text: str) -> list[ResolvedRequest]:
    """Every answer is a text as tokens; what was asked is kept. That the language has the text is asserted."""
    asked = list[ResolvedRequest]()

    def run(self: Engine, request: ResolvedRequest) -> Generation:
        asked.append(request)
        tokens = tuple(self.text.encode(text, bos=False))
        assert request.language is None or request.language.holds(tokens)
        count, answer = len(tokens), Answer(self.text, request)
        rising = [float(i) for i in range(count)]
        answer.take(Block(0, list(tokens), rising, [1] * count, [0] * count, 2, settled=True, log_mass=rising))
        answer.take(Finished("stop", commits=0))
        return answer.generation()

    monkeypatch.setattr(Engine, "run", run)
    return asked


def test_a_code_block_is_admitted_and_not_printed(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    saying(monkeypatch, f"```json\n{ANSWER}\n```")
    assert shell(["generate", "--chat", PROMPT, "--schema", FIELDS, "--fence"]).out == ANSWER + "\n"
    printed = json.loads(shell(["generate", "--chat", PROMPT, "--schema", FIELDS, "--fence", "--json"]).out)
    assert printed["text"] == ANSWER
    assert set(printed["fields"]) == {"/who", "/qty", "/item"}
    assert shell(["json", PROMPT, "--schema", FIELDS, "--fence", "--no-read-back"]).out == ANSWER + "\n"


@pytest.mark.parametrize("thought", ["", "<|channel>thought\nKaromi, I think.<channel|>", "<|channel>?<channel|>"])
def test_thinking_is_told_apart_from_the_answer(
    thought: str, thinker: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    """Whether the model thinks or not; printed numbers of tokens are those of the answer's."""
    asked = saying(monkeypatch, thought + ANSWER)
    model = ["--model", str(thinker), "--schema", FIELDS, "--thinking", PROMPT]
    plain = thought.removeprefix("<|channel>").removeprefix("thought\n").removesuffix("<channel|>")
    out, err = shell(["generate", "--chat", *model])
    assert out == ANSWER + "\n"
    assert plain in err
    printed = json.loads(shell(["generate", "--chat", *model, "--json"]).out)
    assert (printed["text"], printed["thinking"]) == (ANSWER, plain)
    text = redraft.load(thinker).text
    before = len(text.encode(thought, bos=False))
    assert (printed.get("begins", 0), text.decode(printed["tokens"][before:])) == (before, ANSWER)
    assert len(printed["entropy"]) == len(printed["log_mass"]) == len(printed["tokens"])
    assert printed["fields"]["/item"] >= printed["fields"]["/qty"] > before
    printed = json.loads(shell(["json", *model, "--json"]).out)
    assert (printed["value"], printed["thinking"]) == (json.loads(ANSWER), plain)
    assert shell(["json", *model]).out == ANSWER + "\n"
    assert all(request.language is not None for request in asked)


def test_a_model_that_thinks_on_for_ever_has_not_answered(
    thinker: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    saying(monkeypatch, "<|channel>thought\nHm,\x1b]0;owned\x07 hm")
    out, err = shell(["generate", "--chat", "--thinking", "--model", str(thinker), PROMPT])
    assert out == "\n"
    assert err == "Hm,\ufffd]0;owned\ufffd hm\n", "what would steer a terminal is replaced"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["generate", "a", "--fence"], "fence was given without a schema"),
        (["generate", "a", "--regex", "a", "--fence"], "fence was given without a schema"),
        (["generate", "a", "--regex", "a", "--compact"], "compact was given without a schema"),
        (["generate", "a", "--any-case"], "any_case was given without choices"),
        (["generate", "a", "--schema", "size S|M", "--any-case"], "list the spellings that you take"),
        (["generate", "a", "--schema", "size S|M", "--choice", "a", "--any-case"], "schema and choices were given"),
        (["generate", "a", "--thinking"], "add --chat"),
        (["generate", "--chat", "a", "--thinking"], "has no enable_thinking"),
        (["json", "a", "--schema", "a", "--thinking"], "has no enable_thinking"),
        (["generate", "--chat", "a", "--thinking", "-n", "2"], "--thinking and -n were both given"),
        (["generate", "a", "--schema", "a", "--fence", "-n", "2"], "--fence and -n were both given"),
        (["generate", "a", "--schema", "a", "--fence", "--check", "true"], "--check and --fence were both given"),
        (["generate", "a", "--backend", "openai", "--base-url", "http://x/v1", "--fence"], "--fence was given with"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(shell: Shell, flags: list[str], complaint: str) -> None:
    assert complaint in shell(flags, 2).err


@pytest.mark.parametrize("held", [[], ["--regex", "[ab]{3}"]], ids=["free", "held"])
def test_a_check_reads_what_stands_behind_thinking(
    held: list[str], thinker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first two answers are rejected; none of the commands was shown a thought."""
    seen = tmp_path / "seen"
    script = tmp_path / "check.py"
    script.write_text(
        f"import sys, pathlib\nseen = pathlib.Path({str(seen)!r})\n"
        "before = seen.read_text().split('\\0') if seen.exists() else []\n"
        "seen.write_text('\\0'.join([*before, sys.stdin.read()]))\nsys.exit(len(before) < 2)\n"
    )
    asked = ["generate", "--chat", "--thinking", "--check", f"{sys.executable} {script}", "--seed", "1", "--json"]
    room = ["--max-tokens", "24", "--min-tokens", "20"]
    assert main([*asked, *room, *held, "--model", str(thinker), "a"]) == 0
    printed, read = json.loads(capsys.readouterr().out), seen.read_text().split("\0")
    assert len(read) == len(set(read)) == 3
    assert printed["text"] == read[-1]
    assert not any(mark in text for text in read for mark in ("<|channel>", "<channel|>"))
    if held:  # so few tokens are an answer's that the others must be thought
        assert printed["thinking"]
        assert all(re.fullmatch("[ab]{3}", text) for text in read)
