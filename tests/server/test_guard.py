"""Who may come in, and how much of what: keys, hosts, origins, sizes, and what every reply carries."""

from __future__ import annotations

import asyncio
import errno
import gc
import io
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest
from starlette.requests import Request
from tests.helpers import Shell
from tests.server.conftest import ANSWER, USER, Inside, eventually, inside, patient

from redraft.__main__ import main
from redraft.errors import RequestError
from redraft.operations.engine import Engine
from redraft.server.http import limits as bounds
from redraft.server.http import middleware, process
from redraft.server.http.app import create_app
from redraft.server.http.connections import _Guarded
from redraft.server.http.errors import ApiError
from redraft.server.http.keys import digest_of, read_keys
from redraft.server.http.limits import ServerLimits
from redraft.server.http.log import LibraryLines, Log
from redraft.server.http.service import Service
from redraft.server.http.settings import Settings
from redraft.server.http.sse import DONE

Patch = pytest.MonkeyPatch
MESSAGES = {"messages": USER}
PATH = "/v1/chat/completions"
SCOPE: Any = {
    "type": "http",
    "method": "POST",
    "path": "/",
    "query_string": b"",
    "headers": [(b"host", b"localhost")],
}


@pytest.fixture
def guarded(nano: Engine) -> Iterator[Inside]:
    keys = (digest_of("first-key"), digest_of("second-key"), digest_of("schlüssel"))
    limits = ServerLimits(body_bytes=2000, per_key=2, in_flight=3, choices=3)
    origins = ("https://app.example",)
    yield from inside(nano, Settings(keys=keys, limits=limits, origins=origins))


def ask(at: Inside, path: str = PATH, **headers: str) -> httpx2.Response:
    return httpx2.post(at.url + path, json=MESSAGES, headers=headers, timeout=100)


@pytest.mark.parametrize("key", ["first-key", "second-key"])
def test_each_key_opens(guarded: Inside, key: str) -> None:
    assert ask(guarded, authorization=f"Bearer {key}").status_code == 200
    assert ask(guarded, **{"x-api-key": key}).status_code == 200


@pytest.mark.parametrize("form", ["utf-8", "latin-1"])
def test_a_key_of_other_letters_opens_too(guarded: Inside, form: str) -> None:
    """curl sends what the terminal has, Python's clients Latin-1."""
    headers = {"authorization": "Bearer schlüssel".encode(form)}
    assert httpx2.get(guarded.url + "/v1/models", headers=headers, timeout=100).status_code == 200


@pytest.mark.parametrize("value", ["", "Bearer wrong", "Basic first-key", "Bearer first-ke", "Bearer first-key2"])
def test_nothing_else_does(guarded: Inside, value: str) -> None:
    reported = ask(guarded, authorization=value)
    assert reported.status_code == 401
    assert reported.json()["error"]["code"] == "invalid_api_key"
    assert reported.headers["www-authenticate"] == "Bearer"


def test_probes_need_no_key_and_figures_do(guarded: Inside) -> None:
    assert httpx2.get(guarded.url + "/health", timeout=100).status_code == 200
    assert httpx2.get(guarded.url + "/live", timeout=100).status_code == 200
    assert httpx2.get(guarded.url + "/metrics", timeout=100).status_code == 401
    assert httpx2.get(guarded.url + "/v1/models", timeout=100).status_code == 401


@pytest.mark.parametrize("path", ["/health", "/live", "/v1/models", "/", "/page/main.js", "/metrics", "/nowhere", PATH])
def test_head_is_answered_as_get_without_a_body(served: Inside, path: str) -> None:
    """Balancers and `curl -I` ask so."""
    got, head = (httpx2.request(method, served.url + path, timeout=100) for method in ("GET", "HEAD"))
    assert (head.status_code, head.headers["content-type"]) == (got.status_code, got.headers["content-type"])
    assert head.headers.get("content-length") == got.headers.get("content-length") or path == "/metrics"


def test_a_page_elsewhere_gets_nothing(guarded: Inside) -> None:
    key = "Bearer first-key"
    assert ask(guarded, authorization=key, origin="https://evil.example").status_code == 403
    assert ask(guarded, authorization=key, origin=guarded.url).status_code == 200
    reported = ask(guarded, authorization=key, origin="https://app.example")
    assert reported.status_code == 200
    assert reported.headers["access-control-allow-origin"] == "https://app.example"


