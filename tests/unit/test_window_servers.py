"""Rows at servers of several kinds, through the congestion window, on a clock that leaps to what comes next."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from redraft.errors import RedraftError
from redraft.measure.failures import LateError
from redraft.measure.remote import Backend, Remote

Server = Callable[[float], Any]  # how an answer of so many seconds comes: its status, and when to come back
AT_ONCE = 64


class Leaping(asyncio.SelectorEventLoop):
    """An event loop whose time leaps to what comes next."""

    now = 1000.0
    _ready: Any
    _scheduled: Any

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        coming = [handle.when() for handle in self._scheduled if not handle.cancelled()]
        if coming and not self._ready:
            self.now = max(self.now, min(coming))
        super()._run_once()


def slots(number: int, *, works_on: bool = False) -> Server:
    """So many answers at a time, others in the order of their coming; `works_on` at what was given up."""
    free = asyncio.Semaphore(number)

    async def worked(seconds: float) -> None:
        async with free:
            await asyncio.sleep(seconds)

    async def answered(seconds: float) -> tuple[int, int]:
        work = asyncio.ensure_future(worked(seconds))
        await (asyncio.shield(work) if works_on else work)
        return 200, 0

    return answered


def rate(number: int, per_sec: float = 1.0, *, counts: bool = False, says: bool = False) -> Server:
    """So many within any such time, and 429 to those beyond, which may count, too; it may say when to come back."""
    passed = list[float]()

    async def answered(seconds: float) -> tuple[int, int]:
        now = time.monotonic()
        passed[:] = [at for at in passed if at > now - per_sec]
        is_free = len(passed) < number
        passed.extend([now] if is_free or counts else [])
        if not is_free:
            return 429, int(passed[-number] + per_sec - now) + 1 if says else 0
        await asyncio.sleep(seconds)
        return 200, 0

    return answered


def shared() -> Server:
    """All at the same time, each the slower the more there are."""
    under_way = 0

    async def answered(seconds: float) -> tuple[int, int]:
        nonlocal under_way
        under_way += 1
        try:
            while seconds > 0:
                now = time.monotonic()
                await asyncio.sleep(min(0.5, seconds * under_way))
                seconds -= max(1e-3, (time.monotonic() - now) / under_way)
        finally:
            under_way -= 1
        return 200, 0

    return answered


def drops(number: int) -> Server:
    """So many at a time; the connections of others break off."""
    under_way = 0

    async def answered(seconds: float) -> tuple[int, int]:
        nonlocal under_way
        if under_way == number:
            await asyncio.sleep(0.01)
            raise httpx2.ReadError("dropped")
        under_way += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            under_way -= 1
        return 200, 0

    return answered


def run(
    monkeypatch: pytest.MonkeyPatch, server: Callable[[], Server], rows: list[float], timeout: float
) -> tuple[float, Counter[int | str], list[int | str]]:
    """Rows that take so many seconds each: how long they took in all, and their statuses, counted and in order."""
    statuses = list[int | str]("none" for _ in rows)

    async def whole() -> float:
        serve, gate = server(), asyncio.Semaphore(AT_ONCE)

        async def handle(request: httpx2.Request) -> httpx2.Response:
            prompt = json.loads(request.content)["prompt"]
            status, after = await serve(0.1 if prompt == "Hi" else rows[int(prompt)])
            said = {"choices": [{}]} if status == 200 else {"error": {"message": "no"}}
            return httpx2.Response(status, headers={"retry-after": f"{after}"} if after else {}, json=said)

        remote = Remote(Backend("http://other/v1", model="m", seconds=timeout))
        remote._client = httpx2.AsyncClient(base_url="http://other/v1", transport=httpx2.MockTransport(handle))

        async def one(number: int) -> None:
            async with gate:
                try:
                    await remote.post("completions", {"prompt": str(number)})
                    statuses[number] = 200
                except RedraftError as error:
                    statuses[number] = getattr(error, "status", "ended")

        began = time.monotonic()
        await asyncio.gather(*map(one, range(len(rows))))
        await remote.aclose()
        return time.monotonic() - began

    with asyncio.Runner(loop_factory=Leaping) as runner:
        monkeypatch.setattr(time, "monotonic", runner.get_loop().time)
        return runner.run(whole()), Counter(statuses), statuses


def some(number: int, seconds: float) -> list[float]:
    """So many rows of about so many seconds."""
    draws = random.Random(number)
    return [seconds * draws.uniform(0.7, 1.3) for _ in range(number)]


@pytest.mark.parametrize(
    ("server", "rows", "timeout", "most_sec"),
    [
        pytest.param(lambda: rate(5), some(300, 1), 600, 90, id="five a second"),
        pytest.param(lambda: rate(60, 60, counts=True, says=True), some(300, 1), 600, 600, id="counts who is refused"),
        pytest.param(lambda: slots(1), some(128, 60), 600, 11_000, id="one at a time, a tenth of the limit each"),
        pytest.param(lambda: slots(4), some(300, 20), 120, 2_000, id="four at a time"),
        pytest.param(lambda: slots(1, works_on=True), some(300, 1.5), 20, 900, id="works on at what was given up"),
    ],
)
def test_every_row_is_answered_by_a_server_that_could_answer_it(
    server: Callable[[], Server], rows: list[float], timeout: float, most_sec: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a whole window most rows of the slow ones had no answer in time; alone each row of a rate waited longer and
    longer."""
    random.seed(1)
    took, count, _ = run(monkeypatch, server, rows, timeout)
    assert count == {200: len(rows)}
    assert took < most_sec


