"""What `/metrics` tells: counts and times of requests, and what the engine does at the moment of asking."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from redraft.engine.engine import Engine
from redraft.engine.loop import Loop

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
RATES = (0.5, 1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Served:
    """What one finished answer adds."""

    steps: Iterable[int]
    tokens: int
    first_sec: float | None


class Metrics:
    """A registry of its own, so that two servers in one process count apart."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "redraft_requests", "HTTP requests by path and status", ["path", "status"], registry=registry
        )
        self.errors = Counter("redraft_errors", "Refusals and failures by code", ["code"], registry=registry)
        self.seconds = Histogram(
            "redraft_request_seconds", "From a request to its last byte", ["path"], buckets=SECONDS, registry=registry
        )
        self.first = Histogram(
            "redraft_first_text_seconds", "From a request to its first text", buckets=SECONDS, registry=registry
        )
        self.steps = Histogram("redraft_steps_per_block", "Denoising steps of blocks", buckets=STEPS, registry=registry)
        self.rate = Histogram(
            "redraft_tokens_per_forward", "Useful tokens per denoising forward", buckets=RATES, registry=registry
        )
        self.tokens = Counter("redraft_tokens", "Useful tokens answered", registry=registry)
        self.prompt_tokens = Counter("redraft_prompt_tokens", "Tokens of prompts", registry=registry)
        self.dropped = Counter("redraft_dropped_drafts", "Drafts that a slow reader did not see", registry=registry)
        self.gone = Counter("redraft_disconnects", "Requests whose client went away", registry=registry)

    def watch(self, engine: Engine) -> None:
        """Read these off the engine whenever somebody asks."""
        loop = engine.loop
        prefixes = loop.runner.prefixes
        self.registry.register(_Rows(loop))
        self._gauge("redraft_waiting_requests", "In the engine's queue", lambda: len(loop.scheduler.waiting))
        self._gauge("redraft_running_requests", "Sharing forwards now", lambda: len(loop.scheduler.running))
        self._gauge("redraft_cache_bytes", "Keys and values of running requests", lambda: loop.runner.num_bytes)
        self._gauge("redraft_prefix_bytes", "Keys and values kept for later prompts", lambda: prefixes.num_bytes)
        self._gauge("redraft_prefix_hit_tokens", "Prompt tokens found in kept prefixes", lambda: prefixes.hits)
        self._gauge("redraft_prefix_miss_tokens", "Prompt tokens that were encoded", lambda: prefixes.misses)

    def served(self, answer: Served) -> None:
        """Count a finished answer."""
        steps = list(answer.steps)
        for count in steps:
            self.steps.observe(count)
        if steps:
            self.rate.observe(answer.tokens / sum(steps))
        self.tokens.inc(answer.tokens)
        if answer.first_sec is not None:
            self.first.observe(answer.first_sec)

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
        """For Prometheus."""
        loop = self._loop
        yield CounterMetricFamily("redraft_forwards", "Forwards since the start", value=loop.forwards)
        rows = CounterMetricFamily("redraft_rows", "Rows of these forwards by mode", labels=["mode"])
        rows.add_metric(["encode"], loop.encoded_rows)
        rows.add_metric(["denoise"], loop.canvas_rows)
        yield rows
        wasted = "Rows of canvases, of requests that have ended, that no token told has come of"
        yield CounterMetricFamily("redraft_wasted_rows", wasted, value=loop.wasted_rows)