def test_a_preflight_is_answered_for_allowed_pages_only(guarded: Inside) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, content-type"}
    reported = httpx2.options(guarded.url + PATH, headers=asked | {"origin": "https://app.example"})
    assert reported.status_code == 200
    assert reported.headers["access-control-allow-headers"] == "authorization, content-type"
    reported = httpx2.options(guarded.url + PATH, headers=asked | {"origin": "https://evil.example"})
    assert (reported.status_code, reported.headers.get("access-control-allow-origin")) == (400, None)


def test_a_name_rebound_to_this_machine_is_not_ours(guarded: Inside) -> None:
    assert ask(guarded, authorization="Bearer first-key", host="evil.example").status_code == 403
    for host in ("LocalHost:1", "localhost:"):
        assert ask(guarded, authorization="Bearer first-key", host=host).status_code == 200


def test_too_large_a_body_is_refused_with_and_without_a_length(guarded: Inside) -> None:
    headers = {"authorization": "Bearer first-key", "content-type": "application/json"}
    big = json.dumps({"messages": [{"role": "user", "content": "x" * 3000}]}).encode()
    for content in (big, iter([big[:100], big[100:]])):
        reported = httpx2.post(guarded.url + PATH, content=content, headers=headers, timeout=100)
        assert (reported.status_code, reported.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(("given", "callers"), [(("first-key", "second-key", "first-key"), 2), ((None, None), 2)])
def test_requests_of_one_key_take_turns_as_one_caller(
    nano: Engine, guarded: Inside, served: Inside, given: tuple[str | None, ...], callers: int, monkeypatch: Patch
) -> None:
    """Otherwise the key with the most requests has the most turns. Without keys each request is a caller of its own."""
    seen, add = list[object](), nano.loop.scheduler.add

    def noted(sequence: Any) -> None:
        seen.append(sequence.caller)
        add(sequence)

    monkeypatch.setattr(nano.loop.scheduler, "add", noted)
    for key in given:
        assert (ask(served) if key is None else ask(guarded, authorization=f"Bearer {key}")).status_code == 200
    assert len(seen) == len(given)
    assert len(set(seen)) == callers


def test_limits_per_key_and_in_all_say_when_to_come_again(guarded: Inside) -> None:
    service = guarded.service
    with service.admission.enter(2, 0):
        reported = ask(guarded, authorization="Bearer first-key")
        assert reported.status_code == 429
        assert int(reported.headers["retry-after"]) >= 1
        assert reported.json()["error"]["type"] == "rate_limit_error"
        assert ask(guarded, authorization="Bearer second-key").status_code == 200
        with service.admission.enter(1, 1):
            reported = ask(guarded, authorization="Bearer second-key")
            assert (reported.status_code, "retry-after" in reported.headers) == (503, True)
    assert eventually(lambda: service.under_way == 0)
    assert ask(guarded, authorization="Bearer first-key").status_code == 200


def test_refusals_of_one_caller_wait_for_each_other(monkeypatch: Patch) -> None:
    """Connections that send nothing but mistakes took half of what an answer of another key needed."""
    clock = [1000.0]
    monkeypatch.setattr(bounds, "time", Mock(monotonic=lambda: clock[0]))
    refusals = bounds.Refusals()
    waits = [refusals.wait_sec("one") for _ in range(70)]
    assert waits[:50] == [0.0] * 50
    assert waits[50:] == pytest.approx([i / 50 for i in range(1, 21)])
    assert refusals.wait_sec("other") == 0.0
    assert max(refusals.wait_sec("one") for _ in range(500)) == 1.0
    clock[0] += 2
    assert refusals.wait_sec("one") == 0.0


def test_a_refusal_that_waits_gives_way_and_an_answer_does_not_wait(guarded: Inside, monkeypatch: Patch) -> None:
    counted, states, seen = list[object](), list[Any](), list[Any]()

    def noted(self: object, caller: object) -> float:
        counted.append(caller)
        return 0.01

    async def slept(seconds: float) -> None:
        states.append((seconds, seen[-1].state[bounds.WAITS]))

    class Noted(middleware._Seen):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            seen.append(self)

    monkeypatch.setattr(middleware, "_Seen", Noted)
    monkeypatch.setattr(bounds.Refusals, "wait_sec", noted)
    monkeypatch.setattr(middleware, "asyncio", Mock(wraps=asyncio, sleep=slept, CancelledError=asyncio.CancelledError))
    keys = ["Bearer other", "Bearer first-key", "Bearer other"]
    assert [ask(guarded, authorization=key).status_code for key in keys] == [401, 200, 401]
    assert counted == ["127.0.0.1"] * 2
    assert states == [(0.01, True)] * 2
    assert [one.state.get(bounds.WAITS) for one in seen] == [False, None, False]
    one = _Guarded.__new__(_Guarded)
    one.cycle = Mock(response_complete=False, more_body=False)
    for waits in (False, True):
        one.scope = {"state": {bounds.WAITS: waits}}
        assert one.gives_way is waits
        assert one.is_answered, "or it would be late, long after its head"


def test_every_reply_is_safe_and_numbered(served: Inside) -> None:
    reported = httpx2.get(served.url + "/v1/models", headers={"x-request-id": "mine-1"}, timeout=100)
    assert reported.headers["x-request-id"] == "mine-1"
    assert reported.headers["x-content-type-options"] == "nosniff"
    assert "script-src 'self'" in reported.headers["content-security-policy"]
    bad = httpx2.get(served.url + "/v1/models", headers={"x-request-id": "<script>"}, timeout=100)
    assert bad.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("DELETE", "/v1/models", 405), ("GET", PATH, 405), ("POST", "/v1/embeddings", 404)],
)
def test_what_is_not_there_is_said_in_the_same_form(served: Inside, method: str, path: str, status: int) -> None:
    reported = httpx2.request(method, served.url + path, timeout=100)
    assert reported.status_code == status
    assert set(reported.json()["error"]) == {"message", "type", "param", "code"}
    assert reported.headers.get("allow") == ({"DELETE": "GET", "GET": "POST"}[method] if status == 405 else None)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"stop": 5}, "stop"),  # was stop.str
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"mesages": []}, "mesages"),  # the error named missing messages
        ({"deadline_ms": 0}, "deadline_ms"),  # was deadline_sec, in seconds
        ({"max_steps": 0}, "max_steps"),  # was steps
    ],
)
def test_a_wrong_field_is_named_as_its_sender_wrote_it(served: Inside, wrong: dict[str, object], param: str) -> None:
    body = wrong if "mesages" in wrong else {"messages": [{"role": "user", "content": "x"}]} | wrong
    error = httpx2.post(served.url + PATH, json=body, timeout=100).json()["error"]
    assert (error["param"], error["message"].split()[0]) == (param, param)


