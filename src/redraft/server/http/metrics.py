"""The figures of `/metrics`: counts and times of requests, and the engine's state when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import SimpleNamespace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from redraft.constraints.compile.remembered import REMEMBERED
from redraft.engine.loop import Loop
from redraft.engine.request import Generation
from redraft.operations.engine import Engine

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
RATES = (0.5, 1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """A registry of its own, so that two servers in one process count apart."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        count, spread = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        self.requests = count("redraft_requests", "HTTP requests by path and status", ["path", "status"])
        self.errors = count("redraft_errors", "Refusals and failures by code", ["code"])
        self.seconds = spread("redraft_request_seconds", "From a request to its last byte", ["path"], buckets=SECONDS)
        self.first = spread("redraft_first_text_seconds", "From a request to its first text", buckets=SECONDS)
        self.steps = spread("redraft_steps_per_block", "Denoising steps of blocks", buckets=STEPS)
        self.rate = spread("redraft_tokens_per_forward", "Useful tokens per denoising forward", buckets=RATES)
        self.tokens = count("redraft_tokens", "Useful tokens answered")
        self.prompt_tokens = count("redraft_prompt_tokens", "Tokens of prompts")
        self.dropped = count("redraft_dropped_drafts", "Drafts that a slow reader did not see")
        self.gone = count("redraft_disconnects", "Requests whose client left")

    def watch(self, engine: Engine) -> None:
        """Add the engine's state, read at every scrape."""
        loop = engine.loop
        prefixes = loop.runner.prefixes
        self.registry.register(_Rows(loop))
        self._gauge("redraft_waiting_requests", "In the engine's queue", lambda: len(loop.scheduler.waiting))
        self._gauge("redraft_running_requests", "Sharing forwards now", lambda: len(loop.scheduler.running))
        self._gauge("redraft_cache_bytes", "Keys and values of running requests", lambda: loop.num_bytes)
        self._gauge("redraft_prefix_bytes", "Keys and values kept for later prompts", lambda: prefixes.num_bytes)
        self._gauge("redraft_constraint_bytes", "Automata and schemas kept", lambda: REMEMBERED.num_bytes)
        self._gauge("redraft_prefix_hit_tokens", "Prompt tokens found in kept prefixes", lambda: prefixes.hits)
        self._gauge("redraft_prefix_miss_tokens", "Prompt tokens that were encoded", lambda: prefixes.misses)

    def served(self, done: Generation) -> None:
        """Count a finished done."""
        for count in done.steps:
            self.steps.observe(count)
        if sum(done.steps):
            self.rate.observe(len(done.tokens) / sum(done.steps))
        self.tokens.inc(len(done.tokens))
        if done.first_text_sec:
            self.first.observe(done.first_text_sec)

    def text(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, help_: str, read: Callable[[], float]) -> None:
        Gauge(name, help_, registry=self.registry).set_function(read)


class _Rows(Collector):
    """What the loop has counted: rows over forwards are rows per forward, wasted ones a share of those of canvases."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def collect(self) -> Iterable[Metric]:
        loop = self._loop
        yield CounterMetricFamily("redraft_forwards", "Forwards since the start", value=loop.forwards)
        rows = CounterMetricFamily("redraft_rows", "Rows of these forwards by mode", labels=["mode"])
        rows.add_metric(["encode"], loop.encoded_rows)
        rows.add_metric(["denoise"], loop.canvas_rows)
        yield rows
        wasted = "Rows of ended requests' canvases that no emitted token came of"
        yield CounterMetricFamily("redraft_wasted_rows", wasted, value=loop.wasted_rows)


def merged(pages: Mapping[str, bytes], *, apart: bool) -> bytes:
    """Prometheus's pages of all replicas as one: `apart` under a label `replica`, else their sum."""
    families: dict[str, Metric] = {}
    sums: dict[tuple[str, str, tuple[tuple[str, str], ...]], float] = {}
    for replica, page in pages.items():
        for family in text_string_to_metric_families(page.decode()):
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                labels = tuple(sample.labels.items()) + ((("replica", replica),) if apart else ())
                key = (family.name, sample.name, labels)
                if not sample.name.endswith("_created"):  # a point in time has no sum
                    sums[key] = sums.get(key, 0.0) + sample.value
    for (name, line, labels), value in sums.items():
        families[name].add_sample(line, dict(labels), value)
    return generate_latest(SimpleNamespace(collect=families.values))
