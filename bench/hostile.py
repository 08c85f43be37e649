"""Hostile requests against a real server, and what a bystander notices of them.

    python bench/hostile.py --count 20000 --record bench/records/hostile.json

Cases grow from the table of bounds (src/redraft/server/limits.py) through the body models: for each field of each
endpoint its bounds and their neighbours, the edges of number formats, what is no number, long and deep and wide values,
unpaired surrogates and null; half of the requests have two such fields. They run AT_ONCE at a time, on a server that
gives an answer one second, under one API key. Meanwhile a bystander asks plain requests, under another, and /live.

Half as many come before it, beside the same bystander: the server's caches are full then, and it has had as many at a
time as later. Then the bystander is asked alone ("quiet"). What must hold, or the exit code is 1: no status of 500 and
above but those promised; no request over MOST_SEC and SLOWER quiet p99s, for a busy machine is slow; the bystander's
p99 under SLOWER times its quiet one, and fewer than one in a hundred of its answers cut by that second; resident
memory, without the prefixes, automata and schemas that the server keeps up to bounds of their own, back within GROWN;
and no descriptor left open.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
import typing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import httpx2

from command import arguments, finish, served
from redraft.cli.common import progress
from redraft.errors import RunError
from redraft.measure.process_memory import resident_mib
from redraft.measure.record import Progress, Record, new_record, percentiles_ms, silent
from redraft.server.canvas import CanvasBody
from redraft.server.fim.edits import EditBody
from redraft.server.fim.infill import Fim, InfillHole
from redraft.server.fim.llamacpp import LlamaCompletion
from redraft.server.http.body import Body
from redraft.server.http.process import TRIM_SEC
from redraft.server.limits import BOUNDS
from redraft.server.openai.decisions import Decisions
from redraft.server.openai.fields import Chat, Completion
from redraft.server.openai.models import Detokenize, Tokenize
from redraft.server.openai.response_fields import Responses

AT_ONCE, MOST_SEC, SLOWER, GROWN = 8, 2.0, 10.0, 0.05
STRANGER, OTHER = "key-of-a-stranger", "key-of-a-bystander"
SETTLE_SEC = TRIM_SEC + 3.0
"""Until a server that has nothing to do has given unused memory back."""
OURS = {503, 504}
"""Statuses above 499 that are promised."""
PLAIN = {
    "messages": [{"role": "user", "content": "Send 3 apples to Maria."}],
    "structured_outputs": {"json": "who, qty int, item"},
    "seed": 7,
    "max_tokens": 32,
    "canvas": {"width": 32, "ask_fields": True},
}
TURN = {"messages": [{"role": "user", "content": "record\nSend"}], "max_tokens": 8, "canvas": {"width": 16}}
ENDPOINTS: Mapping[str, tuple[type[Body], dict[str, Any]]] = {
    "/v1/chat/completions": (Chat, TURN),
    "/v1/completions": (Completion, {"prompt": "record", "max_tokens": 8, "canvas": {"width": 16}}),
    "/v1/responses": (Responses, {"input": "record", "max_output_tokens": 8, "canvas": {"width": 16}}),
    "/v1/fim/completions": (Fim, {"prompt": "a", "suffix": "b", "max_tokens": 2}),
    "/infill": (InfillHole, {"input_prefix": "a", "input_suffix": "b", "n_predict": 2}),
    "/completion": (LlamaCompletion, {"prompt": "record", "n_predict": 8, "canvas": {"width": 16}}),
    "/v1/edit/completions": (
        EditBody,
        {"messages": [{"role": "user", "content": "<|code_to_edit|>ab<|/code_to_edit|>"}]},
    ),
    "/v1/canvas": (CanvasBody, {"prompt": "record", "max_tokens": 8, "canvas": {"width": 16}}),
    "/v1/decisions": (Decisions, {"input": "a", "questions": [{"type": "predicate", "instructions": "b"}]}),
    "/tokenize": (Tokenize, {"prompt": "a"}),
    "/detokenize": (Detokenize, {"tokens": [1, 2]}),
}
NUMBERS: Sequence[Any] = (0, 1, -1, 2**31, 2**32, 2**53, 2**63, 2**64, -(2**63), 0.5, float("nan"), "1e400", 10**400)
TEXTS: Sequence[Any] = ("", "a", "a\ud800", "<|turn>model\n", "[", "(a|b)*a(a|b){18}", "gate:" * 200, "\0", "9" * 5000)
EDGES = sorted(
    {int(edge) + near for bound in BOUNDS.values() for edge in (bound.least, bound.most) for near in (-1, 0, 1)}
)
SMALL = [edge for edge in EDGES if 0 <= edge <= 2**17]
SLOW = {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": "^(a|b)*a(a|b){9}$"} for i in range(9)}}
PAIR = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)} | {"d30": {"required": ["c"]}}
BRANCHING = {
    "$defs": PAIR,
    "type": "object",
    "properties": {"a": {"const": 1}},
    "required": ["a"],
    "$ref": "#/$defs/d0",
}


def hostile(annotation: Any, rng: Random) -> Any:
    """A value for a field: near its bounds, or of no form that it takes."""
    kinds = [kind for kind in _kinds(annotation) if kind is not type(None)]
    kind, draw = rng.choice(kinds), rng.random()
    if draw < 0.08:
        return rng.choice([None, True, [], {}, "", 0, "a\ud800", deep(rng), SLOW, BRANCHING])
    if kind in (int, float):
        return rng.choice([*NUMBERS, *rng.sample(EDGES, 8)])
    if kind is str:
        return "a" * rng.choice(SMALL) if draw < 0.3 else rng.choice(TEXTS)
    if kind is list:
        inner = typing.get_args(_plain(annotation, list))
        size = rng.choice([0, 1, 2, *rng.sample(SMALL, 4)])
        one = hostile(inner[0] if inner else str, rng)
        return [one] * (size if len(str(one)) < 100 else min(size, 4))
    if isinstance(kind, type) and issubclass(kind, Body):
        names = sorted(kind.model_fields)
        return {
            _sent(kind, name): hostile(kind.model_fields[name].annotation, rng)
            for name in rng.sample(names, min(2, len(names)))
        }
    if kind is dict:
        return rng.choice(
            [
                deep(rng),
                SLOW,
                BRANCHING,
                {str(i): i for i in range(rng.choice(SMALL))},
                {"type": "string"},
                {"enum": [1]},
            ]
        )
    return kind if isinstance(kind, str) else rng.choice([True, False, "auto", "text"])


def deep(rng: Random) -> Any:
    """Lists in lists, near the bound and far behind it."""
    found: Any = 1
    for _ in range(rng.choice([3, 60, 63, 64, 65, 500])):
        found = [found] if rng.random() < 0.5 else {"a": found}
    return found


def bodies(rng: Random) -> Iterator[tuple[str, bytes]]:
    """Paths and bodies, endlessly."""
    while True:
        path = rng.choice(list(ENDPOINTS))
        model, base = ENDPOINTS[path]
        body = dict(base)
        for name in rng.sample(sorted(model.model_fields), rng.choice((1, 1, 2))):
            body[_sent(model, name)] = hostile(model.model_fields[name].annotation, rng)
        yield path, json.dumps(body).replace('"1e400"', "1e400").encode()


def _sent(model: type[Body], name: str) -> str:
    return model.model_fields[name].alias or name


def _kinds(annotation: Any) -> Iterator[Any]:
    """The plain types in an annotation, the outermost ones."""
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from _kinds(inside[0])
    elif origin in (list, dict):
        yield origin
    elif origin is typing.Literal:
        yield inside[0]
    elif inside:
        for one in inside:
            yield from _kinds(one)
    else:
        yield annotation


def _plain(annotation: Any, wanted: type) -> Any:
    """The first part of an annotation that is of this type."""
    if typing.get_origin(annotation) is wanted:
        return annotation
    return next((found for one in typing.get_args(annotation) if (found := _plain(one, wanted)) is not None), None)


@dataclass
class Seen:
    """What requests came to."""

    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    slowest: list[tuple[float, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


async def attack(http: httpx2.AsyncClient, cases: Iterator[tuple[str, bytes]], count: int, report: Progress) -> Seen:
    """Send them, AT_ONCE at a time."""
    seen, left = Seen(), iter(range(count))

    async def one_after_another() -> None:
        for number in left:
            path, body = next(cases)
            began = time.monotonic()
            try:
                reply = await http.post(path, content=body, headers={"content-type": "application/json"})
            except httpx2.HTTPError as error:
                seen.wrong.append(f"{path} {body[:300]!r}: {error!r}")
                continue
            seconds = time.monotonic() - began
            seen.seconds.append(seconds)
            seen.statuses[str(reply.status_code)] += 1
            said = f"{reply.status_code} in {seconds:.1f} s: {path} {body[:300]!r}"
            seen.slowest = sorted([*seen.slowest, (seconds, said)], reverse=True)[:10]
            if reply.status_code >= 500 and reply.status_code not in OURS:
                seen.wrong.append(said)
            if number % 100 == 0:
                report("request", number, count)

    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
    return seen


async def bystander(http: httpx2.AsyncClient, over: asyncio.Event, most: int | None = None) -> dict[str, list[float]]:
    """Seconds of plain requests and of /live, one after another, until it is over; those of requests whose answer was
    cut, or prevented, by the server's own limit stand under `cut`, too."""
    found: dict[str, list[float]] = {"answer": [], "live": [], "cut": []}
    while not over.is_set() and (most is None or len(found["live"]) < most):
        for name, asked in (("answer", http.post("/v1/chat/completions", json=PLAIN)), ("live", http.get("/live"))):
            began = time.monotonic()
            reply = await asked
            late = name == "answer" and reply.status_code == 504  # not even a first draft
            if reply.status_code != 200 and not late:
                raise RunError(f"the bystander's request got {reply.status_code}: {reply.text[:300]}")
            found[name].append(time.monotonic() - began)
            if late or (name == "answer" and reply.json()["choices"][0]["canvas"]["finish"] == "deadline"):
                found["cut"].append(found[name][-1])
        await asyncio.sleep(0.02)
    return found


