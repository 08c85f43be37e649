"""What Ray costs: time of a request, requests a second, and prompt tokens that routing by prefix finds in a cache.

    python bench/ray_path.py --count 100 --record bench/records/ray-path.json

Overhead: one server and a fleet of one replica, side by side, asked the same in turn: the median of the differences of
each pair. Throughput: two servers and a fleet of two replicas, asked the same by 16 clients in turn, ROUNDS times; the
answers are compared in both. Hits: a fleet of two replicas, three questions to each of 40 documents in mixed order,
four at a time, once with the product's router and once with Ray Serve's own. It needs the extra `scale`.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from command import arguments, finish
from redraft.errors import RunError
from redraft.measure.record import Record, new_record, percentiles_ms

DOCUMENTS, QUESTIONS, CLIENTS = 40, 3, 4
ROUNDS, CROWD = 5, 16
SERVE = ("-m", "redraft", "serve", "--port", "0", "--quiet", "--threads", "1")
FLEET = """
from redraft.distributed.cluster import serve_fleet
from redraft.distributed.fleet import Fleet
serve_fleet(Fleet(replicas={replicas}, by_prefix={by_prefix}), address=None, host="127.0.0.1", port=0,
            ready=lambda url: print(url, flush=True))
"""
Json = dict[str, Any]


@contextmanager
def serving(*words: str) -> Iterator[str]:
    """A server of its own; its URL. Raises RunError where it does not start."""
    source = str(Path(__file__).resolve().parents[1] / "src")
    variables = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdout is not None
        try:
            if not (url := process.stdout.readline().strip()).startswith("http://"):
                raise RunError("a server did not start; what it says is above")
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=300)


def fleet(replicas: int, *, by_prefix: bool = True) -> Any:
    """A fleet on a cluster of its own."""
    return serving("-c", FLEET.format(replicas=replicas, by_prefix=by_prefix))


def ask(url: str, body: Json) -> Json:
    """One answer."""
    sent = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(sent, timeout=600) as reply:
        found: dict[str, Any] = json.loads(reply.read())
        return found


def text_of(reply: Json) -> str:
    """What an answer says."""
    return str(reply["choices"][0]["message"]["content"])


def body(text: str, seed: int) -> Json:
    """A conversation."""
    return {"messages": [{"role": "user", "content": f"record\n{text}"}], "seed": seed}


def overhead(count: int) -> Json:
    """Seconds of pairs, one server first in every second pair."""
    with serving(*SERVE) as alone, fleet(1) as ray:
        pairs, equal = [], 0
        for i in range(count + 10):
            took, texts = {}, set()
            for url in (alone, ray) if i % 2 else (ray, alone):
                began = time.perf_counter()
                texts.add(text_of(ask(url, body(f"Send {100 + i} melu to Karomi.", i))))
                took[url] = time.perf_counter() - began
            pairs.append((took[alone], took[ray]))
            equal += len(texts) == 1
    pairs = pairs[10:]  # the first ones of a process are slower
    return {
        "alone_ms": percentiles_ms([one for one, _ in pairs], 50, 95),
        "ray_ms": percentiles_ms([one for _, one in pairs], 50, 95),
        "overhead_ms": round(1e3 * median(other - one for one, other in pairs), 2),
        "equal": equal,
        "asked": count + 10,
        "load": round(os.getloadavg()[0], 1),
    }


def throughput(count: int) -> Json:
    """Requests a second of two servers and of a fleet of two, and the median of their ratios."""

    def answered(urls: Sequence[str], seed: int) -> tuple[float, list[str]]:
        def one(i: int) -> str:
            return text_of(ask(urls[i % len(urls)], body(f"Send {100 + i} melu to Karomi.", seed + i)))

        began = time.perf_counter()
        texts = list(pool.map(one, range(count)))
        return count / (time.perf_counter() - began), texts

    rounds, equal = [], 0
    with serving(*SERVE) as first, serving(*SERVE) as second, fleet(2) as ray, ThreadPoolExecutor(CROWD) as pool:
        places: dict[str, Sequence[str]] = {"servers": (first, second), "ray": (ray,)}
        for urls in places.values():
            answered(urls, 0)
        for i in range(ROUNDS):
            order = list(places) if i % 2 else list(reversed(places))
            found = {name: answered(places[name], 1000 * (i + 1)) for name in order}
            rounds.append({name: rate for name, (rate, _) in found.items()})
            equal += sum(a == b for a, b in zip(found["servers"][1], found["ray"][1], strict=True))
    per_sec = {name: round(median(one[name] for one in rounds), 1) for name in places}
    ratio = round(median(one["ray"] / one["servers"] for one in rounds), 3)
    return {"requests_per_sec": per_sec, "ratio": ratio, "equal": equal, "asked": ROUNDS * count, "clients": CROWD}


def hits(*, by_prefix: bool) -> Json:
    """Tokens of prompts that were found, of all."""
    dice = random.Random(1)
    documents = [" ".join(f"Send {dice.randrange(1000)} melu to Karomi." for _ in range(40)) for _ in range(DOCUMENTS)]
    asked = [f"{one} Send {i} melu to Karomi." for one in documents for i in range(QUESTIONS)]
    dice.shuffle(asked)
    with fleet(2, by_prefix=by_prefix) as url, ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda text: ask(url, body(text, 1) | {"max_tokens": 8}), asked))
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as reply:
            page = reply.read().decode()
    tokens = dict(re.findall(r"^redraft_prefix_(hit|miss)_tokens (.*)$", page, re.M))
    found, missed = float(tokens["hit"]), float(tokens["miss"])
    return {"hit_tokens": found, "miss_tokens": missed, "hit_rate": round(found / (found + missed), 4)}


def measure(count: int) -> Record:
    """All of it."""
    costs, rates = overhead(count), throughput(count)
    ours, theirs = hits(by_prefix=True), hits(by_prefix=False)
    ratio = ours["hit_rate"] / theirs["hit_rate"]
    summary = [
        ("Ray: median overhead of a request beside one server", f"{costs['overhead_ms']:.1f} ms"),
        ("Ray: requests a second of two replicas over those of two servers", f"{rates['ratio']:.2f}"),
        ("Ray: answers of one replica equal to a server's", f"{costs['equal']} of {costs['asked']}"),
        ("Ray: answers of two replicas equal to two servers'", f"{rates['equal']} of {rates['asked']}"),
        ("prompt tokens found in a cache, two replicas, routed by prefix", f"{ours['hit_rate']:.1%}"),
        ("the same, routed by Ray Serve's default", f"{theirs['hit_rate']:.1%}"),
        ("by prefix over the default", f"{ratio:.2f} times"),
    ]
    figures = {"overhead": costs, "throughput": rates, "by_prefix": ours, "default": theirs, "ratio": round(ratio, 3)}
    workload = {"pairs": count, "documents": DOCUMENTS, "questions": QUESTIONS, "replicas": 2}
    return new_record("ray-path", workload=workload, figures=figures, summary=summary)


if __name__ == "__main__":
    given = arguments(__doc__ or "", count=100)
    finish(measure(given.count), given.record)
