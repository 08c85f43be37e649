"""What goes wrong in a request, a listener or a forward is heard by those it concerns, and nobody waits for ever."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from unittest.mock import Mock

import pytest
from tests.helpers import PROMPT, alone, listen, python, tiny_config, tiny_model

import redraft
from redraft.config import CheckpointConfig, GenerationConfig
from redraft.engine.answer import Answer
from redraft.engine.events import Block, Draft, Event, Finished
from redraft.engine.loop import Loop
from redraft.engine.request import Options, Request, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.engine.runner import Batch
from redraft.engine.settings import LoopConfig
from redraft.errors import RequestError, RunError
from redraft.model.gemma import DiffusionGemma
from redraft.operations.engine import Engine


@lru_cache
def model() -> DiffusionGemma:
    return tiny_model(replace(tiny_config(sliding_window=20, max_position_embeddings=1024), canvas_length=16))


def request(seed: int = 1, steps: int = 3, max_tokens: int = 16) -> ResolvedRequest:
    shipped = CheckpointConfig(model().config, GenerationConfig(max_denoising_steps=6, eos_token_ids=(1,)))
    return build_request([2, 3, 4], Options(max_tokens=max_tokens, seed=seed, steps=steps), shipped)


@pytest.fixture(scope="module")
def loaded() -> Engine:
    return redraft.load("nano-sudoku")


@pytest.fixture
def engine(loaded: Engine) -> Iterator[Engine]:
    """An engine with a loop of its own, whose queue has room for two."""
    made = replace(loaded, loop=Loop(loaded.model, LoopConfig(max_running=2, max_waiting=2), text=loaded.text))
    yield made
    made.loop.stop()
    made.loop.check()
    assert made.loop.num_bytes == 0, "something was left running"


def ask(engine: Engine, seed: int = 1, steps: int = 3) -> ResolvedRequest:
    return engine.resolve(Request(PROMPT, chat=True, options=Options(seed=seed, steps=steps, preset="reference")))


def last(told: list[Event]) -> Finished:
    ends = [event for event in told if isinstance(event, Finished)]
    assert told[-1:] == ends, "told Finished other than once, at the end"
    return ends[0]


def within(seconds: float, call: Callable[[], object]) -> None:
    """Run something on a thread that must come back."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it waits for ever"


BAD_VALUES = """
import redraft
from redraft.engine.request import Options
from redraft.engine.resolve import build_request
engine = redraft.load("nano-sudoku")
config = engine.config
bad = [dict(max_tokens=2.5), dict(min_tokens="3"), dict(stop=[1]), dict(stop="END"), dict(seed=True), dict(seed="7"),
       dict(steps=1.5), dict(canvas="wide"), dict(top_k=2.0), dict(deadline_sec="soon"), dict(causal="yes"),
       dict(temperature=None), dict(preset=3), dict(logit_bias=((1.5, 1.0),)), dict(bad_words=(1,))]
for options in bad:
    try:
        build_request([5], Options(**options), config)
    except redraft.RequestError as error:
        (name,) = options
        print("refused" if str(error).startswith(f"{name} is {options[name]!r}; it must be") else error)
for prompt in ([2.5], ["a"], [None], [True], [5, 6.0]):
    try:
        build_request(prompt, Options(), config)
    except redraft.RequestError as error:
        print("refused" if str(error).startswith(f"the prompt holds {prompt[-1]!r}; it must be") else error)
for prompt in (5, b"record", {"role": "user"}):
    try:
        engine.generate(prompt)
    except redraft.RequestError as error:
        print("refused" if str(error).startswith(f"the prompt is {type(prompt).__name__}; pass") else error)
"""


def test_values_of_another_type_are_refused_by_name() -> None:
    """In a process of its own: here the types of every call are checked, which no caller of ours has done for him."""
    run = python(BAD_VALUES)
    assert run.stderr == ""
    assert run.stdout.split("\n")[:-1] == ["refused"] * 23


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_refused_before_it_is_queued(loaded: Engine, seed: int) -> None:
    with pytest.raises(RequestError, match=f"seed is {seed}; it must be"):
        loaded.resolve(Request(PROMPT, options=Options(seed=seed)))


