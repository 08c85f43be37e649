"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fastapi import Request, Response

from redraft.config import CheckpointConfig
from redraft.constraints.schemas import plain_schema
from redraft.engine.resolve import canvas_width
from redraft.errors import RequestError, TextError
from redraft.images.messages import split_images
from redraft.images.prompt import Prompt
from redraft.options import Options, SeedCanvas
from redraft.prompts import BEGINNINGS, of_schema
from redraft.server.http.errors import ApiError, unsupported
from redraft.server.http.fetch import Fetcher
from redraft.server.http.routing import answers, router_of_bodies
from redraft.server.http.service import Service, service_of
from redraft.server.limits import read_json
from redraft.server.openai.constraint import (
    Choice,
    Constraint,
    check_tools,
    choice_of,
    constraint_of,
    copied,
    parameters,
)
from redraft.server.openai.exchange import Exchange, Work
from redraft.server.openai.fields import Call, CanvasOptions, Chat, Message, text_of
from redraft.server.openai.images import contents_of
from redraft.server.openai.replies import ChatForm, Json
from redraft.server.openai.request_builder import RequestBuilder
from redraft.text import Text

router = router_of_bodies()

FORMATS = ("response_format", "structured_outputs", "json_schema", "grammar")
"""Fields that a forced call leaves nothing to do for."""
UNTAUGHT = (
    "nano is a small demonstration model and was taught no conversations: send a JSON Schema with a short sentence, and"
    " it reads the fields out of it; it also changes and repairs records of JSON and fills short templates"
)
EARLIER = "messages[:-1]"
"""What a model that is served with its fields asked for does not see: it was taught one turn, and no other in front."""


@router.post("/v1/chat/completions", response_model=None)
@answers
async def chat(request: Request, body: Chat) -> Response | Json:
    """Answer a conversation."""
    service = service_of(request)
    work = await service.on_thread(request, prepare, service, body)
    return await Exchange(service, work, request).respond()


def prepare(service: Service, body: Chat, fetcher: Fetcher | None = None) -> Work:
    """The requests of a conversation, and all that can be refused before they run. Images come by the server's fetcher,
    or by one of the caller's that has some already."""
    builder = RequestBuilder(service, body, is_chat=True)
    text, options = builder.engine.text, _options(builder, body)
    predicted: tuple[int, ...] = ()
    if body.prediction is not None:
        predicted = tuple(text.encode(text_of(body.prediction.content), bos=False))
        options = _begun_with(options, predicted, builder.engine.config)
    sent, thinking = choice_of(body), _thinking(body)
    choice = check_tools(sent, text, returned=bool(body.messages) and body.messages[-1].role == "tool")
    constraint = constraint_of(body, choice, thinking=thinking)
    # A forced call need not be declared: the constraint has it.
    declared = [tool.model_dump(exclude_none=True) for tool in choice.tools] if text.knows_tools else []
    special = bool(body.parse_special)
    messages = messages_of(service, body.messages, fetcher)
    unused = [name for name in FORMATS if choice.forced and getattr(body, name)]
    unused += ["tools"] if sent.tools and not choice.tools else []
    schema = _schema(body, choice)
    asked = _asked(service, body, schema, messages[-1]) if messages else None
    if asked is not None:
        *before, last = messages
        named = of_schema(schema, asked)
        if before and named != asked and service.settings.ask_fields and last["role"] == "user":
            before, unused = [], [*unused, EARLIER]
        messages = [*before, _asking(last, named)]
        constraint = _copied(service, body, constraint, asked, messages)
    how: dict[str, Any] = {"thinking": thinking, "tools": declared, "parse_special": special}
    prompt = builder.engine.chat_prompt(messages, **how)
    unused += _unprinted(text, messages, prompt, how)
    if not text.knows_tools and any(tool.function.description for tool in choice.tools):
        unused.append("tools[].function.description")
    requests = builder.requests([prompt], options, body.n or 1, constraint)
    form = ChatForm(
        text, bool(body.logprobs), choice, "" if constraint else _hint(service, messages), len(body.messages)
    )
    canvas = body.canvas or CanvasOptions()
    wanted = service.settings.ask_fields if canvas.read_back is None else canvas.read_back  # as sent, else as served
    again = asked is not None and wanted and not any(request.images for request in requests)
    if canvas.read_back and (bool(body.stream and canvas.stream) or not again):
        unused.append("canvas.read_back")
    return Work(body, requests, len(prompt.tokens), form, predicted, unused=unused, read_back=again)


def _unprinted(
    text: Text, messages: Sequence[Mapping[str, Any]], prompt: Prompt, how: Mapping[str, Any]
) -> Iterator[str]:
    """Parts of messages without which the chat template prints the same. No image is decoded for it once more."""
    names = [name for name in ("name", "tool_calls", "tool_call_id") if any(name in one for one in messages)]
    messages, images = split_images(messages)
    printed = text.chat(messages, **how) if names and images else [*prompt.tokens]
    for name in names:
        with suppress(RequestError, TextError):  # a template that needs them prints them, or fails
            bare = [{key: value for key, value in one.items() if key != name} for one in messages]
            if text.chat(bare, **how) == printed:
                yield f"messages[].{name}"