FREE = 10**6


@pytest.mark.parametrize(
    ("number", "rows", "timeout", "most_sec"),
    [
        pytest.param(FREE, [*some(256, 1), *some(256, 700)], 600, 12_000, id="long rows at the end"),
        pytest.param(FREE, some(256, 700), 600, 12_000, id="long rows alone"),
        pytest.param(FREE, [700.0] * 256, 600, 6_000, id="none in time"),
        pytest.param(4, [100.0 if i % 10 == 3 else 1.5 for i in range(1000)], 60, 5_000, id="a tenth is endless"),
    ],
)
def test_rows_that_take_too_long_themselves_cost_the_others_neither_answers_nor_hours(
    number: int, rows: list[float], timeout: float, most_sec: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, as the window had them, 256 of them took 39 hours."""
    took, _, statuses = run(monkeypatch, lambda: slots(number), rows, timeout)
    assert [status == 200 for status in statuses] == [seconds < timeout for seconds in rows]
    assert took < most_sec


@pytest.mark.parametrize(
    ("server", "seconds", "timeout", "most_sec"),
    [
        *[pytest.param(lambda n=n: drops(n), 2, 600, 900 / n, id=f"breaks off beyond {n}") for n in (1, 4, 16)],
        pytest.param(shared, 1, 20, 450, id="slower the more there are"),
    ],
)
def test_most_rows_are_answered_by_a_server_that_says_not_what_it_has_room_for(
    server: Callable[[], Server], seconds: float, timeout: float, most_sec: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to one row of five had an error, and every one where none could be answered beside so many."""
    random.seed(1)
    took, count, _ = run(monkeypatch, server, some(300, seconds), timeout)
    assert count[200] > 285
    assert took < most_sec


def test_who_gets_no_connection_to_a_server_that_has_taken_one_comes_too_late() -> None:
    """A server of one thread, whose line was full, was taken for one that is not there."""
    asked = list[str]()

    async def handle(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.path)
        if len(asked) == 1:
            await request.extensions["trace"]("connection.connect_tcp.complete", {})
            raise httpx2.ConnectTimeout("full")
        return httpx2.Response(200, json={"choices": [{}]})

    async def one() -> None:
        remote = Remote(Backend("http://other/v1", model="m", seconds=60))
        assert remote._client.timeout.connect == 10
        remote._client = httpx2.AsyncClient(base_url="http://other/v1", transport=httpx2.MockTransport(handle))
        with pytest.raises(LateError, match="takes no further connection"):
            await remote.post("completions", {"prompt": "a"})
        await remote.aclose()

    asyncio.run(one())
    assert asked == ["/v1/completions"] * 2, "the second is a look"
