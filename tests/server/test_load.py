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

from redraft.measure.client import Link, Reply, stream_chat
from redraft.measure.serving import _alone, _cost, _level, _plain, _told


def place(at: Inside) -> tuple[str, int]:
    return "127.0.0.1", int(at.url.rpartition(":")[2])


def test_many_streams_of_three_kinds_leave_nothing_behind(served: Inside) -> None:
    told = asyncio.run(_level(*place(served), 16, 40, Random(0)))
    assert (told["good"], told["left"], told["refused"], told["errors"]) == (34, 4, 2, 0)
    loop = served.engine.loop
    assert eventually(lambda: (served.service.under_way, loop.runner.num_bytes) == (0, 0)), "one that left still runs"
    loop.check()


@pytest.fixture
def unlogged() -> Iterator[None]:
    """pytest keeps every record that is logged while a test runs: one a request."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("unlogged")
def test_nothing_is_left_of_a_request_that_is_over(served: Inside) -> None:
    """What is kept of each request grows in every round of 12; what else grows at times does not in every round."""
    counts = []
    for _ in range(4):
        asyncio.run(_level(*place(served), 8, 12, Random(1)))
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


def test_what_http_costs_is_of_the_same_answers(served: Inside) -> None:
    jobs = [(RECORD, seed) for seed in range(3)]
    assert asyncio.run(_plain(*place(served), "fast", jobs)) > 0
    assert _alone(served.engine, "fast", jobs) > 0
    assert _cost([(4.0, 5.0), (8.0, 10.0), (16.0, 20.0)]) == {"share": pytest.approx(0.2), "ms": pytest.approx(25)}
