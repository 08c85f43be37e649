"""What goes wrong while a server works: clients that leave or do not read, an engine that fails, signals under load."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import AsyncMock

import httpx2
import pytest
import uvicorn
from tests.helpers import python
from tests.server.conftest import ANSWER, USER, Inside, ended, eventually, inside, patient, start

from redraft.constraints.compile import limits
from redraft.engine.runner import Runner
from redraft.model.gemma import DiffusionGemma
from redraft.operations.engine import Engine
from redraft.operations.stream import AnswerStream
from redraft.server.http.app import create_app
from redraft.server.http.limits import ServerLimits
from redraft.server.http.log import Log
from redraft.server.http.process import Server, serve
from redraft.server.http.service import Service
from redraft.server.http.settings import Settings
from redraft.server.http.sse import EventStream
from redraft.server.http.sse import begun as begun_stream

LONG: dict[str, Any] = {
    "messages": [{"role": "user", "content": "go on"}],
    "max_tokens": 900,
    "ignore_eos": True,
    "canvas": {"width": 32},
}
ENDLESS = LONG | {"max_steps": 9000, "entropy_bound": 1e-9}
"""It lasts until somebody ends it, on the quickest machine too."""
SHORT: dict[str, Any] = {"messages": USER, "seed": 7}
PATH = "/v1/chat/completions"
SCOPE = {"type": "http", "method": "POST"}
WAITING = b": waiting\n\n"


def get(url: str) -> httpx2.Response:
    return httpx2.get(url, timeout=100)


def nothing_is_left(at: Inside) -> bool:
    """A client has its answer a moment before the server's thread has put away what it took."""
    loop = at.engine.loop
    return at.service.under_way == loop.num_bytes == 0 and not loop.scheduler.running


def so_many(at: Inside, answers: int) -> bool:
    return at.service.under_way == answers


def raw(at: str, body: dict[str, Any], path: str = PATH) -> socket.socket:
    """A request by hand, so that nothing reads the answer."""
    host, port = at.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    made.connect((host, int(port)))
    head = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    made.sendall("\r\n".join([*head, f"Content-Length: {len(content)}", "", ""]).encode() + content)
    return made


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_rows_within_a_step(served: Inside, stream: bool) -> None:
    loop = served.engine.loop
    client = raw(served.url, ENDLESS | {"stream": stream})
    assert eventually(lambda: len(loop.scheduler.running) == 1)
    assert eventually(lambda: loop.forwards > 0 and loop.num_bytes > 0)
    client.close()
    assert eventually(functools.partial(nothing_is_left, served)), "rows are still held"
    loop.check()


def test_a_gap_is_given_up_when_its_editor_has_gone_on(served: Inside) -> None:
    body = {"prompt": "record\nSend", "suffix": "melu", "max_tokens": 24, "max_steps": 5000, "entropy_bound": 1e-9}
    loop = served.engine.loop
    editor = raw(served.url, body, "/v1/completions")
    assert eventually(lambda: len(loop.scheduler.running) > 0)
    editor.close()
    assert eventually(lambda: not loop.scheduler.running and not loop.scheduler.waiting)
    assert eventually(lambda: served.service.under_way == 0)
    left = b'redraft_requests_total{path="/v1/completions",status="499"} 1.0'
    assert eventually(lambda: left in served.service.metrics.text()), "a failure of the engine, where nothing failed"


def test_a_reader_that_does_not_read_is_dropped_and_hurts_nobody(nano: Engine) -> None:
    sink = io.StringIO()
    for at in inside(nano, Settings(limits=ServerLimits(stall_sec=0.3)), Log(sink), send_buffer=4096):
        slow = raw(
            at.url,
            ENDLESS | {"stream": True, "canvas": {"stream": True, "width": 32}, "logprobs": True, "top_logprobs": 20},
        )
        reported = httpx2.post(at.url + PATH, json=SHORT, timeout=100).json()
        assert reported["choices"][0]["message"]["content"] == ANSWER
        assert eventually(functools.partial(nothing_is_left, at))
        slow.close()
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    (gone,) = (line for line in lines if line.get("gone"))
    assert gone["tokens"] < 900


def test_a_quiet_stream_has_a_comment_again_and_again() -> None:
    """Not only where a stalled reader would be looked for next."""

    async def heard() -> int:
        comments, enough = list[bytes](), asyncio.Event()

        async def chunks() -> AsyncGenerator[dict[str, Any], None]:
            await enough.wait()
            yield {"a": 1}

        async def send(message: Any) -> None:
            comments.extend([WAITING] if message.get("body") == WAITING else [])
            if len(comments) == 3:
                enough.set()

        async def receive() -> Any:
            await asyncio.Event().wait()

        stream = EventStream(chunks(), limits=ServerLimits(stall_sec=1000.0, quiet_sec=0.02))
        await asyncio.wait_for(stream(SCOPE, receive, send), 20)
        return len(comments)

    assert asyncio.run(heard()) >= 3


