"""llama.cpp's own endpoints, for its web page and editors' plugins: /completion; /props and /slots, to be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, cast

from fastapi import Request, Response
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from redraft.engine.events import Block
from redraft.engine.request import Generation, Logprobs
from redraft.server.http.body import Flag, Int, Milliseconds, Schema, Str
from redraft.server.http.errors import ApiError, unsupported
from redraft.server.http.routing import answers, router_of_bodies
from redraft.server.http.service import Service, service_of
from redraft.server.http.sse import Chunks
from redraft.server.limits import BOUNDS, within
from redraft.server.openai.constraint import format_of
from redraft.server.openai.exchange import Exchange, Work
from redraft.server.openai.fields import Alternatives, Completion, Pattern, Sampling
from redraft.server.openai.others import NEUTRAL
from redraft.server.openai.replies import Json, TextForm, chat_logprobs
from redraft.server.openai.request_builder import RequestBuilder

router = router_of_bodies()


def few_texts(value: Any) -> Any:
    """A validator of the texts in a list, before any of them is looked at: token ids may be many more."""
    if isinstance(value, list) and (count := sum(isinstance(one, str) for one in value)) > BOUNDS["parts"].most:
        most = int(BOUNDS["parts"].most)
        raise PydanticCustomError("too_long", "it has {count} texts; at most {most}", {"count": count, "most": most})
    return value


Id = Annotated[Int, within("id")]
Mixed = Annotated[list[Str | Id], within("ids")]
"""One prompt: texts and token ids in turn."""
Prompts = Annotated[Str | Mixed | Annotated[list[Str | Mixed], within("prompts")], BeforeValidator(few_texts)]
Until = Annotated[Milliseconds | None, Field(description="after this long the best canvas is the answer")]


class LlamaCompletion(Sampling):
    """`POST /completion`."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {**NEUTRAL, "n_indent": (0,), "lora": ([],)}

    prompt: Prompts = Field(
        description="a text, or texts and token ids in turn; several prompts, if one is a list or all are texts"
    )
    n_predict: Annotated[Int, Field(ge=-1, le=BOUNDS["tokens"].most)] | None = Field(
        default=None, description="most tokens; -1 is no limit but the checkpoint's own"
    )
    json_schema: Schema | None = Field(default=None, description="a JSON Schema that the answer is valid to")
    grammar: Pattern | None = Field(default=None, description="a grammar in Lark's notation or in GBNF")
    n_probs: Alternatives | None = Field(
        default=None, description="log-probabilities, and of this many of the likeliest"
    )
    return_tokens: Flag | None = Field(default=None, description="also the token ids")
    t_max_predict_ms: Until = None


@router.post("/completion", response_model=None)
@answers
async def completion(request: Request, body: LlamaCompletion) -> Response | Json:
    """Continue a text, or several."""
    service = service_of(request)
    exchange = Exchange(service, await service.on_thread(request, _prepare, service, body), request)
    if body.stream:
        return exchange.stream(_chunks(exchange, body), marked=False)

    def whole() -> Any:
        found = [_finished(exchange, body, i, done) for i, done in enumerate(exchange.done())]
        return found if len(found) > 1 else found[0]

    return await exchange.reply(whole)


@router.get("/props")
async def props(request: Request) -> Json:
    """What is served: its context, its template, and the settings that a request without any has."""
    service = service_of(request)
    engine, settings = service.engine, service.settings
    named = dict(engine.text.named_tokens)
    most = engine.config.generation.max_new_tokens
    generation: Json = {"n_predict": most, "seed": -1, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    generation |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "stream": True, "stop": []}
    generation |= {name: values[0] for name, values in NEUTRAL.items() if values}
    return {
        "default_generation_settings": _slot(service, 0, 0) | {"params": generation},
        "total_slots": engine.loop.scheduler.max_running,
        "model_path": settings.name,
        "model_alias": settings.name,
        "chat_template": engine.text.template or "",
        "bos_token": named.get("bos_token", ""),
        "eos_token": named.get("eos_token", ""),
        "modalities": {"vision": engine.vision is not None, "audio": False},
        "build_info": f"redraft-{settings.version}",
    }


@router.get("/slots")
async def slots(request: Request) -> list[Json]:
    """One for each answer that may be written at a time."""
    service = service_of(request)
    return [_slot(service, i, service.admission.under_way) for i in range(service.engine.loop.scheduler.max_running)]


def _slot(service: Service, i: int, busy: int) -> Json:
    context = service.engine.config.model.max_positions
    return {"id": i, "id_task": -1, "n_ctx": context, "speculative": False, "is_processing": i < busy}


