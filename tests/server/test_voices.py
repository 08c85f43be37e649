"""Thinking and tool calls, which a checkpoint marks with tokens of its own, distinguished over HTTP.

nano has no such tokens, so its tokenizer gets them here, and its template a thinking switch and a list of tools. Most
tests have a loop that says what they have written, in blocks cut where they want them; the others nano's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import jsonschema_rs
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionToolParam
from tests.server.conftest import ANSWER, RECORD, USER, Inside, inside
from tokenizers import AddedToken, Tokenizer

from redraft.constraints.places import unfenced
from redraft.engine.events import Block, Finished
from redraft.engine.handle import Handle
from redraft.engine.loop import Loop
from redraft.engine.request import ResolvedRequest
from redraft.engine.scope import CancelScope
from redraft.engine.sequence import CanvasSequence, Sequence
from redraft.model.gemma import DiffusionGemma
from redraft.operations.engine import Engine
from redraft.server.http.settings import Settings
from redraft.text import Text

MARKS = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>')
TEMPLATE = """{{ bos_token }}{% if enable_thinking %}<|think|>{% endif %}{% if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}<|turn>{{ message['role'] }}
{{ message['content'] }}<turn|>
{% endfor %}<|turn>model
"""
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
THOUGHT = "<|channel>thought\nIt is Oslo, naïvely.<channel|>"
CALL = '<|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>'
WRONG = "<|tool_call>call:weather{days:3}<tool_call|>"


class Scripted(Loop):
    """A loop that answers every request with a text, in blocks of so many tokens."""

    def __init__(self, model: DiffusionGemma, text: Text) -> None:
        super().__init__(model, text=text)
        self.said = ""
        self.sizes: tuple[int, ...] = (1,)

    def submit(self, request: ResolvedRequest, scope: CancelScope | None = None, **keywords: Any) -> Handle:
        keywords = {name: keywords.get(name) for name in ("inbox", "key")}
        handle = Handle(self, CanvasSequence(request=request), scope=scope, text=self.text, **keywords)
        assert self.text is not None
        tokens, number = self.text.encode(self.said, bos=False), 0
        while tokens:
            size = self.sizes[number % len(self.sizes)]
            part, tokens = tokens[:size], tokens[size:]
            rows: list[tuple[tuple[int, float], ...]] = [((token, -0.5),) for token in part]
            rows = rows if request.logprobs is not None else []
            handle.deliver(Block(number, part, [0.0] * len(part), [1] * len(part), [0] * len(part), 2, True, rows))
            number += 1
        handle.deliver(Finished("stop", number - 1))
        return handle

    def abort(self, sequence: Sequence) -> None:
        pass


def marked(text: Text) -> Text:
    """With the marks in the places of bytes that nobody writes, so that the model can say them."""
    whole = json.loads(text.tokenizer.to_str())
    places = {whole["model"]["vocab"].pop(f"<0x{i:02X}>"): mark for i, mark in enumerate(MARKS, 1)}
    whole["model"]["vocab"] |= {mark: place for place, mark in places.items()}
    tokenizer = Tokenizer.from_str(json.dumps(whole))
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    ids, special = text.byte_ids.difference(places), text.special_ids.union(places)
    return replace(text, tokenizer=tokenizer, template=TEMPLATE, byte_ids=ids, special_ids=special)


@pytest.fixture(scope="module")
def at(nano: Engine) -> Iterator[Inside]:
    text = marked(nano.text)
    yield from inside(replace(nano, text=text, loop=Scripted(nano.model, text)), Settings())


@pytest.fixture(scope="module")
def client(at: Inside) -> Iterator[OpenAI]:
    with OpenAI(base_url=at.base, api_key="none", max_retries=0) as made:
        yield made


def says(at: Inside, said: str, sizes: tuple[int, ...]) -> None:
    loop = at.engine.loop
    assert isinstance(loop, Scripted)
    loop.said, loop.sizes = said, sizes


@pytest.mark.parametrize("sizes", [(1,), (2, 5), (400,)], ids=str)
def test_thinking_is_separated_however_blocks_cut_it(at: Inside, client: OpenAI, sizes: tuple[int, ...]) -> None:
    says(at, THOUGHT + ANSWER, sizes)
    done = client.chat.completions.create(model="nano", messages=USER, reasoning_effort="high", logprobs=True)
    message = done.choices[0].message
    assert message.content == ANSWER
    assert (message.model_extra or {})["reasoning_content"] == "It is Oslo, naïvely."
    assert (message.model_extra or {})["reasoning"] == "It is Oslo, naïvely."
    assert done.usage is not None
    assert done.usage.completion_tokens_details is not None
    label, thought = (len(at.engine.text.encode(part, bos=False)) for part in (MARKS[0], THOUGHT))
    assert done.usage.completion_tokens_details.reasoning_tokens == thought - 2 * label
    reported = done.choices[0].logprobs
    assert reported is not None
    assert "".join(token.token for token in reported.content or []) == ANSWER, (
        "of what was said, not of what was thought"
    )
    with client.chat.completions.create(model="nano", messages=USER, reasoning_effort="high", stream=True) as stream:
        deltas = [chunk.choices[0].delta for chunk in stream]
    thoughts = [(delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas]
    assert "".join(thoughts) == "It is Oslo, naïvely."
    assert "".join(delta.content or "" for delta in deltas) == ANSWER
    last_thought = max(i for i, thought in enumerate(thoughts) if thought)
    assert not any(delta.content for delta in deltas[:last_thought]), "thinking comes before what is said"


@pytest.mark.parametrize("sizes", [(1,), (3, 2), (400,)], ids=str)
@pytest.mark.parametrize("choice", [None, "auto"])
def test_the_model_decides_whether_to_call(
    at: Inside, client: OpenAI, sizes: tuple[int, ...], choice: str | None
) -> None:
    tools: Any = {"tools": [WEATHER]} | ({"tool_choice": choice} if choice else {})
    says(at, THOUGHT + "Let me see. " + CALL + CALL.replace("Oslo", "Rome"), sizes)
    done = client.chat.completions.create(model="nano", messages=USER, **tools).choices[0]
    calls = [call for call in done.message.tool_calls or [] if call.type == "function"]
    wanted = [{"city": "Oslo", "days": 3}, {"city": "Rome", "days": 3}]
    assert [json.loads(call.function.arguments) for call in calls] == wanted
    assert ({call.function.name for call in calls}, len({call.id for call in calls})) == ({"weather"}, 2)
    assert (done.finish_reason, done.message.content) == ("tool_calls", "Let me see. ")
    with client.chat.completions.stream(model="nano", messages=USER, **tools) as stream:
        whole = stream.get_final_completion().choices[0]
    streamed = [call.function.arguments for call in whole.message.tool_calls or []]
    assert [json.loads(arguments) for arguments in streamed] == wanted
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", "Let me see. ")
    says(at, ANSWER, sizes)
    done = client.chat.completions.create(model="nano", messages=USER, **tools).choices[0]
    assert (done.finish_reason, done.message.content, done.message.tool_calls) == ("stop", ANSWER, None)


def test_responses_have_text_and_calls_as_items(at: Inside, client: OpenAI) -> None:
    """The turn before has a call and what it returned."""
    said = CALL + CALL.replace("Oslo", "Rome")
    says(at, "Let me see. " + said, (2, 5))
    tools: Any = [{"type": "function", **WEATHER["function"]}]
    before: Any = [
        {"role": "user", "content": RECORD},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"city":"Bonn"}'},
        {"type": "function_call_output", "call_id": "a", "output": "rain"},
    ]
    done = client.responses.create(model="nano", input=before, tools=tools, extra_body={"stop": None})
    assert [item.type for item in done.output] == ["message", "function_call", "function_call"]
    assert (done.output_text, done.status) == ("Let me see. ", "completed")
    with client.responses.stream(model="nano", input=before, tools=tools) as stream:
        kinds = [event.type.removeprefix("response.") for event in stream]
        streamed = stream.get_final_response().output
    asked = [json.loads(item.arguments)["city"] for item in streamed if item.type == "function_call"]
    assert asked == ["Oslo", "Rome"]
    assert [kind for kind in kinds if kind.startswith("output_item")] == ["output_item.added", "output_item.done"] * 3
    assert kinds.count("function_call_arguments.done") == 2
    says(at, said, (400,))
    only = client.responses.create(model="nano", input=before, tools=tools)
    assert [item.type for item in only.output] == ["function_call"] * 2


@pytest.mark.parametrize(
    ("said", "tools"),
    [
        (WRONG, [WEATHER]),  # its city is missing
        (CALL.replace("weather", "other"), [WEATHER]),  # nobody offered it
        (CALL.replace("3}", "}"), [WEATHER]),  # cannot be read
        (CALL.removesuffix("}<tool_call|>"), [WEATHER]),  # cut short
        (CALL, []),
    ],
)
def test_what_is_no_valid_call_is_text_and_never_a_call(at: Inside, client: OpenAI, said: str, tools: Any) -> None:
    """Nothing holds a model to calls where a stop string may cut them."""
    says(at, "So: " + said, (4,))
    more: Any = {"tools": tools, "stop": "never"} if tools else {}
    written = said
    for mark in MARKS[2:4]:
        written = written.replace(mark, "")
    done = client.chat.completions.create(model="nano", messages=USER, **more).choices[0]
    assert (done.finish_reason, done.message.tool_calls, done.message.content) == ("stop", None, "So: " + written)
    with client.chat.completions.create(model="nano", messages=USER, stream=True, **more) as stream:
        deltas = [chunk.choices[0].delta for chunk in stream]
    assert "".join(delta.content or "" for delta in deltas) == "So: " + written
    assert not any(delta.tool_calls for delta in deltas)


def test_the_template_shows_the_tools_unless_none_may_be_called(at: Inside, client: OpenAI) -> None:
    says(at, ANSWER, (4,))
    tools: Any = {"tools": [WEATHER]}
    with_tools = client.chat.completions.create(model="nano", messages=USER, **tools)
    without = client.chat.completions.create(model="nano", messages=USER, tool_choice="none", **tools)
    assert with_tools.usage is not None
    assert without.usage is not None
    assert with_tools.usage.prompt_tokens > without.usage.prompt_tokens + 20


@pytest.fixture(scope="module")
def real(nano: Engine) -> Iterator[Inside]:
    """The real model and loop behind the same template and marks."""
    yield from inside(replace(nano, text=marked(nano.text)), Settings())


def reported(at: Inside, **body: Any) -> dict[str, Any]:
    reply = httpx2.post(at.base + "/chat/completions", json={"messages": USER, "seed": 1} | body, timeout=100)
    assert reply.status_code == 200, reply.text
    (choice,) = reply.json()["choices"]
    assert isinstance(choice, dict)
    return choice


def pushed(at: Inside) -> dict[str, Any]:
    """A model that would say the marks of calls everywhere, and nothing between them."""
    return {"logit_bias": {str(at.engine.text.tokenizer.token_to_id(mark)): 100 for mark in MARKS[2:]}}


def test_whoever_decides_text_or_calls_are_what_it_says(real: Inside) -> None:
    """nano has never seen a tool: what it says is text, unless it is pushed; then its calls are valid all the same."""
    left_alone = reported(real, tools=[WEATHER], max_tokens=24)
    assert left_alone["finish_reason"] in ("stop", "length", "tool_calls")
    for more in ({}, {"parallel_tool_calls": False}, {"response_format": {"type": "json_object"}}):
        choice = reported(real, tools=[WEATHER], max_tokens=45, **pushed(real), **more)
        assert choice["finish_reason"] == "tool_calls"
        calls = choice["message"]["tool_calls"]
        assert (len(calls) > 1) == ("parallel_tool_calls" not in more)
        for call in calls:
            assert call["function"]["name"] == "weather"
            schema = WEATHER["function"]["parameters"]
            assert jsonschema_rs.validator_for(schema).is_valid(json.loads(call["function"]["arguments"]))
        assert "response_format" not in more or not choice["message"]["content"]


GO: dict[str, Any] = {"type": "object", "properties": {"to": {"enum": ["ab"]}}, "required": ["to"]}
FORMS: dict[str, dict[str, Any]] = {
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["ab", 3]}}}},
    "choice": {"structured_outputs": {"choice": ["Yes", "no"], "any_case": True}},
    "fence": {"structured_outputs": {"json": {"enum": ["ab", 3]}, "fence": True}},
    "tool": {"tools": [{"type": "function", "function": {"name": "go", "parameters": GO}}], "tool_choice": "required"},
}


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_of_a_form_stands_behind_thinking(real: Inside, name: str) -> None:
    """More tokens are asked for than the answers have: the rest has to be thought."""
    body = {"reasoning_effort": "high", "seed": 1, "max_tokens": 50, "min_tokens": 40} | FORMS[name]
    message = reported(real, **body)["message"]
    assert message["reasoning_content"]
    assert message["reasoning"] == message["reasoning_content"]
    if name == "tool":
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"to": "ab"}
    elif name == "choice":
        assert message["content"].lower() in ("yes", "no")
    else:
        assert json.loads(unfenced(message["content"])) in ("ab", 3)
    with OpenAI(base_url=real.base, api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(model="nano", messages=USER, stream=True, extra_body=body)
        deltas = [chunk.choices[0].delta for chunk in stream]
    assert "".join((delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas) == message["reasoning"]
    assert "".join(delta.content or "" for delta in deltas) == (message["content"] or "")


def test_a_call_stands_in_for_content_that_only_a_validator_knows(real: Inside) -> None:
    schema = {
        "type": "array",
        "items": {"type": "integer", "minimum": 1, "maximum": 2},
        "minItems": 2,
        "maxItems": 2,
        "uniqueItems": True,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    choice = reported(real, tools=[WEATHER], max_tokens=45, response_format=form, **pushed(real))
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"
