"""Our own client against our own server process: the way there and back loses nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.helpers import Shell
from tests.server.conftest import ANSWER, RECORD, USER, Process, end, start

from redraft.__main__ import main


def there(server: Process) -> list[str]:
    return ["--backend", "openai", "--base-url", server.base, "--model", "nano"]


def test_the_same_answers_as_here(server: Process, shell: Shell, tmp_path: Path) -> None:
    reported = json.loads(shell(["generate", "--chat", "--seed", "1", "--json", *there(server), RECORD]).out)
    assert (reported["text"], reported["finish"]) == (ANSWER, "stop")
    assert reported["steps"] >= 1
    without = [word.removesuffix("/v1") for word in there(server)]
    assert shell(["generate", "--chat", "--seed", "1", *without, RECORD]).out == ANSWER + "\n"
    words = ["generate", "--chat", "--seed", "1", "--schema", "who, qty int, item", *there(server)]
    assert set(json.loads(shell([*words, "Send 417 melu to Karomi."]).out)) == {"who", "qty", "item"}
    here = ["--model", "nano-sudoku", "--threads", "1"]
    both = ["bench", "--runs", "4", "--json", *here, "--backend", "openai", "--base-url", server.base]
    figures = json.loads(shell([*both, "--their-model", "nano"]).out)["figures"]
    assert figures["same"] == 4
    assert figures["there_tokens_per_sec"] > 0
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    row = {"messages": USER}
    source.write_text(f"{json.dumps(row)}\n" * 9, encoding="utf-8")
    assert main(["run", str(source), str(out), "--seed", "1", *there(server)]) == 0
    bodies = [json.loads(line)["response"]["body"] for line in out.read_text(encoding="utf-8").splitlines()]
    assert [body["choices"][0]["message"]["content"] for body in bodies] == [ANSWER] * 9


def test_a_key_opens_the_door(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    server = start("--quiet", env={"REDRAFT_API_KEYS": "one-secret-key"})
    words = ["generate", "--chat", "--seed", "1", *there(server), RECORD]
    try:
        assert "answered 401" in shell(words, 2).err
        monkeypatch.setenv("THEIRS", "one-secret-key")
        assert shell([*words, "--api-key-env", "THEIRS"]).out == ANSWER + "\n"
    finally:
        end(server)
