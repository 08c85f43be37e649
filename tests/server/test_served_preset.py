"""Whatever preset is served, a request that names none is answered: also one whose canvas begins with a text."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from tests.server.conftest import ANSWER, USER, Inside, inside

from redraft.cli.main import build_parser
from redraft.cli.run import served as served_rows
from redraft.cli.serve import settings_of
from redraft.operations.engine import Engine
from redraft.server.http.settings import Settings

TURN = {"messages": USER, "seed": 1}
GAP = {"prompt": "x = ", "suffix": "\ny = 2\n", "max_tokens": 4, "seed": 1}
EDIT = {"messages": [{"role": "user", "content": "<|code_to_edit|>x = 1<|/code_to_edit|>\ny = 2\n"}], "seed": 1}


@pytest.mark.parametrize("preset", [None, "reference", "fast", "flow"])
def test_requests_that_name_no_preset_are_answered(nano: Engine, preset: str | None) -> None:
    pin = [{"at": 0, "text": "{"}]
    asked: list[tuple[str, dict[str, Any]]] = [
        ("chat/completions", TURN),
        ("chat/completions", TURN | {"prediction": {"type": "content", "content": ANSWER}}),
        ("completions", GAP),
        ("edit/completions", EDIT),
        ("canvas", TURN | {"pins": pin}),
        ("canvas", {"segments": [{"text": "x = "}, {"hole": {"width": 4}}, {"text": "\n"}], "seed": 1}),
    ]
    for at in inside(nano, Settings(preset=preset)):
        for path, body in asked:
            said = httpx2.post(f"{at.base}/{path}", json=body, timeout=100)
            assert said.status_code == 200, (path, said.text)
        named = httpx2.post(f"{at.base}/completions", json=GAP | {"canvas": {"preset": "flow"}}, timeout=100)
        assert named.json()["error"]["message"].startswith("canvas.preset is 'flow'; a gap needs whole canvases")


@pytest.mark.parametrize("more", [{}, {"max_tokens": 10}, {"effort": 0.5}, {"canvas": {"preset": "reference"}}])
def test_a_prediction_may_be_longer_than_the_canvas(served: Inside, more: dict[str, Any]) -> None:
    """A preset may make the canvas narrower than the checkpoint's; what does not fit on it is left out."""
    body = TURN | {"prediction": {"type": "content", "content": ANSWER * 20}} | more
    assert httpx2.post(f"{served.base}/chat/completions", json=body, timeout=100).status_code == 200


@pytest.mark.parametrize(
    ("words", "preset"),
    [
        ([], None),
        (["nano", "--preset", "reference"], "reference"),
        (["./other"], None),
        (["./other", "--preset", "flow"], "flow"),
    ],
)
def test_a_checkpoint_is_served_by_its_own_rules(words: list[str], preset: str | None) -> None:
    """None leaves them to the checkpoint: narrow canvases are for a model that has seen some."""
    found = settings_of(build_parser().parse_args(["serve", *words]))
    assert (found.preset, found.ask_fields) == (preset, "./other" not in words), "fields are asked for as nano knows it"


def test_a_checkpoint_in_a_folder_called_nano_is_another_model() -> None:
    """A file of requests and a server give the same answers; rows had the words of nano by the folder's name."""
    for model, asks in (("nano", True), ("runs/nano", False)):
        for words, read in ((["serve", model], settings_of), (["run", "a", "b", "--model", model], served_rows)):
            assert read(build_parser().parse_args(words)).ask_fields is asks
    tuned = settings_of(build_parser().parse_args(["serve", "nano", "--adapter", "mine"]))
    assert not tuned.ask_fields, "as `redraft json` holds it: what was tuned on other prompts is asked in those"
