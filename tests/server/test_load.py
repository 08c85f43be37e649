"""The load test's own client sees what goes wrong: its zeros mean something."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import torch
from tests.server.conftest import ANSWER, RECORD, Inside, eventually

import redraft
from redraft.errors import RequestError
from redraft.operations.engine import Engine
from redraft.server.http import process
from redraft.server.http.log import Log
from redraft.server.http.service import Service
from redraft.server.http.settings import Settings
from redraft.tasks import task
from serving import (
    WORKLOADS,
    _alone,
    _asked,
    _clients,
    _cost,
    _jobs,
    _level,
    _over_http,
    _told,
    _waited,
    _watched,
    hosted,
    rooms,
)
from stream_client import Link, Reply, stream_chat

SHORT = {"records": 64}


def place(at: Inside) -> tuple[str, int]:
    return "127.0.0.1", int(at.url.rpartition(":")[2])


@pytest.mark.slow
def test_many_streams_of_three_kinds_leave_nothing_behind(served: Inside) -> None:
    told = asyncio.run(_level(*place(served), 16, _jobs(SHORT, 40, Random(0)), Random(0)))
    assert (told["good"], told["left"], told["refused"], told["errors"]) == (34, 4, 2, 0)
    loop = served.engine.loop
    assert eventually(lambda: (served.service.under_way, loop.num_bytes) == (0, 0)), "one that left still runs"
    loop.check()


@pytest.fixture
def unlogged() -> Iterator[None]:
    """pytest keeps every record that is logged while a test runs: one a request."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.usefixtures("unlogged")
def test_nothing_is_left_of_a_request_that_is_over(served: Inside) -> None:
    """What is kept of each request grows in every round of 12; what else grows at times does not in every round."""
    counts = []
    for _ in range(4):
        asyncio.run(_level(*place(served), 8, _jobs(SHORT, 12, Random(1)), Random(1)))
        assert eventually(lambda: served.service.under_way == 0 and not served.engine.loop.scheduler.running)
        gc.collect()
        found = gc.get_objects()
        counts.append((len(found), sum(issubclass(type(one), torch.Tensor) for one in found)))
        del found
    objects, tensors = zip(*counts, strict=True)
    assert min(after - before for before, after in pairwise(tensors)) <= 0
    assert min(after - before for before, after in pairwise(objects)) < 6, "something is kept of each request"


def test_an_answer_is_read_with_its_times(served: Inside) -> None:
    reply = asyncio.run(stream_chat(*place(served), {"messages": [{"role": "user", "content": RECORD}], "seed": 7}))
    assert (reply.status, reply.text, reply.tokens, reply.order) == (200, ANSWER, 18, True)
    assert 0 < (reply.first_sec or 0) <= reply.seconds


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        ("good", Reply(500)),
        ("good", Reply(200, "a", 1, 0.1, 0.1, order=False)),
        ("good", Reply(200)),
        ("bad", Reply(200, "a", 1, 0.1, 0.1)),
        ("leave", Reply(503)),
    ],
)
def test_what_is_wrong_is_counted(kind: str, reply: Reply) -> None:
    fine = ("good", Reply(200, "a", 1, 0.1, 0.1))
    assert _told([fine, (kind, reply)], 1.0)["errors"] == 1
    assert _told([fine], 1.0)["errors"] == 0


def test_a_connection_that_is_kept_serves_the_next_request(served: Inside) -> None:
    async def both() -> tuple[list[Link], list[Link], list[Reply]]:
        body = {"messages": [{"role": "user", "content": RECORD}], "seed": 7}
        links, seen, replies = list[Link](), list[Link](), list[Reply]()
        for _ in range(2):
            replies.append(await stream_chat(*place(served), body, links=links))
            seen += links
        links[0][1].close()
        return links, seen, replies

    links, seen, replies = asyncio.run(both())
    assert len(links) == 1
    assert seen == [links[0], links[0]]
    assert [reply.order and reply.text for reply in replies] == [replies[0].text] * 2 != ["", ""]


@pytest.mark.slow
def test_what_http_costs_is_of_the_same_answers(served: Inside) -> None:
    jobs = [(RECORD, seed, 64) for seed in range(3)]
    with _clients(served.url) as over_http:
        rate, tokens = over_http("fast", jobs)
    assert (rate > 0, tokens) == (True, [18, 18, 18])
    assert _alone(served.engine, "fast", jobs) > 0
    assert _cost([(4.0, 5.0), (8.0, 10.0), (16.0, 20.0)]) == {
        "share": pytest.approx(0.2),
        "middle_half": [pytest.approx(0.2), pytest.approx(0.2)],
        "ms": pytest.approx(25),
    }
    assert _cost([(1.0, 2.0), (3.0, 4.0), (5.0, 4.0)])["middle_half"] == [pytest.approx(0.0), pytest.approx(0.375)]


def test_an_engine_is_served_from_a_thread_and_works_on_when_the_server_has_ended() -> None:
    engine, service = redraft.load("nano"), Service(Settings())
    with hosted(service, engine, Log(None)) as url:
        assert _over_http(url, "fast", [(RECORD, 7, 64)])[1] == [18]
    with pytest.raises(ConnectionRefusedError):
        _over_http(url, "fast", [(RECORD, 7, 64)])
    assert engine.generate(RECORD, chat=True, seed=7).text == ANSWER
    engine.loop.stop()


def test_a_server_in_this_process_that_cannot_begin_says_so(nano: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RequestError("cannot listen")

    monkeypatch.setattr(process, "listen", refuse)
    with pytest.raises(RequestError, match="cannot listen"), hosted(Service(Settings()), nano, Log(None)):
        pass


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="only Linux tells how long a thread has run")
def test_a_thread_that_waits_is_told_from_one_that_works() -> None:
    """Two answers in half a second of which a thread worked some and slept 0.3 s."""

    def half_asleep() -> float:
        began = time.monotonic()
        sum(range(10**7))
        time.sleep(0.3)
        return 2 / (time.monotonic() - began)

    rate, waited = _watched(2, half_asleep)
    assert waited is not None
    assert 140 <= waited < 1e3 / rate - 5
    assert _waited([(3.0, 1.0), (2.0, 1.0), (9.0, 1.0)], [(8.0, 10.0)] * 3) == {
        "waits_ms": 2.0,
        "waits_share": pytest.approx(0.02),
    }
    assert _waited([], []) == {}


def test_the_mix_has_short_and_long_answers_in_turn(nano: Engine) -> None:
    """How long they are is read off the right answers, not off what some model makes of the prompts."""
    mixed = rooms(nano, WORKLOADS["mixed"])
    asked = _asked(mixed, 2 * len(mixed), seed=1)
    assert [most for _, _, most in asked] == [*mixed.values()] * 2
    sources = {name: task(name).examples("held_out", 1) for name in mixed}
    examples = [next(sources[name]) for _ in range(2) for name in mixed]
    assert [prompt for prompt, _, _ in asked] == [example.prompt for example in examples]
    sizes = [len(example.answer) for example in examples]
    assert max(sizes) > 5 * min(sizes)
    assert [prompt.partition("\n")[0] for prompt, _, _ in _asked(rooms(nano, WORKLOADS["short"]), 3, seed=1)] == [
        "record"
    ] * 3
