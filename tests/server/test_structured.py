"""Answers held to a language over HTTP, through the openai client: formats, structured outputs, tools."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import nullcontext
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx2
import jsonschema_rs
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionToolParam
from pydantic import BaseModel, EmailStr, Field
from tests.helpers import SCHEMA
from tests.server.conftest import RECORD, USER, Process, inside

import redraft
from redraft.constraints.places import unfenced
from redraft.constraints.sources import schema_source
from redraft.errors import ConstraintError
from redraft.operations.engine import Engine
from redraft.server.http.errors import ApiError
from redraft.server.http.service import Service
from redraft.server.http.settings import Settings
from redraft.server.openai.chat import prepare
from redraft.server.openai.constraint import Constraint
from redraft.server.openai.constraint import copied as taken
from redraft.server.openai.fields import Chat

NAMED = {"type": "function", "function": {"name": "order"}}
ORDER: ChatCompletionToolParam = {"type": "function", "function": {"name": "order", "parameters": SCHEMA}}


class Order(BaseModel):
    who: str
    qty: int
    item: str


@pytest.mark.parametrize("content", [RECORD, "what?", "sudoku\n1..4\n..1.\n..42\n4..."])
def test_a_schema_is_kept_whatever_is_asked(client: OpenAI, content: str) -> None:
    done = client.chat.completions.create(
        model="nano",
        messages=[{"role": "user", "content": content}],
        response_format={"type": "json_schema", "json_schema": {"name": "order", "schema": SCHEMA, "strict": True}},
        seed=1,
    )
    assert jsonschema_rs.validator_for(SCHEMA).is_valid(json.loads(done.choices[0].message.content or ""))


def test_parse_gives_the_model(client: OpenAI) -> None:
    done = client.chat.completions.parse(model="nano", messages=USER, response_format=Order, seed=7)
    assert done.choices[0].message.parsed == Order(who="Karomi", qty=417, item="melu")


def test_a_text_is_asked_for_its_fields_where_that_is_served(nano: Engine) -> None:
    """OpenAI's clients send a sentence and a schema. A request's own word counts above what is served."""
    text = "Send 3 apples to Maria."
    form = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
    asked, edit = f"Extract as JSON: who, qty (integer), item\n{text}", 'Edit: Set qty to 5.\n{"who":"Maria","qty":3}'
    other = {"type": "function", "function": {"name": "other", "parameters": {"properties": {"a": {}}}}}
    service = Service(Settings(ask_fields=True))
    service.ready(nano)
    for content, more, shown in (
        (text, form, asked),
        (text, {"json_schema": SCHEMA}, asked),
        (text, {"response_format": {"type": "json_object", "schema": SCHEMA}}, asked),
        (text, {"response_format": {"type": "json_schema", "schema": SCHEMA}}, asked),
        ([{"type": "text", "text": text}], {"structured_outputs": {"json": "who, qty int, item"}}, asked),
        (text, {"tools": [ORDER], "tool_choice": "required"}, asked),
        (text, {"tools": [ORDER, other], "tool_choice": NAMED}, asked),
        (text, {"tools": [ORDER, other], "tool_choice": "required"}, text),
        (text, {"tools": [ORDER, other], "tool_choice": "required"} | form, text),
        (text, {}, text),
        (text, form | {"canvas": {"ask_fields": False}}, text),
        (asked, form, asked),
        (edit, form, edit),
    ):
        body = Chat.model_validate({"messages": [{"role": "user", "content": content}]} | more)
        (request,) = prepare(service, body).requests
        assert tuple(request.shown_prompt) == nano.chat_prompt([{"role": "user", "content": shown}]).tokens


@pytest.mark.parametrize("before", ["system", "developer", "user"])
def test_where_fields_are_asked_for_earlier_turns_are_left_out_and_named(nano: Engine, before: str) -> None:
    """Every framework sends a system turn, and nano was taught one turn alone."""
    text, earlier = "Send 3 apples to Maria.", {"role": before, "content": "You are a helpful assistant."}
    form = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
    said, asked = {"role": "user", "content": text}, f"Extract as JSON: who, qty (integer), item\n{text}"
    alone, bare = [{"role": "user", "content": asked}], {"json_schema": {"type": "object"}}
    plain = [earlier if before == "user" else earlier | {"role": "system"}]
    for served, more, shown in (
        (True, form, alone),
        (True, form | {"canvas": {"ask_fields": True}}, alone),
        (True, form | {"canvas": {"ask_fields": False}}, [*plain, said]),
        (True, {}, [*plain, said]),
        (True, bare, [*plain, said]),
        (False, form | {"canvas": {"ask_fields": True}}, [*plain, *alone]),
    ):
        service = Service(Settings(ask_fields=served))
        service.ready(nano)
        work = prepare(service, Chat.model_validate({"messages": [earlier, said]} | more))
        assert tuple(work.requests[0].shown_prompt) == nano.chat_prompt(shown).tokens
        assert work.unused == (["messages[:-1]"] if shown == alone else [])


def test_strings_are_copied_where_that_is_served(nano: Engine) -> None:
    """As `redraft json` does for nano: out of the one turn whose fields are asked for, unless that is too long."""
    text, long = "Send 3 apples to Maria.", " ".join(f"a{i}" for i in range(9000))
    form = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
    service = Service(Settings(ask_fields=True))
    service.ready(nano)

    def copied(content: str, *before: str, **canvas: object) -> str:
        said = [{"role": "user", "content": one} for one in (*before, content)]
        body = Chat.model_validate({"messages": said, "canvas": canvas, "max_tokens": 64, **form})
        (request,) = prepare(service, body).requests
        assert request.language is not None
        return request.language.source.verbatim

    assert copied(text) == copied(text, "hello") == copied(text, "hello", verbatim=True) == text
    assert copied(text, verbatim=False) == copied(text, width=64) == ""
    assert copied(text, width=64, verbatim=True) == text
    form = {"tools": [ORDER], "tool_choice": NAMED}
    assert (copied(text), copied(text, verbatim=False)) == (text, "")
    form = {"tools": [ORDER, ORDER | {"function": {"name": "b"}}], "tool_choice": "required"}
    assert copied(text) == ""
    form = {"json_schema": SCHEMA}
    constraint = Constraint(schema_source("a, b, c, d"), "json_schema")
    for wanted in (False, True):
        found = taken(constraint, long, wanted=wanted)
        assert found is not None
        with pytest.raises(ConstraintError, match="or do without verbatim") if wanted else nullcontext():
            assert found.language(nano, 64).source.verbatim == ""
    with pytest.raises(ApiError, match=r"canvas\.verbatim copies what fields say; send canvas\.ask_fields"):
        copied(text, ask_fields=False, verbatim=True)


def test_a_question_that_nano_was_not_taught_is_answered_with_a_hint() -> None:
    """Its answer was nonsense, at a mean entropy of 0.001."""
    question = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 8, "seed": 1}
    taught = {"messages": [{"role": "user", "content": "Repair the JSON:\n{a:1}"}], "max_tokens": 8, "seed": 1}
    for asks, hinted in ((True, 1), (False, 0)):
        for at in inside(redraft.load("nano"), Settings(ask_fields=asks)):
            with httpx2.Client(base_url=at.base, timeout=100) as http:
                said = [http.post("/chat/completions", json=question | more).text for more in ({}, {"stream": True})]
                assert [text.count("was taught no conversations") for text in said] == [hinted] * 2
                empty = question | {"messages": [{"role": "user", "content": " "}], "structured_outputs": {"json": "a"}}
                assert http.post("/chat/completions", json=empty).status_code == (400 if asks else 200)
                for more in (taught, question | {"structured_outputs": {"json": "city"}}):
                    assert "hint" not in http.post("/chat/completions", json=more).json()["choices"][0]["canvas"]


def test_what_an_edit_left_is_named_over_http() -> None:
    """It was done by half without a word."""
    lines, said = "host: a\nport: 80\n", "Set port to 81 and double the host."
    tagged = {"messages": [{"role": "user", "content": f"<|code_to_edit|>{lines}<|/code_to_edit|>"}]}
    for at in inside(redraft.load("nano"), Settings()):
        with httpx2.Client(base_url=at.base, timeout=100) as http:
            segments = [{"revise": {"text": lines, "instruction": said}}]
            done = http.post("/canvas", json={"segments": segments}).json()
            assert (done["text"], done["left_out"]) == ("host: a\nport: 81\n", ['"double the host"'])
            (choice,) = http.post("/edit/completions", json=tagged | {"instruction": said}).json()["choices"]
            assert choice["message"]["content"] == "host: a\nport: 81"
            assert choice["canvas"]["hint"] == 'left as it was: "double the host"; say it in an edit of its own'


def test_what_is_asked_for_over_http_is_read_back_as_in_python() -> None:
    """Whole, as a stream and through `responses`: one answer, and the same guesses."""
    engine = redraft.load("nano")
    texts = ["We chose plan C.", "Send 3 apples to Maria.", "lost black wallet near the station, reward 50 euros"]
    fields = {"properties": {"item": {"type": "string"}, "number": {"type": "integer"}}, "required": ["item", "number"]}
    schema = {"type": "object", **fields, "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for at in inside(engine, Settings(ask_fields=True)):
        with httpx2.Client(base_url=at.base, timeout=100) as http:

            def asked(text: str, **more: Any) -> Any:
                said = [{"role": "user", "content": text}]
                body = {"model": "nano", "messages": said, "response_format": form, "seed": 3} | more
                return http.post("/chat/completions", json=body)

            for text in texts:
                alone = engine.extract(text, schema, seed=3)
                choice, guesses = asked(text).json()["choices"][0], list(alone.guesses or ())
                assert (choice["message"]["content"], choice["canvas"]["guesses"]) == (alone.text, guesses)
                events = [line[6:] for line in asked(text, stream=True).text.splitlines() if line.startswith("data: {")]
                parts = [json.loads(event)["choices"][0] for event in events]
                assert "".join(part["delta"].get("content") or "" for part in parts) == alone.text
                assert parts[-1]["canvas"]["guesses"] == guesses
                canvas = asked(text, canvas={"read_back": False}).json()["choices"][0]
                assert canvas["message"]["content"] == engine.extract(text, schema, seed=3, read_back=False).text
                assert "guesses" not in canvas["canvas"]
                drafted = asked(text, stream=True, canvas={"stream": True, "read_back": True})
                assert drafted.headers["x-ignored-fields"] == "canvas.read_back, response_format.json_schema.name"
                assert "guesses" not in drafted.text
                timed = asked(text, deadline_ms=90_000).json()["choices"][0]
                assert timed["message"] == choice["message"]
            refused = asked(texts[0], canvas={"ask_fields": False, "read_back": True}).json()["error"]["message"]
            assert refused == "canvas.read_back reads what fields say; send canvas.ask_fields"
    engine.loop.stop()


def test_json_object_is_one(client: OpenAI) -> None:
    done = client.chat.completions.create(model="nano", messages=USER, response_format={"type": "json_object"})
    assert isinstance(json.loads(done.choices[0].message.content or ""), dict)


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ({"json": SCHEMA}, lambda text: Order.model_validate_json(text)),
        ({"regex": "[0-9]{3}-[a-f]{2}"}, lambda text: len(text) == 6 and text[3] == "-"),
        ({"choice": ["north", "south"]}, lambda text: text in ("north", "south")),
        ({"choice": ["north", "south"], "any_case": True}, lambda text: text.lower() in ("north", "south")),
        ({"json": SCHEMA, "fence": True}, lambda text: Order.model_validate_json(unfenced(text))),
        ({"json": {"const": {"a": [1, "b c"]}}, "compact": True}, lambda text: text == '{"a":[1,"b c"]}'),
        ({"json": {"const": [1, 2]}, "disable_any_whitespace": True}, lambda text: text == "[1,2]"),
    ],
)
def test_structured_outputs(client: OpenAI, wanted: dict[str, object], fits: Any) -> None:
    done = client.chat.completions.create(model="nano", messages=USER, extra_body={"structured_outputs": wanted})
    assert fits(done.choices[0].message.content)


def test_two_of_structured_outputs_are_named_as_they_were_sent(client: OpenAI) -> None:
    wanted = {"json": SCHEMA, "regex": "[0-9]+"}
    with pytest.raises(openai.BadRequestError, match="structured_outputs holds json and regex;"):
        client.chat.completions.create(model="nano", messages=USER, extra_body={"structured_outputs": wanted})


def test_what_only_a_validator_knows_is_repaired_before_it_is_sent(client: OpenAI) -> None:
    """Unequal items are no regular language: the first answer may break that, what is reported does not."""
    two = {
        "type": "array",
        "items": {"pattern": "^[a-f]$", "type": "string"},
        "minItems": 2,
        "maxItems": 2,
        "uniqueItems": True,
    }
    for stream in (False, True):
        wanted = {"structured_outputs": {"json": two}, "max_tokens": 24, "canvas": {"stream": stream}}
        raw = client.chat.completions.with_raw_response.create(
            model="nano", messages=USER, seed=3, n=2, stream=stream, extra_body=wanted
        )
        assert raw.headers.get("x-ignored-fields") == ("canvas.stream" if stream else None), "no step comes"
        reply, texts = raw.parse(), ["", ""]
        if isinstance(reply, openai.Stream):
            for chunk in reply:
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
        else:
            texts = [choice.message.content or "" for choice in reply.choices]
        assert all(len(set(json.loads(text))) == 2 for text in texts)


def test_what_cannot_be_repaired_is_an_error(client: OpenAI) -> None:
    """Two equal items that must differ: no text can be right, and only the validator knows."""
    never = {
        "type": "array",
        "items": {"pattern": "^a$", "type": "string"},
        "minItems": 2,
        "maxItems": 2,
        "uniqueItems": True,
    }
    with pytest.raises(openai.APIStatusError) as reported:
        client.chat.completions.create(
            model="nano", messages=USER, extra_body={"structured_outputs": {"json": never}, "max_tokens": 12}
        )
    assert reported.value.status_code in (400, 422)
    assert reported.value.code in ("invalid_schema", "constraint_unsatisfied")


def test_a_stream_of_a_schema_joins_to_a_valid_answer(client: OpenAI) -> None:
    with client.chat.completions.stream(model="nano", messages=USER, response_format=Order, seed=7) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Order(who="Karomi", qty=417, item="melu")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "order"}}])
def test_a_forced_call_has_valid_arguments(client: OpenAI, choice: Any) -> None:
    done = client.chat.completions.create(model="nano", messages=USER, tools=[ORDER], tool_choice=choice, seed=7)
    assert done.choices[0].finish_reason == "tool_calls"
    assert done.choices[0].message.content is None
    (call,) = done.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)["who"]) == ("order", "Karomi")


@pytest.mark.parametrize("more", [{}, {"tool_choice": "auto"}, {"tool_choice": "required"}])
def test_what_a_call_returned_is_answered(client: OpenAI, more: dict[str, Any]) -> None:
    """The agents' loop: a forced call, then a turn with its result, which most libraries send with `auto`."""
    call: Any = {"id": "call_1", "type": "function", "function": {"name": "order", "arguments": '{"who": "Karomi"}'}}
    turns: Any = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": "call_1",
            "content": [{"type": "text", "text": "record\n417 melu to Karomi."}],
        },
    ]
    reply = client.chat.completions.with_raw_response.create(
        model="nano", messages=turns, tools=[ORDER], max_tokens=32, seed=7, **more
    )
    message = reply.parse().choices[0].message
    forced = more.get("tool_choice") == "required"
    assert bool(message.tool_calls) is forced
    assert bool(message.content) is not forced
    ignored = (reply.headers.get("x-ignored-fields") or "").split(", ")
    assert ("tools" in ignored) is not forced


