"""`/v1/responses` with tools, through the openai client: what the AI SDK, inspect-ai and instructor send by default."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import httpx2
import openai
import pytest
from openai import OpenAI
from openai.types.responses import ResponseFunctionToolCall
from tests.helpers import SCHEMA
from tests.server.conftest import ANSWER, RECORD, USER, Process

from redraft.engine.answer import Answer, Delta
from redraft.engine.events import Block, Finished
from redraft.engine.request import Options, Request
from redraft.operations.engine import Engine
from redraft.server.http.service import Service
from redraft.server.http.settings import Settings
from redraft.server.openai.replies import ChatForm
from redraft.server.openai.response_fields import Responses
from redraft.server.openai.response_form import ResponseForm
from redraft.server.openai.responses import _work, turns_of

ORDER: Any = {
    "type": "function",
    "name": "order",
    "strict": True,
    "parameters": SCHEMA,
}
DEFAULTS: Any = {
    "truncation": "auto",
    "include": ["reasoning.encrypted_content"],
    "store": False,
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "prompt_cache_key": "a",
}
FORCED: Any = {"tools": [ORDER], "tool_choice": {"type": "function", "name": "order"}, "extra_body": {"seed": 7}}


def test_the_defaults_of_clients_pass_and_what_has_no_effect_is_named(client: OpenAI) -> None:
    got = client.responses.with_raw_response.create(model="nano", input=RECORD, **DEFAULTS)
    done = got.parse()
    assert (done.output_text, done.truncation, done.tools) == (ANSWER, "auto", [])
    assert got.headers["x-ignored-fields"] == "include, prompt_cache_key, store"
    same: Any = {"top_k": -1, "chat_template_kwargs": {"enable_thinking": False}}
    assert client.responses.create(model="nano", input=RECORD, extra_body=same).output_text == ANSWER
    for wrong in ({"top_logprobs": 2}, {"top_k": 1.5}, {"include": ["message.output_text"]}, {"truncation": "middle"}):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model="nano", input=RECORD, extra_body=wrong)
        assert str(refused.value.param).startswith(*wrong)


def test_where_fields_are_asked_for_what_stands_in_front_is_left_out_and_named(nano: Engine) -> None:
    text, service = "Send 3 apples to Maria.", Service(Settings(ask_fields=True))
    service.ready(nano)
    asked = f"Extract as JSON: who, qty (integer), item\n{text}"
    form = {"text": {"format": {"type": "json_schema", "name": "order", "schema": SCHEMA}}}
    said = [{"role": "user", "content": "hello"}, {"role": "user", "content": text}]
    for more, named in (
        ({"input": text}, []),
        ({"input": text, "instructions": "Be kind."}, ["instructions"]),
        ({"input": said}, ["input[:-1]"]),
        ({"input": said, "instructions": "Be kind."}, ["instructions", "input[:-1]"]),
    ):
        work = _work(service, Responses.model_validate(form | more))
        shown = nano.chat_prompt([{"role": "user", "content": asked}]).tokens
        assert (tuple(work.requests[0].shown_prompt), list(work.unused)) == (shown, named)


NEEDY = "{% for one in messages %}{{ '<|turn>' + (one['tool_call_id'] if one['role'] == 'tool' else '') }}{% endfor %}"
"""A template that fails without a part of messages, and prints no calls."""


@pytest.mark.parametrize(
    ("template", "choice", "names"),
    [
        (None, "required", ["input[].call_id", "tools[].description"]),
        (None, "auto", ["input[].call_id", "tools"]),
        (NEEDY, "required", ["input[].arguments", "input[].name", "tools[].description"]),
    ],
)
def test_parts_of_calls_without_effect_are_named_as_they_were_sent(
    nano: Engine, template: str | None, choice: str, names: list[str]
) -> None:
    """They had names of chat's; and where the template needs one of them, the conversation was refused."""
    service = Service(Settings())
    service.ready(nano if template is None else replace(nano, text=replace(nano.text, template=template)))
    call = {"type": "function_call", "call_id": "1", "name": "order", "arguments": "{}"}
    items = [{"role": "user", "content": "a"}, call, {"type": "function_call_output", "call_id": "1", "output": "ok"}]
    body = {"input": items, "tools": [ORDER | {"description": "Orders."}], "tool_choice": choice}
    assert sorted(_work(service, Responses.model_validate(body)).unused) == names


