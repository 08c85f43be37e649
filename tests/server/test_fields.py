"""Every public field does something or is refused: nothing a client sends is dropped in silence."""

from __future__ import annotations

import json
import typing
from typing import Any

import httpx2
import pytest
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as response_params
from tests.server.conftest import ANSWER, USER

from redraft.server.canvas import CanvasBody
from redraft.server.fim.infill import Fim, InfillHole
from redraft.server.fim.llamacpp import LlamaCompletion
from redraft.server.http.body import Body
from redraft.server.openai.fields import CanvasOptions, Chat, Completion
from redraft.server.openai.response_fields import Responses

BASE: dict[str, Any] = {
    "messages": [{"role": "user", "content": "record\nSend 417 apples to Karomi."}],
    "seed": 1,
    "max_tokens": 24,
    "canvas": {"width": 32},  # whatever the model's own is, this is quick
}
"""A sentence that the model is unsure of, for it has a word that is no word of the task's."""

QUESTION = {"type": "predicate", "instructions": "Is it?", "name": "a"}

CHANGES: dict[str, Any] = {
    # name: a value that must change the answer, the reply's form, or be refused by this name
    "messages": USER,
    "model": "gpt-9",
    "max_tokens": 3,
    "max_completion_tokens": 3,
    "min_tokens": 22,
    "ignore_eos": True,
    "temperature": 10.0,
    "top_p": 0.001,
    "top_k": 1,
    "n": 2,
    "seed": 2,
    "stop": ["{"],
    "stream": True,
    "logit_bias": {"300": 100.0},
    "presence_penalty": 1.0,
    "frequency_penalty": 1.0,
    "repetition_penalty": 1.5,
    "bad_words": ["{", '{"'],
    "effort": 0.5,
    "max_steps": 1,
    "entropy_bound": 50.0,
    "deadline_ms": 0.01,
    "target_ms": 50.0,
    "response_format": {"type": "json_object"},
    "structured_outputs": {"choice": ["north"]},
    "json_schema": {"const": 3},
    "grammar": 'start: "north"',
    "logprobs": True,
    "top_logprobs": 2,
    "reasoning_effort": "high",
    "prediction": {"type": "content", "content": "yes"},
    "chat_template_kwargs": {"enable_thinking": True},
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "canvas.width": 8,
    "canvas.preset": "nothing",
    "canvas.accept": ["nothing"],
    "canvas.cooling": 0,
    "canvas.min_effort": 0.5,
    "canvas.causal": True,
    "canvas.draw": True,
    "canvas.stream": True,
    "canvas.ask_fields": True,
    "canvas.verbatim": True,
    "canvas.read_back": True,
    "canvas.end_aware": "yes",
    "stream_options.include_usage": True,
    "stream_options.continuous_usage_stats": True,
}
ONLY_SHOWN = {
    "parse_special": "these messages spell no special token",
    # changes nothing in an answer, by its meaning
    "parallel_tool_calls": "an answer has at most one call",
    "canvas": "an object",
    "stream_options": "an object",
}
STREAMED = ("canvas.stream", "stream_options.include_usage", "stream_options.continuous_usage_stats")
EMPTY = "sudoku\n....\n....\n....\n...."
HARD: dict[str, Any] = {"messages": [{"role": "user", "content": EMPTY}], "max_tokens": 32, "max_steps": 6}
"""A prompt that the model is unsure of, where knobs of the sampler show, if not under every seed."""
SAMPLER = ("temperature", "top_p", "top_k", "entropy_bound", "max_steps", "seed", "logit_bias")


def seen(http: httpx2.Client, body: dict[str, Any]) -> tuple[int, Any]:
    """What a client can tell apart: status, and the reply without what is new in each."""
    reported = http.post("/v1/chat/completions", json=body)
    if reported.status_code != 200:
        return reported.status_code, reported.json()["error"]["param"]
    if body.get("stream"):
        return 200, (
            reported.text.count("data: "),
            '"usage":{' in reported.text,
            reported.text.count('"usage":{'),
            "positions" in reported.text,
        )
    reply = reported.json()
    keep = ("message", "logprobs", "finish_reason")
    return 200, (reply["usage"], [{key: choice[key] for key in keep} for choice in reply["choices"]])


def test_the_table_has_every_field() -> None:
    named = {name.partition(".")[0] for name in CHANGES} | ONLY_SHOWN.keys()
    assert named == set(Chat.model_fields)
    assert {name.partition(".")[2] for name in CHANGES if name.startswith("canvas.")} == set(CanvasOptions.model_fields)


