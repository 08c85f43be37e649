"""`redraft chat`: turns go in as lines, and the model is shown all of the conversation each time."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from tests.helpers import Shell

import redraft
from redraft.__main__ import main
from redraft.cli import chat
from redraft.engine.request import Generation
from redraft.operations.engine import Engine
from redraft.text import Message

Captured = pytest.CaptureFixture[str]
FIRST = "record\nSend 417 melu to Karomi."


def told(monkeypatch: pytest.MonkeyPatch, capsys: Captured, lines: str | bytes, *words: str, code: int = 0) -> str:
    """Stdout of a conversation, for these lines on stdin."""
    raw = lines.encode() if isinstance(lines, str) else lines
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))
    assert main(["chat", "--model", "nano-sudoku", *words]) == code
    return capsys.readouterr().out


def test_a_conversation_is_sent_whole_and_every_answer_has_the_next_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """A turn sent alone, or a system text that gets lost, gives other prompts than the engine's own."""
    engine = redraft.load("nano-sudoku")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": FIRST}]
    one = engine.generate(messages, seed=7, max_tokens=24)
    messages += [{"role": "assistant", "content": one.text}, {"role": "user", "content": "Again."}]
    two = engine.generate(messages, seed=8, max_tokens=24)
    lines = "\n" + FIRST.replace("\n", "\\\n") + "\n  \nAgain.\n"
    words = ["--system", "Be brief.", "--seed", "7", "--max-tokens", "24"]
    assert told(monkeypatch, capsys, lines, *words) == f"{one.text}\n{two.text}\n"
    rows = [json.loads(line) for line in told(monkeypatch, capsys, lines, *words, "--json").splitlines()]
    assert [(row["text"], row["prompt_tokens"], row["seed"]) for row in rows] == [
        (one.text, one.prompt_tokens, 7),
        (two.text, two.prompt_tokens, 8),
    ]


def test_new_forgets_and_quit_leaves(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    lines = "hi\n/new\nhi\n/quit\nhi\n"
    rows = [json.loads(line) for line in told(monkeypatch, capsys, lines, "--max-tokens", "2", "--json").splitlines()]
    assert len(rows) == 2
    assert rows[0]["prompt_tokens"] == rows[1]["prompt_tokens"]


def test_a_turn_can_be_a_command(monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path) -> None:
    """A schema holds the answers behind it, a seed is that of the next answer, and a conversation can be kept."""
    kept = tmp_path / "talk.json"
    lines = f"/schema name, age int\n/seed 3\nAlice is 31 years old.\n/schema\n/save {kept}\n/etc/passwd\n"
    rows = [json.loads(line) for line in told(monkeypatch, capsys, lines, "--max-tokens", "40", "--json").splitlines()]
    assert [row["seed"] for row in rows] == [3, 4]
    answer = json.loads(rows[0]["text"])
    assert sorted(answer) == ["age", "name"]
    assert isinstance(answer["age"], int)
    saved = json.loads(kept.read_text(encoding="utf-8"))
    assert [message["role"] for message in saved] == ["user", "assistant"]
    assert saved[1]["content"] == rows[0]["text"]


HOSTILE = ["/seed " + "9" * 5000, "/save a\0b", "/schema a\0b.json", "/image a\0b", "/image " + "a" * 5000]


@pytest.mark.parametrize(
    "line", ["/seed x", "/seed -1", "/save", "/save /", "/schema name,,", "/schema no.json", *HOSTILE]
)
def test_a_command_that_cannot_be_followed_names_itself(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    told(monkeypatch, capsys, f"{line}\n", code=2)


@pytest.mark.parametrize("lines", ["", "\n \n", "/quit\n", "/quit"])
def test_nothing_said_is_nothing_answered(lines: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    assert told(monkeypatch, capsys, lines) == ""


def test_on_a_terminal_a_mistake_does_not_end_the_conversation(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"a" * 5000 + b"\nhi\n"), encoding="utf-8")
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)
    out, err = shell(["chat", "--max-tokens", "2", "--json"])
    assert json.loads(out)["finish"] in ("length", "stop")
    assert err.startswith("redraft: a line is a turn")
    assert err.count("> ") == 3
    assert "the model's context is" in err


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_takes_back_a_turn_and_twice_leaves(
    times: int, monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path
) -> None:
    """It lost all that was said."""
    stdin = io.TextIOWrapper(io.BytesIO(f"hi\nstay\n/save {tmp_path / 'kept'}\n".encode()), encoding="utf-8")
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)
    turn, answer, left = chat._turn, chat._answer, [times]

    def interrupted_turn() -> str | None:
        if left[0] == 1 and times == 2:
            raise KeyboardInterrupt
        return turn()

    def interrupted(engine: Engine, talk: chat.ChatSession, said: Message, *, as_json: bool) -> Generation:
        if said["content"] == "stay":
            left[0] -= 1
            raise KeyboardInterrupt
        return answer(engine, talk, said, as_json=as_json)

    monkeypatch.setattr(chat, "_turn", interrupted_turn)
    monkeypatch.setattr(chat, "_answer", interrupted)
    assert main(["chat", "--max-tokens", "2"]) == (0 if times == 1 else 130)
    assert "what was said before is kept" in capsys.readouterr().err
    if times == 1:
        assert [message["role"] for message in json.loads((tmp_path / "kept").read_text())] == ["user", "assistant"]
