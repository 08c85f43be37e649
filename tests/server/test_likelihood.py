"""How likely a text is, as OpenAI's `echo` with `logprobs` tells it, against the encoder run by hand."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
import torch
from tests.server.conftest import ANSWER, RECORD, USER, Inside

from redraft.cache import Prefix
from redraft.operations.engine import Engine

READ: dict[str, Any] = {"echo": True, "logprobs": 2, "max_tokens": 0, "seed": 1}
EURO = "record\n5 € für Ōtë"  # letters that the tokenizer has only as bytes


def ask(at: Inside, **body: Any) -> Any:
    return httpx2.post(at.base + "/completions", json=READ | body, timeout=100).json()


def by_hand(engine: Engine, ids: list[int]) -> torch.Tensor:
    """Log-probabilities behind each token, from one pass over all of them."""
    prefix = Prefix(engine.model.config.layers, room=len(ids))
    with torch.inference_mode():
        return torch.log_softmax(engine.model.logits(engine.model.encode(torch.tensor(ids), prefix)), dim=-1)


@pytest.mark.parametrize("text", [RECORD, EURO, "a"])
def test_a_text_is_reported_token_by_token(served: Inside, nano: Engine, text: str) -> None:
    (choice,) = ask(served, prompt=text)["choices"]
    reported, ids = choice["logprobs"], nano.text.encode(text, bos=True)
    log_p = by_hand(nano, ids)
    assert (choice["text"], choice["finish_reason"]) == (text, "length")
    assert reported["tokens"] == [nano.text.decode([token], skip_special=False) for token in ids[1:]]
    assert {len(rows) for rows in reported.values()} == {len(ids) - 1}
    assert reported["token_logprobs"][0] is reported["top_logprobs"][0] is None
    own = [float(log_p[at, token]) for at, token in enumerate(ids[2:], 1)]
    assert reported["token_logprobs"][1:] == pytest.approx(own, abs=1e-5)
    for at, (value, likeliest) in enumerate(zip(reported["token_logprobs"], reported["top_logprobs"], strict=True)):
        if at:  # what clients read: the likeliest of them is the token's own if the model would have said it
            assert max(likeliest.values()) == pytest.approx(float(log_p[at].max()), abs=1e-5)
            assert (value == max(likeliest.values())) == (int(log_p[at].argmax()) == ids[at + 1])


def test_offsets_are_where_tokens_stand_in_the_text(served: Inside) -> None:
    for text in (RECORD, EURO):
        (choice,) = ask(served, prompt=text, max_tokens=4, ignore_eos=True)["choices"]
        rows, said = choice["logprobs"], choice["text"]
        assert said.startswith(text)
        for token, at in zip(rows["tokens"], rows["text_offset"], strict=True):
            assert "\ufffd" in token or said[at : at + len(token)] == token
        assert rows["text_offset"] == sorted(rows["text_offset"])
    assert "\ufffd" in rows["tokens"]


def test_token_ids_are_read_as_they_are(served: Inside, nano: Engine) -> None:
    """Several at once, longer than what is encoded together, with a special token that the text does not show."""
    prompts = [nano.text.encode(RECORD * 15, bos=True), nano.text.encode(RECORD, bos=False)]
    for choice, ids in zip(ask(served, prompt=prompts)["choices"], prompts, strict=True):
        log_p, reported = by_hand(nano, ids), choice["logprobs"]
        assert choice["text"] == nano.text.decode(ids)
        assert len(reported["tokens"]) == len(ids)
        own = log_p[torch.arange(len(ids) - 1), ids[1:]].tolist()
        assert reported["token_logprobs"][1:] == pytest.approx(own, abs=1e-5)
        assert reported["text_offset"][-1] == len(choice["text"]) - len(reported["tokens"][-1])


@pytest.mark.parametrize("answered", [False, True])
def test_behind_the_prompt_stands_one_row_at_least(served: Inside, nano: Engine, answered: bool) -> None:
    """lm-eval asks for one token more than it wants and cuts the last row off, whatever it is: an end is one, too."""
    ids = nano.text.chat(USER)
    ids += nano.text.encode(ANSWER, bos=False) if answered else []
    (choice,) = ask(served, prompt=ids, max_tokens=1)["choices"]
    assert choice["finish_reason"] == ("stop" if answered else "length")
    assert choice["text"] == nano.text.decode(ids) + ("" if answered else '{"')
    assert {len(rows) for rows in choice["logprobs"].values()} == {len(ids) + 1}


@pytest.mark.parametrize("most", [0, 6])
def test_a_stream_joins_to_the_same(served: Inside, most: int) -> None:
    body: dict[str, Any] = {"prompt": [RECORD, "sudoku\n1"], "max_tokens": most}
    whole = ask(served, **body)["choices"]
    lines = httpx2.post(served.base + "/completions", json=READ | body | {"stream": True}, timeout=99).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    for wanted in whole:
        parts = [one for chunk in chunks for one in chunk["choices"] if one["index"] == wanted["index"]]
        assert "".join(one["text"] for one in parts) == wanted["text"]
        for name, rows in wanted["logprobs"].items():
            assert [row for one in parts if one["logprobs"] for row in one["logprobs"][name]] == rows
        assert parts[-1]["finish_reason"] == wanted["finish_reason"]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"canvas": {"width": 16}}, "canvas.width"),
        ({"effort": 0.5}, "effort"),
        ({"suffix": "}", "max_tokens": 4}, "echo"),
        ({"logprobs": None}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt": [10**6]}, None),
        ({"prompt": []}, "prompt"),
    ],
)
def test_what_cannot_be_read_is_refused(served: Inside, more: dict[str, Any], param: str | None) -> None:
    reported = ask(served, **{"prompt": "a", **more})
    assert reported["error"]["type"] == "invalid_request_error"
    if param is not None:
        assert reported["error"]["param"] == param


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_there_was_no_time_to_read_is_an_error(served: Inside, stream: bool) -> None:
    body = READ | {"prompt": RECORD * 60, "deadline_ms": 0.01, "stream": stream}
    said = httpx2.post(served.base + "/completions", json=body, timeout=100)
    assert said.status_code == (200 if stream else 504)
    assert "the time was up before the prompt was read; raise deadline_ms" in said.text
    assert "finish_reason" not in said.text