@pytest.mark.parametrize("name", CHANGES)
def test_a_field_changes_something_or_is_refused(http: httpx2.Client, name: str) -> None:
    outer, _, inner = name.partition(".")
    base = BASE | (HARD if name in SAMPLER else {}) | ({"stream": True} if name in STREAMED else {})
    if name == "max_completion_tokens":
        base = {key: value for key, value in base.items() if key != "max_tokens"}
    if name == "top_logprobs":
        base |= {"logprobs": True}
    if name == "stream_options.continuous_usage_stats":
        base |= {"stream_options": {"include_usage": True}}
    given = {**base.get(outer, {}), inner: CHANGES[name]} if inner else CHANGES[name]
    seeds = (0, 3, 4, 5) if name in SAMPLER else (1,)
    assert any(seen(http, base | {"seed": seed, outer: given}) != seen(http, base | {"seed": seed}) for seed in seeds)


def test_no_chunk_has_usage_that_was_not_asked_for(http: httpx2.Client) -> None:
    """As vLLM has it: `continuous_usage_stats` says how usage comes, `include_usage` whether."""
    options = {"include_usage": False, "continuous_usage_stats": True}
    reply = http.post("/v1/chat/completions", json=BASE | {"stream": True, "stream_options": options})
    assert reply.status_code == 200
    assert '"usage":{' not in reply.text


@pytest.mark.parametrize("more", [{}, {"prediction": {"type": "content", "content": ANSWER}}, {"stop": ["4"]}])
@pytest.mark.parametrize("causal", [False, True])
def test_usage_that_comes_with_every_chunk_ends_as_that_of_the_whole(
    http: httpx2.Client, more: dict[str, Any], causal: bool
) -> None:
    """All answers were counted anew at each delta, which held the server for minutes where they were 64."""
    more = {} if causal and "prediction" in more else more  # which goes with canvases alone
    body = BASE | more | {"n": 3, "canvas": {"causal": causal}}
    whole = http.post("/v1/chat/completions", json=body).json()["usage"]
    options = {"include_usage": True, "continuous_usage_stats": True}
    reply = http.post("/v1/chat/completions", json=body | {"stream": True, "stream_options": options})
    chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    *running, last = [chunk["usage"] for chunk in chunks if chunk["usage"]]
    same = ("completion_tokens", "completion_tokens_details", "steps", "forwards", "tokens_per_forward")
    assert [running[-1][name] for name in same] == [last[name] for name in same] == [whole[name] for name in same]
    assert [one["completion_tokens"] for one in running] == sorted(one["completion_tokens"] for one in running)


@pytest.mark.parametrize(
    ("params", "model"),
    [
        (chat_params.CompletionCreateParamsNonStreaming, Chat),
        (text_params.CompletionCreateParamsNonStreaming, Completion),
        (response_params.ResponseCreateParamsNonStreaming, Responses),
    ],
)
def test_every_field_that_the_openai_client_can_send_is_known(params: Any, model: type[Body]) -> None:
    """Honoured, named as without effect, or refused by name unless neutral: none is met by chance."""
    unknown = set(typing.get_type_hints(params)) - set(model.model_fields) - model.inert - set(model.neutral)
    assert not unknown


@pytest.mark.parametrize("model", [Chat, Completion, Fim, InfillHole, LlamaCompletion, CanvasBody, Responses])
def test_no_field_is_in_two_classes(model: type[Body]) -> None:
    fields, neutral = set(model.model_fields), set(model.neutral)
    assert not fields & model.inert
    assert not fields & neutral
    assert not model.inert & neutral


@pytest.fixture(scope="module")
def plain(http: httpx2.Client) -> tuple[int, Any]:
    return seen(http, BASE)


@pytest.mark.parametrize("name", sorted(Chat.neutral))
def test_a_field_that_is_not_done_is_refused_unless_it_asks_for_nothing(
    http: httpx2.Client, plain: tuple[int, Any], name: str
) -> None:
    assert seen(http, BASE | {name: "something"}) == (400, name)
    for value in Chat.neutral[name]:
        assert seen(http, BASE | {name: value})[0] == 200
    assert seen(http, BASE | {name: None}) == plain


@pytest.mark.parametrize("name", sorted(Chat.inert))
def test_a_field_without_effect_is_named(http: httpx2.Client, name: str) -> None:
    reported = http.post("/v1/chat/completions", json=BASE | {name: "something"})
    assert reported.status_code == 200
    assert reported.headers["x-ignored-fields"] == name


