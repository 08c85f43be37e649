"""The openai client, as people install it, against a real server process."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from tests.server.conftest import ANSWER, RECORD, ROOT, USER, Process

FULL = {"ignore_eos": True}


def test_models_are_listed_and_found(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["nano", "other-name"]
    assert client.models.retrieve("nano").owned_by == "redraft"
    with pytest.raises(openai.NotFoundError) as reported:
        client.models.retrieve("gpt-9")
    assert reported.value.code == "model_not_found"


def test_chat_answers_with_usage_and_says_what_it_took(client: OpenAI) -> None:
    done = client.chat.completions.create(model="nano", messages=USER, seed=7, n=2)
    assert [choice.message.content for choice in done.choices] == [ANSWER, ANSWER]
    assert [choice.finish_reason for choice in done.choices] == ["stop", "stop"]
    assert done.usage is not None
    assert done.usage.prompt_tokens == 25
    assert done.usage.completion_tokens == 36
    assert done.usage.total_tokens == 61
    extra = done.usage.model_extra or {}
    assert extra["forwards"] == extra["steps"] > 0
    assert extra["tokens_per_forward"] == pytest.approx(36 / extra["steps"], abs=1e-3)


def test_content_may_be_parts(client: OpenAI) -> None:
    parts: list[ChatCompletionMessageParam] = [{"role": "user", "content": [{"type": "text", "text": RECORD}]}]
    assert client.chat.completions.create(model="nano", messages=parts).choices[0].message.content == ANSWER


def test_a_stream_joins_to_the_answer_and_ends_with_usage(client: OpenAI) -> None:
    options: openai.types.chat.ChatCompletionStreamOptionsParam = {"include_usage": True}
    with client.chat.completions.create(
        model="nano", messages=USER, seed=7, stream=True, stream_options=options
    ) as stream:
        chunks = list(stream)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == ANSWER
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 18
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_the_stream_helper_gathers_events(client: OpenAI) -> None:
    with client.chat.completions.stream(model="nano", messages=USER, seed=7) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_completion().choices[0].message.content == ANSWER
    assert "content.delta" in kinds
    assert "content.done" in kinds


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": USER, "stop": ["qty"]}),
        ("chat/completions", {"messages": USER, "stop": ['y":'], "canvas": {"width": 4}}),
        ("completions", {"prompt": RECORD, "stop": ["e", "a"], "temperature": 5, "canvas": {"width": 4}}),
        ("completions", {"prompt": RECORD, "temperature": 10, "max_tokens": 40, "canvas": {"width": 8}}),
    ],
)
def test_a_stream_has_the_log_probabilities_of_the_whole_answer(
    server: Process, path: str, body: dict[str, Any]
) -> None:
    """Also where a stop string ends it in the middle of a canvas: rows come with their text, and end with it."""
    body |= {"seed": 7, "logprobs": path.startswith("chat") or 1}
    whole = httpx2.post(f"{server.base}/{path}", json=body, timeout=100).json()["choices"][0]["logprobs"]
    streamed = httpx2.post(f"{server.base}/{path}", json=body | {"stream": True}, timeout=100).text
    chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    parts = [rows for chunk in chunks if (rows := chunk["choices"][0].get("logprobs"))]
    assert parts
    for name in ("tokens", "token_logprobs", "text_offset", "content"):
        if name in whole:
            assert [row for part in parts for row in part[name]] == whole[name]


def test_logprobs_of_both_kinds(client: OpenAI) -> None:
    done = client.chat.completions.create(model="nano", messages=USER, seed=7, logprobs=True, top_logprobs=3)
    reported = done.choices[0].logprobs
    assert reported is not None
    assert reported.content is not None
    assert "".join(token.token for token in reported.content) == ANSWER
    assert b"".join(bytes(token.bytes or []) for token in reported.content).decode() == ANSWER
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in reported.content)
    text = client.completions.create(
        model="nano", prompt="record\nSend", max_tokens=8, seed=1, logprobs=2, extra_body=FULL
    )
    rows = text.choices[0].logprobs
    assert rows is not None
    assert rows.tokens is not None
    assert rows.text_offset is not None
    assert len(rows.tokens) == 8
    assert rows.text_offset[0] == 0


def test_text_completions_take_four_forms_of_prompt(client: OpenAI) -> None:
    quick = {"canvas": {"width": 16}}
    prompts = ["record\nSend", "sudoku\n1"]
    texts = client.completions.create(model="nano", prompt=prompts, max_tokens=4, seed=3, n=2, extra_body=quick)
    assert [choice.index for choice in texts.choices] == [0, 1, 2, 3]
    ids = [[2, 426, 404], [2, 427]]
    assert len(client.completions.create(model="nano", prompt=ids, max_tokens=2).choices) == 2
    assert len(client.completions.create(model="nano", prompt=ids[0], max_tokens=2).choices) == 1
    echoed = client.completions.create(model="nano", prompt="record\n", max_tokens=4, echo=True, seed=1)
    plain = client.completions.create(model="nano", prompt="record\n", max_tokens=4, seed=1)
    assert echoed.choices[0].text == "record\n" + plain.choices[0].text
    assert plain.usage is not None
    assert plain.usage.completion_tokens <= 4


def test_a_text_stream_has_no_deltas(client: OpenAI) -> None:
    """One client reads `delta` wherever there is one, and stumbles over those without a role."""
    with client.completions.create(model="nano", prompt="record\n", max_tokens=8, seed=1, stream=True) as stream:
        chunks = list(stream)
    whole = client.completions.create(model="nano", prompt="record\n", max_tokens=8, seed=1)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert not any("delta" in (chunk.choices[0].model_extra or {}) for chunk in chunks)


def test_a_prediction_seeds_the_canvas_and_is_counted(client: OpenAI) -> None:
    done = client.chat.completions.create(
        model="nano", messages=USER, seed=7, prediction={"type": "content", "content": ANSWER}
    )
    assert done.choices[0].message.content == ANSWER
    assert done.usage is not None
    assert done.usage.completion_tokens_details is not None
    assert done.usage.completion_tokens_details.accepted_prediction_tokens == 18
    assert done.usage.completion_tokens_details.rejected_prediction_tokens == 0


@pytest.mark.parametrize(("name", "keyed"), [("nano", False), ("nano", True), ("nano-sudoku", False)])
def test_the_line_to_try_works_as_it_is_printed(name: str, keyed: bool) -> None:
    command = [sys.executable, "-m", "redraft", "serve", "--port", "0", "--threads", "1", "--model", name]
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src")} | ({"REDRAFT_API_KEYS": "YOUR-KEY"} if keyed else {})
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables) as server:
        assert server.stderr is not None
        said = next(line for line in server.stderr if "curl" in line)
        _, url, *rest = shlex.split(said[said.index("curl") :])
        given = list(zip(rest[::2], rest[1::2], strict=True))
        headers = dict(value.split(": ", 1) for flag, value in given if flag == "-H")
        (body,) = (value for flag, value in given if flag == "-d")
        done = httpx2.post(url, headers=headers, content=body, timeout=60).raise_for_status()
        server.terminate()
    content = done.json()["choices"][0]["message"]["content"]
    assert json.loads(content)["who"] == "Maria" if name == "nano" else content.startswith("1324\n")
