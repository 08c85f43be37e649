"""Soak: thousands of random requests through one loop, and nothing may be left behind.

    python bench/soak.py --count 2000 --record bench/records/soak.json

Among them are aborts at any moment, deadlines, refused options, listeners that raise, full queues, and answers of every
size under every sampler rule, causal ones too. The rows per forward change every CHECK_EVERY ticks. The clock counts
ticks, so a seed repeats a soak exactly. What must hold is asserted:

    every accepted request ends once, with no event after its end, and never beyond its limit
    the loop's books agree, every CHECK_EVERY ticks and at the end
    no forward is wasted: their number is bounded by what the requests can need, so a hang is an error, not a wait
    at the end no request and no byte of a lane is left; kept prefixes stay within their bound
    answers are bit for bit those that the plain twin gives the request alone (a sample)
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from command import arguments, finish
from redraft import load
from redraft.cli.common import progress
from redraft.config import CheckpointConfig
from redraft.diffusion.noise import SeededNoise
from redraft.diffusion.presets import PRESETS
from redraft.engine.events import Block, Draft, Event, Finished
from redraft.engine.handle import Handle
from redraft.engine.loop import Loop
from redraft.engine.prefixes import PREFILL_CHUNK
from redraft.engine.request import Options, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.engine.runner import run_alone
from redraft.engine.scope import CancelScope, Observer, Submitted
from redraft.engine.settings import LoopConfig
from redraft.errors import BusyError, RequestError, RunError
from redraft.measure.process_memory import resident_mib
from redraft.measure.record import Progress, Record, new_record, silent
from redraft.model.gemma import DiffusionGemma

REQUESTS = 2000
CHECK_EVERY = 50
SECONDS_PER_TICK = 0.01
BOUNDS = LoopConfig(max_rows=512, max_running=24, max_waiting=48, prefix_bytes=4 * 2**20)
COMPARED = 20
BAD: tuple[dict[str, Any], ...] = (
    {"max_tokens": 0},
    {"max_tokens": 10**7},
    {"max_tokens": 2.5},
    {"seed": -1},
    {"seed": 2**64},
    {"stop": [1]},
    {"min_tokens": "3"},
    {"min_tokens": -1},
    {"min_tokens": 10**6},
    {"deadline_sec": 0.0},
    {"deadline_sec": float("nan")},
    {"steps": 0},
    {"entropy_bound": -1.0},
    {"preset": "unheard-of"},
)
RULES = ("entropy:1", "confidence:0.5", "factor", "frechet", "margin:0.5", "gate:2:entropy", "gate:2:factor")


@dataclass
class SoakClient(Observer):
    """One random request: what it asks, what it does to the loop, and what it was told."""

    request: ResolvedRequest
    abort_after: int | None  # ticks from submission
    breaks_at: int | None  # it raises at this event
    drafts: bool = False
    handle: Handle | None = None
    submitted: int = -1
    events: list[Event] = field(default_factory=list)
    broken: bool = False

    @property
    def number(self) -> int:
        """Of its request in the loop."""
        return -1 if self.handle is None else self.handle.number

    def event(self, handle: Submitted, event: Event) -> None:
        """Note an event. Complaints are about the loop, so they are kept for `verdict`: the loop forgives them."""
        if isinstance(event, Draft) and not self.drafts:
            return
        self.events.append(event)
        if len(self.events) == self.breaks_at:
            self.broken = True
            raise ValueError("an observer broken on purpose")

    def verdict(self) -> str:
        """How it ended. Raises AssertionError if it did not end as promised."""
        ends = [event for event in self.events if isinstance(event, Finished)]
        told = sum(len(event.tokens) for event in self.events if isinstance(event, Block))
        assert told <= self.request.max_tokens, f"request {self.number}: {told} tokens, over its limit"
        if self.broken:
            assert self.breaks_at is not None
            assert len(self.events) <= self.breaks_at + 1, (
                f"request {self.number}: got an event after its observer broke"
            )
        assert len(ends) == 1, f"request {self.number} ended {len(ends)} times"
        assert self.events[-1] is ends[0], f"request {self.number}: got an event after its end"
        if self.broken:
            return "broken"
        assert ends[0].reason != "error", f"request {self.number} failed: {ends[0].error!r}"
        return ends[0].reason

    @property
    def most_forwards(self) -> int:
        """Forwards that it can need."""
        chunks = -(-len(self.request.prompt) // PREFILL_CHUNK)
        if self.request.causal:
            return chunks + self.request.max_tokens
        return chunks + -(-self.request.max_tokens // self.request.width) * self.request.policy.max_steps


@dataclass
class Soak:
    """A soak under way."""

    model: DiffusionGemma
    config: CheckpointConfig
    count: int
    rng: Random
    ticks: int = 0
    clients: list[SoakClient] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.loop = Loop(self.model, BOUNDS, clock=lambda: self.ticks * SECONDS_PER_TICK)
        self.due: dict[int, list[Handle]] = {}
        self.head = [self.rng.randrange(self.config.model.vocab_size) for _ in range(700)]

    def run(self, progress: Progress = silent) -> None:
        """Submit, abort and turn until all requests have come and gone. Raises RunError on a hang."""
        sent, pending, busy = 0, None, True
        while sent < self.count or busy:
            for _ in range(self.rng.choice((0, 0, 1, 1, 2, 12)) if sent < self.count else 0):
                pending = pending or self._draw()
                if pending is not None and not self._submit(pending):
                    break  # the queue is full: the same request comes again at a later tick
                sent, pending = sent + 1, None
                if sent == self.count:
                    break
            for handle in self.due.pop(self.ticks, ()):
                handle.abort()
            busy = self.loop.tick()
            self.ticks += 1
            if self.ticks % CHECK_EVERY == 0:
                self._check()
                self.loop.scheduler.max_rows = self.rng.choice((256, 512, 3072))
                progress("request", sent, self.count)
        self._check_end()

    def _draw(self) -> SoakClient | None:
        """A random request; None for one that is refused, as it must be."""
        rng, model = self.rng, self.config.model
        length = min(rng.choice((1, 2, 17, 64, PREFILL_CHUNK, rng.randint(1, 700))), self._room)
        prompt = [rng.randrange(model.vocab_size) for _ in range(length)]
        if (kind := rng.random()) < 0.2:
            prompt = self.head[:length]  # a kept prefix may serve it
        elif kind < 0.3 and self.clients:
            prompt = list(self.clients[-1].request.prompt)  # a variant
            length = len(prompt)
        if rng.random() < 0.05:
            self._refused(prompt, rng.choice(BAD))
            return None
        most = min(96, model.max_positions - length - model.canvas_length + 1)
        abort = rng.choice((0, 1, 3, rng.randint(0, 200))) if rng.random() < 0.1 else None
        breaks = rng.randint(1, 3) if rng.random() < 0.03 else None
        return SoakClient(self._request(prompt, rng.randint(1, most)), abort, breaks)

    def _request(self, prompt: list[int], max_tokens: int) -> ResolvedRequest:
        """A prompt with random options, those of a canvas only where it has one."""
        rng = self.rng
        options = Options(
            max_tokens=max_tokens,
            seed=rng.randrange(2**64),
            steps=rng.randint(1, 12),
            min_tokens=rng.randint(0, max_tokens) if rng.random() < 0.2 else 0,
            deadline_sec=rng.uniform(0.001, 0.8) if rng.random() < 0.1 else None,
            temperature=rng.choice((0.0, 0.5, 1.0, 1.0)),
            top_k=rng.choice((None, None, 3)),
            top_p=rng.choice((1.0, 1.0, 0.8)),
        )
        if rng.random() < 0.15:
            return build_request(prompt, replace(options, causal=True), self.config)
        width, rules = rng.randint(1, self.config.model.canvas_length), rng.sample(RULES, rng.choice((0, 0, 1, 2)))
        options = replace(
            options,
            preset=rng.choice(sorted(PRESETS)),
            accept=tuple(rules),
            canvas=rng.choice((None, width)),
            end_aware=rng.choice((None, False, True)),
        )
        return build_request(prompt, options, self.config)

    @property
    def _room(self) -> int:
        """The longest prompt that leaves space for a canvas."""
        return self.config.model.max_positions - self.config.model.canvas_length

    def _refused(self, prompt: list[int], bad: dict[str, Any]) -> None:
        options = Options()
        for name, value in bad.items():
            object.__setattr__(options, name, value)  # as from a caller whose types nobody has checked
        try:
            build_request(prompt, options, self.config)
        except RequestError:
            self.seen["refused"] += 1
        else:
            raise AssertionError(f"{bad} was not refused")

    def _submit(self, client: SoakClient) -> bool:
        """Queue a request; False if the queue is full."""
        last = self.clients[-1] if self.clients else client
        behind = last.handle if last is not client and last.request.prompt == client.request.prompt else None
        client.drafts = bool(self.rng.getrandbits(1))
        try:
            client.handle = self.loop.submit(client.request, CancelScope(client), behind=behind)
        except BusyError:
            self.seen["busy"] += 1
            return False
        client.submitted = self.ticks
        self.clients.append(client)
        if client.abort_after is not None:
            self.due.setdefault(self.ticks + client.abort_after, []).append(client.handle)
        return True

    def _check(self) -> None:
        self.loop.check()
        most = sum(client.most_forwards for client in self.clients)
        if self.loop.forwards > most:
            raise RunError(f"the loop ran {self.loop.forwards} forwards for requests that need at most {most}: a hang")
        if self.ticks > most + 100 * self.count:
            raise RunError(f"the loop turned {self.ticks} times for {len(self.clients)} requests: a hang")

    def _check_end(self) -> None:
        self._check()
        assert self.loop.num_bytes == 0, f"{self.loop.num_bytes} bytes of cache were left behind"
        assert not self.loop.scheduler.running, "requests were left running"
        assert not self.loop.scheduler.waiting, "requests were left waiting"
        self.seen.update(client.verdict() for client in self.clients)
        assert self.seen["refused"] + len(self.clients) == self.count

    def compare(self, most: int) -> int:
        """Compare up to `most` finished answers with the plain twin's, bit for bit; returns how many there were."""
        done = [client for client in self.clients if client.verdict() in ("stop", "length")]
        for client in self.rng.sample(done, min(most, len(done))):
            alone = run_alone(self.model, client.request, SeededNoise(client.request.seed), drafts=False)
            told = [event for event in client.events if isinstance(event, Block | Finished)]
            assert told == list(alone), f"request {client.number} was answered otherwise than alone"
        return min(most, len(done))


