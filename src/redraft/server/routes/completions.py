"""`POST /v1/completions`."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from fastapi import APIRouter, Request, Response

from redraft.server.ask import asked, options_of
from redraft.server.offload import offload
from redraft.server.refusal import Refusal, unsupported
from redraft.server.replies import TextForm
from redraft.server.respond import Exchange, service_of
from redraft.server.schema import Completion
from redraft.server.service import Service

router = APIRouter()

DEFAULT_TOKENS = 16


@router.post("/v1/completions", response_model=None)
async def completions(request: Request, body: Completion) -> Response:
    """Continue a text."""
    return await (await offload(request, prepare, service_of(request), request, body)).respond()


def prepare(service: Service, request: Request, body: Completion) -> Exchange:
    """Everything that can be refused, before anything runs."""
    engine = service.engine
    service.check_name(body.model)
    prompts, shown = prompts_of(service, body)
    answers = body.n or 1
    if body.best_of not in (None, answers):
        raise unsupported("best_of", f"best_of is {body.best_of} and n is {answers}; they must be equal")
    if body.echo and body.logprobs is not None:
        raise unsupported("echo", "echo with logprobs is not supported; ask for one of them")
    for name in ("response_format", "structured_outputs"):
        value = getattr(body, name)
        if value is not None and getattr(value, "type", None) != "text":
            raise unsupported(name, f"{name} is not supported yet; leave it out")
    options = options_of(body, engine, service.settings.limits, max_tokens=DEFAULT_TOKENS)
    wanted = asked(engine, prompts, replace(options, logprobs=body.logprobs), answers)
    echo = [text for text in shown for _ in range(answers)] if body.echo else []
    return Exchange(service, request, body, wanted, TextForm(engine.text, body.logprobs is not None, echo))


def prompts_of(service: Service, body: Completion) -> tuple[list[list[int]], list[str]]:
    """Token ids and text of each prompt, whichever of the four forms it came in."""
    text, given = service.engine.text, body.prompt
    if not given and not isinstance(given, str):
        raise Refusal(400, "the prompt is empty; send at least one", param="prompt")
    several = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    found: list[list[int]] = []
    shown: list[str] = []
    for one in cast(list[str | list[int]], several):
        found.append(text.encode(one, bos=True) if isinstance(one, str) else one)
        shown.append(one if isinstance(one, str) else text.decode(one))
    return found, shown
