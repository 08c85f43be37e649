"""What Ray costs a request, and how many prompt tokens are found in a cache with routing by prefix and without.

    python bench/ray_path.py --count 200 --record bench/records/ray-path.json

Overhead: one server and a fleet of one replica, side by side, asked the same in turn: the median of the differences of
each pair. Hits: a fleet of two replicas, three questions to each of 40 documents in mixed order, four at a time, once
with the product's router and once with Ray Serve's own. It needs the extra `scale`.
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median
from typing import Any

from command import arguments, finish
from redraft.measure.record import Record, new_record, percentiles_ms

DOCUMENTS, QUESTIONS, CLIENTS = 40, 3, 4
FLEET = """
from redraft.distributed.cluster import serve_fleet
from redraft.distributed.fleet import Fleet
serve_fleet(Fleet(replicas={replicas}, by_prefix={by_prefix}), address=None, host="127.0.0.1", port=0,
            ready=lambda url: print(url, flush=True))
"""
Json = dict[str, Any]


@contextmanager
def serving(*words: str) -> Iterator[str]:
    """A server of its own; its URL."""
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
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


def body(text: str, seed: int) -> Json:
    """A conversation."""
    return {"messages": [{"role": "user", "content": f"record\n{text}"}], "seed": seed}


def overhead(count: int) -> Json:
    """Seconds of pairs, one server first in every second pair."""
    with serving("-m", "redraft", "serve", "--port", "0", "--quiet", "--threads", "1") as alone, fleet(1) as ray:
        pairs = []
        for i in range(count + 10):
            took = {}
            for url in (alone, ray) if i % 2 else (ray, alone):
                began = time.perf_counter()
                ask(url, body(f"Send {100 + i} melu to Karomi.", i))
                took[url] = time.perf_counter() - began
            pairs.append((took[alone], took[ray]))
    pairs = pairs[10:]  # the first ones of a process are slower
    return {
        "alone_ms": percentiles_ms([one for one, _ in pairs], 50, 95),
        "ray_ms": percentiles_ms([one for _, one in pairs], 50, 95),
        "overhead_ms": round(1e3 * median(other - one for one, other in pairs), 2),
        "load": round(os.getloadavg()[0], 1),
    }


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
    """Both."""
    costs = overhead(count)
    ours, theirs = hits(by_prefix=True), hits(by_prefix=False)
    ratio = ours["hit_rate"] / theirs["hit_rate"]
    summary = [
        ("Ray: median overhead of a request beside one server", f"{costs['overhead_ms']:.1f} ms"),
        ("prompt tokens found in a cache, two replicas, routed by prefix", f"{ours['hit_rate']:.1%}"),
        ("the same, routed by Ray Serve's default", f"{theirs['hit_rate']:.1%}"),
        ("by prefix over the default", f"{ratio:.2f} times"),
    ]
    figures = {"overhead": costs, "by_prefix": ours, "default": theirs, "ratio": round(ratio, 3)}
    workload = {"pairs": count, "documents": DOCUMENTS, "questions": QUESTIONS, "replicas": 2}
    return new_record("ray-path", workload=workload, figures=figures, summary=summary)


if __name__ == "__main__":
    given = arguments(__doc__ or "", count=200)
    finish(measure(given.count), given.record)
