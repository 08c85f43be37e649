"""`--backend openai`: a verb's questions answered by another server that speaks OpenAI's interface."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from redraft.cli.common import image_part, print_json, progress, read_prompt, tame
from redraft.cli.constraint_flags import read_schema
from redraft.errors import RequestError

if TYPE_CHECKING:
    from redraft.measure.evals import Evaluation
    from redraft.measure.record import Record
    from redraft.measure.remote import Backend, Reply
    from redraft.tasks import Task

SENT = {"prompt", "file", "chat", "image", "stop", "schema", "max_tokens", "seed", "temperature", "top_p"}
LOCAL = {"task", "count", "record", "source", "target", "answered", "at_once", "json", "debug", "model", "run"}
FLAGS = {"backend", "base_url", "api_key_env", "timeout", "parser", "root", "model_given"}
"""Flags that mean something with another server; every other one needs the model itself and is refused."""

Ask = Callable[[str | Sequence[Mapping[str, Any]], Mapping[str, Any]], "Reply"]
"""Answers a text or a conversation, with further fields of the request."""


def backend_of(arguments: argparse.Namespace, *, beside: bool = False) -> Backend | None:
    """The backend that the flags name, None if they name none; `beside` the model at hand, no flag is refused.

    Raises RequestError for flags that another server cannot honour.
    """
    if arguments.backend is None:
        for name in ("base_url", "api_key_env", "timeout", "their_model", "prompts"):
            if getattr(arguments, name, None) is not None:
                raise RequestError(f"--{name.replace('_', '-')} was given without --backend openai; add that")
        return None
    if getattr(arguments, "deadline", None) is not None:
        raise RequestError("--deadline was given with --backend openai; limit its answers with --timeout")
    for name, value in {} if beside else vars(arguments).items():
        if name not in SENT | LOCAL | FLAGS and value != arguments.parser.get_default(name):
            flag = {"variants": "-n"}.get(name, f"--{name.replace('_', '-')}")
            raise RequestError(
                f"{flag} was given with --backend openai, whose interface has nothing like it; leave it out, or load "
                "the model here"
            )

    from redraft.measure.remote import Backend

    return Backend(
        base_url=_url(arguments.base_url),
        model=arguments.their_model if beside else None if arguments.model == "nano" else arguments.model,
        preferred=None if beside else arguments.model,
        key=_key(arguments.api_key_env),
        seconds=_seconds(arguments.timeout),
    )


def _url(given: str | None) -> str:
    if given is None:
        raise RequestError("--backend openai needs --base-url, as http://127.0.0.1:8642/v1")
    try:
        parts = urlsplit(given)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an address, or a port out of range
        raise RequestError(f"--base-url is {given!r}; write it as http://127.0.0.1:8642/v1") from None
    if "@" in parts.netloc or parts.query or parts.fragment:  # it may be a secret, so it is not repeated
        raise RequestError("--base-url has a user, a query or a fragment; pass a key with --api-key-env")
    if not valid or not given.isprintable() or " " in given:
        raise RequestError(f"--base-url is {given!r}; write it as http://127.0.0.1:8642/v1")
    return given


def _key(variable: str | None) -> str:
    key = os.environ.get(variable or "", "").strip()
    if variable is not None and not (key and key.isascii() and key.isprintable()):
        raise RequestError(f"--api-key-env is {variable}, a variable that is not set or holds no key; set it")
    return key


def _seconds(given: float | None) -> float:
    if given is not None and not 0 < given <= 86_400:
        raise RequestError(f"--timeout is {given}; it must be above 0 and at most 86400 (seconds)")
    return 600.0 if given is None else given


@contextmanager
def asking(backend: Backend) -> Iterator[Ask]:
    """Questions one after the other over one connection."""
    from redraft.measure.remote import Remote

    with asyncio.Runner() as runner:
        remote = Remote(backend)
        try:
            yield lambda prompt, fields: runner.run(remote.ask(prompt, fields))
        finally:
            runner.run(remote.aclose())


def generate_remote(backend: Backend, arguments: argparse.Namespace, prompt: str) -> int:
    """`redraft generate` by another server."""
    fields: dict[str, Any] = {"max_tokens": arguments.max_tokens, "seed": arguments.seed}
    fields |= {name: getattr(arguments, name) for name in ("temperature", "top_p") if getattr(arguments, name) != 1}
    fields["stop"] = arguments.stop or None
    if arguments.schema is not None:
        if not arguments.chat:
            raise RequestError("--schema was given with --backend openai, which takes one in conversations; add --chat")
        schema = {"name": "answer", "schema": read_schema(arguments.schema), "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    with asking(backend) as ask:
        given = {name: value for name, value in fields.items() if value is not None}
        parts = [image_part(Path(one)) for one in arguments.image]
        turn = _turn([*parts, {"type": "text", "text": prompt}] if parts else prompt)
        reply = ask(turn if arguments.chat else prompt, given)
    if arguments.json:
        rounded = {"seconds": round(reply.seconds, 4), "first_sec": round(reply.first_sec, 4)}
        print_json({"base_url": backend.base_url} | asdict(reply) | rounded)
    else:
        print(tame(reply.text) if sys.stdout.isatty() else reply.text)
    return 0


def evaluate_remote(backend: Backend, arguments: argparse.Namespace) -> list[Evaluation]:
    """`redraft eval` by another server. Tasks that fill a gap are left out, or refused where they were named."""
    from redraft.tasks import names, task

    if arguments.record:
        raise RequestError("--record was given with --backend openai; records are of models at hand: use --json")
    chosen = [task(name) for name in arguments.task or names()]
    gaps = [one.name for one in chosen if next(one.examples("held_out", 0)).suffix is not None]
    if gaps and arguments.task:
        raise RequestError(f"--task {gaps[0]} fills a gap, which needs a canvas; --backend openai has none")
    with asking(backend) as ask:
        return [_evaluated(ask, one, arguments.count, arguments.seed) for one in chosen if one.name not in gaps]


def _evaluated(ask: Ask, one: Task, count: int, seed: int) -> Evaluation:
    from redraft.measure.evals import tally

    scores, replies = [], list["Reply"]()
    for i, example in zip(range(count), one.examples("held_out", seed), strict=False):
        replies.append(ask(_turn(example.prompt), {"seed": seed + i}))
        scores.append(one.score(example, replies[-1].text))
        progress("example", i + 1, count)
    tokens, steps = sum(reply.tokens or 0 for reply in replies), sum(reply.steps or 0 for reply in replies)
    return tally(one.name, scores, tokens=tokens, steps=steps, seconds=sum(reply.seconds for reply in replies))


def bench_remote(backend: Backend, arguments: argparse.Namespace) -> Record:
    """`redraft bench`: the model at hand and the other server on the same prompts, in turn."""
    from redraft.measure.compare_server import bench_beside
    from redraft.measure.scenario import held_out
    from redraft.operations.engine import Engine

    if arguments.runs is not None and arguments.prompts is not None:
        raise RequestError("--runs and --prompts were both given; each line is a run: leave --runs out")
    prompts = held_out(arguments.runs or 30) if arguments.prompts is None else _lines(arguments.prompts)
    engine = Engine.load(arguments.model, device="cpu", dtype=arguments.dtype)
    with asking(backend) as ask:
        return bench_beside(
            engine,
            lambda prompt, seed: ask(_turn(prompt), {"seed": seed}),
            prompts,
            where=backend.base_url,
            progress=progress,
        )


def _lines(path: Path) -> list[str]:
    """A prompt a line, JSON strings where a prompt has lines of its own. Raises RequestError."""
    found = []
    for line in read_prompt(None, path, "prompts").splitlines():
        try:
            found.append(json.loads(line) if line.startswith('"') else line)
        except ValueError as error:
            raise RequestError(f"{path} has a line that begins as a JSON string and is not one ({error})") from None
    return [prompt for prompt in found if prompt.strip()]


def _turn(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]
