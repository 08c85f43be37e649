"""`POST /v1/completions`."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from fastapi import APIRouter, Request, Response

from redraft.server.ask import asked, options_of
from redraft.server.gaps import gap_of, respond_gap
from redraft.server.languages import source_of
from redraft.server.marks import split
from redraft.server.offload import offload
from redraft.server.refusal import Refusal, unsupported
from redraft.server.replies import TextForm
from redraft.server.respond import Exchange, Work, service_of
from redraft.server.schema import Completion
from redraft.server.service import Service

router = APIRouter()

DEFAULT_TOKENS = 16


@router.post("/v1/completions", response_model=None)
async def completions(request: Request, body: Completion) -> Response:
    """Continue a text, or fill the gap in front of `suffix`."""
    service = service_of(request)
    hole = hole_of(service, body)
    if hole is not None:
        service.check_name(body.model)
        for name in ("echo", "response_format", "structured_outputs"):
            if getattr(body, name):
                raise unsupported(name, f"{name} is not supported for a gap; leave it out")
        gap = gap_of(service, body, *hole, default=DEFAULT_TOKENS)
        return await respond_gap(service, request, body, gap, TextForm(service.engine.text))
    slow = body.response_format is not None or body.structured_outputs is not None
    work = await offload(request, lambda: prepare(service, body), slow=slow)
    return await Exchange(service, work, request).respond()


def prepare(service: Service, body: Completion) -> Work:
    """Everything that can be refused, before anything runs."""
    engine = service.engine
    service.check_name(body.model)
    prompts, shown = prompts_of(service, body)
    answers = body.n or 1
    if body.best_of not in (None, answers):
        raise unsupported("best_of", f"best_of is {body.best_of} and n is {answers}; they must be equal")
    if body.echo and body.logprobs is not None:
        raise unsupported("echo", "echo with logprobs is not supported; ask for one of them")
    source = source_of(body, service.settings.limits)
    options = options_of(body, engine, service.settings.limits, max_tokens=DEFAULT_TOKENS)
    wanted = asked(engine, prompts, replace(options, logprobs=body.logprobs), answers, source)
    echo = [text for text in shown for _ in range(answers)] if body.echo else []
    return Work(body, wanted, TextForm(engine.text, body.logprobs is not None, echo))


def hole_of(service: Service, body: Completion) -> tuple[str, str] | None:
    """Prefix and suffix, where the request is for a gap: by its suffix, or by the marks of another model."""
    if not body.suffix:
        return split(body.prompt, service.engine.text) if isinstance(body.prompt, str) else None
    if not isinstance(body.prompt, str):
        raise Refusal(400, "suffix was sent with several prompts; send one prompt, as text", param="suffix")
    return body.prompt, body.suffix


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
