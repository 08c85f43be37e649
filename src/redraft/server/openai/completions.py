"""`POST /v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from fastapi import Request, Response

from redraft.options import CANVAS_ONLY, Options
from redraft.server.fim.gap import build_gap, run_gap
from redraft.server.fim.marks import split
from redraft.server.http.errors import RENAMED, ApiError, unsupported
from redraft.server.http.routing import answers, router_of_bodies
from redraft.server.http.service import Service, service_of
from redraft.server.openai.constraint import format_of
from redraft.server.openai.exchange import Exchange, Work, reply_with
from redraft.server.openai.fields import Completion
from redraft.server.openai.replies import Echo, Json, TextForm
from redraft.server.openai.request_builder import RequestBuilder

router = router_of_bodies()

DEFAULT_TOKENS = 16
NO_OPTIONS = Options()


@router.post("/v1/completions", response_model=None)
@answers
async def completions(request: Request, body: Completion) -> Response | Json:
    """Continue a text, or fill the gap in front of `suffix`."""
    service = service_of(request)
    if body.best_of not in (None, body.n or 1):
        said = f"best_of is {body.best_of} and n is {body.n or 1}; they must be equal"
        raise unsupported("best_of", said)
    around = gap_of(service, body)
    if around is not None:
        for name in ("echo", "response_format", "structured_outputs", "json_schema", "grammar"):
            if getattr(body, name) not in (None, False, ""):
                raise unsupported(name, f"{name} is not supported for a gap; leave it out")
        gap = build_gap(service, body, *around, default=DEFAULT_TOKENS)
        return reply_with(request, body, TextForm(service.engine.text), *await run_gap(request, gap))
    work = await service.on_thread(request, prepare, service, body)
    return await Exchange(service, work, request).respond()


def prepare(service: Service, body: Completion) -> Work:
    """The requests of a body, and all that can be refused before they run."""
    builder = RequestBuilder(service, body)
    prompts, echoes = prompts_of(service, body)
    each = body.n or 1
    constraint = format_of(body)
    read = bool(body.echo) and body.logprobs is not None
    options = replace(builder.options(max_tokens=DEFAULT_TOKENS, causal=read), logprobs=body.logprobs)
    requests = builder.requests(prompts, _reading(options) if read else options, each, constraint)
    echo = [one for one in echoes for _ in range(each)] if body.echo else []
    form = TextForm(builder.engine.text, body.logprobs is not None, echo, read)
    return Work(body, requests, sum(map(len, prompts)), form)


def _reading(options: Options) -> Options:
    """Options for log-probabilities of the prompt: prompt and answer are read in one mode, the causal."""
    for name in CANVAS_ONLY:
        if getattr(options, name) != getattr(NO_OPTIONS, name):
            field = RENAMED.get(name, name)
            raise unsupported(field, f"echo with logprobs reads and answers left to right; leave {field} out")
    return replace(options, causal=True, read_prompt=True)


def gap_of(service: Service, body: Completion) -> tuple[str, str] | None:
    """Prefix and suffix, where the request is for a gap: by its suffix, or by the marks of another model."""
    if not body.suffix:
        return split(body.prompt, service.engine.text) if isinstance(body.prompt, str) else None
    if not isinstance(body.prompt, str):
        raise ApiError(400, "suffix was sent with several prompts; send one prompt, as text", param="suffix")
    return body.prompt, body.suffix


def check_ids(service: Service, ids: Sequence[int], name: str, *, most: int = 0) -> None:
    """Raise ApiError for more ids than the context has, and than `most`, before they are looked at, and for one that
    there is not."""
    model = service.engine.config.model
    if len(ids) > max(most, model.max_positions):
        context = f"the model's context is {model.max_positions}"
        said = f"{name} has {len(ids)} token ids; {f'at most {most}' if most > model.max_positions else context}"
        raise ApiError(400, said, param=name, code="context_length_exceeded")
    worst = max(ids, default=0)
    if worst >= model.vocab_size:
        said = f"{name} holds token id {worst}; the vocabulary ends at {model.vocab_size - 1}"
        raise ApiError(400, said, param=name)


def prompts_of(service: Service, body: Completion) -> tuple[list[list[int]], list[Echo]]:
    """Token ids of each prompt, whichever of the four forms it came in, and what an echo of it is."""
    text, given = service.engine.text, body.prompt
    if not given and not isinstance(given, str):
        raise ApiError(400, "the prompt is empty; send at least one", param="prompt")
    several = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    service.admission.check(len(several) * (body.n or 1))
    for one in several:
        if not isinstance(one, str | int):
            check_ids(service, one, "prompt")
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