def _prepare(service: Service, body: LlamaCompletion) -> Work:
    most = None if body.n_predict == -1 else body.n_predict
    for name, own, other in (
        ("n_predict", most, "max_tokens"),
        ("t_max_predict_ms", body.t_max_predict_ms, "deadline_ms"),
    ):
        if own and getattr(body, other) is not None:
            raise ApiError(400, f"{name} and {other} were both sent; they say the same, so send one", param=name)
    given, seed = body.max_tokens if most is None else most, None if body.seed == -1 else body.seed
    until = body.t_max_predict_ms or body.deadline_ms
    same = body.model_copy(update={"max_tokens": given, "seed": seed, "deadline_ms": until})
    builder = RequestBuilder(service, same)
    if body.canvas is not None and body.canvas.stream:
        raise unsupported("canvas.stream", "steps are in streams of /v1/completions; leave canvas.stream out")
    prompts = _prompts(service, body)
    held = Completion(prompt="", json_schema=body.json_schema, grammar=body.grammar or None)
    options = replace(builder.options(max_tokens=None), logprobs=body.n_probs or None)
    requests = builder.requests(prompts, options, body.n or 1, format_of(held))
    form = TextForm(builder.engine.text, bool(body.n_probs))
    unused = ["stream_options"] * (body.stream_options is not None)  # the last chunk has the counts
    return Work(body, requests, sum(map(len, prompts)), form, unused=unused)


def _prompts(service: Service, body: LlamaCompletion) -> list[list[int]]:
    """Token ids of each prompt. Raises ApiError for none or too many, and for an id that there is none of."""
    given = body.prompt
    if not (parts := given if isinstance(given, list) else [given]):
        raise ApiError(400, "the prompt is empty; send a text", param="prompt")
    several = any(isinstance(part, list) for part in parts) or all(isinstance(part, str) for part in parts)
    service.admission.check((len(parts) if several else 1) * (body.n or 1))
    vocab, text, found = service.engine.config.model.vocab_size, service.engine.text, list[list[int]]()
    for one in cast(list[str | list[str | int]], parts if several else [parts]):
        ids: list[int] = []
        for part in [part for i, part in enumerate(one) if part != "" or i == 0] if isinstance(one, list) else [one]:
            ids += text.encode(part, bos=not ids) if isinstance(part, str) else [part]
            if len(ids) > service.engine.config.model.max_positions:
                break  # what is refused in any case is not read to its end
        if max(ids, default=0) >= vocab:
            raise ApiError(400, f"prompt holds token id {max(ids)}; the vocabulary ends at {vocab - 1}", param="prompt")
        found.append(ids)
    return found


def _finished(exchange: Exchange, body: LlamaCompletion, i: int, done: Generation) -> Json:
    asked, answer = exchange.work.requests[i], exchange.answers.answers[i]
    found = llama_reply(exchange.service, done, len(asked.prompt), asked.max_tokens) | {"index": i}
    found["prompt"] = exchange.service.engine.text.decode(asked.shown_prompt, skip_special=False)
    found["tokens"] = list(done.tokens) if body.return_tokens and not body.stream else []
    if answer.stopped:
        found |= {"stop_type": "word", "stopping_word": answer.stop_string}
    if body.n_probs:
        found["completion_probabilities"] = _probabilities(exchange, done.content_logprobs)
    return found


async def _chunks(exchange: Exchange, body: LlamaCompletion) -> Chunks:
    async for i, delta in exchange.answers:
        answer = exchange.answers.answers[i]
        tokens = delta.event.tokens if isinstance(delta.event, Block) else []
        if delta.content or delta.logprobs or tokens:
            piece: Json = {"index": i, "content": delta.content, "tokens": tokens, "stop": False, "id_slot": i}
            piece |= {"tokens_predicted": len(answer.tokens), "tokens_evaluated": len(answer.request.prompt)}
            more = {"completion_probabilities": _probabilities(exchange, delta.logprobs)} if body.n_probs else {}
            yield piece | more
        if answer.finish is not None:
            yield _finished(exchange, body, i, answer.generation()) | {"content": ""}


def _probabilities(exchange: Exchange, rows: Sequence[Logprobs]) -> list[Json]:
    """As a chat's, with token ids."""
    found: list[Json] = chat_logprobs(exchange.service.engine.text, rows)["content"]
    for entry, row in zip(found, rows, strict=True):
        for one, (token, _) in zip((entry, *entry["top_logprobs"]), row, strict=True):
            one["id"] = token
    return found


def llama_reply(service: Service, done: Generation, read: int, most: int) -> Json:
    """A finished answer to a prompt of `read` tokens, of at most so many."""
    tokens, ms = len(done.tokens), done.seconds * 1e3
    return {
        "index": 0,
        "content": done.text,
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": service.settings.name,
        "tokens_predicted": tokens,
        "tokens_evaluated": read,
        "tokens_cached": done.cached_tokens,
        "truncated": False,
        "has_new_line": "\n" in done.text,
        "stop_type": "limit" if done.finish in ("length", "deadline") else "eos",
        "stopping_word": "",
        "generation_settings": {"seed": done.seed, "n_predict": most},
        "timings": {
            "prompt_n": read,
            "prompt_ms": 0.0,
            "predicted_n": tokens,
            "predicted_ms": round(ms, 3),
            "predicted_per_second": round(tokens / max(1e-6, ms / 1e3), 3),
        },
    }
