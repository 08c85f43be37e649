"""`POST /v1/responses`: OpenAI's newer interface turned into a conversation. Nothing is stored."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from fastapi import Request, Response

from redraft.constraints.compile.limits import PREPARING
from redraft.engine.vision import decoded_once
from redraft.errors import RequestError
from redraft.server.http.errors import ApiError, unsupported
from redraft.server.http.fetch import Fetcher
from redraft.server.http.routing import answers, router_of_bodies
from redraft.server.http.service import Service, service_of
from redraft.server.openai.chat import EARLIER, prepare
from redraft.server.openai.exchange import Exchange, Work
from redraft.server.openai.fields import Chat
from redraft.server.openai.replies import Json
from redraft.server.openai.response_fields import LOGPROBS, CallItem, OutputItem, Responses, ThoughtItem
from redraft.server.openai.response_form import ResponseForm

router = router_of_bodies()

TOO_LONG = "context is"
SENT = {
    "messages[].tool_calls": ("input[].name", "input[].arguments"),
    "messages[].tool_call_id": ("input[].call_id",),
    "tools[].function.description": ("tools[].description",),
}
"""Fields of a chat without effect: what was sent in their place."""
Turn = tuple[int, Json]
"""A message of the chat, and the item of the input that it begins with; -1 for the instructions."""


@router.post("/v1/responses", response_model=None)
@answers
async def responses(request: Request, body: Responses) -> Response | Json:
    """Answer a text or a conversation."""
    if body.canvas is not None and body.canvas.stream:
        raise unsupported(
            "canvas.stream", "steps have no event in this interface; leave canvas.stream out, or use chat"
        )
    service = service_of(request)
    exchange = Exchange(service, await service.on_thread(request, _work, service, body), request)
    form = ResponseForm(body, exchange)
    return exchange.stream(form.events(), named=True) if body.stream else await exchange.reply(form.whole)


@decoded_once()
def _work(service: Service, body: Responses) -> Work:
    """What a body asks for; of a truncated conversation as many of the last turns as fit the context."""
    turns, fetcher = turns_of(body), service.settings.fetcher.of_one_request
    try:
        return _prepared(service, body, turns, fetcher)
    except RequestError as error:
        # A conversation may begin with any turn but what a call returned.
        begins = [at for at, (item, turn) in enumerate(turns) if item >= 0 and turn["role"] != "tool"]
        if body.truncation != "auto" or TOO_LONG not in str(error) or not begins:
            raise

    def rest(at: int) -> list[Turn]:
        return [one for one in turns[:at] if one[0] < 0] + turns[at:]

    def fits(at: int) -> bool:
        with PREPARING.aside():
            pass  # others go first between two tries, which end here if the client has left
        try:
            _prepared(service, body, rest(at), fetcher)
        except RequestError as error:
            if TOO_LONG not in str(error):
                raise
            return False
        return True

    most = 1  # from the end: what fits is short, whatever was sent
    while most < len(begins) and fits(begins[-most]):
        most *= 2
    found = bisect_left(begins, True, max(0, len(begins) - most), len(begins) - most // 2, key=fits)
    return _prepared(service, body, rest(begins[min(found, len(begins) - 1)]), fetcher)


def _prepared(service: Service, body: Responses, turns: Sequence[Turn], fetcher: Fetcher) -> Work:
    try:
        work = prepare(service, Chat.model_validate(as_chat(body, [turn for _, turn in turns])), fetcher)
    except RequestError as error:  # with the name of the item that a message was
        named = re.compile(r"messages\[(\d+)\]")
        raise type(error)(named.sub(lambda found: f"input[{turns[int(found[1])][0]}]", str(error))) from None
    earlier = dict.fromkeys("instructions" if item < 0 else "input[:-1]" for item, _ in turns[:-1])
    sent = SENT | {EARLIER: tuple(earlier)}
    return replace(work, unused=[one for name in work.unused for one in sent.get(name, (name,))])


def turns_of(body: Responses) -> list[Turn]:
    """The messages of the chat: calls belong to the assistant's turn in front of them."""
    turns: list[Turn] = [(-1, {"role": "system", "content": body.instructions})] if body.instructions else []
    if isinstance(body.input, str):
        return [*turns, (0, {"role": "user", "content": body.input})]
    for at, item in enumerate(body.input):
        if isinstance(item, CallItem):
            if not turns or turns[-1][1]["role"] != "assistant":
                turns.append((at, {"role": "assistant"}))
            function = {"name": item.name, "arguments": item.arguments}
            turns[-1][1].setdefault("tool_calls", []).append({"id": item.call_id, "function": function})
        elif isinstance(item, OutputItem):
            said = item.model_dump(include={"output"})["output"]
            turns.append((at, {"role": "tool", "tool_call_id": item.call_id, "content": said}))
        elif not isinstance(item, ThoughtItem):
            turns.append((at, item.model_dump(include={"role", "content"})))
    return turns


def as_chat(body: Responses, messages: Sequence[Json]) -> Json:
    """The fields of the same request to the chat endpoint. Raises ApiError."""
    found: Json = {"model": body.model, "messages": messages, "max_completion_tokens": body.max_output_tokens}
    same = ("temperature", "top_p", "top_k", "seed", "max_steps", "stream", "parallel_tool_calls")
    found |= {name: getattr(body, name) for name in same}
    for name in ("canvas", "chat_template_kwargs"):
        if (given := getattr(body, name)) is not None:
            found[name] = given.model_dump(exclude_none=True)
    if body.reasoning is not None:
        found["reasoning_effort"] = body.reasoning.effort
    wanted = None if body.text is None else body.text.format
    if wanted is not None:
        found["response_format"] = {"type": wanted.type}
        if wanted.type == "json_schema" or wanted.schema_ is not None:
            found["response_format"]["json_schema"] = {"schema": wanted.schema_}
    if body.tools:
        tools = [tool.model_dump(exclude={"type"}, exclude_none=True) for tool in body.tools]
        found["tools"] = [{"type": "function", "function": tool} for tool in tools]
    if LOGPROBS in (body.include or ()):
        found |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    elif body.top_logprobs:
        message = f"top_logprobs goes with include; send include: [{LOGPROBS!r}], too"
        raise ApiError(400, message, param="top_logprobs")
    chosen = body.tool_choice
    if chosen is not None:
        found["tool_choice"] = (
            chosen if isinstance(chosen, str) else {"type": "function", "function": {"name": chosen.name}}
        )
    return found