def bench_soak(
    model: DiffusionGemma,
    config: CheckpointConfig,
    *,
    name: str,
    count: int = REQUESTS,
    seed: int = 0,
    progress: Progress = silent,
) -> Record:
    """Run a soak and record it. Raises AssertionError if something is left behind, RunError on a hang."""
    began, before = time.monotonic(), resident_mib() or 0.0
    soak = Soak(model, config, count, Random(f"soak {seed}"))
    soak.run(progress)
    seconds, after = time.monotonic() - began, resident_mib() or 0.0
    compared = soak.compare(COMPARED)
    return new_record(
        "soak",
        workload={
            "model": name,
            "requests": count,
            "seed": seed,
            "bounds": f"{BOUNDS.max_rows} rows, {BOUNDS.max_running} running, {BOUNDS.max_waiting} waiting",
            "mixture": "5% bad options, 10% aborted, 10% with a deadline, 3% with a listener that raises, "
            "10% variants of the request before, 20% with a beginning in common; 15% causal, the others of every "
            "preset, half of them with other acceptance rules, half with a narrow canvas, a third end-aware",
        },
        figures={
            "outcomes": dict(sorted(soak.seen.items())),
            "ticks": soak.ticks,
            "forwards": soak.loop.forwards,
            "seconds": round(seconds, 2),
            "left_requests": len(soak.loop.scheduler.running) + len(soak.loop.scheduler.waiting),
            "left_bytes": soak.loop.num_bytes,
            "kept_prefix_bytes": soak.loop.runner.prefixes.num_bytes,
            "prompt_tokens_spared": soak.loop.runner.prefixes.hits,
            "resident_mib": {"before": round(before, 1), "after": round(after, 1)},
            "compared_with_alone": compared,
        },
        summary=[
            (
                f"Soak: {count} random requests through one loop, aborts, deadlines and failures among them",
                f"nothing left behind; {compared} of {compared} answers bit for bit as alone",
            )
        ],
    )


def main() -> None:
    """One record."""
    asked = arguments(__doc__ or "", count=2000)
    engine = load(asked.model)
    record = bench_soak(engine.model, engine.config, name=asked.model, count=asked.count, progress=progress)
    finish(record, asked.record)


if __name__ == "__main__":
    main()
