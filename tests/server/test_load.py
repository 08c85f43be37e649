"""The load test's own client sees what goes wrong: its zeros mean something."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from itertools import pairwise
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
from serve_load import (
    _alone,
    _clients,
    _cost,
    _jobs,
    _level,
    _over_http,
    _told,
    hosted,
)
from stream_client import StreamedReply, stream_chat

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
        ("good", StreamedReply(500)),
        ("good", StreamedReply(200, "a", 1, 0.1, 0.1, order=False)),
        ("good", StreamedReply(200)),
        ("bad", StreamedReply(200, "a", 1, 0.1, 0.1)),
        ("leave", StreamedReply(503)),
    ],
)
def test_what_is_wrong_is_counted(kind: str, reply: StreamedReply) -> None:
    fine = ("good", StreamedReply(200, "a", 1, 0.1, 0.1))
    assert _told([fine, (kind, reply)], 1.0)["errors"] == 1
    assert _told([fine], 1.0)["errors"] == 0


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
