"""What goes wrong while a server works: clients that leave or do not read, an engine that fails, signals under load."""

from __future__ import annotations

import functools
import io
import itertools
import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
import uvicorn
from tests.server.conftest import ANSWER, RECORD, Inside, ended, eventually, inside, start

from redraft.engine.engine import Engine
from redraft.engine.runner import Runner
from redraft.server.app import create_app
from redraft.server.log import Log
from redraft.server.process import _Server as Server
from redraft.server.service import Service
from redraft.server.settings import Limits, Settings

LONG: dict[str, Any] = {
    "messages": [{"role": "user", "content": "go on"}],
    "max_tokens": 900,
    "ignore_eos": True,
    "canvas": {"width": 32},
}
SHORT: dict[str, Any] = {"messages": [{"role": "user", "content": RECORD}], "seed": 7}
PATH = "/v1/chat/completions"


def nothing_is_left(at: Inside) -> bool:
    return at.service.under_way == 0 and not at.engine.loop.scheduler.running


def raw(at: str, body: dict[str, Any]) -> socket.socket:
    """A request by hand, so that nothing reads the answer."""
    host, port = at.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    made.connect((host, int(port)))
    head = ["POST /v1/chat/completions HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    made.sendall("\r\n".join([*head, f"Content-Length: {len(content)}", "", ""]).encode() + content)
    return made


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_rows_within_a_step(served: Inside, stream: bool) -> None:
    loop = served.engine.loop
    client = raw(served.url, LONG | {"stream": stream})
    assert eventually(lambda: len(loop.scheduler.running) == 1)
    assert eventually(lambda: loop.forwards > 0 and loop.runner.num_bytes > 0)
    client.close()
    assert eventually(lambda: not loop.scheduler.running), "rows are still held"
    assert served.service.under_way == 0
    assert loop.runner.num_bytes == 0
    loop.check()


def test_a_gap_is_given_up_when_its_editor_has_gone_on(served: Inside) -> None:
    body = {"prompt": "record\nSend", "suffix": "melu", "max_tokens": 24, "max_steps": 5000, "entropy_bound": 1e-9}
    loop = served.engine.loop
    with pytest.raises(httpx2.TimeoutException):
        httpx2.post(served.url + "/v1/completions", json=body, timeout=0.3)
    assert eventually(lambda: not loop.scheduler.running and not loop.scheduler.waiting)
    assert eventually(lambda: served.service.under_way == 0)


def test_a_reader_that_does_not_read_is_dropped_and_hurts_nobody(nano: Engine) -> None:
    sink = io.StringIO()
    for at in inside(nano, Settings(limits=Limits(stall_sec=0.3)), Log(sink), send_buffer=4096):
        slow = raw(
            at.url,
            LONG | {"stream": True, "canvas": {"stream": True, "width": 32}, "logprobs": True, "top_logprobs": 20},
        )
        told = httpx2.post(at.url + PATH, json=SHORT, timeout=30).json()
        assert told["choices"][0]["message"]["content"] == ANSWER
        assert eventually(functools.partial(nothing_is_left, at), 20)
        slow.close()
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert [line["tokens"] for line in lines if line.get("gone")] < [900]


def test_a_forward_that_fails_is_told_to_those_in_it_and_the_server_goes_on(
    nano: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, left = Runner.run, [1]

    def fail_once(self: Runner, batch: Any) -> Any:
        if left and nano.loop.forwards:
            left.pop()
            raise MemoryError("no room for the logits of /home/somebody")
        return run(self, batch)

    for at in inside(nano, Settings()):
        monkeypatch.setattr(Runner, "run", fail_once)
        told = httpx2.post(at.url + PATH, json=SHORT, timeout=30)
        assert (told.status_code, told.json()["error"]["code"]) == (500, "engine_failed")
        assert "somebody" not in told.text
        left.append(1)
        stream = httpx2.post(at.url + PATH, json=SHORT | {"stream": True}, timeout=30).text
        assert '"engine_failed"' in stream
        assert stream.endswith("data: [DONE]\n\n")
        assert httpx2.post(at.url + PATH, json=SHORT, timeout=30).json()["choices"][0]["message"]["content"] == ANSWER
        assert at.service.under_way == 0


def test_a_full_queue_is_told_with_the_time_to_come_again(nano: Engine) -> None:
    for at in inside(nano, Settings(limits=Limits(in_flight=4))):
        with ThreadPoolExecutor(12) as pool:
            ask = functools.partial(httpx2.post, at.url + PATH, json=LONG | {"max_tokens": 64}, timeout=60)
            replies = [asking.result() for asking in [pool.submit(ask) for _ in range(12)]]
        codes = {reply.status_code for reply in replies}
        assert codes == {200, 503}
        assert all("retry-after" in reply.headers for reply in replies if reply.status_code == 503)


def test_term_lets_answers_finish_and_refuses_new_ones() -> None:
    process = start("--quiet")
    found: list[httpx2.Response] = []
    body = LONG | {"seed": 1, "max_steps": 40, "entropy_bound": 1e-9, "max_tokens": 200}
    asking = threading.Thread(target=lambda: found.append(httpx2.post(process.url + PATH, json=body, timeout=60)))
    asking.start()
    assert eventually(lambda: "redraft_running_requests 1.0" in httpx2.get(process.url + "/metrics").text)
    process.popen.send_signal(signal.SIGTERM)
    assert eventually(lambda: httpx2.get(process.url + "/health").status_code == 503)
    told = httpx2.post(process.url + PATH, json=SHORT)
    assert (told.status_code, told.json()["error"]["code"]) == (503, "draining")
    assert int(told.headers["retry-after"]) > 0
    asking.join(60)
    assert found[0].status_code == 200
    assert found[0].json()["usage"]["completion_tokens"] == 200
    assert ended(process) == 0


def test_kill_under_load_leaves_a_port_that_can_be_had_again_and_a_second_term_ends_it() -> None:
    first = start("--quiet")
    clients = [raw(first.url, LONG | {"stream": i % 2 == 0, "seed": i}) for i in range(8)]
    assert eventually(lambda: "redraft_running_requests 8.0" in httpx2.get(first.url + "/metrics").text)
    first.popen.kill()
    assert ended(first) < 0
    for client in clients:
        client.close()
    again = start("--quiet", "--port", first.url.rpartition(":")[2], "--drain", "60")
    assert again.url == first.url
    assert httpx2.post(again.url + PATH, json=SHORT, timeout=30).json()["choices"][0]["message"]["content"] == ANSWER
    client = raw(again.url, LONG | {"max_steps": 9000, "entropy_bound": 1e-9})
    assert eventually(lambda: "redraft_running_requests 1.0" in httpx2.get(again.url + "/metrics").text)
    again.popen.send_signal(signal.SIGTERM)
    assert eventually(lambda: httpx2.get(again.url + "/health").status_code == 503)
    again.popen.send_signal(signal.SIGTERM)
    assert ended(again) == 0
    client.close()


@pytest.mark.parametrize("finishes", [False, True])
def test_a_term_waits_as_long_as_it_was_told_to(nano: Engine, finishes: bool) -> None:
    service = Service(Settings(limits=Limits(drain_sec=0.3)))
    service.ready(nano)
    server = Server(uvicorn.Config(create_app(service, Log(None))), service)
    with service.enter(1, None):
        began = time.monotonic()
        server.handle_exit(signal.SIGTERM, None)
        assert (service.phase, server.should_exit) == ("draining", False)
        if not finishes:
            assert eventually(lambda: server.force_exit)
            assert 0.3 <= time.monotonic() - began < 3
    assert eventually(lambda: server.should_exit)
    assert server.force_exit is not finishes


def test_a_term_ends_at_once_what_has_nothing_to_do(nano: Engine) -> None:
    service = Service(Settings())
    service.ready(nano)
    server = Server(uvicorn.Config(create_app(service, Log(None))), service)
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit


@pytest.mark.parametrize("jump_sec", [86_400.0, -86_400.0])
def test_a_clock_that_jumps_changes_nothing_but_dates(
    nano: Engine, monkeypatch: pytest.MonkeyPatch, jump_sec: float
) -> None:
    """The clock on the wall is set by a day, forwards and back, between any two looks at it."""
    sink, looks, now = io.StringIO(), itertools.count(), time.time
    monkeypatch.setattr(time, "time", lambda: now() + (jump_sec if next(looks) % 2 else 0.0))
    limits = Limits(request_sec=20.0, quiet_sec=5.0, stall_sec=5.0)
    for at in inside(nano, Settings(limits=limits), Log(sink, time.time)):
        for more in ({}, {"deadline_ms": 15_000.0}, {"target_ms": 15_000.0}, {"stream": True}):
            began = time.monotonic()
            told = httpx2.post(at.url + PATH, json=SHORT | more, timeout=30)
            assert time.monotonic() - began < 15
            if "stream" in more:
                assert told.text.endswith("data: [DONE]\n\n")
                assert ": waiting" not in told.text
                continue
            (choice,) = told.json()["choices"]
            assert (choice["message"]["content"], choice["canvas"]["finish"]) == (ANSWER, "stop")
            assert 0 < choice["canvas"]["first_text_ms"] <= choice["canvas"]["ms"] < 15_000
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert len(lines) == 4
    assert all(0 <= line["ms"] < 15_000 for line in lines)


def test_the_time_of_an_answer_is_bounded_and_what_there_is_is_told(nano: Engine) -> None:
    hard = LONG | {"max_steps": 9000, "entropy_bound": 1e-9, "seed": 1}
    for at in inside(nano, Settings(limits=Limits(request_sec=0.4, quiet_sec=0.1))):
        began = time.monotonic()
        (choice,) = httpx2.post(at.url + PATH, json=hard | {"deadline_ms": 60_000.0}, timeout=30).json()["choices"]
        assert 0.3 < time.monotonic() - began < 10
        assert (choice["finish_reason"], choice["canvas"]["finish"]) == ("length", "deadline")
        assert choice["message"]["content"]
        stream = httpx2.post(at.url + PATH, json=hard | {"stream": True}, timeout=30).text
        assert ": waiting\n\n" in stream, "a while without text is told"
        assert ": ping" not in stream
        late = SHORT | {"structured_outputs": {"regex": "[a-z]{40}"}, "deadline_ms": 0.01, "max_tokens": 60}
        told = httpx2.post(at.url + PATH, json=late, timeout=30)
        assert (told.status_code, told.json()["error"]["code"]) == (504, "deadline")


def test_a_seed_repeats_an_answer_whoever_else_is_served(served: Inside) -> None:
    body = {"messages": [{"role": "user", "content": "go on"}], "seed": 11, "max_tokens": 24, "canvas": {"width": 32}}
    ask = functools.partial(httpx2.post, served.url + PATH, timeout=60)
    alone = ask(json=body).json()["choices"][0]["message"]["content"]
    with ThreadPoolExecutor(6) as pool:
        others = [pool.submit(ask, json=LONG | {"max_tokens": 64, "seed": i}) for i in range(5)]
        same = pool.submit(ask, json=body)
        assert same.result().json()["choices"][0]["message"]["content"] == alone
        assert {other.result().status_code for other in others} == {200}
