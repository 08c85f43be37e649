"""The model that is served, and its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from fastapi import Request

from redraft.engine.dial import read_dial
from redraft.errors import RequestError
from redraft.server.http.body import Body, Flag, Name, Str, TokenIds
from redraft.server.http.errors import ApiError, unsupported
from redraft.server.http.routing import answers, router_of_bodies
from redraft.server.http.service import Service, service_of
from redraft.server.openai.chat import messages_of
from redraft.server.openai.completions import check_ids
from redraft.server.openai.fields import Sampling, Turns
from redraft.server.openai.replies import Json

router = router_of_bodies(streams=False)

MOST_DECODED = 2**16
"""Token ids to text, where the context has not more."""
CREATED = 1767225600  # a checkpoint has no date of its own


class Tokenize(Body):
    """`POST /tokenize`: a text, or a conversation."""

    inert = frozenset({"user"})
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "chat_template_kwargs": ({},),
        "continue_final_message": (False,),
        "tools": ([],),
    }

    model: Name | None = None
    prompt: Str | None = None
    content: Str | None = None
    messages: Turns | None = None
    add_special_tokens: Flag | None = None
    add_special: Flag | None = None
    add_generation_prompt: Flag | None = None
    with_pieces: Flag | None = None
    return_token_strs: Flag | None = None


class Detokenize(Body):
    """`POST /detokenize`."""

    model: Name | None = None
    tokens: TokenIds


@router.get("/v1/models")
@router.get("/models")
async def models(request: Request) -> Json:
    """The one there is, under each of its names."""
    service = service_of(request)
    return {"object": "list", "data": [_model(service, name) for name in service.settings.names if name != "*"]}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Json:
    """One of them."""
    service = service_of(request)
    service.check_name(name)
    return _model(service, name)


@router.post("/tokenize", response_model=None)
@answers
async def tokenize(request: Request, body: Tokenize) -> Json:
    """Text to token ids."""
    service = service_of(request)
    return await service.on_thread(request, _tokenize, service, body)


@router.post("/detokenize", response_model=None)
@answers
async def detokenize(request: Request, body: Detokenize) -> Json:
    """Token ids to text."""
    service = service_of(request)
    service.check_name(body.model)
    said = await service.on_thread(request, _detokenize, service, body.tokens)
    return {"prompt": said, "content": said}


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> Json:
    """What a client needs to count tokens as this server does."""
    engine = service_of(request).engine
    named = dict(engine.text.named_tokens)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "eos_token_id": engine.config.generation.eos_token_ids[0],
        "vocab_size": engine.config.model.vocab_size,
        "model_max_length": engine.config.model.max_positions,
        "chat_template": engine.text.template,
    }


def _detokenize(service: Service, tokens: list[int]) -> str:
    check_ids(service, tokens, "tokens", most=MOST_DECODED)
    return service.engine.text.decode(tokens, skip_special=False)


def _tokenize(service: Service, body: Tokenize) -> Json:
    service.check_name(body.model)
    text = service.engine.text
    given = [name for name in ("prompt", "content", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        said = " and ".join(given) or "nothing"
        raise ApiError(400, f"{said} was sent to tokenize; send one of prompt, content and messages", param="prompt")
    # Two dialects: one adds the beginning-of-text token by default, the other on request. A chat template has its own.
    of = {"add_special_tokens": "prompt", "add_special": "content", "add_generation_prompt": "messages"}
    for name, field in of.items():
        if getattr(body, name) and field not in given:
            raise unsupported(name, f"{name} goes with {field}; leave it out")
    if body.messages is not None:
        again = body.add_generation_prompt is not False
        turns = messages_of(service, body.messages)
        ids = list(service.engine.chat_prompt(turns, generation_prompt=again).tokens)
    else:
        adds = False not in (body.add_special_tokens, body.add_special)  # which says the same in both
        bos = adds and (body.content is None or bool(body.add_special))
        ids = text.encode(body.content if body.content is not None else body.prompt or "", bos=bos)
    pieces = [text.decode([token], skip_special=False) for token in ids]
    found: Json = {"tokens": ids, "count": len(ids), "max_model_len": service.engine.config.model.max_positions}
    if body.with_pieces:
        found["tokens"] = [{"id": token, "piece": piece} for token, piece in zip(ids, pieces, strict=True)]
    if body.return_token_strs:
        found["token_strs"] = pieces
    return found


def _model(service: Service, name: str) -> Json:
    config = service.engine.config
    return {
        "id": name,
        "object": "model",
        "created": CREATED,
        "owned_by": "redraft",
        "max_model_len": config.model.max_positions,
        "canvas_length": config.model.canvas_length,
        "input_modalities": ["text"] if service.engine.vision is None else ["text", "image"],
        "fields": sorted(Sampling.model_fields),
        "dial": _dial(service.engine.folder),
    }


def _dial(folder: Path | None) -> Json | None:
    """What was measured of the checkpoint's settings, cheapest first, if anything was: what `effort` moves along."""
    if folder is None:
        return None
    try:
        dial = read_dial(folder)
    except RequestError:
        return None
    notches = [
        {"effort": effort, "quality": one.quality, "low": one.low, "high": one.high, "forwards": one.forwards}
        for effort, one in zip(dial.efforts(), dial.notches, strict=True)
    ]
    return {"taken": dial.taken, "tasks": dial.tasks, "examples": dial.examples, "notches": notches}