def test_fields_without_effect_are_named_wherever_they_stand(http: httpx2.Client) -> None:
    body = BASE | {"stream": True, "stream_options": {"include_obfuscation": True}, "metadata": "deep"}
    body["messages"] = [{**BASE["messages"][0], "annotations": []}]
    deep = '{"user": ' * 50 + "1" + "}" * 50  # what has no effect may hold anything, names of such fields, too
    content = json.dumps(body).replace('"deep"', deep)
    reported = http.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert reported.status_code == 200
    assert reported.headers["x-ignored-fields"] == "messages.annotations, metadata, stream_options.include_obfuscation"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("chat/completions", BASE | {"canvas": {"stream": True}}, "canvas.stream"),
        ("chat/completions", BASE | {"stream_options": {"include_usage": True}}, "stream_options"),
        (
            "completions",
            {"prompt": "a", "stream": False, "stream_options": {"continuous_usage_stats": True}},
            "stream_options",
        ),
        ("fim/completions", {"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
        ("responses", {"input": "a", "stream": True, "canvas": {"stream": True}}, "canvas.stream"),
        ("completions", {"prompt": "a", "suffix": "b", "stream": True, "canvas": {"stream": True}}, "canvas.stream"),
        # A gap's answer broke the schema, and nobody said so.
        ("completions", {"prompt": "a", "suffix": "b", "json_schema": {"type": "integer"}}, "json_schema"),
        ("completions", {"prompt": "a", "suffix": "b", "json_schema": {}}, "json_schema"),
        ("completions", {"prompt": "a", "suffix": "b", "grammar": 'start: "yes"'}, "grammar"),
        ("completions", {"prompt": "a", "suffix": "b", "best_of": 5}, "best_of"),
        ("chat/completions", BASE | {"response_format": {"type": "text", "schema": {}}}, "response_format"),
        (
            "chat/completions",
            BASE | {"response_format": {"type": "text", "json_schema": {"schema": {}}}},
            "response_format",
        ),
        ("responses", {"input": "a", "text": {"format": {"type": "text", "schema": {}}}}, "text.format"),
        ("decisions", {"input": "a", "questions": [QUESTION, QUESTION]}, "questions"),
        # Steps that never came.
        ("chat/completions", BASE | {"stream": True, "canvas": {"causal": True, "stream": True}}, "canvas.stream"),
        (
            "completions",
            {"prompt": "a", "echo": True, "logprobs": 1, "stream": True, "canvas": {"stream": True}},
            "canvas.stream",
        ),
        ("../completion", {"prompt": "a", "stream": True, "canvas": {"stream": True}}, "canvas.stream"),
        (
            "edit/completions",
            {"messages": [{"role": "user", "content": "<|code_to_edit|>a, b<|/code_to_edit|>"}], "max_tokens": 1},
            "max_tokens",
        ),
    ],
)
def test_a_field_with_nothing_to_do_is_refused_by_name(
    http: httpx2.Client, path: str, body: dict[str, Any], field: str
) -> None:
    reported = http.post(f"/v1/{path}", json=body)
    assert (reported.status_code, reported.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"content": "hi", "add_special_tokens": True}, "add_special_tokens"),
        ({"prompt": "hi", "add_special": True}, "add_special"),
        ({"prompt": "hi", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"messages": USER, "add_special_tokens": True}, "add_special_tokens"),
    ],
)
def test_a_flag_of_another_dialect_of_tokenize_is_refused(
    http: httpx2.Client, body: dict[str, Any], field: str
) -> None:
    """It changed nothing, and who counts tokens had another number."""
    reported = http.post("/tokenize", json=body)
    assert (reported.status_code, reported.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize(
    ("body", "more"),
    [
        ({"content": "hi"}, {"add_special_tokens": False}),
        ({"content": "hi"}, {"prompt": "hi", "content": None, "add_special": False}),  # which is what it says
        ({"prompt": "hi"}, {"add_generation_prompt": False}),
        ({"messages": USER}, {"add_special_tokens": False, "add_special": False, "tools": []}),
        ({"messages": USER}, {"continue_final_message": False, "chat_template_kwargs": {}}),
    ],
)
def test_a_flag_of_tokenize_that_asks_for_nothing_passes(
    http: httpx2.Client, body: dict[str, Any], more: dict[str, Any]
) -> None:
    reported = http.post("/tokenize", json=body | more)
    assert reported.status_code == 200, reported.text
    assert reported.json() == http.post("/tokenize", json=body).json()


def test_a_schema_beside_json_object_is_held(http: httpx2.Client) -> None:
    """Its answer was any object."""
    form = {"type": "json_object", "schema": {"type": "object", "properties": {"a": {"const": 5}}, "required": ["a"]}}
    reported = http.post("/v1/responses", json={"input": "a", "seed": 1, "text": {"format": form}}).json()
    assert json.loads(reported["output"][-1]["content"][0]["text"])["a"] == 5


def test_a_name_that_the_template_does_not_print_is_named(http: httpx2.Client) -> None:
    turn = {**BASE["messages"][0], "name": "Bob"}
    reported = http.post("/v1/chat/completions", json=BASE | {"messages": [turn]})
    assert reported.headers["x-ignored-fields"] == "messages[].name"


def test_calls_and_descriptions_that_the_template_does_not_print_are_named(http: httpx2.Client) -> None:
    tool = {"type": "function", "function": {"name": "send", "description": "Sends.", "parameters": {}}}
    call = {"id": "1", "type": "function", "function": {"name": "send", "arguments": "{}"}}
    turns = [*USER, {"role": "assistant", "content": "a", "tool_calls": [call]}]
    turns += [{"role": "tool", "content": "ok", "tool_call_id": "1"}, *USER]
    plain = [*USER, {"role": "assistant", "content": "a"}, {"role": "tool", "content": "ok"}, *USER]
    body = BASE | {"messages": turns, "tools": [tool], "tool_choice": "required"}
    named = http.post("/v1/chat/completions", json=body).headers.get("x-ignored-fields", "").split(", ")
    assert "tools[].function.description" in named
    counts = [len(http.post("/tokenize", json={"messages": one}).json()["tokens"]) for one in (turns, plain)]
    assert ("messages[].tool_calls" in named) == (counts[0] == counts[1])
    assert "messages[].tool_call_id" in named


def test_what_stands_before_a_text_to_edit_is_named(http: httpx2.Client) -> None:
    turns = [{"role": "system", "content": "a"}, {"role": "user", "content": "<|code_to_edit|>a, b<|/code_to_edit|>"}]
    reported = http.post("/v1/edit/completions", json={"messages": turns, "seed": 1})
    assert reported.headers["x-ignored-fields"] == "messages[:-1]"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": "record\n", "n_predict": 4}),
        ("/v1/canvas", {"prompt": "record\n", "max_tokens": 4}),
        ("/v1/canvas", {"segments": [{"text": "a "}, {"hole": {}}], "max_tokens": 4}),
    ],
)
def test_options_of_streams_that_have_their_counts_are_named(
    http: httpx2.Client, path: str, body: dict[str, Any]
) -> None:
    more = {"stream": True, "seed": 1, "stream_options": {"include_usage": True}}
    reported = http.post(path, json=body | more)
    assert (reported.status_code, reported.headers["x-ignored-fields"]) == (200, "stream_options")


