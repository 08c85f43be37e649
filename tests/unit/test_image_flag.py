"""Images by the shell: --image, a conversation's /image, and the `image` of a row."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.helpers import Shell
from tests.pictures import asking, drawn, encoded, write_whole

import redraft
from redraft.__main__ import main
from redraft.options import Options

SHORT = ["--seed", "3", "--max-tokens", "16", "--steps", "3"]
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that reads images, and two of them beside it."""
    folder = write_whole(tmp_path_factory.mktemp("model"))
    for i in range(2):
        (folder / f"{i}.png").write_bytes(encoded(drawn(60, 40, i)))
    (folder / "not.png").write_bytes(b"%PDF-1.7")
    return folder


@pytest.fixture(scope="module")
def wanted(folder: Path) -> str:
    """What Python answers."""
    engine = redraft.load(folder, device="cpu")
    return engine.generate(asking(folder / "0.png", "read"), options=Options(seed=3, max_tokens=16, steps=3)).text


def model(folder: Path) -> list[str]:
    return ["--model", str(folder), "--device", "cpu"]


def test_generate_answers_as_python_does(folder: Path, wanted: str, shell: Shell) -> None:
    words = ["generate", *model(folder), *SHORT, "--chat", "--image", str(folder / "0.png"), "read"]
    assert shell(words).out.rstrip("\n") == wanted.rstrip("\n")


def test_json_needs_no_text_beside_an_image(folder: Path, shell: Shell) -> None:
    words = ["json", *model(folder), "--seed", "3", "--schema", '{"type": "boolean"}', "--image", str(folder / "0.png")]
    assert shell(words).out.strip() in ("true", "false")


def test_decide_reads_the_image(folder: Path, capsys: Captured) -> None:
    found = []
    for i in range(2):
        assert main(["decide", *model(folder), "--chat", "--json", "--image", str(folder / f"{i}.png"), "red?"]) == 0
        found.append(json.loads(capsys.readouterr().out)["shares"])
    assert found[0] != found[1]


def test_a_conversation_shows_images_with_its_turns(
    folder: Path, wanted: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    lines = f"read\n/new\n/image {folder / '0.png'}\nread\n".encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(lines), isatty=lambda: False))
    assert main(["chat", *model(folder), "--json", *SHORT, "--image", str(folder / "1.png")]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["prompt_tokens"] == second["prompt_tokens"]
    assert first["tokens"] != second["tokens"]


@pytest.mark.parametrize("form", ["plain", "batch"])
def test_a_row_shows_files_from_its_own_folder(folder: Path, wanted: str, form: str) -> None:
    turn = [{"role": "user", "content": "read"}]
    body = {"messages": turn, "image": "0.png", "seed": 3, "max_tokens": 16, "max_steps": 3}
    whole = {"custom_id": "a", "url": "/v1/chat/completions", "body": body}
    rows = [body if form == "plain" else whole, body | {"image": ["none.png"]}, body | {"image": 7}]
    rows += [{"prompt": "read", "image": "0.png"}, body | {"image": "not.png"}]
    rows += [body | {"image": named} for named in ("../0.png", "/dev/zero", "pipe", ["0.png"] * 65)]
    if not (folder / "pipe").exists():
        os.mkfifo(folder / "pipe")
    source, target = folder / f"{form}.jsonl", folder / f"{form}-out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["run", str(source), str(target), *model(folder)]) == 3
    replies = [json.loads(line)["response"] for line in target.read_text().splitlines()]
    assert replies[0]["body"]["choices"][0]["message"]["content"] == wanted
    said = [reply["body"]["error"]["message"] for reply in replies[1:]]
    assert [reply["status_code"] for reply in replies[1:]] == [400] * 8
    assert "none.png cannot be read" in said[0]
    assert said[1].startswith("image is 7; it must be a file")
    assert said[2].startswith("image needs messages that end with a user's turn")
    assert "messages[0].content[0] is no PNG, JPEG, WebP or GIF" in said[3]
    assert all(one.endswith("name a file in the folder of the rows") for one in said[4:6])
    assert said[6].endswith("pipe cannot be read: it is no regular file")
    assert said[7] == "image names 65 files; at most 64"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["generate", "--image", "0.png", "read"], "--image was given without --chat"),
        (["decide", "--image", "0.png", "read"], "--image was given without --chat"),
        (["generate", "--chat", "--image", "no.png", "read"], "--image no.png is 'no.png', which cannot be read"),
        (["json", "--schema", "a int", "--image", "{not}"], "is no PNG, JPEG, WebP or GIF image"),
        (["generate", "--chat", *["--image", "{0}"] * 21, "read"], "has 21 images; at most 20"),
        (["generate", "--chat", "--model", "nano", "--image", "{0}", "read"], "this checkpoint reads text alone"),
    ],
)
def test_mistakes_exit_2_and_name_the_file(folder: Path, words: list[str], said: str, shell: Shell) -> None:
    filled = [word.format(folder / "0.png", **{"not": folder / "not.png"}) for word in words]
    own = [] if "--model" in words else model(folder)
    assert said in shell([filled[0], *own, *filled[1:]], 2).err
