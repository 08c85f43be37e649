"""Work for one request that threads do: by turns of the callers, a few at a time, and no longer than somebody waits."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.types import Message, Receive
from tests.helpers import beside, holding
from tests.pictures import drawn, encoded
from tests.server.conftest import Inside, eventually, patient

from redraft.constraints.compile import limits
from redraft.constraints.compile.limits import PREPARING, TURNS, UNTIL, Turns
from redraft.errors import DeadlineError, RequestError
from redraft.operations.engine import Engine
from redraft.server.http import body as bodies
from redraft.server.http import service as service_module
from redraft.server.http.app import create_app
from redraft.server.http.errors import refusal_of
from redraft.server.http.fetch import Fetcher
from redraft.server.http.limits import ServerLimits
from redraft.server.http.log import Log
from redraft.server.http.service import LARGE_BODY, Service
from redraft.server.http.settings import Settings
from redraft.server.openai.chat import messages_of
from redraft.server.openai.response_fields import Responses
from redraft.server.openai.responses import Turn, _work

TURN = {"role": "user", "content": "a"}


def asked(key: int, receive: Receive | None = None) -> Request:
    """A request under an API key."""
    request = patient(receive)
    request.scope["state"]["key"] = key
    return request


class Crowd:
    """How many threads are in some work at a time."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    def work(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.01)
        with self._lock:
            self.now -= 1


