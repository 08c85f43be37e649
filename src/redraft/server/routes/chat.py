"""`POST /v1/chat/completions`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response

from redraft.diffusion.seed import SeedCanvas
from redraft.engine.engine import Engine
from redraft.engine.request import Options
from redraft.server.ask import asked, kept_whole, options_of
from redraft.server.languages import Choice, choice_of, source_of
from redraft.server.offload import offload
from redraft.server.refusal import Refusal, unsupported
from redraft.server.replies import ChatForm
from redraft.server.respond import Exchange, Work, service_of
from redraft.server.route import BodyRoute
from redraft.server.schema import Chat
from redraft.server.service import Service
from redraft.server.voice import Voice

router = APIRouter(route_class=BodyRoute)


@router.post("/v1/chat/completions", response_model=None)
async def chat(request: Request, body: Chat) -> Response:
    """Answer a conversation."""
    return await respond(request, body)


async def respond(request: Request, body: Chat) -> Response:
    """Prepare, run, tell."""
    slow = any(value is not None for value in (body.response_format, body.structured_outputs, body.tools))
    service = service_of(request)
    work = await offload(request, lambda: prepare(service, body), slow=slow)
    return await Exchange(service, work, request).respond()


def prepare(service: Service, body: Chat) -> Work:
    """Everything that can be refused, before anything runs."""
    engine = service.engine
    service.check_name(body.model)
    options = _options(service, body)
    predicted: tuple[int, ...] = ()
    if body.prediction is not None:
        predicted = tuple(engine.text.encode(body.prediction.text, bos=False))
        options = _seeded(engine, options, predicted)
    choice, source = choice_of(body), source_of(body, service.settings.limits)
    declared = _declared(engine, choice)
    if choice.forced:
        if source is not None:
            raise Refusal(400, "a tool has to be called and a format was sent, too; send one", param="response_format")
        source = choice.source()
    said = engine.text.render(messages_of(body), thinking=_thinking(body), tools=declared)
    prompt = engine.text.encode(said, bos=False)
    form = ChatForm(engine.text, bool(body.logprobs), choice)
    wanted = asked(engine, [prompt], options, body.n or 1, source)
    return Work(body, wanted, form, lambda voices: _compared(predicted, voices))


def messages_of(body: Chat) -> list[dict[str, Any]]:
    """What the chat template is given."""
    found: list[dict[str, Any]] = []
    for message in body.messages:
        role = "system" if message.role == "developer" else message.role
        one: dict[str, Any] = {"role": role, "content": message.text}
        if message.tool_calls:
            one["tool_calls"] = [call.model_dump() for call in message.tool_calls]
        if message.tool_call_id is not None:
            one["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            one["name"] = message.name
        found.append(one)
    return found


def _options(service: Service, body: Chat) -> Options:
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise Refusal(400, "max_tokens and max_completion_tokens differ; send one", param="max_completion_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise Refusal(400, "top_logprobs was sent without logprobs; set logprobs to true", param="top_logprobs")
    settings = service.settings if body.prediction is None else kept_whole(service.settings)
    options = options_of(body, service.engine, settings, max_tokens=body.max_completion_tokens)
    return replace(options, logprobs=(body.top_logprobs or 0) if body.logprobs else None)


def _declared(engine: Engine, choice: Choice) -> list[dict[str, Any]]:
    """The tools as the template is told of them. A forced call needs no telling: the constraint has it."""
    if choice.tools and not choice.forced and not engine.text.knows_tools:
        message = "tool_choice auto needs a chat template that knows tools, which this checkpoint lacks; name the tool"
        raise unsupported("tool_choice", message)
    return [tool.model_dump(exclude_none=True) for tool in choice.tools] if engine.text.knows_tools else []


def _thinking(body: Chat) -> bool:
    chosen = None if body.chat_template_kwargs is None else body.chat_template_kwargs.enable_thinking
    effort = None if body.reasoning_effort is None else body.reasoning_effort not in ("none", "minimal")
    if chosen is not None and effort is not None and chosen != effort:
        message = f"reasoning_effort is {body.reasoning_effort!r} and enable_thinking {chosen}; send one"
        raise Refusal(400, message, param="reasoning_effort")
    return bool(chosen or effort)


def _seeded(engine: Engine, options: Options, predicted: tuple[int, ...]) -> Options:
    """The first canvas begins with what the answer is likely to be; all of it stays open."""
    width = engine.request_of([engine.text.bos_token_id], options).width  # presets and the dial have a say in it
    return replace(options, seed_canvas=SeedCanvas(given=tuple(enumerate(predicted[:width]))))


def _compared(predicted: tuple[int, ...], voices: list[Voice]) -> tuple[int, int]:
    """Tokens of a prediction that stand in the answers where they were predicted, and the others."""
    if not predicted:
        return 0, 0
    same = sum(a == b for voice in voices for a, b in zip(predicted, voice.tokens, strict=False))
    return same, len(predicted) * len(voices) - same
