"""`redraft connect` and `redraft doctor`: lines that other tools read, and what is wrong here."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path

import pytest
import yaml
from tests.helpers import Shell

from redraft.__main__ import main
from redraft.cli.connect import TOOLS
from redraft.weights.source import locate

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_every_tool_gets_the_address_and_the_model(shell: Shell, tool: str) -> None:
    reported = shell(["connect", tool, "--url", "http://gpu.lan:1234/", "--name", "mine"]).out
    assert "http://gpu.lan:1234/" in reported
    assert "http://gpu.lan:1234//" not in reported
    assert tool in ("openai", "llama.vim") or "mine" in reported


@pytest.mark.parametrize("tool", ["llm", "continue", "aider"])
@pytest.mark.parametrize("name", ["nano", "my model: v2 #3", "1.5", "Null", '"', "-", "é𝄞"])
def test_what_is_yaml_reads_as_yaml(capsys: Captured, tool: str, name: str) -> None:
    main(["connect", tool, f"--name={name}"])
    said = yaml.safe_load(capsys.readouterr().out)
    found = (
        said["models"][0]["model"] if tool == "continue" else said["model"] if tool == "aider" else said[0]["model_id"]
    )
    assert found == (f"openai/{name}" if tool == "aider" else name)


@pytest.mark.parametrize("port", ["65536", "-1"])
def test_what_is_no_port_is_not_said_to_be_taken(shell: Shell, port: str) -> None:
    assert "it must be from 0 to 65535" in shell(["doctor", f"--port={port}"], 2).err


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "https:///",
        "ftp://h",
        "http://h/$(id)",
        "http://h/a;id",
        "http://h/a'b",
        "http://h/a #b",
        "http://h\nx: y",
        "http://[::1",
        "http://h:port",
    ],
)
def test_a_url_that_a_shell_or_yaml_would_read_otherwise_is_refused(shell: Shell, url: str) -> None:
    assert "write it as http://host:port" in shell(["connect", "openai", "--url", url], 2).err


def test_a_name_that_no_line_can_hold_is_refused(shell: Shell) -> None:
    """YAML takes U+0085 for the end of a line."""
    for name in ("a\x85b", "a\nb", "\x7f", "\ufffe"):
        assert "what the server calls its model" in shell(["connect", "llm", "--name", name], 2).err


def test_the_lines_of_continue_are_a_whole_file(capsys: Captured) -> None:
    """Its parser refuses one without a name, a version or the models' providers."""
    main(["connect", "continue"])
    reported = yaml.safe_load(capsys.readouterr().out)
    assert all(isinstance(reported[key], str) and reported[key] for key in ("name", "version", "schema"))
    assert {model["provider"] for model in reported["models"]} == {"openai", "mistral"}


def test_the_page_of_clients_has_the_same_lines(capsys: Captured) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "clients.md").read_text()
    for tool in ("llm", "openai"):
        main(["connect", tool])
        assert " ".join(capsys.readouterr().out.split()) in " ".join(page.split())


def test_the_lines_of_zed_are_json(shell: Shell) -> None:
    reported = shell(["connect", "zed"])
    assert json.loads(reported.out)["language_models"]["openai_compatible"]["redraft"]["api_url"].endswith("/v1")
    assert "~/.config/zed/settings.json" in reported.err


def test_no_file_of_another_tool_is_written(home: Path, capsys: Captured) -> None:
    for tool in TOOLS:
        assert main(["connect", tool]) == 0
    assert not list(home.iterdir())
    assert main(["connect", "openai", "--url", "ftp://x"]) == 2


def test_doctor_finds_nothing_wrong_here_and_says_what_it_found(shell: Shell) -> None:
    found = {finding["check"]: finding for finding in json.loads(shell(["doctor", "--port", "0", "--json"]).out)}
    assert {"Python", "torch", "load", "number formats", "model", "port"} <= found.keys()
    assert "float32" in found["number formats"]["found"]


def test_doctor_sees_a_port_that_is_taken_and_a_model_that_is_not_there(capsys: Captured) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["doctor", "--port", str(taken.getsockname()[1]), "--model", "/nowhere"]) == 1
    reported = capsys.readouterr().out
    assert "WRONG port" in reported
    assert "WRONG model: no model '/nowhere'\n      give 'nano' or 'nano-sudoku', an existing folder" in reported


def test_doctor_tries_the_chat_template(tmp_path: Path, capsys: Captured) -> None:
    """It said that all was well, and every conversation failed."""
    shutil.copytree(locate("nano"), tmp_path / "nano")
    (tmp_path / "nano" / "chat_template.jinja").write_text("{% if %}")
    assert main(["doctor", "--model", str(tmp_path / "nano")]) == 1
    assert "chat_template.jinja, line 1" in capsys.readouterr().out


def test_doctor_goes_on_without_torch(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["doctor", "--port", "0"]) == 1
    reported = capsys.readouterr().out
    assert "WRONG torch: cannot be imported" in reported
    assert "port: 0 is free" in reported
