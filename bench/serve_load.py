"""The server under load: many streams at once, some of which leave and some of which are nonsense, and what HTTP costs.

    python bench/serve_load.py --count 256 --record bench/records/serve.json

Requests arrive as a Poisson stream whose rate keeps about `streams` of them under way. Tasks and lengths are mixed, one
in ten hangs up after its first chunk, one in twenty is refused.

What HTTP costs is measured in turns, with the same plain requests and one engine in this process: 32 clients of a
server around it, in a process of theirs, which keep connections and read streams to their ends, and 32 requests under
way without it. Both begin with a prompt's text and end with an answer's; whenever one ends the next begins, WAVES times
over: throughput is what lasts, and of two waves a good part is beginning and end. It takes two cores. Short answers,
with which the engine has little to do, are measured apart from a mix of short and long ones. Two processes that do the
same differ by some percent, therefore it is one; two minutes of one machine do, too, therefore the system is asked how
long the engine's thread did not run: over HTTP and without, its own work left out.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from random import Random
from statistics import mean, median, quantiles
from typing import Any

import torch

from command import arguments, finish, served
from redraft import load
from redraft.cli.common import progress
from redraft.engine.request import Options, Request
from redraft.errors import RunError
from redraft.measure.evals import room
from redraft.measure.process_memory import resident_mib
from redraft.measure.record import Progress, Record, new_record, percentiles_ms
from redraft.operations.engine import Engine
from redraft.server.http.app import create_app
from redraft.server.http.log import Log
from redraft.server.http.process import Server, begin, run
from redraft.server.http.service import Service
from redraft.server.http.settings import Settings
from redraft.tasks import names, task
from stream_client import Link, StreamedReply, stream_chat

STREAMS = (1, 8, 32, 128)
AT_ONCE, PAIRS = 32, 7
WAVES: Mapping[str, int] = {"reference": 8, "fast": 16}
"""By presets: HTTP costs the same per answer, so its share is larger where the engine needs one step of it."""

WORKLOADS: Mapping[str, tuple[str, ...]] = {"short": ("records",), "mixed": names("nano-sudoku")}
"""Tasks that are asked in turn."""

LEAVE, BAD = 0.10, 0.05
LENGTHS = (8, 16, 32, 64, 128, 256)

Asked = tuple[str, int, int]  # prompt, seed, max_tokens
Job = tuple[str, int, int, str]  # and the kind

OverHttp = Callable[[str, Sequence[Asked]], tuple[float, list[int]]]
"""Answers per second to requests by a preset, and the tokens of each."""


Host = Callable[[Engine], AbstractContextManager[str]]
"""A server around an engine, in this process, whose loop it starts; its URL."""


@contextmanager
def hosted(service: Service, engine: Engine, log: Log) -> Iterator[str]:
    """Serve an engine that is loaded, whose loop this starts, from a thread of this process; the URL. Raises
    what opening its socket raises."""
    begun = SimpleQueue[tuple[Server, str] | BaseException]()

    def work() -> None:
        try:
            run(create_app(service, log), service, "127.0.0.1", 0, lambda server, url: begun.put((server, url)))
        except BaseException as error:  # for the thread that waits for the server to begin
            begun.put(error)

    thread = threading.Thread(target=work, daemon=True)
    begin(engine)
    service.ready(engine)
    thread.start()
    if isinstance(reported := begun.get(), BaseException):
        raise reported
    server, url = reported
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join()


def bench_serve(model: str, *, count: int, host: Host, progress: Progress) -> Record:
    """A record of `count` requests at each number of streams. Raises RunError if the server does not start."""
    torch.set_num_threads(1)
    engine = load(model, device="cpu")
    workloads = {what: rooms(engine, tasks) for what, tasks in WORKLOADS.items()}
    with served(model, "--threads", "1") as (url, pid):
        at, port = "127.0.0.1", int(url.rpartition(":")[2])
        for i in range(2):  # warm: the allocator keeps what the most streams at once have needed, and needs no more
            asyncio.run(_level(at, port, STREAMS[-1], _jobs(workloads["mixed"], STREAMS[-1], Random(i)), Random(i)))
        levels = {}
        for i, streams in enumerate(STREAMS):
            progress("streams", i, len(STREAMS))
            before = resident_mib(process=pid)
            jobs = _jobs(workloads["mixed"], count, Random(streams))
            levels[str(streams)] = asyncio.run(_level(at, port, streams, jobs, Random(streams)))
            levels[str(streams)]["resident_mb"] = [before, resident_mib(process=pid)]
        progress("streams", len(STREAMS), len(STREAMS))
    with host(engine) as url, _clients(url) as over_http:
        costs = {
            f"{preset}, {what} answers": _pairs(engine, over_http, preset, _asked(tasks, waves * AT_ONCE, 1), progress)
            for what, tasks in workloads.items()
            for preset, waves in WAVES.items()
        }
    engine.loop.stop()
    asked = {"requests": count, "leave": LEAVE, "bad": BAD, "lengths": LENGTHS}
    return new_record(
        "serve",
        workload={"model": model, **asked, "http_cost": workloads, "threads": 1},
        figures={"levels": levels, "http_cost": costs},
        summary=_summary(levels, costs, count),
    )


def rooms(engine: Engine, tasks: Sequence[str]) -> dict[str, int]:
    """Tasks, and the most tokens that an answer to each may have."""
    found = {name: room(engine, task(name)) for name in tasks}
    return {name: most for name, most in found.items() if most is not None}


async def _level(host: str, port: int, streams: int, jobs: Sequence[Job], rng: Random) -> dict[str, Any]:
    """One number of streams: who came, what they got, how long it took."""
    gate, began = asyncio.Semaphore(streams), time.monotonic()

    async def one(prompt: str, seed: int, max_tokens: int, kind: str) -> tuple[str, StreamedReply]:
        async with gate:
            body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}], "seed": seed}
            body |= {"max_tokens": max_tokens} if kind != "bad" else {"max_tokens": -2}
            return kind, await stream_chat(host, port, body, leave=kind == "leave")

    tasks = []
    for job in jobs:
        tasks.append(asyncio.create_task(one(*job)))
        if streams > 1:
            await asyncio.sleep(rng.expovariate(4.0 * streams))
    return _reported([await task for task in tasks], time.monotonic() - began)


def _reported(replies: Sequence[tuple[str, StreamedReply]], seconds: float) -> dict[str, Any]:
    good = [reply for kind, reply in replies if kind == "good"]
    wrong = [r for kind, r in replies if r.status != {"good": 200, "leave": 200, "bad": 400}[kind]]
    wrong += [reply for reply in good if reply.status == 200 and not (reply.order and reply.tokens)]
    first = [reply.first_sec for reply in good if reply.first_sec is not None]
    return {
        "seconds": seconds,
        "good": len(good),
        "left": sum(reply.left for _, reply in replies),
        "refused": sum(kind == "bad" and reply.status == 400 for kind, reply in replies),
        "errors": len(wrong),
        "tokens_per_sec": sum(reply.tokens for reply in good) / seconds,
        "first_text_ms": percentiles_ms(first, 50, 95, 99),
        "answer_ms_p50": median([reply.seconds for reply in good]) * 1e3,
    }


def _jobs(tasks: Mapping[str, int], count: int, rng: Random) -> list[Job]:
    """Requests of three kinds: good, bad, and those that leave. Some may not say all that they would."""
    asked = _asked(tasks, count, rng.randrange(10**6))
    kinds = [("leave" if draw < LEAVE else "bad" if draw < LEAVE + BAD else "good") for draw in _draws(count, rng)]
    lengths = [min(most, rng.choice(LENGTHS)) for _, _, most in asked]
    return [(prompt, i, at, kind) for (prompt, i, _), at, kind in zip(asked, lengths, kinds, strict=True)]


def _asked(tasks: Mapping[str, int], count: int, seed: int) -> list[Asked]:
    """Requests of these tasks in turn, and how long an answer to each may be."""
    sources = cycle([(task(name).examples("held_out", seed), most) for name, most in tasks.items()])
    return [(next(examples).prompt, i, most) for i, (examples, most) in enumerate(islice(sources, count))]


def _draws(count: int, rng: Random) -> list[float]:
    """Even shares in any order, so that few requests have some of each kind, too."""
    draws = [(i + 0.5) / count for i in range(count)]
    rng.shuffle(draws)
    return draws


@contextmanager
def _clients(url: str) -> Iterator[OverHttp]:
    """Those of a server, in a process of their own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield lambda preset, jobs: pool.submit(_over_http, url, preset, jobs).result()


