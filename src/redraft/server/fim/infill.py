"""Text for a gap: `POST /v1/fim/completions`, and `POST /infill` in llama.cpp's form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar

from fastapi import Request, Response
from pydantic import Field

from redraft.server.fim.gap import build_gap, run_gap
from redraft.server.fim.llamacpp import Until, llama_reply
from redraft.server.http.body import Body, Flag, Int, Name, Seed, Share, Stops, Str
from redraft.server.http.errors import ApiError
from redraft.server.http.routing import answers, router_of_bodies
from redraft.server.http.service import service_of
from redraft.server.limits import BOUNDS, within
from redraft.server.openai.exchange import count, reply_with
from redraft.server.openai.fields import Sampling, Steps, Temperature
from redraft.server.openai.others import INERT, NEUTRAL
from redraft.server.openai.replies import Json, TextForm

router = router_of_bodies()

DEFAULT_TOKENS = 64


class Fim(Sampling):
    """`POST /v1/fim/completions`."""

    prompt: Str = Field(description="the text before the gap")
    suffix: Str | None = Field(default=None, description="the text behind it")
    random_seed: Seed | None = Field(default=None, description="another name of seed")


class Extra(Body):
    """A file beside the one with the gap."""

    inert = frozenset({"time"})

    filename: Name = ""
    text: Str


class InfillHole(Body):
    """`POST /infill`."""

    inert: ClassVar[frozenset[str]] = INERT | {"t_max_prompt_ms"}
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {**NEUTRAL, "stream": (False,), "n_probs": (0,)}

    model: Name | None = None
    input_prefix: Str = Field(description="the text before the gap")
    input_suffix: Str = Field(description="the text behind it")
    input_extra: Annotated[list[Extra], within("files")] | None = Field(default=None, description="files to read first")
    prompt: Str = Field(default="", description="the beginning of the line, between prefix and gap")
    n_predict: Annotated[Int, Field(ge=-1, le=BOUNDS["tokens"].most)] | None = Field(
        default=None, description="most tokens; 0 answers at once, -1 is no limit"
    )
    n_indent: Annotated[Int, within("indent")] | None = Field(
        default=None, description="end in front of a line indented less than this"
    )
    seed: Seed | None = None
    temperature: Temperature | None = None
    top_k: Annotated[Int, within("top_k")] | None = None
    top_p: Share | None = None
    stop: Stops | None = None
    t_max_predict_ms: Until = None
    max_steps: Steps | None = Field(default=None, description="cap on denoising steps")
    return_tokens: Flag | None = Field(default=None, description="also the token ids")


@router.post("/v1/fim/completions", response_model=None)
@router.post("/fim/completions", response_model=None)
@answers
async def fim(request: Request, body: Fim) -> Response | Json:
    """Fill a gap between two texts."""
    service = service_of(request)
    if body.random_seed is not None:
        if body.seed is not None:
            raise ApiError(400, "seed and random_seed were both sent; send one", param="random_seed")
        body = body.model_copy(update={"seed": body.random_seed})
    gap = build_gap(service, body, body.prompt, body.suffix or "", default=DEFAULT_TOKENS)
    return reply_with(request, body, TextForm(service.engine.text, delta=True), *await run_gap(request, gap))


@router.post("/infill", response_model=None)
@answers
async def infill(request: Request, body: InfillHole) -> Json:
    """Fill a gap for an editor."""
    service = service_of(request)
    wanted = DEFAULT_TOKENS if body.n_predict in (None, -1) else body.n_predict
    same = Sampling(
        model=body.model,
        max_tokens=wanted,
        seed=None if body.seed == -1 else body.seed,  # "at random" there
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        stop=body.stop,
        # 0 is "no limit" there.
        deadline_ms=body.t_max_predict_ms or None,
        max_steps=body.max_steps,
    )
    before = "".join(f"{extra.filename}\n{extra.text}\n" for extra in body.input_extra or ())
    gap = build_gap(service, same, before + body.input_prefix + body.prompt, body.input_suffix, default=DEFAULT_TOKENS)
    if body.n_indent:
        gap = replace(gap, cut=partial(outdented, indent=body.n_indent))
    (done,), read = await run_gap(request, gap)
    count(service, request, [done], read)
    tokens = list(done.tokens) if body.return_tokens else []
    return llama_reply(service, done, read, gap.max_tokens) | {"tokens": tokens}


def outdented(text: str, indent: int) -> str:
    """A text up to its first line, after the first, that is indented less and not blank."""
    found = re.search(rf"\n(?=[ \t]{{0,{indent - 1}}}[^ \t\n])", text)
    return text if found is None else text[: found.start()]