def messages_of(service: Service, messages: Sequence[Message], fetcher: Fetcher | None = None) -> list[dict[str, Any]]:
    """What the engine is given, on a thread that may wait for images. Raises RequestError for one that is none."""
    found: list[dict[str, Any]] = []
    contents = contents_of([message.content for message in messages], fetcher or service.settings.fetcher)
    for message, content in zip(messages, contents, strict=True):
        role = "system" if message.role == "developer" else message.role
        one: dict[str, Any] = {"role": role, "content": content}
        if message.tool_calls:
            one["tool_calls"] = [_called(call) for call in message.tool_calls]
        if message.tool_call_id is not None:
            one["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            one["name"] = message.name
        found.append(one)
    return found


def _asked(service: Service, body: Chat, schema: Any, last: dict[str, Any]) -> str | None:
    """The last turn's text, if its fields are asked for: as sent, else as served. Raises ApiError if that is sent
    without a schema, or what goes with it without it."""
    canvas = body.canvas or CanvasOptions()
    sent = canvas.ask_fields
    if sent and schema is None:
        raise unsupported(
            "canvas.ask_fields",
            "canvas.ask_fields asks for the fields of one schema; send response_format, or force one tool",
        )
    content = last["content"]
    said = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    served = service.settings.ask_fields and last["role"] == "user" and not said.startswith(BEGINNINGS)
    if schema is not None and (served if sent is None else sent):
        if not said.strip() and not any(part["type"] != "text" for part in content if isinstance(part, dict)):
            raise ApiError(
                400, "the last message is empty; some text is needed to read fields out of", param="messages"
            )
        return said
    if canvas.verbatim:
        raise unsupported("canvas.verbatim", "canvas.verbatim copies what fields say; send canvas.ask_fields")
    if canvas.read_back:
        raise unsupported("canvas.read_back", "canvas.read_back reads what fields say; send canvas.ask_fields")
    return None


def _hint(service: Service, messages: Sequence[dict[str, Any]]) -> str:
    """What to say beside an answer to what a model, served with its fields asked for, was not taught."""
    said = messages[-1]["content"] if messages else None
    is_other = isinstance(said, str) and not said.startswith(BEGINNINGS)
    return UNTAUGHT if service.settings.ask_fields and is_other else ""


def _asking(last: dict[str, Any], asked: str) -> dict[str, Any]:
    """The last turn in the words of an extraction, with its images."""
    content = last["content"]
    images = [] if isinstance(content, str) else [part for part in content if part["type"] != "text"]
    return last | {"content": [*images, {"type": "text", "text": asked}] if images else asked}


def _copied(
    service: Service, body: Chat, constraint: Constraint | None, text: str, messages: Sequence[dict[str, Any]]
) -> Constraint | None:
    """The constraint with strings that are parts of a text: as sent; else as served, where that text is all that was
    said and the canvas may be as narrow as it takes."""
    canvas = body.canvas or CanvasOptions()
    alone = sum(message["role"] == "user" for message in messages) == 1
    if canvas.verbatim is None and not (service.settings.ask_fields and alone and canvas.width is None):
        return constraint
    return constraint if canvas.verbatim is False else copied(constraint, text, wanted=bool(canvas.verbatim))


def _schema(body: Chat, choice: Choice) -> Any:
    """The JSON Schema of the answer, or of the arguments of the one tool that must be called; None where there is none.
    Of several tools one is named first, which no fields say."""
    if choice.forced:
        return None if choice.only is None else parameters(choice.tools[0])
    form, output = body.response_format, body.structured_outputs
    if output is not None and output.json_ is not None:
        return plain_schema(output.json_)
    if form is None or form.type == "text":
        return body.json_schema
    return form.schema_ if form.json_schema is None or form.schema_ is not None else form.json_schema.schema_


def _called(call: Call) -> dict[str, Any]:
    """A call that was made, with its arguments as an object where they are one, as templates want them."""
    found = call.model_dump()
    with suppress(ValueError):
        arguments = read_json(call.function.arguments.encode("utf-8", "surrogatepass"))
        found["function"]["arguments"] = arguments if isinstance(arguments, dict) else call.function.arguments
    return found


def _options(builder: RequestBuilder, body: Chat) -> Options:
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise ApiError(400, "max_tokens and max_completion_tokens differ; send one", param="max_completion_tokens")
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs was sent without logprobs; set logprobs to true", param="top_logprobs")
    options = builder.options(max_tokens=body.max_completion_tokens, keeps_canvas=body.prediction is not None)
    return replace(options, logprobs=body.top_logprobs or 0) if body.logprobs else options


def _thinking(body: Chat) -> bool:
    chosen = None if body.chat_template_kwargs is None else body.chat_template_kwargs.enable_thinking
    effort = None if body.reasoning_effort is None else body.reasoning_effort not in ("none", "minimal")
    if chosen is not None and effort is not None and chosen != effort:
        message = f"reasoning_effort is {body.reasoning_effort!r} and enable_thinking {chosen}; send one"
        raise ApiError(400, message, param="reasoning_effort")
    return bool(chosen or effort)


def _begun_with(options: Options, predicted: tuple[int, ...], config: CheckpointConfig) -> Options:
    """The first canvas begins with what the answer is likely to be; all of it stays open."""
    width = canvas_width(options, config)
    return replace(options, seed_canvas=SeedCanvas(given=tuple(enumerate(predicted[:width]))))