def test_a_mistake_of_ours_is_reported_as_one_and_logged(nano: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = io.StringIO()
    for at in inside(nano, Settings(), Log(sink)):
        with monkeypatch.context() as patched:
            patched.setattr(at.service, "check_name", Mock(side_effect=ZeroDivisionError))
            reported = ask(at)
        assert (reported.status_code, reported.json()["error"]["code"]) == (500, "internal_error")
        assert ask(at).status_code == 200
    kinds = [line.get("kind") for line in map(json.loads, sink.getvalue().splitlines()) if line["event"] == "failure"]
    assert kinds == ["ZeroDivisionError"]


def test_the_log_has_no_text_of_anybody(nano: Engine) -> None:
    sink = io.StringIO()
    for at in inside(nano, Settings(), Log(sink)):
        assert ask(at).json()["choices"][0]["message"]["content"] == ANSWER
    line = json.loads(sink.getvalue().splitlines()[0])
    assert (line["path"], line["status"], line["tokens"]) == (PATH, 200, 18)
    assert "Karomi" not in sink.getvalue()


def test_the_log_has_prompts_only_if_asked(nano: Engine) -> None:
    sink = io.StringIO()
    for at in inside(nano, Settings(log_prompts=True), Log(sink)):
        ask(at)
        httpx2.post(at.url + "/v1/completions", json={"prompt": "ab", "suffix": "cd", "max_tokens": 2}, timeout=100)
    one, two = (json.loads(line) for line in sink.getvalue().splitlines())
    assert "Karomi" in one["prompts"][0]
    assert two["prompts"] == ["ab", "cd"]


def test_metrics_count_what_was_served(served: Inside) -> None:
    ask(served)
    httpx2.post(served.url + PATH, json={"messages": []}, timeout=100)
    page = httpx2.get(served.url + "/metrics", timeout=100).text
    assert f'redraft_requests_total{{path="{PATH}",status="200"}} 1.0' in page
    assert f'redraft_requests_total{{path="{PATH}",status="400"}} 1.0' in page
    assert "redraft_tokens_total 18.0" in page
    assert "redraft_steps_per_block_count 1.0" in page
    assert "redraft_running_requests 0.0" in page


def test_keys_without_end_are_refused() -> None:
    with pytest.raises(RequestError, match="--api-key-file /dev/zero has over 1048576 bytes"):
        read_keys(Path("/dev/zero"), None)


def test_a_mark_of_utf_8_is_no_part_of_a_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"\xef\xbb\xbffirst-key\r\n")
    assert read_keys(tmp_path / "keys", None) == (digest_of("first-key"),)


