"""A fleet of a thousand replicas, simulated: where routing by prefix, by load or by chance leads, and how it grows.

    python bench/fleet.py --count 20000 --record bench/records/fleet-simulation.json

Nothing here runs a model. A forward takes what `knee` recorded for its canvases, an answer as many steps as `dial-nano-
sudoku` recorded at effort 1, and a prompt that a replica does not hold one forward for each of its four blocks.
Requests are a Poisson stream at seven tenths of what the replicas can serve without reading prompts. One in five
prompts is alone, the others share one of 20,000 beginnings, of which the i-th is 1/i times as frequent as the first; a
replica keeps the 32 it used last. The chooser is the product's (`server/http/places.py`). Then the load of a hundred
replicas triples, and the product's rule (rows over a target, five seconds late, replicas half a minute later) follows
it.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from command import arguments, finish
from redraft.measure.record import Record, new_record, read_record
from redraft.server.http.places import Places

RECORDS = Path(__file__).parent / "records"
REPLICAS, LOAD, AT_ONCE, KEPT, BLOCKS = 1000, 0.7, 12, 32, 4
BEGINNINGS, ALONE = 20_000, 0.2
TARGET_ROWS, DECIDE_SEC, START_SEC = 32, 5.0, 30.0


@dataclass
class Replica:
    """Requests that wait and run (when they came, forwards left), and beginnings that are held."""

    number: int
    waiting: deque[tuple[float, int]] = field(default_factory=deque)
    running: list[list[float]] = field(default_factory=list)
    held: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    ready: float = 0.0

    @property
    def rows(self) -> int:
        """Answers that run or wait here."""
        return len(self.waiting) + len(self.running)


Choose = Callable[[Sequence[bytes], Sequence[int], Container[int], Callable[[int], int]], int]


def by_chance(_: Sequence[bytes], replicas: Sequence[int], __: Container[int], ___: Callable[[int], int]) -> int:
    """Any."""
    return random.choice(replicas)


def of_two(_: Sequence[bytes], replicas: Sequence[int], __: Container[int], load: Callable[[int], int]) -> int:
    """The less busy of two, as Ray Serve does by itself."""
    return min(random.sample(replicas, 2), key=load)


class Fleet:
    """The simulated fleet. Time is in seconds."""

    def __init__(self, choose: Choose, *, replicas: int, rate: float) -> None:
        self.forward_sec, self.steps, self.weights = recorded()
        self.choose, self.rate = choose, rate
        self.replicas = [Replica(i) for i in range(replicas)]
        self.alive, self.names = list(range(replicas)), set(range(replicas))
        self.shares = list(accumulate(1 / i for i in range(1, BEGINNINGS + 1)))
        self.events: list[tuple[float, int, int]] = []
        self.hits = self.asked = 0
        self.latencies: list[float] = []
        self.longest, self.chosen_sec = 0, 0.0

    def run(self, count: int, *, surge: float = 1.0) -> list[tuple[float, int, int]]:
        """Serve requests; at a third of them the rate changes by `surge`. Returns (time, rows, replicas) by second."""
        now, seen, series, wish = 0.0, 0.0, list[tuple[float, int, int]](), 0.0
        for number in range(count):
            now += random.expovariate(self.rate * (surge if number > count // 3 else 1.0))
            self._forwards(now)
            self._arrive(now)
            if now - seen >= 1.0:
                seen, rows = now, sum(one.rows for one in self.replicas)
                series.append((now, rows, len(self.alive)))
                wish = self._grow(now, rows, wish) if surge > 1 else 0.0
        while self.events:
            self._forwards(self.events[0][0])
        return series

    def _grow(self, now: float, rows: int, since: float) -> float:
        """More replicas, where they have been wanted for long enough; returns since when."""
        self.alive = [one.number for one in self.replicas if one.ready <= now]
        self.names = set(self.alive)
        wanted = ceil(rows / TARGET_ROWS)
        if wanted <= len(self.replicas):
            return 0.0
        if since and now - since >= DECIDE_SEC:
            start = len(self.replicas)
            self.replicas += [Replica(i, ready=now + START_SEC) for i in range(start, wanted)]
            return 0.0
        return since or now

    def _arrive(self, now: float) -> None:
        alone = random.random() < ALONE
        (first,) = random.choices(range(BEGINNINGS), cum_weights=self.shares)
        name = random.randbytes(8) if alone else first.to_bytes(8, "big")
        began = time.perf_counter()
        blocks = [name + bytes([i]) for i in range(BLOCKS)]
        place = self.choose(blocks, self.alive, self.names, lambda i: self.replicas[i].rows)
        self.chosen_sec += time.perf_counter() - began
        replica = self.replicas[place]
        hit = name in replica.held
        replica.held[name] = None
        replica.held.move_to_end(name)
        if len(replica.held) > KEPT:
            replica.held.popitem(last=False)
        self.hits, self.asked = self.hits + (hit and not alone), self.asked + (not alone)
        (steps,) = random.choices(range(len(self.weights)), self.weights)
        replica.waiting.append((now, steps + (0 if hit else BLOCKS)))
        self.longest = max(self.longest, replica.rows)
        if not replica.running:
            self._begin(replica, now)

    def _begin(self, replica: Replica, now: float) -> None:
        while replica.waiting and len(replica.running) < AT_ONCE:
            replica.running.append(list(replica.waiting.popleft()))
        if replica.running:
            heapq.heappush(self.events, (now + self.forward_sec(len(replica.running)), replica.number, 0))

    def _forwards(self, until: float) -> None:
        while self.events and self.events[0][0] <= until:
            now, number, _ = heapq.heappop(self.events)
            replica = self.replicas[number]
            for one in replica.running:
                one[1] -= 1
            self.latencies += [now - one[0] for one in replica.running if one[1] <= 0]
            replica.running = [one for one in replica.running if one[1] > 0]
            self._begin(replica, now)


def recorded() -> tuple[Callable[[int], float], float, list[int]]:
    """Seconds of a forward by its canvases, steps of an answer on average, and how many took how many."""
    rows = {one["rows"] // 256: one["ms"] / 1e3 for one in read_record(RECORDS / "knee.json").figures["by_rows"]}
    sizes = sorted(rows)

    def seconds(canvases: int) -> float:
        above = next(size for size in sizes if size >= canvases)
        return float(rows[above])

    counts = read_record(RECORDS / "dial-nano-sudoku.json").figures["dial"][-1]["canvases"]
    return seconds, sum(i * count for i, count in enumerate(counts)) / sum(counts), counts


def measured(choose: Choose, count: int, rate: float) -> dict[str, Any]:
    """One chooser."""
    random.seed(1)
    fleet = Fleet(choose, replicas=REPLICAS, rate=rate)
    fleet.run(count)
    return {
        "hit_rate": round(fleet.hits / fleet.asked, 4),
        "latency_ms": {"p50": round(median(fleet.latencies) * 1e3, 1), "p99": round(percentile(fleet) * 1e3, 1)},
        "longest_queue": fleet.longest,
        "choice_us": round(fleet.chosen_sec / count * 1e6, 1),
    }


def percentile(fleet: Fleet) -> float:
    """The 99th."""
    return quantiles(fleet.latencies, n=100)[98]


def surge(count: int, rate: float) -> dict[str, Any]:
    """A tenth of the fleet at its usual load, which then triples."""
    random.seed(2)
    fleet = Fleet(Places().choose, replicas=REPLICAS // 10, rate=rate / 10)
    series = fleet.run(count, surge=3.0)
    return {
        "most_rows": max(rows for _, rows, _ in series),
        "replicas": [series[0][2], series[-1][2]],
        "series": [[round(at, 1), rows, alive] for at, rows, alive in series],
        "latency_ms": {"p50": round(median(fleet.latencies) * 1e3, 1), "p99": round(percentile(fleet) * 1e3, 1)},
    }


def simulate(count: int) -> Record:
    """All of it."""
    seconds, steps, _ = recorded()
    rate = LOAD * REPLICAS * AT_ONCE / (steps * seconds(AT_ONCE))
    choices: dict[str, Choose] = {"chance": by_chance, "two choices": of_two, "prefix": Places().choose}
    figures: dict[str, Any] = {name: measured(choose, count, rate) for name, choose in choices.items()}
    figures["surge"] = surge(count * 3, rate)
    workload = {"replicas": REPLICAS, "requests": count, "requests_per_sec": round(rate, 1), "beginnings": BEGINNINGS}
    summary = [
        (f"simulated, {REPLICAS} replicas, {name}: prompts found in a cache", f"{figures[name]['hit_rate']:.1%}")
        for name in choices
    ]
    summary.append(("simulated: time of a choice among 1000 replicas", f"{figures['prefix']['choice_us']:.0f} µs"))
    return new_record("fleet-simulation", workload=workload, figures=figures, summary=summary)


if __name__ == "__main__":
    given = arguments(__doc__ or "", count=20_000)
    finish(simulate(given.count), given.record)