def test_a_stream_opens_behind_its_first_chunk_or_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for an engine that is busy has comments in the meantime, and a mistake a status."""
    monkeypatch.setattr("redraft.server.http.sse.BEGIN_SEC", 0.05)
    ended = list[str]()

    async def chunks(waits: float, fails: bool = False) -> AsyncGenerator[dict[str, Any], None]:
        try:
            await asyncio.sleep(waits)
            if fails:
                raise ValueError("wrong")
            yield {"a": 1}
            yield {"a": 2}
        finally:
            ended.append("ended")

    async def tried() -> None:
        for waits in (0.0, 0.3):
            assert [one async for one in await begun_stream(chunks(waits))] == [{"a": 1}, {"a": 2}]
        with pytest.raises(ValueError, match="wrong"):
            await begun_stream(chunks(0.0, fails=True))
        for waits in (0.0, 60.0):
            left = await asyncio.wait_for(begun_stream(chunks(waits)), 10)
            reading = asyncio.ensure_future(anext(left))
            await asyncio.sleep(0.05)
            reading.cancel()
            await asyncio.wait({reading})
            await left.aclose()
        late = await begun_stream(chunks(0.3, fails=True))
        with pytest.raises(ValueError, match="wrong"):
            await anext(late)

    asyncio.run(tried())
    assert len(ended) == 6


def test_a_fault_of_ours_within_a_stream_is_its_last_event(nano: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = io.StringIO()
    monkeypatch.setattr(AnswerStream, "__anext__", AsyncMock(side_effect=ValueError("nobody foresaw this")))
    for at in inside(nano, Settings(), Log(sink)):
        reported = httpx2.post(at.url + PATH, json=SHORT | {"stream": True}, timeout=100).text
        assert '"internal_error"' in reported
        assert "foresaw" not in reported
        assert reported.endswith("data: [DONE]\n\n")
        assert eventually(functools.partial(nothing_is_left, at))
    assert json.loads(sink.getvalue())["error"] == "ValueError"


def test_a_forward_that_fails_ends_its_requests_with_an_error_and_the_server_goes_on(
    nano: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, left = Runner.run, [1]

    def fail_once(self: Runner, *given: Any) -> Any:
        if left and nano.loop.forwards:
            left.pop()
            raise MemoryError("no room for the logits of /home/somebody")
        return run(self, *given)

    sink = io.StringIO()
    for at in inside(nano, Settings(), Log(sink)):
        monkeypatch.setattr(Runner, "run", fail_once)
        reported = httpx2.post(at.url + PATH, json=SHORT, timeout=100)
        assert (reported.status_code, reported.json()["error"]["code"]) == (500, "engine_failed")
        assert "somebody" not in reported.text
        left.append(1)
        stream = httpx2.post(at.url + PATH, json=SHORT | {"stream": True}, timeout=100).text
        assert '"engine_failed"' in stream
        assert "somebody" not in stream
        assert stream.endswith("data: [DONE]\n\n")
        assert httpx2.post(at.url + PATH, json=SHORT, timeout=100).json()["choices"][0]["message"]["content"] == ANSWER
        assert eventually(functools.partial(nothing_is_left, at))
        assert b'redraft_errors_total{code="engine_failed"} 2.0' in at.service.metrics.text()
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert [line["kind"] for line in lines if line["event"] == "failure"] == ["MemoryError"]
    assert [line["error"] for line in lines if "error" in line] == ["MemoryError"]


TURNS = SHORT["messages"]
HOLE = {"segments": [{"text": "a"}, {"hole": {}}, {"text": "b"}]}
REGION = [{"role": "user", "content": "<|code_to_edit|>a<|/code_to_edit|>"}]
ASKED = {"type": "predicate", "instructions": "Is it?"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": TURNS, "logprobs": True}),
        ("chat/completions", {"messages": TURNS, "stream": True, "canvas": {"stream": True}}),
        ("chat/completions", {"messages": TURNS, "structured_outputs": {"choice": ["a", "b"]}}),
        ("completions", {"prompt": "record", "echo": True, "logprobs": 2, "max_tokens": 0}),
        ("completions", {"prompt": "record", "logprobs": 2, "canvas": {"causal": True}}),
        ("canvas", {"messages": TURNS, "stream": True}),
        ("canvas", HOLE | {"stream": True}),
        ("canvas", HOLE),
        ("fim/completions", {"prompt": "a", "suffix": "b"}),
        ("edit/completions", {"messages": REGION}),
        ("decisions", {"input": "a", "questions": [ASKED]}),
        ("decisions", {"input": "a", "questions": [ASKED, ASKED]}),
    ],
)
def test_nan_is_an_error_and_never_in_an_answer(
    served: Inside, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    """JSON has no NaN: drafts, probabilities and log-probabilities of a network that overflows were null."""
    logits = DiffusionGemma.logits
    monkeypatch.setattr(DiffusionGemma, "logits", lambda *asked: logits(*asked) * float("nan"))
    reported = httpx2.post(f"{served.base}/{path}", json=body, timeout=100)
    assert reported.status_code == (200 if body.get("stream") else 500)
    assert '"engine_failed"' in reported.text
    assert "overflow to NaN" in reported.text
    assert '"draft"' not in reported.text
    assert '"positions"' not in reported.text


def test_a_full_queue_is_reported_with_the_time_to_come_again(nano: Engine) -> None:
    for at in inside(nano, Settings(limits=ServerLimits(in_flight=4))):
        clients = [raw(at.url, ENDLESS | {"stream": i % 2 == 0}) for i in range(4)]
        assert eventually(functools.partial(so_many, at, 4))
        reported = httpx2.post(at.url + PATH, json=SHORT, timeout=100)
        assert (reported.status_code, reported.json()["error"]["code"]) == (503, "queue_full")
        assert int(reported.headers["retry-after"]) > 0
        clients.pop().close()
        assert eventually(functools.partial(so_many, at, 3))
        assert httpx2.post(at.url + PATH, json=SHORT, timeout=100).status_code == 200
        for client in clients:
            client.close()
        assert eventually(functools.partial(nothing_is_left, at))


@pytest.mark.slow
def test_term_lets_answers_finish_and_refuses_new_ones() -> None:
    """The answer lasts as long as its deadline, so that there is time for all of this while it is written."""
    process = start("--quiet", "--drain", "100")
    found: list[httpx2.Response] = []
    body = ENDLESS | {"seed": 1, "deadline_ms": 8000.0}
    asking = threading.Thread(target=lambda: found.append(httpx2.post(process.url + PATH, json=body, timeout=100)))
    asking.start()
    assert eventually(lambda: "redraft_running_requests 1.0" in get(process.url + "/metrics").text)
    process.popen.send_signal(signal.SIGTERM)
    assert eventually(lambda: get(process.url + "/health").status_code == 503)
    reported = httpx2.post(process.url + PATH, json=SHORT, timeout=100)
    assert (reported.status_code, reported.json()["error"]["code"]) == (503, "draining")
    assert int(reported.headers["retry-after"]) > 0
    asking.join(100)
    assert found[0].status_code == 200
    (choice,) = found[0].json()["choices"]
    assert choice["canvas"]["finish"] == "deadline"
    assert choice["message"]["content"]
    assert ended(process) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP])
def test_streams_that_a_signal_cuts_off_say_so(kind: signal.Signals) -> None:
    """They ended as if the network had failed: the library of the streams ended them without a word."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup, whose children ignore it
    process = start("--quiet", "--drain", "0.7")
    signal.signal(signal.SIGHUP, before)
    body = ENDLESS | {"stream": True}
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(httpx2.post, process.url + PATH, json=body | {"seed": i}, timeout=100) for i in range(3)]
        assert eventually(lambda: "redraft_running_requests 3.0" in get(process.url + "/metrics").text)
        process.popen.send_signal(kind)
        for one in asked:
            assert '"code":"draining"' in one.result(100).text
    assert ended(process) == 0


