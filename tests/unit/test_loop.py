"""The loop on a thread of its own, and the calls that stand on it: map, variants, asyncio."""

import asyncio
import gc
import itertools
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from unittest.mock import Mock

import pytest
from tests.helpers import beside, listen

import redraft
from redraft.engine.events import Draft, Event, Finished
from redraft.engine.request import Options, Request, ResolvedRequest
from redraft.errors import RunError
from redraft.operations.engine import Engine

PROMPTS = ["record\nSend 417 melu to Karomi.", "record\nGoda wants suzi, 762 boxes.", "sudoku\n1..4\n..1.\n..42\n4..."]


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = redraft.load("nano-sudoku")
    yield made
    made.loop.stop()


def requests(engine: Engine, count: int) -> list[ResolvedRequest]:
    return [
        engine.resolve(Request(PROMPTS[i % len(PROMPTS)], chat=True, options=Options(seed=i, steps=1 + i % 8)))
        for i in range(count)
    ]


@pytest.mark.parametrize("at_once", [1, 3, 32])
def test_map_answers_in_order_and_each_as_alone(engine: Engine, at_once: int) -> None:
    asked = requests(engine, 10)
    found = [done.tokens for done in engine.map(asked, at_once=at_once)]
    assert found == [engine.run(one).tokens for one in asked]


def test_map_takes_requests_as_room_appears(engine: Engine) -> None:
    """An endless iterable must not be read ahead of the answers."""
    taken = 0

    def endless() -> Iterator[ResolvedRequest]:
        nonlocal taken
        while True:
            taken += 1
            yield requests(engine, 1)[0]

    answers = engine.map(endless(), at_once=4)
    for _ in range(3):
        next(answers)
    answers.close()
    assert taken <= 8
    assert engine.loop.num_bytes == 0, "closing map left requests running"


def test_what_an_iterable_raises_comes_behind_the_answers_before_it(engine: Engine) -> None:
    def torn() -> Iterator[ResolvedRequest]:
        yield from requests(engine, 3)
        raise ConnectionError("the source went away")

    answers = engine.map(torn(), at_once=8)
    assert [next(answers).tokens for _ in range(3)] == [engine.run(one).tokens for one in requests(engine, 3)]
    with pytest.raises(ConnectionError, match="went away"):
        next(answers)
    left = iter(requests(engine, 9))
    mine = (one for one in left)
    answers = engine.map(mine, at_once=2)
    next(answers)
    answers.close()
    assert len(list(mine)) == 7, "what was not taken is the caller's"


def test_variants_differ_by_seed_and_share_the_prompt(engine: Engine) -> None:
    asked = requests(engine, 1)[0]
    found = [done for variant in engine.variants(asked, 4) for done in variant.answers]
    assert sorted(done.seed for done in found) == [asked.seed + i for i in range(4)]
    assert engine.loop.forwards <= 1 + max(sum(done.steps) for done in found) + 1


def test_many_threads_share_one_loop(engine: Engine) -> None:
    asked = requests(engine, 24)
    wanted = [engine.run(one).tokens for one in asked]
    engine.loop.start()
    found: dict[int, tuple[int, ...]] = {}

    def ask(i: int) -> None:
        found[i] = engine.run(asked[i]).tokens

    with beside(*(partial(ask, i) for i in range(len(asked)))):
        pass
    assert [found[i] for i in range(len(asked))] == wanted
    engine.loop.stop()
    engine.loop.check()


def test_stopping_keeps_what_is_left_and_starting_goes_on(engine: Engine) -> None:
    events: list[Event] = []
    done = threading.Semaphore(0)

    def heard(event: Event) -> None:
        events.append(event)
        if isinstance(event, Finished):
            done.release()

    listen(engine.loop, requests(engine, 1)[0], heard)
    assert events == []
    listen(engine.loop, requests(engine, 2)[1], heard)
    engine.loop.start()
    assert all(done.acquire(timeout=60) for _ in range(2))
    assert sum(isinstance(event, Finished) for event in events) == 2


def test_an_engine_that_nobody_has_is_let_go_with_its_thread() -> None:
    """The thread and what runs at the program's end held it, and its model, until that end."""
    engine = redraft.load("nano-sudoku")
    assert asyncio.run(engine.submit(Request("x", Options(max_tokens=2, seed=1))).aresult()).seed == 1
    model = weakref.ref(engine.model)
    (thread,) = (one for one in threading.enumerate() if getattr(one, "_loop", lambda: None)() is engine.loop)
    del engine
    gc.collect()
    thread.join(30)
    gc.collect()
    assert not thread.is_alive()
    assert model() is None


def test_coroutines_run_side_by_side(engine: Engine) -> None:
    asked = requests(engine, 6)
    wanted = [engine.run(one).tokens for one in asked]

    async def ask() -> list[tuple[int, ...]]:
        return [done.tokens for done in await asyncio.gather(*(engine.submit(one).aresult() for one in asked))]

    assert asyncio.run(ask()) == wanted


def test_leaving_an_async_stream_aborts_it(engine: Engine) -> None:
    async def look() -> Event:
        events = engine.submit(requests(engine, 8)[7], drafts=True).aevents()
        first = await anext(events)
        await events.aclose()
        return first

    assert isinstance(asyncio.run(look()), Draft)
    engine.loop.stop()
    engine.loop.drain()
    engine.loop.check()
    assert engine.loop.num_bytes == 0


@pytest.mark.parametrize("threaded", [False, True])
def test_a_failure_of_the_model_reaches_everyone_who_waits(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, threaded: bool
) -> None:
    """The loop's thread must not die with requests waiting on it for ever."""
    if threaded:
        engine.loop.start()
    monkeypatch.setattr(engine.loop.runner, "run", Mock(side_effect=ValueError("no such kernel")))
    with pytest.raises(RunError, match=r"engine failed .*: ValueError: no such kernel") as caught:
        engine.run(requests(engine, 1)[0])
    assert isinstance(caught.value.__cause__, ValueError)
    monkeypatch.undo()
    assert engine.run(requests(engine, 1)[0]).text


def test_confidence_is_told_per_token(engine: Engine) -> None:
    done = engine.run(engine.resolve(Request(PROMPTS[2], chat=True, options=Options(seed=1))))
    assert len(done.tokens) == len(done.entropy) == len(done.settled_at) == len(done.changes)
    assert all(1 <= step <= done.steps[0] for step in done.settled_at)
    for step, changes in zip(done.settled_at, done.changes, strict=True):
        assert changes < step or step == 1 == changes + 1, "a reading cannot change more often than there were steps"
    drafts = list(
        engine.submit(engine.resolve(Request(PROMPTS[2], chat=True, options=Options(seed=1))), drafts=True).events()
    )
    readings = [draft.tokens for draft in drafts if isinstance(draft, Draft)]
    for i in range(len(done.tokens)):
        column = [reading[i] for reading in readings]
        assert done.changes[i] == sum(a != b for a, b in itertools.pairwise(column))