def test_log_probabilities_are_those_of_chat(client: OpenAI) -> None:
    asked: Any = {"model": "nano", "input": RECORD, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    chat = client.chat.completions.create(model="nano", messages=USER, seed=7, logprobs=True, top_logprobs=2)
    assert chat.choices[0].logprobs is not None
    wanted = [one.model_dump() for one in chat.choices[0].logprobs.content or ()]
    assert "".join(one["token"] for one in wanted).removesuffix("<turn|>") == ANSWER
    done: Any = client.responses.create(**asked, extra_body={"seed": 7})
    assert [one.model_dump() for one in done.output[0].content[0].logprobs] == wanted
    events: list[Any] = list(client.responses.create(**asked, stream=True, extra_body={"seed": 7}))
    deltas = [row for one in events if one.type == "response.output_text.delta" for row in one.logprobs]
    assert [row.token for row in deltas] == [one["token"] for one in wanted]
    (whole,) = [one for one in events if one.type == "response.output_text.done"]
    assert [row.logprob for row in whole.logprobs] == [one["logprob"] for one in wanted]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "order"}])
def test_a_forced_call_is_the_output(client: OpenAI, choice: Any) -> None:
    done = client.responses.create(model="nano", input=RECORD, **FORCED | {"tool_choice": choice})
    (call,) = done.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, json.loads(call.arguments)["who"], call.status) == ("order", "Karomi", "completed")
    assert call.id is not None
    assert call.id.startswith("fc_")
    assert call.call_id.startswith("call_")
    assert (done.status, done.output_text, done.tools[0].type) == ("completed", "", "function")


def test_a_call_streams_as_an_item_of_its_own(client: OpenAI) -> None:
    with client.responses.stream(model="nano", input=RECORD, **FORCED) as stream:
        events = list(stream)
        (whole,) = stream.get_final_response().output
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(7))
    added, delta, done, closed = (event.model_dump() for event in events[2:6])
    assert isinstance(whole, ResponseFunctionToolCall)
    assert json.loads(delta["delta"])["qty"] == 417
    assert delta["delta"] == done["arguments"] == closed["item"]["arguments"] == whole.arguments
    assert (added["item"]["arguments"], added["item"]["status"]) == ("", "in_progress")
    assert added["item"]["id"] == delta["item_id"] == done["item_id"] == closed["item"]["id"] == whole.id


def test_a_text_streams_as_it_did(client: OpenAI) -> None:
    with client.responses.stream(model="nano", input=RECORD) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == ANSWER
    assert kinds[2:4] == ["response.output_item.added", "response.content_part.added"]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