@pytest.mark.slow
def test_kill_under_load_leaves_a_port_that_can_be_had_again_and_a_second_term_ends_it() -> None:
    first = start("--quiet")
    clients = [raw(first.url, ENDLESS | {"stream": i % 2 == 0, "seed": i}) for i in range(8)]
    assert eventually(lambda: "redraft_running_requests 8.0" in get(first.url + "/metrics").text)
    first.popen.kill()
    assert ended(first) < 0
    for client in clients:
        client.close()
    again = start("--quiet", "--port", first.url.rpartition(":")[2], "--drain", "900")
    assert again.url == first.url
    assert httpx2.post(again.url + PATH, json=SHORT, timeout=100).json()["choices"][0]["message"]["content"] == ANSWER
    client = raw(again.url, ENDLESS)
    assert eventually(lambda: "redraft_running_requests 1.0" in get(again.url + "/metrics").text)
    again.popen.send_signal(signal.SIGTERM)
    assert eventually(lambda: get(again.url + "/health").status_code == 503)
    again.popen.send_signal(signal.SIGTERM)
    assert ended(again) == 0
    client.close()


def test_a_term_ends_at_once_what_has_nothing_to_do(nano: Engine) -> None:
    service = Service(Settings())
    service.ready(nano)
    server = Server(uvicorn.Config(create_app(service, Log(None))), service)
    server.handle_exit(signal.SIGTERM, None)
    assert eventually(lambda: server.should_exit, 5)
    assert not server.force_exit, "a reply may still be on its way"


