"""What clients do that the letter of the interface does not ask for, and that they were turned away for."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from tests.helpers import SCHEMA
from tests.server.conftest import ANSWER, RECORD, USER, Process

from redraft.server.http.sse import line_of

PROMPT = f"<|turn>user\n{RECORD}<turn|>\n<|turn>model\n"


def asked(server: Process, path: str = "/v1/chat/completions", **fields: Any) -> httpx2.Response:
    return httpx2.post(f"{server.url}{path}", json={"messages": USER} | fields, timeout=120)


def content(reply: httpx2.Response) -> str:
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


def test_a_base_url_may_lack_its_version(server: Process) -> None:
    assert content(asked(server, "/chat/completions", seed=1)) == content(asked(server, seed=1))
    assert httpx2.get(f"{server.url}/models").json() == httpx2.get(f"{server.url}/v1/models").json()
    assert asked(server, "/chat/nothing").status_code == 404


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"top_p": 0}, {"top_p": 1e-6}])
def test_who_asks_for_no_chance_gets_the_same_again(server: Process, fields: dict[str, Any]) -> None:
    """A canvas begins as noise, so without a seed even temperature 0 would differ from call to call."""
    turn = [{"role": "user", "content": "a question that no model in the package was ever asked"}]
    one, two = (asked(server, messages=turn, max_tokens=64, **fields) for _ in range(2))
    assert content(one) == content(two)
    assert content(one) == content(asked(server, messages=turn, max_tokens=64, seed=0, **fields))


@pytest.mark.parametrize("most", [1024, 4096, 2**20])
def test_more_tokens_than_there_is_room_for_are_what_there_is_room_for(server: Process, most: int) -> None:
    """Several clients send 1,024 or more whatever the model; the models in the package have 1,024 in all."""
    reply = asked(server, max_tokens=most, seed=1)
    assert content(reply) == content(asked(server, max_tokens=256, seed=1))
    long = [{"role": "user", "content": "a " * 400}]
    assert asked(server, messages=long, max_tokens=most, seed=1).status_code == 200


@pytest.mark.parametrize("most", [16, 96, 100, 117, 118, 1000])
def test_a_canvas_wider_than_the_room_is_made_narrower(server: Process, most: int) -> None:
    """Room for 118 tokens was refused to 100, whose canvas is wider, and given to 1,000."""
    body = {"prompt": [40] * 906, "max_tokens": most, "seed": 1}
    assert httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200


LITELLM = {
    "role": "assistant",
    "content": ANSWER,
    "tool_calls": None,
    "function_call": None,
    "audio": None,
    "refusal": None,
    "annotations": [],
    "provider_specific_fields": {"refusal": None, "canvas": {"steps": [2]}},
    "reasoning_content": "It was asked for.",
    "thinking_blocks": [{"type": "thinking", "thinking": "It was asked for."}],
}
"""A turn as litellm and the agents on top of it send it back."""


def test_a_reply_may_come_back_with_all_that_a_library_added_to_it(server: Process) -> None:
    plain = {"role": "assistant", "content": ANSWER}
    part = {"type": "text", "text": RECORD, "cache_control": {"type": "ephemeral"}, "provider_specific_fields": {}}
    again = {"role": "user", "content": [part]}
    reply = asked(server, messages=[*USER, LITELLM, again], seed=1)
    assert content(reply) == content(asked(server, messages=[*USER, plain, *USER], seed=1))
    assert reply.headers["x-ignored-fields"].split(", ") == [
        "messages.annotations",
        "messages.content.cache_control",
        "messages.content.provider_specific_fields",
        "messages.provider_specific_fields",
        "messages.reasoning_content",
        "messages.thinking_blocks",
    ]
    misspelt = asked(server, messages=[{"role": "user", "content": RECORD, "provider_specific_field": {}}])
    assert misspelt.json()["error"]["param"] == "messages.0.provider_specific_field"


NO_OPS: dict[str, Any] = {
    "add_generation_prompt": True,
    "continue_final_message": False,
    "functions": [],
    "function_call": "none",
    "tools": [],
    "return_token_ids": False,
    "n": 1,
    "logit_bias": {},
    "top_logprobs": 0,
    "stream_options": {},
    "parallel_tool_calls": True,
    "store": False,
    "metadata": {"a": "b"},
    "user": "somebody",
    "service_tier": "auto",
    "max_tokens": -1,
}
LLAMA_PAGE: dict[str, Any] = {
    "return_progress": True,
    "reasoning_format": "auto",
    "temperature": 1,
    "max_tokens": -1,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
    "xtc_probability": 0,
    "xtc_threshold": 0.1,
    "typ_p": 1,
    "repeat_last_n": 64,
    "repeat_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "samplers": ["top_k", "typ_p", "top_p", "min_p", "temperature"],
    "backend_sampling": False,
    "timings_per_token": True,
}
"""What llama.cpp's web page sends of settings that its user has opened and left as `/props` says."""