def test_forwards_of_decisions_come_one_at_a_time(
    nano: Engine, served: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ran on as many threads as there were requests: another's answer took 71 s beside a hundred, /live 61."""
    crowd, plain = Crowd(), type(nano.model).denoise

    def denoise(*given: Any, **named: Any) -> Any:
        crowd.work()
        return plain(*given, **named)

    monkeypatch.setattr(type(nano.model), "denoise", denoise)
    body = {"input": "a", "questions": [{"type": "predicate", "instructions": "?"}], "canvases": 4}
    with ThreadPoolExecutor(6) as threads:
        replies = list(threads.map(lambda _: httpx2.post(f"{served.base}/decisions", json=body, timeout=100), range(6)))
    assert {reply.status_code for reply in replies} == {200}
    assert crowd.most == 1


def test_requests_are_prepared_two_at_a_time_and_operations_wait_for_none() -> None:
    """64 conversations of 4,000 turns were read at once: another's answer took 35 s, and so did /live."""
    service, prepared, operated = Service(Settings()), Crowd(), Crowd()

    async def all_of_them() -> None:
        works = [service.on_thread(patient(), prepared.work) for _ in range(8)]
        works += [service.on_thread(patient(), operated.work, in_turn=False) for _ in range(8)]
        await asyncio.gather(*works)

    asyncio.run(all_of_them())
    assert prepared.most <= 2
    assert operated.most > 2


def test_who_keeps_the_interpreter_busy_rests_while_there_are_others() -> None:
    """Bodies of 330,000 keys, one behind the other on four connections, made another's answer take 5.5 s."""

    def busy() -> None:
        until = time.thread_time() + 0.15
        while time.thread_time() < until:
            pass

    async def seconds(others: int) -> float:
        service = Service(Settings())
        for _ in range(others):
            await service.on_thread(asked(1), int)
        began = time.monotonic()
        await service.on_thread(asked(0), busy)
        busily = time.monotonic() - began
        await service.on_thread(asked(0), int)
        rested = time.monotonic() - began - busily
        if others:
            began = time.monotonic()
            await service.on_thread(asked(1), int)
            assert time.monotonic() - began < 0.2, "others do not wait for it"
        return rested

    assert asyncio.run(seconds(0)) < 0.15 < 0.25 < asyncio.run(seconds(1))


def test_those_who_rest_leave_one_by_one_and_take_no_places() -> None:
    """All that waited went on at once, and while they waited others of their caller were refused."""
    service = Service(Settings(limits=ServerLimits(in_flight=2)))
    ends = list[float]()

    def busy() -> None:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        ends.append(time.monotonic())

    async def all_of_them() -> float:
        await service.on_thread(asked(1), int)
        await service.on_thread(asked(0), busy)
        several = [asyncio.create_task(service.on_thread(asked(0), busy)) for _ in range(6)]
        await asyncio.sleep(0.02)
        assert service.under_way == 6, "a server that stops waits for them"
        began = time.monotonic()
        await service.on_thread(asked(1), int)
        theirs = time.monotonic() - began
        await asyncio.gather(*several)
        return theirs

    assert asyncio.run(all_of_them()) < 0.1
    assert all(later - sooner > 0.09 for sooner, later in pairwise(ends)), "0.05 s of work, and a rest of 0.1"


@pytest.mark.parametrize(("size", "is_alone"), [(LARGE_BODY - 1, False), (LARGE_BODY, True)])
def test_large_bodies_of_a_caller_are_read_one_by_one_while_there_are_others(size: int, is_alone: bool) -> None:
    """64 at once, from a caller of whom nothing was known yet, held up even what has no model behind it for 1.3 s."""
    service, crowd = Service(Settings()), Crowd()

    def body() -> Request:
        found = asked(0)
        found.scope["state"]["bytes"] = size
        return found

    async def all_of_them() -> None:
        await service.on_thread(asked(1), int)
        await asyncio.gather(*(service.on_thread(body(), crowd.work, in_turn=False) for _ in range(8)))

    asyncio.run(all_of_them())
    assert (crowd.most == 1) == is_alone


def test_a_client_that_leaves_rests_no_longer() -> None:
    service, left = Service(Settings()), asyncio.Event()

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    async def seconds() -> float:
        await service.on_thread(asked(1), int)
        service._rests[0] = time.monotonic() + 20
        began = time.monotonic()
        asyncio.get_running_loop().call_later(0.1, left.set)
        with suppress(DeadlineError):  # nobody waits for it
            await service.on_thread(asked(0, receive), int)
        return time.monotonic() - began

    assert asyncio.run(seconds()) < 5


def test_constraints_of_one_client_wait_for_their_turns(served: Inside) -> None:
    """From the seventeenth on they were refused, although a key may have 256 answers under way."""

    def asked(field: str) -> int:
        body = {"messages": [TURN], "max_tokens": 40, "structured_outputs": {"json": {"const": field}}}
        return httpx2.post(f"{served.base}/chat/completions", json=body, timeout=100).status_code

    fields = [f"f{secrets.token_hex(4)}" for _ in range(20)]  # none that was compiled before
    with ThreadPoolExecutor(20) as threads:
        with TURNS.turn("held"):
            statuses = [threads.submit(asked, field) for field in fields]
            assert eventually(lambda: len(TURNS._turns) > 20 or any(one.done() for one in statuses))
        assert [one.result() for one in statuses] == [200] * 20


def test_the_event_loop_begins_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who begins a thread waits until it runs: behind 60 others the event loop did so for seconds."""
    service, begun, plain = Service(Settings()), list[str](), threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name.startswith("request"):
            begun.append(threading.current_thread().name)
        plain(self)

    monkeypatch.setattr(threading.Thread, "start", start)

    async def work() -> list[int]:
        return await asyncio.gather(*(service.on_thread(patient(), lambda i=i: i) for i in range(4)))

    assert asyncio.run(work()) == [0, 1, 2, 3]
    assert begun
    assert threading.current_thread().name not in begun


def test_where_no_more_threads_begin_work_waits_for_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """It failed, 500, though threads of others were free soon, and was done all the same."""
    service, plain, room = Service(Settings()), threading.Thread.start, [2]

    def start(self: threading.Thread) -> None:
        if self.name.startswith("request"):
            room[0] -= 1
            if room[0] < 0:
                raise RuntimeError("can't start new thread")
        plain(self)

    monkeypatch.setattr(threading.Thread, "start", start)

    async def work(service: Service) -> list[None]:
        return await asyncio.gather(*(service.on_thread(patient(), partial(time.sleep, 0.01)) for _ in range(9)))

    assert asyncio.run(work(service)) == [None] * 9
    begun, other = len(service._threads._threads), Service(Settings())
    assert begun == 2
    with pytest.raises(RuntimeError) as raised:
        asyncio.run(work(other))
    assert refusal_of(raised.value).status == 503
    assert other._threads._work_queue.empty(), "it is not done behind its caller's back"
    room[0] = 100  # and the shortage is over
    for left in service, other:
        assert asyncio.run(work(left)) == [None] * 9
        assert len(left._threads._threads) > begun


def test_threads_of_a_burst_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """They never did: 562 of them held 40 MB of an idle server for good. What one of them still does is done."""
    monkeypatch.setattr(service_module, "POOL_SEC", 0.0)
    service, burst = Service(Settings()), service_module.KEPT_THREADS + 6
    together, last = threading.Barrier(burst), threading.Event()

    def threads() -> int:
        return sum(one.name.startswith("request") for one in threading.enumerate())

    async def work() -> bool:
        slow = asyncio.create_task(service.on_thread(patient(), last.wait, in_turn=False))
        try:
            await asyncio.gather(*(service.on_thread(patient(), together.wait, in_turn=False) for _ in range(burst)))
            assert threads() > burst
            await service.on_thread(patient(), int)
            assert await asyncio.to_thread(eventually, lambda: threads() <= before + 2, 10)
        finally:
            last.set()
        return await slow

    before = threads()
    assert asyncio.run(work())


def test_what_waits_elsewhere_gives_up_its_turn_and_the_smallest_is_next() -> None:
    turns, over, inside, order = Turns(places=1), threading.Event(), threading.Event(), list[str]()

    def aside() -> None:
        with turns.turn("waits"), turns.aside():
            inside.set()
            over.wait()

    def sized(size: int) -> None:
        with turns.turn(str(size), size=size):
            order.append(str(size))

    with beside(aside):
        inside.wait()
        with ExitStack() as stack, turns.turn("holds"):  # though another is not over
            stack.enter_context(beside(*(partial(sized, size) for size in (3, 1, 2))))
            assert eventually(lambda: len(turns._turns) == 5)
        over.set()
    assert order == ["1", "2", "3"]
    assert not turns._turns
    assert not turns._now


class Counted(Turns):
    """Turns that count how often they look for the next."""

    looked = 0

    def _next(self) -> Any:
        self.looked += 1
        return super()._next()


def test_a_change_of_turns_wakes_only_whose_turn_it_is() -> None:
    """It woke all: 256 requests that waited together took 14 s of processor time for turns alone."""
    turns, count = Counted(places=2), 80

    def wait() -> None:
        with turns.turn(str(threading.get_ident())):
            pass

    with ExitStack() as stack, turns.turn("one"), turns.turn("other"):
        stack.enter_context(beside(*[wait] * count))
        assert eventually(lambda: len(turns._turns) == count + 2)
    assert turns.looked < 8 * count


def test_who_wants_what_another_compiles_holds_no_place() -> None:
    """Two who wanted a third's constraint had both places until it was compiled, and nobody else was prepared."""
    preparing = Turns(places=2)
    turns, over, found = Turns(around=preparing), threading.Event(), list[object]()

    def want(number: int) -> None:
        with preparing.turn(f"request {number}"), turns.turn("the same") as turn:
            if not turn.over.is_set():
                over.wait()
                turn.found = "compiled"
            found.append(turn.found)

    with beside(*(partial(want, number) for number in range(3))):
        there = eventually(lambda: [one.aside for one in preparing._turns] == [True] * 3, 5)
        try:
            with holding(UNTIL, time.monotonic() + 5), preparing.turn("another"):
                assert there
        finally:
            over.set()
    assert found == ["compiled"] * 3
    assert not preparing._turns
    assert not preparing._now


def test_a_long_body_is_checked_on_a_thread(served: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 turns took the event loop 80 ms a body. Errors are the same ones as of a short body."""
    seen, plain = list[str](), bodies._few_fields

    def few(value: Any) -> Any:
        seen.append(threading.current_thread().name)
        return plain(value)

    monkeypatch.setattr(bodies, "_few_fields", few)
    for wrong, param in (({"max_tokens": "x"}, "max_tokens"), ({"oops": 1}, "oops"), ({"n": 65}, "n")):
        seen.clear()
        errors = []
        for turns in (1, 1000):
            reply = httpx2.post(f"{served.base}/chat/completions", json={"messages": [TURN] * turns, **wrong})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
            errors.append(reply.json()["error"])
        assert errors[0] == errors[1]
        assert len(seen) > 1000
        assert sum(name.startswith("request") for name in seen) > 1000
    reply = httpx2.post(f"{served.base}/chat/completions", content=b"{" * 9000)
    assert reply.json()["error"]["code"] == "invalid_json"


def test_a_client_that_leaves_ends_what_compiles_for_it(served: Inside) -> None:
    """It was compiled to its end, nine seconds for nobody."""
    pattern = "(a|b)*a(a|b){18}"
    data = json.dumps({"messages": [TURN], "structured_outputs": {"regex": pattern}}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) as link:
        link.sendall(head + b"content-length: %d\r\n\r\n" % len(data) + data)
        assert eventually(lambda: any(pattern in one.name for one in TURNS._turns))
    began = time.monotonic()
    assert eventually(lambda: not any(pattern in one.name for one in TURNS._turns))
    assert time.monotonic() - began < limits.DEFAULT_LIMITS.seconds / 2


def test_images_of_a_request_are_fetched_once_and_have_a_bound_together(
    nano: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `truncation: "auto"` each was fetched again for every number of turns that was tried, nine times; and twenty
    of one request could have 32 MiB each."""
    asked, image = list[str](), encoded(drawn(8, 8))

    def fetched(self: Fetcher, url: str, part: str) -> bytes:
        asked.append(url)
        if self.kept is None or sum(map(len, self.kept.values())) + len(image) > self.max_bytes:
            raise RequestError(f"{part} is too large beside them")
        return image

    monkeypatch.setattr(Fetcher, "_fetched", fetched)
    service = Service(Settings(fetcher=Fetcher(("images.example",), max_bytes=3 * len(image))))
    service.ready(nano)

    def item(i: int) -> dict[str, Any]:
        part = {"type": "input_image", "image_url": f"http://images.example/{i}"}
        return {"role": "user", "content": [part, {"type": "input_text", "text": "word " * 2000}]}

    monkeypatch.setattr("redraft.server.openai.responses.prepare", _refused_if_long)
    with pytest.raises(RequestError, match="context is"):
        _work(service, Responses(input=[item(i) for i in range(3)] * 6, truncation="auto"))
    assert sorted(asked) == [f"http://images.example/{i}" for i in range(3)]
    with pytest.raises(RequestError, match=r"input\[3\].content\[0\] is too large beside them"):
        _work(service, Responses(input=[item(i) for i in range(4)]))


@pytest.mark.parametrize("fitting", [0, 1, 2, 3, 7, 8, 9, 63, 300, 400])
def test_a_long_conversation_is_cut_by_tries_that_are_short(fitting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By halves from the middle of it, each of ten tries prepared hundreds of turns."""
    tried = list[int]()

    def prepared(service: Service, body: Responses, turns: Sequence[Turn], fetcher: Fetcher) -> Any:
        tried.append(len(turns))
        if len(turns) > fitting:
            raise RequestError("the model's context is short")
        return turns

    monkeypatch.setattr("redraft.server.openai.responses._prepared", prepared)
    body = Responses(input=[{"role": "user", "content": "a"}] * 400, truncation="auto")
    try:
        assert len(_work(Service(Settings()), body)) == fitting
    except RequestError:
        assert not fitting
    rounds = max(1, fitting).bit_length() + 1
    assert sum(tried[1:]) <= 2 * rounds * max(1, fitting) + 2, "of the first try alone all turns are prepared"


def _refused_if_long(service: Service, body: Any, fetcher: Fetcher) -> Any:
    messages_of(service, body.messages, fetcher)
    raise RequestError("the model's context is short")


def test_a_fetch_takes_no_longer_than_its_caller_waits() -> None:
    """Twenty images of ten seconds each took 200 s of a server whose answers have one."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"localhost:{silent.getsockname()[1]}"
        began = time.monotonic()
        with holding(UNTIL, began + 0.2), pytest.raises(RequestError, match="has not come"):
            Fetcher((host,), allows=lambda _: True).of_one_request.fetch(f"http://{host}/", "part")
        assert time.monotonic() - began < 5


def test_who_has_left_waits_for_no_turn() -> None:
    gone = threading.Event()
    gone.set()
    with holding(limits.GONE, gone), pytest.raises(DeadlineError), PREPARING.turn("any"):
        pytest.fail("it had a turn")
    assert not PREPARING._turns


@pytest.mark.parametrize("later", [0.0, 0.2])
def test_who_has_left_does_not_wait_for_what_another_compiles(later: float) -> None:
    turns, held, over, gone = Turns(), threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        with turns.turn("the same"):
            held.set()
            over.wait()

    with beside(hold):
        held.wait()
        threading.Timer(later, gone.set).start()
        began = time.monotonic()
        try:
            late = pytest.raises(DeadlineError)
            with holding(limits.GONE, gone), holding(UNTIL, began + 5), late, turns.turn("the same"):
                pytest.fail("it had a turn")
        finally:
            over.set()
    assert time.monotonic() - began < 4


def test_a_caller_has_no_more_than_its_share_of_the_places() -> None:
    """64 slow images of one client kept another's waiting for 39 seconds."""
    turns, over = Turns(places=3, share=2), threading.Event()

    def slow(number: int) -> None:
        with holding(limits.CALLER, "one"), turns.turn(str(number)):
            over.wait()

    with beside(*(partial(slow, number) for number in range(5))):
        assert eventually(lambda: (len(turns._turns), len(turns._now)) == (5, 2))
        try:
            with holding(limits.CALLER, "other"), holding(UNTIL, time.monotonic() + 5), turns.turn("fast"):
                assert len(turns._now) == 3
        finally:
            over.set()
    assert not turns._turns
    assert not turns._now


def test_what_another_caller_waits_for_begins_all_the_same() -> None:
    """It stood behind sixteen large ones of the caller who had asked for it first."""
    turns, over = Turns(begun=1), threading.Event()

    def slow() -> None:
        with holding(limits.CALLER, "one"), turns.turn("slow"), turns.aside():
            over.wait()

    def wanted() -> None:
        with holding(limits.CALLER, "one"), turns.turn("wanted"):
            pass

    with beside(slow):
        assert eventually(lambda: any(one.aside for one in turns._turns))
        with beside(wanted):
            assert eventually(lambda: len(turns._turns) == 2)
            try:
                with (
                    holding(limits.CALLER, "other"),
                    holding(UNTIL, time.monotonic() + 5),
                    turns.turn("wanted") as same,
                ):
                    assert same.over.is_set()
                assert not over.is_set()
            finally:
                over.set()
    assert not turns._turns


def test_who_has_left_fetches_nothing() -> None:
    gone = threading.Event()
    gone.set()
    fetcher = Fetcher(("images.example",), allows=lambda _: pytest.fail("it was asked for")).of_one_request
    with holding(limits.GONE, gone), pytest.raises(DeadlineError):
        fetcher.fetch("http://images.example/", "part")


def test_what_the_end_of_a_server_abandons_ends() -> None:
    """Threads that went on decoding for clients who had their 503 kept the process for minutes."""
    service, held = Service(Settings()), threading.Event()

    def hold(name: str) -> None:
        with TURNS.turn(name):
            held.wait()

    async def run() -> None:
        request = patient()
        reading = asyncio.ensure_future(service.on_thread(request, hold, "abandoned", in_turn=False, gone=left.set))
        await asyncio.to_thread(eventually, lambda: len(TURNS._turns) == 2)
        service.abandon()
        held.set()
        with pytest.raises(DeadlineError):
            await reading

    left = threading.Event()
    with beside(partial(hold, "holds")):
        assert eventually(lambda: len(TURNS._now) == 1)
        asyncio.run(run())
    assert left.is_set()


def test_a_request_that_the_end_of_a_server_cuts_off_returns_that_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such requests returned a deadline error, or a failure of the engine."""
    service = Service(Settings())
    app = create_app(service, Log(None))

    async def cut(*_: object, **__: object) -> None:
        service.abandon()
        raise DeadlineError("the time was up before there was a valid answer")

    async def posted() -> httpx2.Response:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            return await http.post("/tokenize", json={"prompt": "x"})

    monkeypatch.setattr(Service, "on_thread", cut)
    reply = asyncio.run(posted())
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "draining")
    assert reply.headers["retry-after"] == "5"