@pytest.mark.parametrize(
    ("text", "said"), [("", "none was given"), ("short\n", "fewer than 8"), (None, "cannot be read")]
)
def test_bad_keys_are_refused(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
    with pytest.raises(RequestError, match=said):
        read_keys(file, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--drain", "-1"], "--drain is -1; it must be above 0 (seconds)"),
        (["--max-seconds", "0"], "--max-seconds is 0; it must be above 0 (seconds)"),
        (["--max-seconds", "nan"], "--max-seconds is nan; it must be above 0 (seconds)"),
        (["--per-key", "0"], "--per-key is 0; it must be at least 1"),
        (["--max-waiting", "-3"], "--max-waiting is -3; it must be at least 1"),
        (["--max-running", "0"], "--max-running is 0; it must be at least 1"),
        (["--port", "99999"], "--port is 99999; it must be from 0 to 65535"),
        (["--cors-origin", "app.example"], "--cors-origin is 'app.example'; it must be as browsers send it"),
        (
            ["--image-host", "http://a.example"],
            "--image-host is 'http://a.example'; it must be a name, like img.example",
        ),
        (["--name", " "], "--name is empty; give a name, or leave it out"),
        (["--alias", ""], "--alias is empty; give a name, or leave it out"),
        (["--api-key-file", "/"], "--api-key-file / cannot be read: Is a directory; give one with a key a line"),
        (["--host", "0.0.0.0"], "--host is 0.0.0.0 and there are no API keys; use --api-key-file, or --insecure"),
        (["--host", "192.0.2.1", "--insecure", "--log-file", os.devnull], "give --host an address of this machine"),
        (["--host", f"{'a' * 300}.example", "--insecure", "--log-file", os.devnull], "an address of this machine"),
        (["--log-file", "/none/log"], "--log-file /none/log cannot be written: No such file or directory"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_settings_that_no_server_can_have_are_one_line(shell: Shell, words: list[str], said: str) -> None:
    reported = shell(["serve", "--port", "0", *words], 2).err
    assert reported.count("\n") == 1
    assert said in reported


def test_a_port_that_is_taken_is_named_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port), "--log-file", os.devnull]) == 2
    said = f"cannot listen on 127.0.0.1 port {port}: another program has that port"
    assert capsys.readouterr().err == f"redraft: {said}; give another --port, or --port 0 for a free one\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_log_is_for_people_on_a_terminal_and_for_programs_elsewhere() -> None:
    reported = {"id": "req-1", "method": "POST", "path": PATH, "status": 200, "ms": 12.5, "tokens": 18, "gone": False}
    for sink in (Terminal(), io.StringIO()):
        Log(sink, lambda: 1.0e9).write("request", reported)
        line = sink.getvalue()
        if isinstance(sink, Terminal):
            assert re.fullmatch(rf"\d\d:\d\d:\d\d  200 POST {PATH}  12\.5 ms  tokens=18\n", line)
        else:
            assert json.loads(line) == {"time": 1.0e9, "event": "request"} | {k: v for k, v in reported.items() if v}