@pytest.mark.parametrize("sent", [NO_OPS, LLAMA_PAGE])
def test_values_that_ask_for_nothing_pass(server: Process, sent: dict[str, Any]) -> None:
    assert content(asked(server, seed=7, **sent)) == ANSWER


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"json_schema": SCHEMA},
        {"structured_outputs": {"json": SCHEMA}},
        {"grammar": 'start: "{" /[^}]+/ "}"'},
    ],
)
@pytest.mark.parametrize("stop", ["Karomi", ["\n", "</s>"]])
def test_stop_strings_beside_a_schema_pass_and_never_cut_the_answer(server: Process, form: Any, stop: Any) -> None:
    """Frameworks send them with every request; what OpenAI's server cuts in the middle is no JSON."""
    reply = asked(server, seed=7, stop=stop, **form)
    assert content(reply) == ANSWER
    assert reply.headers["x-ignored-fields"] == "stop"
    prompt = {"prompt": PROMPT, "max_tokens": 32, "stop": stop, "seed": 7}
    text = httpx2.post(f"{server.url}/v1/completions", json=prompt | form, timeout=120)
    assert text.json()["choices"][0]["text"] == ANSWER, text.text


def test_a_forced_call_leaves_a_format_nothing_to_hold(server: Process) -> None:
    """instructor sends both."""
    tools = [{"type": "function", "function": {"name": "order", "parameters": SCHEMA}}]
    form = {"type": "json_schema", "json_schema": {"schema": {"const": 3}}}
    reply = asked(server, tools=tools, tool_choice="required", response_format=form, seed=7)
    (call,) = reply.json()["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["who"] == "Karomi"
    assert reply.headers["x-ignored-fields"] == "response_format"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b" * 2000}]}, "messages"),
        ("/v1/completions", {"prompt": "a b" * 2000}, "prompt"),
        ("/completion", {"prompt": "a b" * 2000}, "prompt"),
        ("/v1/responses", {"input": "a b" * 2000}, "input"),
        ("/v1/responses", {"input": "a", "reasoning": {"effort": "high"}}, "reasoning.effort"),
        ("/v1/responses", {"input": "a", "text": {"format": {"type": "json_schema"}}}, "text.format"),
        ("/v1/responses", {"input": "a", "tools": [{"type": "function", "name": "f"}]}, "tools"),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.type"),
        (
            "/v1/chat/completions",
            {"messages": USER, "chat_template_kwargs": {"enable_thinking": True}},
            "chat_template_kwargs.enable_thinking",
        ),
        ("/v1/chat/completions", {"messages": USER, "tools": [{"function": {"name": "f"}}]}, "tools"),
        ("/v1/chat/completions", {"messages": USER, "canvas": {"width": 9999}}, "canvas.width"),
        *(
            (
                path,
                {given: USER if given == "messages" else "a", most: tokens, "canvas": {"width": width}},
                "canvas.width",
            )
            for path, given, most in (
                ("/v1/chat/completions", "messages", "max_tokens"),
                ("/v1/completions", "prompt", "max_tokens"),
                ("/v1/responses", "input", "max_output_tokens"),
            )
            for width in (0, -1)
            for tokens in (8, 5000)
        ),
        ("/v1/fim/completions", {"prompt": "a", "suffix": "b", "ignore_eos": True}, "ignore_eos"),
        ("/v1/chat/completions", {"messages": USER, "canvas": {"accept": ["nothing"]}}, "canvas.accept"),
        ("/v1/chat/completions", {"messages": USER, "grammar": 'root ::= ("a"'}, "grammar"),
    ],
)
def test_an_error_names_what_was_sent_under_the_name_that_it_was_sent_under(
    server: Process, path: str, body: dict[str, Any], param: str
) -> None:
    """Endpoints share their checks, and some spell a field in a way of their own."""
    reply = httpx2.post(server.url + path, json=body, timeout=100)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("responses", {"input": "a", "reasoning": {"effort": "low"}}, "reasoning.effort is 'low'"),
        ("chat/completions", {"messages": USER, "reasoning_effort": "high"}, "reasoning_effort is 'high'"),
        (
            "chat/completions",
            {"messages": USER, "chat_template_kwargs": {"enable_thinking": True}},
            "chat_template_kwargs.enable_thinking is True",
        ),
    ],
)
def test_a_refusal_of_thinking_says_the_value_that_was_sent(
    server: Process, path: str, body: dict[str, Any], said: str
) -> None:
    """It said "reasoning.effort is True", which no client had sent."""
    error = httpx2.post(f"{server.base}/{path}", json=body, timeout=100).json()["error"]
    assert error["message"].startswith(said)


