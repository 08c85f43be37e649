"""Commands run against another server (`--backend openai`) instead of a local checkpoint."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redraft.cli.common import print_json, progress, read_prompt, tame
from redraft.cli.held import read_schema
from redraft.cli.place import experts_of
from redraft.errors import RequestError
from redraft.remote.channel import Backend, Reply
from redraft.remote.remote import Remote, Wish

if TYPE_CHECKING:
    from redraft.measure.evals import Evaluation
    from redraft.measure.record import Record
    from redraft.tasks import Task


def wish_of(arguments: argparse.Namespace) -> Wish:
    """What a command's flags ask of an answer; a temperature or share of 1 is left to the server."""
    schema = getattr(arguments, "schema", None)
    return Wish(
        max_tokens=arguments.max_tokens,
        seed=arguments.seed,
        temperature=None if arguments.temperature == 1 else arguments.temperature,
        top_p=None if getattr(arguments, "top_p", 1.0) == 1 else arguments.top_p,
        stop=tuple(getattr(arguments, "stop", ())),
        schema=None if schema is None else _plain(read_schema(schema)),
    )


def generate_there(backend: Backend, arguments: argparse.Namespace, prompt: str) -> int:
    """`redraft generate`."""
    wish = wish_of(arguments)
    if wish.schema is not None and not arguments.chat:
        raise RequestError("--schema was given with --backend openai, which takes one in conversations; add --chat")
    with Remote(backend) as remote:
        reply = remote.ask([_turn(prompt)] if arguments.chat else prompt, wish)
    if arguments.json:
        print_json(told(backend, reply))
    else:
        print(tame(reply.text) if sys.stdout.isatty() else reply.text)
    return 0


def told(backend: Backend, reply: Reply) -> dict[str, object]:
    """An answer as JSON; null is what the server does not tell."""
    rounded = {"seconds": round(reply.seconds, 4), "first_sec": round(reply.first_sec, 4)}
    return {"base_url": backend.base_url} | asdict(reply) | rounded


def evaluate_there(backend: Backend, arguments: argparse.Namespace) -> list[Evaluation]:
    """`redraft eval`: tasks whose answers are written into a canvas have none there."""
    from redraft.tasks import names, task

    if arguments.record:
        raise RequestError("--record was given with --backend openai; records are of models at hand: use --json")
    chosen = [task(name) for name in arguments.task or names()]
    gaps = [one.name for one in chosen if next(one.examples("held_out", 0)).suffix is not None]
    if gaps and arguments.task:
        raise RequestError(f"--task {gaps[0]} fills a gap, which needs a canvas; --backend openai has none")
    with Remote(backend) as remote:
        return [_evaluated(remote, one, arguments.count, arguments.seed) for one in chosen if one.name not in gaps]


def _evaluated(remote: Remote, one: Task, count: int, seed: int) -> Evaluation:
    from redraft.measure.evals import tally

    scores, replies = [], list[Reply]()
    for i, example in zip(range(count), one.examples("held_out", seed), strict=False):
        replies.append(remote.ask([_turn(example.prompt)], Wish(seed=seed + i)))
        scores.append(one.score(example, replies[-1].text))
        progress("example", i + 1, count)
    tokens, steps = sum(reply.tokens or 0 for reply in replies), sum(reply.steps or 0 for reply in replies)
    return tally(one.name, scores, tokens=tokens, steps=steps, seconds=sum(reply.seconds for reply in replies))


def bench_there(backend: Backend, arguments: argparse.Namespace) -> Record:
    """`redraft bench`: the model at hand and the other server on the same prompts, in turn."""
    from redraft.engine.engine import load
    from redraft.measure.beside import Told, bench_beside
    from redraft.measure.scenario import held_out

    if arguments.runs is not None and arguments.prompts is not None:
        raise RequestError("--runs and --prompts were both given; each line is a run: leave --runs out")
    prompts = held_out(arguments.runs or 30) if arguments.prompts is None else _lines(arguments.prompts)
    engine = load(arguments.model, device="cpu", dtype=arguments.dtype, experts=experts_of(arguments))
    with Remote(backend) as remote:

        def asked(prompt: str, seed: int) -> Told:
            reply = remote.ask([_turn(prompt)], Wish(seed=seed))
            return Told(reply.text, reply.tokens, reply.seconds, reply.first_sec)

        return bench_beside(engine, asked, prompts, where=backend.base_url, progress=progress)


def _lines(path: Path) -> list[str]:
    """A prompt a line, JSON strings where a prompt has lines of its own. Raises RequestError."""
    found = []
    for line in read_prompt(None, path, "prompts").splitlines():
        try:
            found.append(json.loads(line) if line.startswith('"') else line)
        except ValueError as error:
            raise RequestError(f"{path} has a line that begins as a JSON string and is none ({error})") from None
    return [prompt for prompt in found if prompt.strip()]


def _turn(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _plain(schema: Any) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except ValueError as error:
        raise RequestError(f"the schema is not JSON ({error}); pass valid JSON, or fields as 'name, age int'") from None