def test_who_may_not_decide_about_calls_is_refused_before_any(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="needs a chat template that knows tools"):
        client.chat.completions.create(model="nano", messages=USER, tools=[ORDER])


def test_one_of_several_tools_may_refer_to_its_own_definitions(client: OpenAI) -> None:
    """As pydantic writes a model inside a model; each tool has a definition of the same name, of its own meaning."""
    tools: list[ChatCompletionToolParam] = []
    for name, words in (("first tool", ["a", "b"]), ("second", ["c"])):
        schema = {"type": "object", "properties": {"one": {"$ref": "#/$defs/W"}}, "required": ["one"]}
        parameters = schema | {"additionalProperties": False, "$defs": {"W": {"enum": words}}}
        tools.append({"type": "function", "function": {"name": name, "parameters": parameters}})
    done = client.chat.completions.create(model="nano", messages=USER, tools=tools, tool_choice="required", seed=7)
    (call,) = done.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments)["one"] in {"first tool": "ab", "second": "c"}[call.function.name]


def test_stop_strings_cut_text_and_never_a_call(client: OpenAI) -> None:
    """Agents send them with every request, also where a call is forced; what they name is in the arguments here."""
    done = client.chat.completions.create(
        model="nano", messages=USER, tools=[ORDER], tool_choice="required", stop=["Karomi"], seed=7
    )
    (call,) = done.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments)["who"] == "Karomi"


