"""Who answers the jobs of a throughput measurement: ours, or transformers.

A side is given jobs with arrival times and returns what each of them got, and when.

    ours            every request is submitted to one loop at its arrival, by the rules of one preset
    transformers    whatever has arrived when it is free becomes one left-padded batch for `generate`, whose limit is
                    the largest asked for; a streamer hands out each canvas when it is finished
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch

from redraft.engine.events import Block, Event, Finished
from redraft.engine.handle import Handle
from redraft.engine.loop import Loop
from redraft.engine.request import ResolvedRequest
from redraft.engine.scope import CancelScope, Observer, Submitted
from redraft.engine.settings import DEFAULT_LOOP, LoopConfig
from redraft.measure.scenario import Outcome, Pass, TimedRequest
from redraft.model.gemma import DiffusionGemma


@runtime_checkable
class System(Protocol):
    """A system under test."""

    def serve(self, jobs: Sequence[TimedRequest], *, serial: bool) -> Pass:
        """Answer all jobs, each no sooner than it arrives; a serial one when the one before it is done."""


class RedraftSystem:
    """A fresh loop per pass, so that no pass finds the prompts of another."""

    def __init__(
        self,
        model: DiffusionGemma,
        config: LoopConfig = DEFAULT_LOOP,
        change: Callable[[ResolvedRequest], ResolvedRequest] | None = None,
    ) -> None:
        self.model, self.config, self.change = model, config, change

    def serve(self, jobs: Sequence[TimedRequest], *, serial: bool) -> Pass:
        loop = Loop(self.model, self.config)
        if serial:
            passes = [self._serve(loop, [replace(job, arrives=0.0)]) for job in jobs]
            return _joined(passes)
        return self._serve(loop, jobs)

    def _serve(self, loop: Loop, jobs: Sequence[TimedRequest]) -> Pass:
        requests = [job.request if self.change is None else self.change(job.request) for job in jobs]
        outcomes = tuple(Outcome(request, job.arrives) for request, job in zip(requests, jobs, strict=True))
        queue, prompts = deque(outcomes), dict[tuple[int, ...], Handle]()
        began, before = time.perf_counter(), loop.forwards
        while True:
            now = time.perf_counter() - began
            while queue and queue[0].arrives <= now:
                outcome = queue.popleft()
                behind = prompts.get(outcome.request.prompt)
                scope = CancelScope(_Timing(outcome, began))
                handle = loop.submit(outcome.request, scope, behind=behind)
                prompts.setdefault(outcome.request.prompt, handle)
            busy = loop.tick()
            if not busy and not queue:
                return Pass(outcomes, time.perf_counter() - began, loop.forwards - before)
            if not busy:
                time.sleep(max(0.0, queue[0].arrives - (time.perf_counter() - began)))


class _Timing(Observer):
    """When the tokens of an outcome came."""

    def __init__(self, outcome: Outcome, began: float) -> None:
        self._outcome, self._began = outcome, began

    def event(self, handle: Submitted, event: Event) -> None:
        if isinstance(event, Block):
            self._outcome.take(event.tokens, time.perf_counter() - self._began)
        elif isinstance(event, Finished):
            self._outcome.close(time.perf_counter() - self._began)


class TransformersSystem:
    """transformers' generate. Its forwards are counted as calls of the encoder and the decoder."""

    def __init__(self, model: Any) -> None:
        self.model, self.forwards = model, 0
        for part in (model.model.encoder, model.model.decoder):
            part.register_forward_hook(self._count)

    def serve(self, jobs: Sequence[TimedRequest], *, serial: bool) -> Pass:
        if serial:
            return _joined([self.serve([replace(job, arrives=0.0)], serial=False) for job in jobs])
        began, before = time.perf_counter(), self.forwards
        outcomes = tuple(Outcome(job.request, job.arrives) for job in jobs)
        queue = deque(outcomes)
        while queue:
            time.sleep(max(0.0, queue[0].arrives - (time.perf_counter() - began)))
            batch = [queue.popleft()]
            while queue and queue[0].arrives <= time.perf_counter() - began:
                batch.append(queue.popleft())
            self._generate(batch, began)
        return Pass(outcomes, time.perf_counter() - began, self.forwards - before)

    def _generate(self, batch: list[Outcome], began: float) -> None:
        longest = max(len(outcome.request.prompt) for outcome in batch)
        prompts = torch.full((len(batch), longest), self.model.generation_config.pad_token_id)
        mask = torch.zeros_like(prompts)
        for row, outcome in enumerate(batch):
            prompt = outcome.request.prompt
            prompts[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        torch.manual_seed(batch[0].request.seed)
        self.model.generate(
            prompts,
            attention_mask=mask,
            max_new_tokens=max(outcome.request.max_tokens for outcome in batch),
            streamer=_Streamer(batch, began),
        )
        for outcome in batch:
            outcome.close(time.perf_counter() - began)

    def _count(self, *_: object) -> None:
        self.forwards += 1


@dataclass
class _Streamer:
    """Hands the canvases of a batch to its outcomes; what transformers puts first is the prompt."""

    outcomes: list[Outcome]
    began: float
    prompt: bool = True

    def put(self, value: torch.Tensor) -> None:
        if not self.prompt:
            now = time.perf_counter() - self.began
            for outcome, canvas in zip(self.outcomes, value.tolist(), strict=True):
                outcome.take(canvas, now)
        self.prompt = False

    def end(self) -> None:
        """The batch is finished."""


def _joined(passes: Sequence[Pass]) -> Pass:
    """Passes that followed each other, as one."""
    outcomes = tuple(outcome for one in passes for outcome in one.outcomes)
    return Pass(outcomes, sum(one.seconds for one in passes), sum(one.forwards for one in passes))