class FullDisk(io.StringIO):
    """Takes no line as long as it is full."""

    full = True

    def write(self, text: str, /) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_a_log_that_cannot_be_written_loses_lines_and_no_request(nano: Engine) -> None:
    sink = FullDisk()
    log = Log(sink)
    for at in inside(nano, Settings(), log):
        assert [httpx2.get(f"{at.url}/live").status_code for _ in range(3)] == [200] * 3
        assert eventually(lambda: log.lost == 3, 10)
        sink.full = False
        httpx2.get(f"{at.url}/live")
        assert eventually(lambda: "\n" in sink.getvalue(), 10)
    assert json.loads(sink.getvalue().splitlines()[0])["lost"] == 3


def test_a_server_that_loads_is_live_and_not_ready() -> None:
    async def asked() -> None:
        transport = httpx2.ASGITransport(create_app(Service(Settings()), Log(None)))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            assert [(await http.get(path)).status_code for path in ("/live", "/health", "/ready")] == [200, 503, 503]
            reply = await http.post(PATH, json={"messages": [{"role": "user", "content": "a"}]})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "loading")
        assert int(reply.headers["retry-after"]) > 0

    asyncio.run(asked())


@pytest.mark.parametrize(("limits", "addresses"), [((3000, 9000), "abc"), ((9000, 3000), "aaa")], ids=["all", "one"])
def test_bodies_under_way_have_a_bound_together(
    monkeypatch: Patch, limits: tuple[int, int], addresses: Sequence[str]
) -> None:
    """Of each request there is a bound of its own; 1,536 connections may hold as many."""
    for name, most in zip(("BODIES", "BODIES_OF_ONE"), limits, strict=True):
        monkeypatch.setattr(bounds, name, most)
    monkeypatch.setattr(bounds, "LONG_BODY", 1000)
    held = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await held.wait()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"a" * 1500}

    async def run() -> list[Any]:
        guard = middleware.Middleware(app, Service(Settings(limits=ServerLimits(body_bytes=2000))), Log(None))
        asked = [asyncio.ensure_future(guard({**SCOPE, "client": (one, 1)}, receive, Mock())) for one in addresses]
        other = asyncio.ensure_future(guard({**SCOPE, "client": ("d", 1)}, receive, Mock()))
        await asyncio.wait([*asked, other], timeout=0.2)
        held.set()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert (await asyncio.gather(other, return_exceptions=True) == [None]) is (addresses == "aaa")
        await guard({**SCOPE, "client": ("a", 1)}, receive, Mock())  # their room is free again: it is not refused
        return outcomes

    *others, refusal = asyncio.run(run())
    assert others == [None, None]
    assert isinstance(refusal, ApiError)
    assert (refusal.status, refusal.retry_sec) == (503, 1)


@pytest.mark.parametrize("streams", [False, True])
def test_what_the_end_of_the_server_cuts_off_says_so(streams: bool) -> None:
    """A stream ended in the middle, as if the network had failed."""
    sent = list[Any]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if streams:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        task = asyncio.ensure_future(middleware.Middleware(app, Service(Settings()), Log(None))(SCOPE, Mock(), send))
        await asyncio.sleep(0.05)
        task.cancel()
        await task

    asyncio.run(run())
    assert sent[0]["status"] == (200 if streams else 503)
    assert not sent[1].get("more_body")
    said = sent[1]["body"].removeprefix(b"data: ").removesuffix(DONE if streams else b"")
    assert json.loads(said)["error"]["code"] == "draining"
    assert sent[1]["body"].endswith(DONE) == streams


def test_a_body_that_never_ends_does_not_keep_a_server_that_is_being_ended() -> None:
    """It kept it for all of --drain, 30 s."""
    sent, service = list[Any](), Service(Settings())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with pytest.raises(ApiError) as refused:
            await receive()
        sent.append(refused.value)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def run() -> None:
        task = asyncio.ensure_future(middleware.Middleware(app, service, Log(None))(SCOPE, receive, Mock()))
        await asyncio.sleep(0.05)
        service.drain()
        await asyncio.wait_for(task, 5)

    asyncio.run(run())
    assert (sent[0].status, sent[0].code) == (503, "draining")