def test_a_term_waits_for_what_is_still_being_read(nano: Engine) -> None:
    """A request whose image was being decoded got an internal error, in plain text."""
    service, held = Service(Settings()), threading.Event()
    service.ready(nano)
    server = Server(uvicorn.Config(create_app(service, Log(None))), service)

    async def run() -> None:
        reading = asyncio.ensure_future(service.on_thread(patient(), held.wait))
        await asyncio.sleep(0.05)
        server.handle_exit(signal.SIGTERM, None)
        assert (service.phase, server.should_exit) == ("draining", False)
        held.set()
        await reading

    asyncio.run(run())
    assert eventually(lambda: server.should_exit)


def test_a_term_while_it_loads_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It printed an internal error: the engine that was to stop had not been loaded."""
    monkeypatch.setattr("redraft.server.http.process.run", lambda *_: None)
    serve(Service(Settings()), pytest.fail, host="127.0.0.1", port=0, log=Log(None), ready=lambda *_: None)


def test_a_term_within_a_forward_of_loading_is_no_abort() -> None:
    """Python ended while torch still ran on the thread that loads: "terminate called", and 134 for the code."""
    script = (
        "import signal, torch\nfrom redraft.server.http.process import *\n"
        "from redraft.server.http.service import Settings\n"
        "def load(_):\n"
        "    while not callable(signal.getsignal(signal.SIGTERM)): pass\n"
        "    print('loading', flush=True)\n"
        "    while True: torch.ones(900, 900) @ torch.ones(900, 900)\n"
        "serve(Service(Settings()), load, host='127.0.0.1', port=0, log=Log(None), ready=print)"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def test_the_time_of_an_answer_is_bounded_and_what_there_is_is_returned(nano: Engine) -> None:
    hard = ENDLESS | {"seed": 1}
    for at in inside(nano, Settings(limits=ServerLimits(request_sec=1.5, quiet_sec=0.1))):
        began = time.monotonic()
        (choice,) = httpx2.post(at.url + PATH, json=hard | {"deadline_ms": 200_000.0}, timeout=100).json()["choices"]
        assert 1.4 < time.monotonic() - began < 100
        assert (choice["finish_reason"], choice["canvas"]["finish"]) == ("length", "deadline")
        assert choice["message"]["content"]
        stream = httpx2.post(at.url + PATH, json=hard | {"stream": True}, timeout=100).text
        assert ": waiting\n\n" in stream, "a while without text is reported"
        assert ": ping" not in stream
        late = SHORT | {"structured_outputs": {"regex": "[a-z]{40}"}, "deadline_ms": 0.01, "max_tokens": 60}
        reported = httpx2.post(at.url + PATH, json=late, timeout=100)
        assert (reported.status_code, reported.json()["error"]["code"]) == (504, "deadline")


def test_a_seed_repeats_an_answer_whoever_else_is_served(served: Inside) -> None:
    body = {"messages": [{"role": "user", "content": "go on"}], "seed": 11, "max_tokens": 24, "canvas": {"width": 32}}
    ask = functools.partial(httpx2.post, served.url + PATH, timeout=100)
    alone = ask(json=body).json()["choices"][0]["message"]["content"]
    with ThreadPoolExecutor(6) as pool:
        others = [pool.submit(ask, json=LONG | {"max_tokens": 64, "seed": i}) for i in range(5)]
        same = pool.submit(ask, json=body)
        assert same.result().json()["choices"][0]["message"]["content"] == alone
        assert {other.result().status_code for other in others} == {200}


def test_a_constraint_that_waits_for_others_has_the_time_of_its_answer(nano: Engine) -> None:
    """Eight slow ones at once, of one second each, made the last wait for eight before its answer began."""
    body = SHORT | {"structured_outputs": {"regex": "waits?|its|turn"}}
    for at in inside(nano, Settings(limits=ServerLimits(request_sec=0.5))):
        with limits.TURNS.turn("another's"):
            began = time.monotonic()
            reply = httpx2.post(at.url + PATH, json=body, timeout=100)
            assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline")
            assert time.monotonic() - began < 20
    for at in inside(nano, Settings()):
        assert httpx2.post(at.url + PATH, json=body, timeout=100).status_code == 200


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries give memory back themselves")
def test_memory_that_is_not_used_goes_back_to_the_system() -> None:
    """200 MB of freed pieces below one that is still used stayed with the process."""
    code = (
        "from redraft.measure.process_memory import resident_mib as now\n"
        "from redraft.server.http.process import trim\n"
        "small = now()\npieces = [bytes([1]) * 100_000 for _ in range(2000)]\nkept = pieces.pop()\ndel pieces\n"
        "full = now()\ntrim()\nprint(full - small > 150, now() - small < 50)"
    )
    done = python(code)
    assert done.stdout.split() == ["True", "True"], done
