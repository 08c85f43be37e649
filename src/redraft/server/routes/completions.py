"""`POST /v1/completions`."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from redraft.engine.request import CANVAS_ONLY, Options
from redraft.server.ask import asked, options_of
from redraft.server.gaps import gap_of, respond_gap
from redraft.server.languages import source_of
from redraft.server.marks import split
from redraft.server.refusal import Refusal, unsupported
from redraft.server.replies import Echo, Json, TextForm
from redraft.server.respond import Exchange, Work, service_of
from redraft.server.route import router_of_bodies
from redraft.server.schema import Completion
from redraft.server.service import Service

router = router_of_bodies()

DEFAULT_TOKENS = 16
NO_OPTIONS = Options()


@router.post("/v1/completions", response_model=None)
async def completions(request: Request, body: Completion) -> Response | Json:
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
    work = await run_in_threadpool(prepare, service, body)
    return await Exchange(service, work, request).respond()


def prepare(service: Service, body: Completion) -> Work:
    """Everything that can be refused, before anything runs."""
    engine = service.engine
    service.check_name(body.model)
    prompts, echoes = prompts_of(service, body)
    answers = body.n or 1
    if body.best_of not in (None, answers):
        raise unsupported("best_of", f"best_of is {body.best_of} and n is {answers}; they must be equal")
    held = source_of(body, service.settings.limits)
    read = bool(body.echo) and body.logprobs is not None
    settings = replace(service.settings, preset=None) if read else service.settings
    options = replace(options_of(body, engine, settings, max_tokens=DEFAULT_TOKENS), logprobs=body.logprobs)
    wanted = asked(engine, prompts, _reading(options) if read else options, answers, held)
    echo = [one for one in echoes for _ in range(answers)] if body.echo else []
    return Work(body, wanted, TextForm(engine.text, body.logprobs is not None, echo, read))


def _reading(options: Options) -> Options:
    """Options of a request that tells how likely its prompt was: prompt and answer are read in one mode, the causal."""
    for name in CANVAS_ONLY:
        if getattr(options, name) != getattr(NO_OPTIONS, name):
            field = "canvas.width" if name == "canvas" else name
            raise unsupported(field, f"echo with logprobs reads and answers left to right; leave {field} out")
    return replace(options, causal=True, read_prompt=True)


def hole_of(service: Service, body: Completion) -> tuple[str, str] | None:
    """Prefix and suffix, where the request is for a gap: by its suffix, or by the marks of another model."""
    if not body.suffix:
        return split(body.prompt, service.engine.text) if isinstance(body.prompt, str) else None
    if not isinstance(body.prompt, str):
        raise Refusal(400, "suffix was sent with several prompts; send one prompt, as text", param="suffix")
    return body.prompt, body.suffix


def prompts_of(service: Service, body: Completion) -> tuple[list[list[int]], list[Echo]]:
    """Token ids of each prompt, whichever of the four forms it came in, and what an echo of it is."""
    text, given = service.engine.text, body.prompt
    if not given and not isinstance(given, str):
        raise Refusal(400, "the prompt is empty; send at least one", param="prompt")
    several = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    found: list[list[int]] = []
    echoes: list[Echo] = []
    for one in cast(list[str | list[int]], several):
        if isinstance(one, str):
            found.append(text.encode(one, bos=True))
            echoes.append(Echo(one, text.encode(one, bos=False) if body.echo else (), spelt=True))
        else:
            found.append(one)
            echoes.append(Echo(text.decode(one), one, spelt=False))
    return found, echoes