def test_half_of_the_threads_are_the_most_of_one_caller() -> None:
    async def run() -> None:
        service, held = Service(Settings(limits=ServerLimits(in_flight=2))), threading.Event()
        asked = [Request({**SCOPE, "client": (one, 1), "state": {}}, asyncio.Event().wait) for one in "aab"]
        running = [asyncio.ensure_future(service.on_thread(one, held.wait, in_turn=False)) for one in asked]
        await asyncio.sleep(0.05)
        assert service.under_way == 3
        with pytest.raises(ApiError, match="too many requests are being read"):
            await service.on_thread(asked[0], held.wait)
        held.set()
        assert await asyncio.gather(*running) == [True] * 3
        assert service.under_way == 0

    asyncio.run(run())


def test_a_refused_body_is_let_go_of_at_once(nano: Engine) -> None:
    """Its error and the calls that it came through were a circle, which held the body until the collector came by."""
    long = MESSAGES | {"messages": [*USER, {"role": "tom", "content": "a" * 10**6}]}
    for at in inside(nano, Settings()):
        httpx2.post(at.url + PATH, json=long)  # what is made once
        gc.collect()
        gc.disable()
        try:
            assert httpx2.post(at.url + PATH, json=long).status_code == 400
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            kept = [one for one in gc.garbage if isinstance(one, FrameType) and "server" in one.f_code.co_filename]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert not kept


def test_work_on_a_thread_that_comes_to_the_end_of_an_iterator_fails() -> None:
    """No future takes a StopIteration: who waited would have waited for ever, and held its room."""
    service = Service(Settings())
    with pytest.raises(RuntimeError, match="iterator"):
        asyncio.run(service.on_thread(patient(), lambda: next(iter(()))))


def test_what_libraries_say_are_lines_of_the_log() -> None:
    """A stranger could write any number of plain lines into it, and with --quiet, too."""
    sink = io.StringIO()
    record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, "Invalid %s request", ("HTTP",), None)
    LibraryLines(Log(sink, clock=lambda: 0.0)).handle(record)
    assert json.loads(sink.getvalue()) == {
        "time": 0.0,
        "event": "library",
        "name": "uvicorn.error",
        "said": "Invalid HTTP request",
    }


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("http://127.0.0.1:1/live", "/live"),
        ("HTTPS://x", "/"),
        ("/live", "/live"),
        ("/a://b", "/a://b"),
        ("://", "://"),
        ("ftp://x/live", "ftp://x/live"),
    ],
)
def test_a_target_may_have_its_server_in_front(target: str, path: str) -> None:
    """RFC 9112, 3.2.2."""
    middleware.name_path(scope := {"path": target})
    assert scope["path"] == path


def test_queries_and_cookies_are_not_taken_apart() -> None:
    """No route reads them, and for 60 KB the libraries took 90 ms of the event loop."""
    seen = list[Any]()

    async def app(scope: Any, _receive: object, _send: object) -> None:
        seen.append((scope["query_string"], dict(scope["headers"])))

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/live",
        "query_string": b"a=b&" * 15_000,
        "headers": [(b"host", b"127.0.0.1"), (b"cookie", b"a=b; " * 500)],
    }
    asyncio.run(middleware.Middleware(app, Service(Settings()), Log(None))(scope, Mock(), Mock()))
    assert seen == [(b"", {b"host": b"127.0.0.1", b"cookie": b""})]


def test_a_servers_memory_is_shaped_unless_the_environment_says_otherwise(monkeypatch: Patch) -> None:
    """By numbers of glibc's malloc.h: -8 is M_ARENA_MAX, -3 is M_MMAP_THRESHOLD."""
    library = Mock()
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(process, "_keep_trimming", lambda: None)
    for variable in ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(variable, raising=False)
    process.mind_memory()
    assert [one.args for one in library.mallopt.call_args_list] == [(-8, 2), (-3, 2**22)]
    library.mallopt.reset_mock()
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    process.mind_memory()
    assert [one.args for one in library.mallopt.call_args_list] == [(-8, 2)]
