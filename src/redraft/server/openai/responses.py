"""`POST /v1/responses`: text and images of OpenAI's newer interface, turned into a conversation. Nothing is stored."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Request, Response
from pydantic import Field

from redraft.errors import RequestError
from redraft.server.http.body import BOOKKEEPING, Body, Flag, Name, Schema, Seed, Share, Str, Tokens
from redraft.server.http.errors import unsupported
from redraft.server.http.routing import answers, router_of_bodies
from redraft.server.http.service import service_of
from redraft.server.http.sse import Chunks
from redraft.server.limits import within
from redraft.server.openai.chat import prepare
from redraft.server.openai.exchange import Exchange
from redraft.server.openai.fields import CanvasOptions, Chat, Parts, Steps, Temperature
from redraft.server.openai.replies import Json

router = router_of_bodies()


class Item(Body):
    """One turn of the input."""

    inert = frozenset({"id", "status"})

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Str | Parts


class Format(Body):
    """The form of the answer."""

    inert = frozenset({"name", "description", "strict"})

    type: Literal["text", "json_object", "json_schema"]
    schema_: Schema | None = Field(default=None, alias="schema")


class TextOptions(Body):
    """About the text of the answer."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"verbosity": ("medium",)}

    format: Format | None = None


class Reasoning(Body):
    """About thinking."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"summary": ("auto",), "generate_summary": ()}

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


class Responses(Body):
    """`POST /v1/responses`."""

    inert: ClassVar[frozenset[str]] = BOOKKEEPING | {"stream_options"}
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "access_programs": (),
        "background": (False,),
        "conversation": (),
        "context_management": (),
        "image": (),
        "include": ([],),
        "max_tool_calls": (),
        "moderation": (),
        "parallel_tool_calls": (True, False),
        "previous_response_id": (),
        "prompt": (),
        "tool_choice": ("auto", "none"),
        "tools": ([],),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
    }

    model: Name | None = None
    input: Str | Annotated[list[Item], within("messages")] = Field(description="a text, or turns of text and images")
    instructions: Str | None = Field(default=None, description="a system turn in front")
    max_output_tokens: Annotated[Tokens, Field(ge=1)] | None = Field(
        default=None, description="most tokens to answer with"
    )
    temperature: Temperature | None = Field(default=None, description="as in chat")
    top_p: Share | None = Field(default=None, description="as in chat")
    seed: Seed | None = Field(default=None, description="as in chat")
    stream: Flag | None = Field(default=None, description="named events")
    text: TextOptions | None = Field(default=None, description="format: text, json_object or json_schema")
    reasoning: Reasoning | None = Field(default=None, description="effort: as reasoning_effort in chat")
    max_steps: Steps | None = Field(default=None, description="as in chat")
    canvas: CanvasOptions | None = Field(default=None, description="as in chat")


@router.post("/v1/responses", response_model=None)
@answers
async def responses(request: Request, body: Responses) -> Response | Json:
    """Answer a text or a conversation."""
    if body.canvas is not None and body.canvas.stream:
        raise unsupported(
            "canvas.stream", "steps have no event in this interface; leave canvas.stream out, or use chat"
        )
    service, same = service_of(request), Chat.model_validate(as_chat(body))
    try:
        work = await service.on_thread(request, prepare, service, same)
    except RequestError as error:
        raise _as_sent(error, bool(body.instructions)) from None
    exchange = Exchange(service, work, request)
    form = _Response(body, exchange)
    return exchange.stream(form.events(), named=True) if body.stream else await exchange.reply(form.whole)


def _as_sent(error: RequestError, instructed: bool) -> RequestError:
    """An error that names a message of the chat, with the name of the item that it was."""
    named = re.compile(r"messages\[(\d+)\]")
    return type(error)(named.sub(lambda found: f"input[{int(found[1]) - instructed}]", str(error)))


def as_chat(body: Responses) -> Json:
    """The fields of the same request to the chat endpoint."""
    turns: list[Json] = [{"role": "system", "content": body.instructions}] if body.instructions else []
    if isinstance(body.input, str):
        turns.append({"role": "user", "content": body.input})
    else:
        for item in body.input:
            turns.append(item.model_dump(include={"role", "content"}))
    found: Json = {"model": body.model, "messages": turns, "max_completion_tokens": body.max_output_tokens}
    found |= {name: getattr(body, name) for name in ("temperature", "top_p", "seed", "max_steps", "stream")}
    if body.canvas is not None:
        found["canvas"] = body.canvas.model_dump(exclude_none=True)
    if body.reasoning is not None:
        found["reasoning_effort"] = body.reasoning.effort
    wanted = None if body.text is None else body.text.format
    if wanted is not None:
        found["response_format"] = {"type": wanted.type}
        if wanted.type == "json_schema":
            found["response_format"]["json_schema"] = {"schema": wanted.schema_}
    return found


class _Response:
    """One response, whole and as events."""

    def __init__(self, body: Responses, exchange: Exchange) -> None:
        self.body, self.exchange = body, exchange
        self.id, self.item = f"resp_{secrets.token_hex(16)}", f"msg_{secrets.token_hex(16)}"
        self.created, self.number = int(time.time()), -1

    def whole(self) -> Json:
        """The finished response."""
        (done,) = self.exchange.done()
        cut = done.finish in ("length", "deadline")
        return self._response("incomplete" if cut else "completed") | {
            "output": [self._message("completed", done.text)],
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": self._usage(),
        }

    async def events(self) -> Chunks:
        """The events of a stream, in the order that clients expect."""
        place: Json = {"item_id": self.item, "output_index": 0, "content_index": 0}
        begun = self._response("in_progress")
        item = {"output_index": 0, "item": self._message("in_progress", None)}
        yield self._event("response.created", {"response": begun})
        yield self._event("response.in_progress", {"response": begun})
        yield self._event("response.output_item.added", item)
        yield self._event("response.content_part.added", place | {"part": _part("")})
        async for _, delta in self.exchange.answers:
            if delta.content:
                yield self._event("response.output_text.delta", place | {"delta": delta.content, "logprobs": []})
        whole, (answer,) = self.whole(), self.exchange.answers.answers
        done = self._message("completed", answer.content)
        yield self._event("response.output_text.done", place | {"text": answer.content, "logprobs": []})
        yield self._event("response.content_part.done", place | {"part": _part(answer.content)})
        yield self._event("response.output_item.done", {"output_index": 0, "item": done})
        yield self._event(f"response.{whole['status']}", {"response": whole})

    def _event(self, name: str, more: Json) -> Json:
        self.number += 1
        return {"type": name, "sequence_number": self.number} | more

    def _message(self, status: str, text: str | None) -> Json:
        content = [] if text is None else [_part(text)]
        return {"id": self.item, "type": "message", "status": status, "role": "assistant", "content": content}

    def _response(self, status: str) -> Json:
        body = self.body
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.exchange.service.settings.name,
            "output": [],
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {},
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def _usage(self) -> Json:
        counts = self.exchange.usage()
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": counts["completion_tokens_details"]["reasoning_tokens"]},
            "total_tokens": counts["total_tokens"],
            **{name: counts[name] for name in ("steps", "forwards", "tokens_per_forward")},
        }


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