def test_calls_and_their_outputs_become_turns_of_the_chat() -> None:
    """Calls belong to the assistant's turn in front of them, and what was thought is shown to no model."""
    items = [
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "a",
            "name": "f",
            "arguments": '{"x":1}',
            "status": "completed",
        },
        {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "rain"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "sun"}]},
    ]
    body = Responses.model_validate({"input": items, "instructions": "Be brief."})
    calls = [
        {"id": "a", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"id": "b", "function": {"name": "f", "arguments": "{}"}},
    ]
    assert turns_of(body) == [
        (-1, {"role": "system", "content": "Be brief."}),
        (0, {"role": "user", "content": "Weather?"}),
        (2, {"role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}], "tool_calls": calls}),
        (5, {"role": "tool", "tool_call_id": "a", "content": "rain"}),
        (6, {"role": "tool", "tool_call_id": "b", "content": [{"type": "input_text", "text": "sun"}]}),
    ]
    assert body.ignored == ["input.encrypted_content", "input.id", "input.status", "input.summary"]


def test_a_truncated_conversation_is_its_last_turns_that_fit(client: OpenAI) -> None:
    """Of three long turns the context holds two. The instructions stay."""
    old = [{"role": "user", "content": "a b " * 100}, {"role": "assistant", "content": "c"}] * 3
    turns: Any = [*old, {"role": "user", "content": RECORD}]
    sent: Any = {"model": "nano", "instructions": "Be brief.", "extra_body": {"seed": 7}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input=turns, **sent)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    cut = client.responses.create(input=turns, truncation="auto", max_output_tokens=32, **sent)
    kept = client.responses.create(input=turns[1:], max_output_tokens=32, **sent)
    assert cut.usage is not None
    assert kept.usage is not None
    assert (cut.output_text, cut.usage.input_tokens) == (kept.output_text, kept.usage.input_tokens)


def test_one_turn_that_is_too_long_is_refused_all_the_same(server: Process) -> None:
    body = {"input": "a b " * 2000, "truncation": "auto"}
    error = httpx2.post(f"{server.url}/v1/responses", json=body, timeout=100).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")


@pytest.mark.parametrize(
    "turns",
    [
        [{"type": "function_call_output", "call_id": "a", "output": "x " * 3000}],
        [{"type": "reasoning", "summary": []}],
    ],
)
def test_a_conversation_that_no_turn_may_begin_is_too_long_and_no_failure(server: Process, turns: list[Any]) -> None:
    body = {"input": turns, "instructions": "y " * 3000, "truncation": "auto"}
    reply = httpx2.post(f"{server.url}/v1/responses", json=body, timeout=100)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("texts", [["<pad>", "<pad>"], ["<pad>", "a", "<pad>"], ["a"]])
def test_a_message_is_opened_once_and_its_deltas_have_all_rows(nano: Engine, texts: list[str]) -> None:
    """An answer of special tokens alone opened its message twice, and their log-probabilities were in no delta."""
    text = nano.text
    tokens = [text.tokenizer.token_to_id(one) for one in texts]
    request = nano.resolve(Request("x", Options(max_tokens=8, logprobs=0, seed=1)))
    answer, none = Answer(text, request), [0] * len(tokens)
    rows = [((token, -1.0),) for token in tokens]
    block = Block(0, tokens, [0.0] * len(tokens), none, none, 1, settled=True, logprobs=rows)
    deltas = [answer.take(block), answer.take(Finished("length", 0))]

    async def answers() -> AsyncIterator[tuple[int, Delta]]:
        for delta in deltas:
            yield 0, delta

    async def judged(made: Callable[[], Any]) -> Any:
        return made()

    details = {"prompt_tokens_details": {}, "completion_tokens_details": {"reasoning_tokens": 0}}
    counts = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens", "steps", "forwards"), 1) | details
    exchange = Mock(answers=answers(), judged=judged, done=lambda: [answer.generation()])
    exchange.work.form, exchange.service.settings.name = ChatForm(text, True), "nano"
    exchange.usage.return_value = counts | {"tokens_per_forward": 1}
    body = Responses.model_validate({"input": "x", "include": ["message.output_text.logprobs"], "stream": True})

    async def events() -> list[Any]:
        return [event async for event in ResponseForm(body, exchange).events()]

    seen = asyncio.run(events())
    kinds = [event["type"].removeprefix("response.") for event in seen]
    assert kinds.count("output_item.added") == kinds.count("content_part.added") == 1
    shown = [event for event in seen if event["type"] == "response.output_text.delta"]
    assert "".join(event["delta"] for event in shown) == answer.content
    assert sum(len(event["logprobs"]) for event in shown) == len(tokens)
