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
from redraft.server.http.log import Log
from redraft.server.http.service import Service
from redraft.server.http.settings import Settings
from serve_load import _jobs, _level, _over_http, hosted

SHORT = {"records": 64}


def place(at: Inside) -> tuple[str, int]:
    return "127.0.0.1", int(at.url.rpartition(":")[2])


@pytest.mark.slow
def test_many_streams_of_three_kinds_leave_nothing_behind(served: Inside) -> None:
    told = asyncio.run(_level(*place(served), 16, _jobs(SHORT, 40, Random(0)), Random(0)))
    assert (told["good"], told["left"], told["refused"], told["errors"]) == (34, 4, 2, 0)
    loop = served.engine.loop
    assert eventually(lambda: (served.service.under_way, loop.num_bytes, loop.is_busy) == (0, 0, False)), (
        "one that left still runs"
    )
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


def test_an_engine_is_served_from_a_thread_and_works_on_when_the_server_has_ended() -> None:
    engine, service = redraft.load("nano-sudoku"), Service(Settings())
    with hosted(service, engine, Log(None)) as url:
        assert _over_http(url, "fast", [(RECORD, 7, 64)])[1] == [18]
    with pytest.raises(ConnectionRefusedError):
        _over_http(url, "fast", [(RECORD, 7, 64)])
    assert engine.generate(RECORD, chat=True, seed=7).text == ANSWER
    engine.loop.stop()