def _over_http(url: str, preset: str, jobs: Sequence[Asked]) -> tuple[float, list[int]]:
    at, _, port = url.rpartition("//")[2].rpartition(":")
    return asyncio.run(_plain(at, int(port), preset, jobs))


async def _plain(host: str, port: int, preset: str, jobs: Sequence[Asked]) -> tuple[float, list[int]]:
    """Answers per second to undisturbed requests, and the tokens of each. Raises RunError for one without an answer."""
    gate, links, began = asyncio.Semaphore(AT_ONCE), list[Link](), time.monotonic()

    async def one(prompt: str, seed: int, max_tokens: int) -> int:
        async with gate:
            body = {"messages": [{"role": "user", "content": prompt}], "seed": seed, "max_tokens": max_tokens}
            reply = await stream_chat(host, port, body | {"canvas": {"preset": preset}}, links=links)
            if reply.status != 200 or not reply.order:
                raise RunError(f"a request was answered with status {reply.status} and no whole stream")
            return reply.tokens

    tokens = await asyncio.gather(*(one(*job) for job in jobs))
    rate = len(jobs) / (time.monotonic() - began)
    for _, writer in links:
        writer.close()
    return rate, tokens


def _alone(engine: Engine, preset: str, jobs: Sequence[Asked]) -> float:
    """Answers per second of an engine to the same."""
    began = time.monotonic()
    requests = (
        Request(prompt, Options(seed=seed, preset=preset, max_tokens=max_tokens), chat=True)
        for prompt, seed, max_tokens in jobs
    )
    for _ in engine.map(requests, at_once=AT_ONCE):
        pass
    return len(jobs) / (time.monotonic() - began)