def test_a_remedy_names_what_was_sent_too(server: Process) -> None:
    long = {"prompt": "a b c d " * 127, "n_predict": 4}
    error = httpx2.post(f"{server.url}/completion", json=long, timeout=100).json()["error"]
    assert error["param"] == "prompt"
    assert "lower n_predict" in error["message"]
    assert "max_tokens" not in error["message"]
    late = {"prompt": "a", "json_schema": {"type": "string"}, "t_max_predict_ms": 0.01}
    reply = httpx2.post(f"{server.url}/completion", json=late, timeout=100)
    assert reply.status_code == 504
    assert reply.json()["error"]["message"].endswith("raise t_max_predict_ms")


@pytest.mark.parametrize("n", [1, 2])
def test_usage_counts_what_the_prefix_cache_had(server: Process, n: int) -> None:
    """Chunks of 256 tokens are kept; a prompt counts once, however many answers it has."""
    body = {"messages": [{"role": "user", "content": f"{n} " + "a b " * 100}], "max_tokens": 4, "n": n}
    first, again = (asked(server, **body).json()["usage"] for _ in range(2))
    assert 256 < first["prompt_tokens"] <= 512
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert again["prompt_tokens_details"] == {"cached_tokens": 256}
    text = {"prompt": f"{n} " + "c d " * 100, "max_tokens": 4, "n": n}
    for cached in (0, 256):
        reply = httpx2.post(f"{server.url}/v1/completions", json=text, timeout=100).json()
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
    written = {"input": f"{n} " + "e f " * 100, "max_output_tokens": 4}
    for cached in (0, 256):
        reply = httpx2.post(f"{server.url}/v1/responses", json=written, timeout=100).json()
        assert reply["usage"]["input_tokens_details"]["cached_tokens"] == cached


def test_calls_of_one_conversation_have_different_names(server: Process) -> None:
    """Under one seed they had one, and libraries match what a call returned by its name."""
    call = {"type": "function", "function": {"name": "order", "parameters": SCHEMA}}
    longer = [*USER, {"role": "assistant", "content": ANSWER}, *USER]
    replies = [asked(server, messages=turns, tools=[call], tool_choice="required", seed=0) for turns in (USER, longer)]
    one, two = (reply.json()["choices"][0]["message"]["tool_calls"][0]["id"] for reply in replies)
    assert one != two


def test_an_event_is_one_line_for_every_reader_of_lines() -> None:
    """Those that end lines where Unicode does, as httpx's do, broke an event in two where a text had such a sign."""
    chunk = {"text": "a\u2028b\u2029c\x85d\x0ce\n"}
    line, blank = line_of(chunk).decode().splitlines()
    assert (json.loads(line.removeprefix("data: ")), blank) == (chunk, "")
