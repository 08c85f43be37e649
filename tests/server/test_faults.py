"""What goes wrong while a server works: clients that leave or do not read, an engine that fails, signals under load."""

from __future__ import annotations

import functools
import io
import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from tests.server.conftest import ANSWER, RECORD, Inside, end, ended, eventually, inside, start

from redraft.engine.engine import Engine
from redraft.engine.runner import Runner
from redraft.server.log import Log
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


def test_a_second_term_ends_what_is_under_way() -> None:
    busy = start("--quiet", "--drain", "60")
    client = raw(busy.url, LONG | {"max_steps": 9000, "entropy_bound": 1e-9})
    assert eventually(lambda: "redraft_running_requests 1.0" in httpx2.get(busy.url + "/metrics").text)
    busy.popen.send_signal(signal.SIGTERM)
    assert eventually(lambda: httpx2.get(busy.url + "/health").status_code == 503)
    busy.popen.send_signal(signal.SIGTERM)
    assert ended(busy) == 0
    client.close()


def test_kill_leaves_a_port_that_can_be_had_again() -> None:
    first = start("--quiet")
    client = raw(first.url, LONG | {"stream": True})
    port = first.url.rpartition(":")[2]
    first.popen.kill()
    assert ended(first) < 0
    client.close()
    again = start("--quiet", "--port", port)
    assert again.url == first.url
    assert httpx2.post(again.url + PATH, json=SHORT, timeout=30).json()["choices"][0]["message"]["content"] == ANSWER
    began = time.monotonic()
    assert end(again) == 0
    assert time.monotonic() - began < 5, "nothing was under way"