def _pairs(
    engine: Engine, over_http: OverHttp, preset: str, jobs: Sequence[Asked], progress: Progress
) -> dict[str, Any]:
    """Answers per second over HTTP and without, one right behind the other: a busy machine slows both."""
    _alone(engine, preset, jobs[:AT_ONCE])  # warm
    _, tokens = over_http(preset, jobs)
    sides = {"engine": lambda: _alone(engine, preset, jobs), "http": lambda: over_http(preset, jobs)[0]}
    seen: dict[str, list[tuple[float, float | None]]] = {side: [] for side in sides}
    for i in range(PAIRS):
        progress("pair", i, PAIRS)
        for side in sorted(sides, reverse=i % 2 == 0):  # neither is always the first
            seen[side].append(_watched(len(jobs), sides[side]))
    progress("pair", PAIRS, PAIRS)
    lengths = {"least": min(tokens), "median": median(tokens), "mean": mean(tokens), "most": max(tokens)}
    pairs = list(zip(seen["http"], seen["engine"], strict=True))
    rates = [(http[0], alone[0]) for http, alone in pairs]
    waits = [(http[1], alone[1]) for http, alone in pairs if http[1] is not None and alone[1] is not None]
    reported = {"answers_per_sec_http_and_engine": rates, "waits_ms_http_and_engine": waits}
    return _cost(rates) | _waited(waits, rates) | {"tokens": lengths} | reported


def _watched(count: int, run: Callable[[], float]) -> tuple[float, float | None]:
    """Answers per second, and milliseconds an answer that the engine's thread, the busiest, did not run: it waited, for
    requests, for Python's lock or for a core. None where the system does not tell."""
    before = _ran_sec()
    rate = run()
    ran = max((sec - before.get(thread, 0.0) for thread, sec in _ran_sec().items()), default=None)
    return rate, None if ran is None else 1e3 * (1 / rate - ran / count)


def _ran_sec() -> dict[str, float]:
    """Seconds that each thread of this process has run, from Linux; nothing elsewhere."""
    found = {}
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError):  # a thread may end meanwhile
            found[thread.parent.name] = int(thread.read_text(encoding="ascii").split()[0]) / 1e9
    return found


def _waited(waits: Sequence[tuple[float, float]], rates: Sequence[tuple[float, float]]) -> dict[str, float]:
    """What HTTP makes the engine's thread wait longer, an answer and as a share of the engine's time for it."""
    if not waits:
        return {}
    longer = [http - alone for http, alone in waits]
    return {"waits_ms": median(longer), "waits_share": median(longer) * median([alone for _, alone in rates]) / 1e3}


def _cost(rates: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """What HTTP takes of the engine's throughput, with the middle half of the pairs, and of the time of an answer."""
    shares = [1 - http / alone for http, alone in rates]
    low, middle, high = quantiles(shares, n=4, method="inclusive")
    return {
        "share": middle,
        "middle_half": [low, high],
        "ms": 1e3 * median([1 / http - 1 / alone for http, alone in rates]),
    }


def _summary(levels: dict[str, Any], costs: dict[str, dict[str, Any]], count: int) -> list[tuple[str, str]]:
    found = []
    for streams, level in levels.items():
        first = level["first_text_ms"]
        found.append(
            (
                f"Server on nano-sudoku, {streams} streams, {count} requests, 10% leaving, 5% refused",
                f"{level['tokens_per_sec']:.0f} tokens/s, first text {first['p50']:.0f} ms (p50), "
                f"{first['p95']:.0f} ms (p95), {first['p99']:.0f} ms (p99), {level['errors']} errors",
            )
        )
    before, after = levels[str(STREAMS[0])]["resident_mb"][0], levels[str(STREAMS[-1])]["resident_mb"][1]
    found.append(("Server's memory before and after these", f"{before:.0f} and {after:.0f} MB"))
    for what, cost in costs.items():
        tokens, waits, (low, high) = cost["tokens"], "", cost["middle_half"]
        if "waits_ms" in cost:
            waits = f"its thread waits {cost['waits_ms']:.2f} ms longer for an answer, {cost['waits_share']:.1%}; "
        found.append(
            (
                f"What HTTP costs of the engine's throughput, nano-sudoku, {AT_ONCE} at once, preset {what}",
                f"{waits}answers a second {cost['share']:.1%} fewer (half of {PAIRS} pairs {low:.1%} to {high:.1%}), "
                f"{tokens['mean']:.0f} tokens each ({tokens['least']} to {tokens['most']})",
            )
        )
    return found


def main() -> None:
    """One record."""
    asked = arguments(__doc__ or "", count=400)

    def host(engine: Engine) -> AbstractContextManager[str]:
        return hosted(Service(Settings()), engine, Log(None))

    finish(bench_serve(asked.model, count=asked.count, host=host, progress=progress), asked.record)


if __name__ == "__main__":
    main()