def test_a_request_that_cannot_be_opened_ends_alone() -> None:
    """It raised in every tick and no other request could be served any more."""
    loop, bad, good = Loop(model()), list[Event](), list[Event]()
    listen(loop, replace(request(), seed=-1), bad.append)
    listen(loop, request(), good.append)
    loop.drain()
    loop.check()
    end = last(bad)
    assert (end.reason, type(end.error)) == ("error", RequestError)
    assert last(good).reason in ("stop", "length")


def test_a_failing_forward_ends_its_own_requests_and_tells_them_why(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, inside, outside = Loop(model(), LoopConfig(max_running=1)), list[Event](), list[Event]()
    listen(loop, request(), inside.append)
    listen(loop, request(2), outside.append)
    with monkeypatch.context() as patch:
        patch.setattr(loop.runner, "run", Mock(side_effect=ValueError("no such kernel")))
        assert loop.tick()
    loop.check()
    assert isinstance(last(inside).error, ValueError)
    loop.drain()
    assert last(outside).reason in ("stop", "length")


@dataclass(frozen=True)
class Overflown:
    """Temperatures by which every probability is NaN, as the numbers of one prompt may be where others' are not."""

    def temperature(self, step: int, max_steps: int) -> float:
        return math.nan


def overflown() -> ResolvedRequest:
    asked = request()
    return replace(asked, policy=replace(asked.policy, schedule=Overflown()))


@pytest.mark.parametrize("drafts", [True, False])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_step_that_fails_ends_its_own_request_alone(drafts: bool, logprobs: int | None) -> None:
    """NaN in one canvas ended every request that had shared its forward."""
    loop, bad, good, asked = Loop(model()), list[Event](), list[Event](), request(2, max_tokens=40)
    listen(loop, replace(overflown(), logprobs=logprobs), bad.append, drafts=drafts)
    listen(loop, asked, good.append, drafts=True)
    while loop.tick():
        loop.check()
    assert "overflow to NaN" in str(last(bad).error)
    assert [good] == alone(model(), [asked])


def test_a_canvas_that_cannot_be_told_at_its_deadline_ends_its_own_request_alone() -> None:
    """NaN in its entropies, which nobody reads before, ended all requests of the engine, those in the queue too."""
    now, asked = [0.0], [request(seed, max_tokens=40) for seed in (2, 3)]
    loop = Loop(model(), LoopConfig(max_running=2), clock=lambda: now[0])
    bad, good = list[Event](), [list[Event](), list[Event]()]
    listen(loop, replace(overflown(), deadline_sec=1.0), bad.append)
    for one, told in zip(asked, good, strict=True):
        listen(loop, one, told.append, drafts=True)
    loop.tick()
    now[0] = 2.0
    while loop.tick():
        loop.check()
    assert "overflow to NaN" in str(last(bad).error)
    assert good == alone(model(), asked)


def test_an_interrupt_ends_the_requests_of_its_forward_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canvas had taken its step and the events were lost: the request went on with a block missing."""
    loop, told = Loop(model()), list[Event]()
    run = loop.runner.run

    def interrupted(batch: Batch) -> None:
        run(batch)
        raise KeyboardInterrupt

    listen(loop, request(steps=1, max_tokens=64), told.append)
    monkeypatch.setattr(loop.runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.tick()
    loop.check()
    assert isinstance(last(told).error, KeyboardInterrupt)
    assert loop.num_bytes == 0


@pytest.mark.parametrize("threaded", [False, True])
def test_a_listener_that_calls_the_engine_is_told_not_to(engine: Engine, threaded: bool) -> None:
    """On a loop of its own thread it would have waited for itself."""
    found: list[Exception] = []

    def listener(event: Event) -> None:
        for call in (engine.loop.tick, engine.loop.stop, lambda: engine.run(ask(engine))):
            with pytest.raises(RequestError, match=r"an observer, .* called the engine") as caught:
                call()
            found.append(caught.value)
        told.set()

    if threaded:
        engine.loop.start()
    told = threading.Event()
    listen(engine.loop, ask(engine), listener)
    within(60, lambda: told.wait() if threaded else engine.loop.drain())
    assert len(found) >= 3


@pytest.mark.parametrize("breaks_at", [Draft, Block, Finished])
def test_a_listener_that_raises_is_told_its_own_error_once(breaks_at: type) -> None:
    told: list[Event] = []

    def listener(event: Event) -> None:
        told.append(event)
        if isinstance(event, breaks_at):
            raise ValueError("the caller's own bug")

    loop = Loop(model())
    listen(loop, request(), listener, drafts=True)
    loop.drain()
    loop.check()
    end = last(told)
    assert str(end.error) == ("None" if breaks_at is Finished else "the caller's own bug")


@pytest.fixture
def held(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A forward lasts until somebody stops the engine's thread. Set when one has begun."""
    inside, run = threading.Event(), engine.loop.runner.run

    def slow(batch: Batch) -> object:
        while not getattr(engine.loop._thread, "stopping", True):
            inside.set()
            time.sleep(0.001)
        return run(batch)

    monkeypatch.setattr(engine.loop.runner, "run", slow)
    return inside


@pytest.mark.parametrize("call", ["finish", "map", "variants"])
def test_stopping_ends_whoever_waits_with_an_error(engine: Engine, held: threading.Event, call: str) -> None:
    """They waited for ever."""
    errors: list[RunError] = []

    def wait() -> None:
        calls: dict[str, Callable[[], object]] = {
            "finish": lambda: engine.run(ask(engine, steps=8)),
            "map": lambda: list(engine.map([ask(engine, steps=8)] * 6)),
            "variants": lambda: engine.variants(ask(engine, steps=8), 6),
        }
        with pytest.raises(RunError, match="the loop was stopped") as caught:
            calls[call]()
        errors.append(caught.value)

    engine.loop.start()
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert held.wait(timeout=60)
    engine.loop.stop()
    thread.join(timeout=60)
    assert errors


def test_stopping_ends_coroutines_with_an_error_and_later_ones_start_it_again(
    engine: Engine, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        waiting = asyncio.create_task(engine.submit(ask(engine)).aresult())
        assert await asyncio.to_thread(held.wait, 60)
        await asyncio.to_thread(engine.loop.stop)
        with pytest.raises(RunError, match="the loop was stopped"):
            await asyncio.wait_for(waiting, timeout=60)
        monkeypatch.undo()
        assert (await asyncio.wait_for(engine.submit(ask(engine)).aresult(), timeout=60)).tokens

    asyncio.run(run())


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("call", ["map", "variants"])
def test_an_answer_that_cannot_be_read_is_an_error_and_not_a_wait(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, call: str, threaded: bool
) -> None:
    """It left the job undone, and the caller turned the loop for ever."""
    monkeypatch.setattr(Answer, "_take_block", Mock(side_effect=ValueError("no such kernel")))
    if threaded:
        engine.loop.start()

    def read() -> None:
        with pytest.raises(ValueError, match="no such kernel"):
            list(engine.map([ask(engine)])) if call == "map" else engine.variants(ask(engine), 2)

    within(60, read)


@pytest.mark.parametrize("threaded", [False, True])
def test_a_full_queue_is_waited_for(engine: Engine, threaded: bool) -> None:
    """More at once than the queue takes was BusyError, and what had been started of the variants went on."""
    if threaded:
        engine.loop.start()
    within(60, lambda: [done.tokens for done in engine.map([ask(engine, seed=i) for i in range(9)], at_once=9)])
    found: list[int] = []
    within(60, lambda: engine.variants(ask(engine), 9, on_answer=lambda done: found.append(done.seed)))
    assert sorted(found) == list(range(1, 10))


def test_a_bar_counts_the_answers_on_stderr(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list(engine.map([ask(engine, seed=i) for i in range(3)], progress=True))) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "3/3" in shown.err
    assert len(list(engine.map(iter([ask(engine)]), progress=True))) == 1
    assert "1/?" in capsys.readouterr().err
    list(engine.map([ask(engine)]))
    assert capsys.readouterr().err == ""