def descriptors(pid: int) -> int:
    """Open ones of a process, but the two pipes to each that works for it: such begin when they are first needed."""
    helpers = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):  # it has ended meanwhile
            helpers += f"\nPPid:\t{pid}\n" in status.read_text()
    return len(list(Path(f"/proc/{pid}/fd").iterdir())) - 2 * helpers


async def state(http: httpx2.AsyncClient, pid: int) -> tuple[float, float, int]:
    """MiB of a server's resident memory and of the prefixes, automata and schemas that it keeps, and its open
    descriptors but this one's."""
    page = (await http.get("/metrics")).text
    prefixes, constraints = re.findall(r"^redraft_(?:prefix|constraint)_bytes (\S+)", page, re.MULTILINE)
    return resident_mib(process=pid) or 0.0, (float(prefixes) + float(constraints)) / 2**20, descriptors(pid) - 1


async def measured(url: str, pid: int, count: int, seed: int, report: Progress = silent) -> dict[str, Any]:
    """The figures of `count` hostile requests: a quiet bystander, the attack, and what is left behind it."""
    cases, over = bodies(Random(f"hostile {seed}")), asyncio.Event()
    async with client(url, STRANGER) as http, client(url, OTHER) as other:
        watching = asyncio.create_task(bystander(other, over))
        await attack(http, cases, max(50, count // 2), silent)
        over.set()
        await watching
        over = asyncio.Event()
        quiet = await bystander(other, over, most=100)
    await asyncio.sleep(SETTLE_SEC)
    async with client(url, OTHER) as http:
        before = await state(http, pid)
    meanwhile: list[float] = []

    def sampled(what: str, number: int, of: int) -> None:
        if number * 10 >= of * len(meanwhile):
            meanwhile.append(round(resident_mib(process=pid) or 0.0, 1))
        report(what, number, of)

    async with client(url, STRANGER) as http, client(url, OTHER) as other:
        watching = asyncio.create_task(bystander(other, over))
        began = time.monotonic()
        seen = await attack(http, cases, count, sampled)
        seconds = time.monotonic() - began
        over.set()
        noticed = await watching
    await asyncio.sleep(SETTLE_SEC)
    async with client(url, OTHER) as http:
        after = await state(http, pid)
    found = {
        "statuses": dict(sorted(seen.statuses.items())),
        "wrong": seen.wrong[:20],
        "seconds": round(seconds, 1),
        "over_2_sec": sum(one > MOST_SEC for one in seen.seconds),
        "slowest_sec": round(max(seen.seconds), 3),
        "slowest": [said for _, said in seen.slowest],
        "bystander_quiet_ms": {name: percentiles_ms(quiet[name], 50, 99) for name in ("answer", "live")},
        "bystander_ms": {name: percentiles_ms(noticed[name], 50, 99) for name in ("answer", "live")},
        "bystander_answers": len(noticed["answer"]),
        "bystander_cut": len(noticed["cut"]),
        "resident_mib": [round(before[0], 1), round(after[0], 1)],
        "resident_mib_each_tenth": meanwhile,
        "kept_mib": [round(before[1], 1), round(after[1], 1)],
        "descriptors": [before[2], after[2]],
    }
    return found | {"broken": broken(found)}


def broken(found: Mapping[str, Any]) -> list[str]:
    """What does not hold."""
    quiet, loud = found["bystander_quiet_ms"], found["bystander_ms"]
    most_sec = MOST_SEC + SLOWER * quiet["answer"]["p99"] / 1e3
    before, after = (a - b for a, b in zip(found["resident_mib"], found["kept_mib"], strict=True))
    said = {
        "an answer that is not promised": bool(found["wrong"]),
        f"an answer took over {most_sec:.1f} s": found["slowest_sec"] > most_sec,
        "a bystander waited": any(loud[name]["p99"] > SLOWER * quiet[name]["p99"] for name in quiet),
        "so many of a bystander's answers were cut at the server's limit that it hides their p99": (
            100 * found["bystander_cut"] >= found["bystander_answers"]
        ),
        "memory did not come back": after > (1 + GROWN) * before,
        "descriptors stayed open": found["descriptors"][1] > found["descriptors"][0],
    }
    return [what for what, is_so in said.items() if is_so]


@contextmanager
def hurried(*more_words: str) -> Iterator[tuple[str, int]]:
    """A server of one second an answer unless said otherwise, with a key for strangers and one for others: its URL and
    process id."""
    words = ("--threads", "1", "--max-seconds", "1", *more_words)
    # An empty cache: what it compiled before would cost nothing.
    keys = f"{STRANGER},{OTHER}"
    with TemporaryDirectory() as folder, served(*words, XDG_CACHE_HOME=folder, REDRAFT_API_KEYS=keys) as found:
        yield found


def client(url: str, key: str, **more: Any) -> httpx2.AsyncClient:
    """A client of it that has a key."""
    return httpx2.AsyncClient(base_url=url, headers={"authorization": f"Bearer {key}"}, **{"timeout": 120, **more})


def main() -> None:
    """One record."""
    asked = arguments(__doc__ or "", count=20_000)
    with hurried() as (url, pid):
        figures = asyncio.run(measured(url, pid, asked.count, 0, progress))
    print(json.dumps(figures, indent=1), file=sys.stderr)
    finish(record_of(figures, asked.count), asked.record)
    if figures["broken"]:
        raise SystemExit(1)


def record_of(figures: Mapping[str, Any], count: int) -> Record:
    """What is quoted of them."""
    quiet, loud = (figures[name]["answer"]["p99"] for name in ("bystander_quiet_ms", "bystander_ms"))
    memory, kept = (" and ".join(f"{one:.0f} MiB" for one in figures[key]) for key in ("resident_mib", "kept_mib"))
    sent = f"{count} hostile requests, {AT_ONCE} at a time"
    return new_record(
        "hostile",
        workload={"requests": count, "at_once": AT_ONCE, "endpoints": sorted(ENDPOINTS), "max_seconds": 1},
        figures=figures,
        summary=[
            (f"{sent}: answers that are not promised", str(len(figures["wrong"]))),
            (f"answers over {MOST_SEC:g} s; the slowest", f"{figures['over_2_sec']}; {figures['slowest_sec']:.2f} s"),
            ("a bystander's p99 meanwhile, and when it is quiet", f"{loud:.0f} ms, {quiet:.0f} ms"),
            (
                "a bystander's answers that the limit of one second cut",
                f"{figures['bystander_cut']} of {figures['bystander_answers']}",
            ),
            ("the server's resident memory before and after", memory),
            ("of it, kept prefixes, automata and schemas", kept),
            ("its open descriptors before and after", " and ".join(map(str, figures["descriptors"]))),
            ("what did not hold", "; ".join(figures["broken"]) or "nothing"),
        ],
    )


if __name__ == "__main__":
    main()
