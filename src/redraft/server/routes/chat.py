"""`POST /v1/chat/completions`."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from redraft.diffusion.seed import SeedCanvas
from redraft.engine.request import Options
from redraft.engine.request import Request as Asked
from redraft.operations.engine import Engine
from redraft.server.ask import asked, kept_whole, options_of
from redraft.server.languages import check_tools, choice_of, held_to
from redraft.server.refusal import Refusal
from redraft.server.replies import ChatForm, Json
from redraft.server.respond import Exchange, Work, service_of
from redraft.server.route import router_of_bodies
from redraft.server.schema import Call, Chat, text_of
from redraft.server.service import Service

router = router_of_bodies()


@router.post("/v1/chat/completions", response_model=None)
async def chat(request: Request, body: Chat) -> Response | Json:
    """Answer a conversation."""
    service = service_of(request)
    work = await run_in_threadpool(prepare, service, body)
    return await Exchange(service, work, request).respond()


def prepare(service: Service, body: Chat) -> Work:
    """Everything that can be refused, before anything runs."""
    engine = service.engine
    service.check_name(body.model)
    options = _options(service, body)
    predicted: tuple[int, ...] = ()
    if body.prediction is not None:
        predicted = tuple(engine.text.encode(text_of(body.prediction.content), bos=False))
        options = _seeded(engine, options, predicted)
    choice, thinking = choice_of(body), _thinking(body)
    check_tools(choice, engine.text)
    if choice.forced:  # stop strings cut text, and a call that has to be made has none around it
        options = replace(options, stop=())
    held = held_to(body, choice, service.settings.limits, service.marks.thinking if thinking else None)
    # A forced call needs no telling: the constraint has it.
    declared = [tool.model_dump(exclude_none=True) for tool in choice.tools] if engine.text.knows_tools else []
    said = engine.text.render(messages_of(body), thinking=thinking, tools=declared)
    prompt = engine.text.encode(said, bos=False)
    form = ChatForm(engine.text, bool(body.logprobs), choice)
    wanted = asked(engine, [prompt], options, body.n or 1, held)
    return Work(body, wanted, form, predicted)


def messages_of(body: Chat) -> list[dict[str, Any]]:
    """What the chat template is given."""
    found: list[dict[str, Any]] = []
    for message in body.messages:
        role = "system" if message.role == "developer" else message.role
        one: dict[str, Any] = {"role": role, "content": message.text}
        if message.tool_calls:
            one["tool_calls"] = [_called(call) for call in message.tool_calls]
        if message.tool_call_id is not None:
            one["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            one["name"] = message.name
        found.append(one)
    return found


def _called(call: Call) -> dict[str, Any]:
    """A call that was made, its arguments as templates want them: an object, if they are one."""
    told = call.model_dump()
    with suppress(ValueError, RecursionError):
        arguments = json.loads(call.function.arguments)
        told["function"]["arguments"] = arguments if isinstance(arguments, dict) else call.function.arguments
    return told


def _options(service: Service, body: Chat) -> Options:
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise Refusal(400, "max_tokens and max_completion_tokens differ; send one", param="max_completion_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise Refusal(400, "top_logprobs was sent without logprobs; set logprobs to true", param="top_logprobs")
    settings = service.settings if body.prediction is None else kept_whole(service.settings)
    options = options_of(body, service.engine, settings, max_tokens=body.max_completion_tokens)
    return replace(options, logprobs=body.top_logprobs or 0) if body.logprobs else options


def _thinking(body: Chat) -> bool:
    chosen = None if body.chat_template_kwargs is None else body.chat_template_kwargs.enable_thinking
    effort = None if body.reasoning_effort is None else body.reasoning_effort not in ("none", "minimal")
    if chosen is not None and effort is not None and chosen != effort:
        message = f"reasoning_effort is {body.reasoning_effort!r} and enable_thinking {chosen}; send one"
        raise Refusal(400, message, param="reasoning_effort")
    return bool(chosen or effort)


def _seeded(engine: Engine, options: Options, predicted: tuple[int, ...]) -> Options:
    """The first canvas begins with what the answer is likely to be; all of it stays open."""
    width = engine.resolve(Asked([engine.text.bos_token_id], options)).width  # presets and the dial have a say in it
    return replace(options, seed_canvas=SeedCanvas(given=tuple(enumerate(predicted[:width]))))