def test_every_chunk_of_a_gap_has_the_usage_if_asked_to(http: httpx2.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "a", "suffix": "b", "seed": 1, "max_tokens": 4, "stream": True, "stream_options": options}
    lines = http.post("/v1/completions", json=body).text.splitlines()
    chunks = [json.loads(line[5:]) for line in lines if line.startswith("data: {")]
    assert len(chunks) > 2
    assert {json.dumps(chunk["usage"]) for chunk in chunks} == {json.dumps(chunks[-1]["usage"])}


@pytest.mark.parametrize("name", ["unheard", "x-y", "int", "", "two words"])
def test_a_field_that_nobody_knows_is_named_as_it_came(http: httpx2.Client, name: str) -> None:
    """A name that is no identifier was reported as None, and one like a type's not at all."""
    turn = {**BASE["messages"][0], name: 1}
    for body, field in ((BASE | {name: 1}, name), (BASE | {"messages": [turn]}, f"messages.0.{name}")):
        error = http.post("/v1/chat/completions", json=body).json()["error"]
        assert (error["param"], error["code"]) == (field, "unsupported_parameter")
        assert error["message"].startswith(f"{field} is not a field of this endpoint")


@pytest.mark.parametrize(
    ("more", "param", "meant"),
    [
        ({"max_token": 3}, "max_token", "did you mean 'max_tokens'?"),
        ({"canvas": {"widht": 32}}, "canvas.widht", "did you mean 'width'?"),
        ({"messages": [{"role": "user", "content": "x", "contents": "y"}]}, "messages.0.contents", "mean 'content'?"),
        ({"zzz": 1}, "zzz", "leave it out"),
        ({"guided_json": {}}, "guided_json", "is not supported here; send structured_outputs: {"),
    ],
)
def test_a_misspelt_field_is_refused_with_the_one_that_was_meant(
    http: httpx2.Client, more: dict[str, Any], param: str, meant: str
) -> None:
    error = http.post("/v1/chat/completions", json=BASE | more).json()["error"]
    assert error["param"] == param
    assert meant in error["message"]