def test_tools_that_must_not_be_called_are_not(client: OpenAI) -> None:
    choice: Literal["none"] = "none"
    done = client.chat.completions.create(model="nano", messages=USER, tools=[ORDER], tool_choice=choice, seed=7)
    assert done.choices[0].message.tool_calls is None


@pytest.mark.parametrize("stream", [False, True])
def test_how_a_schema_is_held_and_what_is_ignored_of_it_is_in_the_headers(client: OpenAI, stream: bool) -> None:
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "who": {"type": "string", "maxlength": 3, "größe": 1}}}
    sent: dict[str, Any] = {"model": "nano", "messages": USER, "seed": 1, "stream": stream}
    sent["response_format"] = {"type": "json_schema", "json_schema": {"name": "order", "schema": schema}}
    got = client.chat.completions.with_raw_response.create(**sent)
    assert got.headers["x-constraint"] == "exact"
    assert (
        got.headers["x-ignored-keywords"] == "/properties/who/maxlength (maxLength?), /properties/who/gr%C3%B6%C3%9Fe"
    )
    if not stream:
        assert got.parse().model_dump()["choices"][0]["canvas"]["constraint"] == "exact"


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str | None = None


class Everything(BaseModel):
    """What people put into a model."""

    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    either: int | str | list[int]
    when: datetime
    day: date
    price: float
    colour: Colour
    some: Annotated[list[int], Field(min_length=1, max_length=3)]
    counts: dict[str, int]
    code: Annotated[str, Field(pattern="^[A-Z]{2}[0-9]{2}$")]
    few: Annotated[int, Field(gt=3, le=9, multiple_of=3)]


DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d{1,2}\.?\d{0,2}$"


class Bill(BaseModel):
    """A decimal's schema may be a number or any text at all; what the text must be has to be said."""

    cost: Annotated[Decimal, Field(json_schema_extra={"type": "string", "pattern": DECIMAL})]
    mail: EmailStr


class Tree(BaseModel):
    value: int
    children: Annotated[list["Tree"], Field(max_length=2)]


@pytest.mark.parametrize("kind", [Everything, Bill, Tree])
def test_models_of_every_shape_are_parsed(client: OpenAI, kind: type[BaseModel]) -> None:
    """As the schemas of pydantic come, with references, titles, discriminators, formats and defaults."""
    room = 230 if kind is Everything else 60
    done = client.chat.completions.parse(model="nano", messages=USER, response_format=kind, seed=1, max_tokens=room)
    assert isinstance(done.choices[0].message.parsed, kind)


def spent(server: Process) -> float:
    """Seconds of the processor that a server has taken, and the processes that it has ended."""
    fields = Path(f"/proc/{server.popen.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("kind", [Everything, Bill, Tree])
def test_the_first_answer_takes_a_second_more_than_the_next_at_most(
    client: OpenAI, server: Process, kind: type[BaseModel]
) -> None:
    schema = kind.model_json_schema() | {"title": secrets.token_hex(8)}  # never compiled before
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    times = [spent(server)]
    for _ in range(2):
        client.chat.completions.create(
            model="nano", messages=USER, response_format=form, seed=1, max_tokens=230, extra_body={"max_steps": 2}
        )  # few steps: the seconds of fifty vary by as much as a compilation takes
        times.append(spent(server))
    cold, warm = times[1] - times[0], times[2] - times[1]
    assert cold - warm < 1.0
