"""Other servers: what goes over the wire, and that whatever comes back, or does not, ends in an answer or one line."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import Shell, python

from redraft.__main__ import main
from redraft.cli.backend import asking
from redraft.cli.row import answers_of
from redraft.cli.rows import Done, answer_rows
from redraft.errors import RedraftError, RequestError, RunError
from redraft.measure.remote import Backend, Remote

KEY = "sk-very-secret-0123456789"
MODELS = {"data": [{"id": "theirs"}]}
Write = Callable[[bytes], None]
Act = Callable[["Stub", Write], None]


def reply(body: object, status: str = "200 OK", *more: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = "\r\n".join([f"HTTP/1.1 {status}", f"content-length: {len(content)}", "connection: close", *more])
    return head.encode() + b"\r\n\r\n" + content


def chunk(text: str | None, finish: str | None = None) -> bytes:
    said = {"choices": [{"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": finish}]}
    return b"data: " + json.dumps(said).encode() + b"\n\n"


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 2, "steps": 7}}\n\n'
GOOD = HEAD + chunk("He") + b": waiting\n\n" + chunk("llo") + chunk(None, "stop") + USAGE + b"data: [DONE]\n\n"


@dataclass
class Stub:
    """A server that does to each request what is next on its list, and the last of it for ever. To one that asks
    whether it answers at all it does `well`, or what comes next."""

    acts: list[Act]
    well: Act | None = None
    asked: Any = field(default_factory=threading.local)  # the path and the body of the request that is answered
    models: Any = field(default_factory=lambda: MODELS)
    seen: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)

    def __enter__(self) -> Stub:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.settimeout(200)
        self.over = threading.Event()
        threading.Thread(target=self.serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.socket.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}/v1"

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.one, args=(connection,), daemon=True).start()

    def one(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as file:  # of a client that has left
            line = file.readline().decode().split()
            headers = {}
            while (header := file.readline().decode().strip()) != "":
                name, _, value = header.partition(": ")
                headers[name.lower()] = value
            raw = file.read(size := int(headers.get("content-length", 0)))
            if not line or len(raw) < size:  # it left before it had asked
                return
            if line[1].endswith("/models"):
                connection.sendall(reply(self.models))
                return
            body = json.loads(raw)
            self.asked.path, self.asked.body = line[1], body
            if body.get("max_tokens") == 1:
                (self.well or self.acts[0])(self, connection.sendall)
                return
            self.seen.append((line[1], headers, body))
            act = self.acts.pop(0) if len(self.acts) > 1 else self.acts[0]
            act(self, connection.sendall)


def says(data: bytes) -> Act:
    return lambda stub, write: write(data)


WHOLE = says(reply({"choices": [{}], "usage": None}))


def drips(stub: Stub, write: Write) -> None:
    write(HEAD)
    while not stub.over.wait(0.05):
        write(b": still here\n\n")


def drips_its_head(stub: Stub, write: Write) -> None:
    write(b"HTTP/1.1 200 OK\r\nx-slow: ")
    while not stub.over.wait(0.05):
        write(b"a")


def floods(stub: Stub, write: Write) -> None:
    write(HEAD)
    while not stub.over.is_set():
        write(b" " * 2**16)


def hears_nothing(stub: Stub, write: Write) -> None:
    stub.over.wait(200)


def ask(stub: Stub, *, seconds: float = 100.0, key: str = "", **fields: Any) -> Any:
    with asking(Backend(stub.url, key=key, seconds=seconds)) as answered:
        return answered([{"role": "user", "content": "hi"}], fields)


def test_an_answer_comes_in_pieces_and_is_counted() -> None:
    with Stub([says(GOOD)]) as stub:
        found = ask(stub, max_tokens=5, seed=3)
    assert (found.text, found.finish, found.tokens, found.steps) == ("Hello", "stop", 2, 7)
    assert 0 < found.first_sec <= found.seconds
    path, headers, body = stub.seen[0]
    assert path == "/v1/chat/completions"
    assert "authorization" not in headers
    assert body == {
        "model": "theirs",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "seed": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_flags_become_fields_of_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    with Stub([says(GOOD)]) as stub:
        words = ["generate", "hi", "--chat", "--backend", "openai", "--base-url", stub.url, "--schema", "a"]
        words += ["--max-tokens", "5", "--seed", "3", "--temperature", "0.5", "--top-p", "0.9", "--stop", "x"]
        assert main(words) == 0
    assert capsys.readouterr().out == "Hello\n"
    _, _, body = stub.seen[0]
    given = {"max_tokens": 5, "seed": 3, "temperature": 0.5, "top_p": 0.9, "stop": ["x"]}
    assert {name: body[name] for name in given} == given
    held = body["response_format"]["json_schema"]
    assert (held["strict"], list(held["schema"]["properties"])) == (True, ["a"])


@pytest.mark.parametrize("count", ["7", [1], 10**400, -5, 2.5, True])
def test_what_is_no_count_is_none(count: object) -> None:
    """Behind all its questions `eval` ended on one that it could not add up."""
    usage = {"completion_tokens": count, "steps": 3}
    data = chunk("a", "stop") + b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    with Stub([says(HEAD + data)]) as stub, asking(Backend(stub.url, model="mine")) as answered:
        found = answered("once", {})
    assert (found.tokens, found.steps) == (None, 3)
    assert Done(0, 0).after(200, {"usage": usage}).tokens == 0


def test_a_text_is_continued_by_the_other_endpoint() -> None:
    data = b'data: {"choices": [{"index": 0, "text": "abc", "finish_reason": "length"}]}\r\n\r\n'  # and no [DONE]
    with Stub([says(HEAD + data)]) as stub, asking(Backend(stub.url, model="mine")) as answered:
        found = answered("once", {})
    assert (found.text, found.finish, found.tokens, found.steps) == ("abc", "length", None, None)
    assert stub.seen[0][0] == "/v1/completions"
    assert stub.seen[0][2]["prompt"] == "once"
    assert stub.seen[0][2]["model"] == "mine"


def test_refusals_that_pass_are_tried_again() -> None:
    busy = says(reply({"error": {"message": "later"}}, "503 Busy", "retry-after: 0.01"))
    with Stub([busy, says(reply(b"", "429 Too many", "retry-after: 0")), says(GOOD)]) as stub:
        assert ask(stub).text == "Hello"
    assert len(stub.seen) == 3


SAID = {"error": {"message": f"Incorrect API key: {KEY} \x1b[31m\nin two lines", "type": "x"}}


@pytest.mark.parametrize(
    ("act", "kind", "said"),
    [
        (says(reply(SAID, "500 Broken", "retry-after: 0")), RunError, "answered 500: Incorrect API key: [the key]"),
        (says(reply(SAID, "401 No")), RequestError, "answered 401: Incorrect API key: [the key] [31m in two lines"),
        (says(reply({"error": {"message": "x" * 290 + KEY}}, "401 No")), RequestError, "x[the key"),
        (says(HEAD + chunk("He") + b'data: {"error": "bad %s"}\n\n' % KEY.encode()), RunError, "bad [the key]"),
        (says(HEAD + b'data: {"x": "%s"}\n\n' % KEY.encode()), RunError, "not of OpenAI's interface"),
        (says(HEAD + b'data: {"choices": [], "usage": 5}\n\n'), RunError, "not of OpenAI's interface"),
        (says(reply(b"<html>nope</html>", "404 Not Found")), RequestError, "answered 404: <html>nope</html>"),
        (says(reply(b"", "302 Found", "location: http://127.0.0.1:1/")), RequestError, "answered 302: nothing else"),
        (says(HEAD + chunk("He")), RunError, "ended its answer early, after 2 characters"),
        (says(HEAD), RunError, "ended its answer early, after 0 characters"),
        (says(HEAD + b"data: [DONE]\n\n"), RunError, "ended its answer early, after 0 characters"),
        (
            says(b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n" + chunk("He")),
            RunError,
            "cannot be reached or broke off",
        ),
        (says(b""), RunError, "cannot be reached or broke off"),
        (says(b"SSH-2.0-OpenSSH\r\n"), RunError, "cannot be reached or broke off"),
        (says(HEAD + b"data: {not json\n\n"), RunError, "not of OpenAI's interface"),
        (says(HEAD + b"data: [1]\n\n"), RunError, "not of OpenAI's interface"),
        (says(HEAD + b'data: {"choices": [{}]}\n\n'), RunError, "not of OpenAI's interface"),
        (says(HEAD + b'data: {"choices": 3}\n\n'), RunError, "not of OpenAI's interface"),
        (says(HEAD + b"data: " + b"[" * 100_000 + b"\n\n"), RunError, "not of OpenAI's interface"),
        (says(reply({"choices": []})), RunError, "ended its answer early, after 0 characters"),
        (says(HEAD + chunk("He") + b'data: {"error": {"message": "no room"}}\n\n'), RunError, "within an answer"),
        (floods, RunError, "answered with over 64 MiB"),
        (hears_nothing, RunError, "had not answered after 2 s; raise --timeout"),
        (drips, RunError, "had not answered after 2 s"),
        (drips_its_head, RunError, "had not answered after 2 s"),
    ],
)
def test_whatever_goes_wrong_is_one_line_in_time(act: Act, kind: type[RedraftError], said: str) -> None:
    late = act in (hears_nothing, drips, drips_its_head)
    began = time.monotonic()
    with Stub([act]) as stub, pytest.raises(kind, match=re.escape(said)) as caught:
        ask(stub, seconds=2.0 if late else 100.0, key=KEY)
    assert time.monotonic() - began < 60, "the other side is waited for"
    assert stub.seen[0][1]["authorization"] == f"Bearer {KEY}"
    shown = f"{caught.value!s} {caught.value!r}"
    assert KEY[:5] not in shown
    assert shown.isprintable()


def test_a_line_separator_inside_a_text_is_no_end_of_a_line() -> None:
    """U+2028 and U+0085 end lines for Python, and for httpx's own reader of lines."""
    said = json.dumps({"choices": [{"text": "a\u2028b\x85c", "finish_reason": "stop"}]}, ensure_ascii=False)
    with Stub([says(HEAD + f"data: {said}\n\n".encode())]) as stub, asking(Backend(stub.url)) as answered:
        assert answered("hi", {}).text == "a\u2028b\x85c"


def test_a_row_that_cannot_be_sent_is_refused_and_a_half_character_is_kept(tmp_path: Path) -> None:
    place, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    row = '{"custom_id": "%s", "url": "/v1/chat/completions", "body": {"messages": []%s}}\n'
    place.write_text(row % ("a", ', "temperature": NaN') + row % ("b", r', "x": "\ud800"') + row % (r"\ud800", ""))
    with Stub([says(reply(rb'{"choices": [{}], "said": "\ud800", "usage": null}'))]) as stub:
        assert main(["run", str(place), str(out), "--backend", "openai", "--base-url", stub.url]) == 3
    reported = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [line["response"]["status_code"] for line in reported] == [400, 400, 200]
    assert reported[2]["custom_id"] == reported[2]["response"]["body"]["said"] == "\ud800"


@pytest.mark.parametrize("body", [b"[1]", b'"x"', b"null", b"5", b'{"choices": [{}], "x": 1e999}', b'{"y": NaN}'])
def test_an_answer_that_is_no_object_ends_a_run_that_goes_on(body: bytes, tmp_path: Path, shell: Shell) -> None:
    """It stood in the output, in which no run could go on any more."""
    place, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    place.write_text('{"messages": []}\n' * 2)
    with Stub([WHOLE, says(reply(body))], models=b"") as stub:
        command = ["run", str(place), str(out), "--backend", "openai", "--base-url", stub.url, "--at-once", "1"]
        command += ["--model", "theirs"]
        assert "is not of OpenAI's interface" in shell(command, 1).err
        assert len(out.read_text().splitlines()) == 1
        stub.acts[0] = WHOLE
        shell(command, 0)
    assert len(out.read_text().splitlines()) == 2


def test_rows_that_are_under_way_end_with_the_run(tmp_path: Path, shell: Shell, caplog: Any) -> None:
    """Each had a traceback of its own behind the run's one line, and a body without an end filled memory."""
    place, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    place.write_text('{"messages": []}\n' * 5)
    for act, said in ((says(reply(b"[1]")), "is not of OpenAI's interface"), (floods, "over 8 MiB")):
        with Stub([act], models=b"") as stub:
            command = ["run", str(place), str(out), "--backend", "openai", "--model", "m", "--base-url", stub.url]
            assert said in shell(command, 1).err
        gc.collect()
        assert not caplog.records


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("127.0.0.1:80", "write it as http"),
        ("file:///etc/passwd", "write it as http"),
        ("http://", "write it as http"),
        ("http://[bad", "write it as http"),
        ("http://a:99999/v1", "write it as http"),
        ("http://a b/v1", "write it as http"),
        (f"http://127.0.0.1/v1?key={KEY}", "has a user, a query or a fragment"),
        (f"http://me:{KEY}@127.0.0.1/v1", "has a user, a query or a fragment"),
    ],
)
def test_a_url_that_is_none(url: str, said: str, shell: Shell) -> None:
    shown = shell(["generate", "x", "--backend", "openai", "--base-url", url], 2).err
    assert said in shown
    assert KEY not in shown


def test_every_flag_of_generate_is_honoured_or_refused(shell: Shell) -> None:
    """All that a canvas or a checkpoint is needed for is refused by name, before anything is sent."""
    base = ["generate", "x", "--backend", "openai", "--base-url", "http://127.0.0.1:1/v1"]
    for said in ("--steps 3", "--canvas 8", "--regex a", "--trace t", "--threads 1", "--offload experts", "--watch"):
        words = said.split()
        assert f"{words[0]} was given with --backend openai" in shell([*base, *words], 2).err
    assert main([*base, "--deadline", "3"]) == 2
    assert "add --chat" in shell([*base, "--schema", "a"], 2).err


def test_no_torch_is_loaded_to_ask_elsewhere() -> None:
    with Stub([says(GOOD)]) as stub:
        code = "import sys; from redraft.__main__ import main; main(['generate', 'x', '--chat', '--backend', 'openai', "
        code += f"'--base-url', {stub.url!r}]); print('torch' in sys.modules)"
        ran = python(code)
    assert ran.stdout.splitlines() == ["Hello", "False"], ran.stderr


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    lines = [{"custom_id": str(i), "url": "/v1/chat/completions", "body": {"messages": []}} for i in range(6)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + "nonsense\n", encoding="utf-8")
    return path


def test_a_file_of_rows_is_answered_there_and_goes_on_after_an_outage(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = says(reply({"choices": [{"message": {"content": "a"}}], "usage": {"completion_tokens": 3}}))
    refused = says(reply({"error": {"message": "no"}}, "400 Bad"))
    out = tmp_path / "out.jsonl"
    with Stub([whole, refused, whole, says(b"")], models=b"") as stub:
        words = ["run", str(rows), str(out), "--backend", "openai", "--seed", "10", "--at-once", "1", "--model", "m"]
        words.append("--base-url")
        assert main([*words, stub.url]) == 1
    assert "cannot be reached or broke off" in capsys.readouterr().err
    assert [body["seed"] for _, _, body in stub.seen] == [10, 11, 12, 13]
    with Stub([whole]) as stub:
        assert main([*words, stub.url]) == 3
    assert [body["seed"] for _, _, body in stub.seen] == [13, 14, 15]
    reported = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [line["custom_id"] for line in reported] == ["0", "1", "2", "3", "4", "5", "7"]
    assert [line["response"]["status_code"] for line in reported] == [200, 400, 200, 200, 200, 200, 400]


def statuses_of(out: Path) -> list[int]:
    return [json.loads(line)["response"]["status_code"] for line in out.read_text(encoding="utf-8").splitlines()]


def write_plain(tmp_path: Path, rows: int, more: str = "") -> tuple[Path, Path]:
    place = tmp_path / "in.jsonl"
    place.write_text(f'{{"messages": []{more}}}\n' * rows)
    return place, tmp_path / "out.jsonl"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"error": "overloaded"}, 500),
        ({"error": {"code": 400}}, 400),
        ({"error": {"code": 429}}, 429),
        ({"choices": []}, 500),
        ({}, 500),
    ],
)
def test_an_answer_without_choices_is_an_error_of_its_row(
    body: dict[str, Any], status: int, tmp_path: Path, shell: Shell
) -> None:
    """As gateways say that they are overloaded; a run that went on kept it."""
    place, out = write_plain(tmp_path, 3)
    tries = 1 if status == 400 else 3  # it may pass
    with Stub([WHOLE, *[says(reply(body))] * tries, WHOLE], well=WHOLE) as stub:
        shell(["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url], 3)
    assert statuses_of(out) == [200, status, 200]
    assert "answered 200 and " in out.read_text().splitlines()[1]


def test_an_overload_within_a_200_is_tried_again(tmp_path: Path, shell: Shell) -> None:
    place, out = write_plain(tmp_path, 3)
    busy = says(reply({"error": {"code": 429}}))
    with Stub([WHOLE, busy, busy, WHOLE, WHOLE], well=WHOLE) as stub:
        shell(["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url])
    assert statuses_of(out) == [200, 200, 200]


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504])
def test_a_row_at_which_the_server_fails_is_that_rows_error(status: int, tmp_path: Path, shell: Shell) -> None:
    """It ended the run, and so did the same command again, so that later rows were never asked."""
    place, out = write_plain(tmp_path, 3)
    fails = says(reply({"error": {"message": "no"}}, f"{status} No", *["retry-after: 0"] * (status != 503)))
    with Stub([WHOLE, *[fails] * 4, WHOLE]) as stub:
        shell(["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url], 3)
        assert len(stub.seen) == 6
    assert statuses_of(out) == [200, status, 200]
    assert f"answered {status}: no" in out.read_text().splitlines()[1]


def test_a_row_that_takes_too_long_is_an_error_and_ends_no_run(tmp_path: Path, shell: Shell) -> None:
    place, out = write_plain(tmp_path, 3)
    with Stub([WHOLE, hears_nothing, WHOLE]) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--timeout", "0.5"]
        shell([*words, "--base-url", stub.url], 3)
    assert statuses_of(out) == [200, 504, 200]


@pytest.mark.parametrize(
    ("rows", "status", "said"), [(30, "502 No", "nothing else is answered"), (3, "503 No", "Loading model")]
)
def test_rows_stay_open_where_a_server_fails_at_each_or_is_not_there_yet(
    rows: int, status: str, said: str, tmp_path: Path, shell: Shell
) -> None:
    """Five rows that met a server as it loaded its model were errors for good."""
    place, out = write_plain(tmp_path, rows)
    fails = says(reply({"error": {"message": "Loading model"}}, status, *["retry-after: 0"] * (status[:3] != "503")))
    with Stub([WHOLE, fails]) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url]
        assert said in shell(words, 1).err
        assert statuses_of(out) == [200]
        stub.acts[0] = WHOLE
        shell(words, 0)
    assert statuses_of(out) == [200] * rows


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_ends_the_run_and_answers_no_row(status: int, tmp_path: Path, shell: Shell) -> None:
    """It was every row's last word, and the same command with the right key found all rows done."""
    place, out = write_plain(tmp_path, 3)
    with Stub([says(reply({"error": {"message": "no such key"}}, f"{status} No"))]) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--base-url", stub.url]
        assert f"answered {status}: no such key" in shell(words, 2).err
        assert out.read_text() == ""
        stub.acts[0] = WHOLE
        shell(words, 0)
    assert statuses_of(out) == [200] * 3


def test_a_server_of_several_models_wants_a_name_first(tmp_path: Path, shell: Shell) -> None:
    """That was each row's error, and the command with a name was refused for its other model."""
    place, out = write_plain(tmp_path, 3)
    with Stub([WHOLE], models={"data": [{"id": "foo"}, {"id": "bar"}]}) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--base-url", stub.url]
        assert "has these models: ['foo', 'bar']; name one" in shell(words, 2).err
        assert not stub.seen
        assert out.read_text() == ""
        shell([*words, "--model", "foo"], 0)
        out.unlink()
        write_plain(tmp_path, 3, ', "model": "bar"')  # rows that name theirs need no other name
        shell(words, 0)
    assert [body["model"] for _, _, body in stub.seen] == ["foo"] * 3 + ["bar"] * 3


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_refused_row_has_the_servers_status(status: int, tmp_path: Path, shell: Shell) -> None:
    place, out = write_plain(tmp_path, 3)
    with Stub([WHOLE, says(reply({"error": {"message": "no"}}, f"{status} No")), WHOLE]) as stub:
        shell(["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url], 3)
    assert statuses_of(out) == [200, status, 200]


DENIED = {"error": {"message": "no"}}


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (reply(DENIED, "403 No"), 403),
        (reply(DENIED, "401 No"), 401),
        (reply(DENIED, "429 Later"), 429),
        (reply({"error": {"code": 403}}), 403),
        (reply(DENIED, "404 No"), 404),
        (reply(b"", "302 Found"), 302),
        (reply(DENIED, "500 No", "retry-after: 0"), 500),
    ],
)
@pytest.mark.parametrize("before", [1, 0])
def test_a_row_that_alone_is_denied_ends_no_run(
    before: int, answer: bytes, status: int, tmp_path: Path, shell: Shell
) -> None:
    """As what stands before a server does with odd texts: every run ended at the same row, and 20 such rows, one
    behind the other, could not be passed at all."""
    tries, rows = (4 if status in (429, 500) else 1), (2 if status == 429 else 24)
    place, out = write_plain(tmp_path, before + rows + 1)
    with Stub([*[WHOLE] * before, *[says(answer)] * rows * tries, WHOLE], well=WHOLE) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url]
        shell([*words, "--model", "m"], 3)
    assert statuses_of(out) == [*[200] * before, *[status] * rows, 200]


def test_a_row_of_a_kind_that_a_server_has_not_ends_no_run(tmp_path: Path, shell: Shell) -> None:
    """It was taken for the server's failure, for it had no small request of that kind either."""
    place, out = write_plain(tmp_path, 4)
    lines = place.read_text().splitlines()
    place.write_text("\n".join([*lines[:2], '{"prompt": "a"}', lines[3]]) + "\n")

    def chats(stub: Stub, write: Write) -> None:
        write(reply(DENIED, "404 No") if stub.asked.path.endswith("/v1/completions") else reply({"choices": [{}]}))

    with Stub([chats], well=chats) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url]
        shell([*words, "--model", "m"], 3)
    assert statuses_of(out) == [200, 200, 404, 200]


def test_a_server_that_is_asked_too_much_is_waited_for(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At five requests a second, 216 of 300 rows had a 429 for an answer."""
    monkeypatch.setattr("redraft.measure.remote.BUSY_SEC", 60.0)
    place, out = write_plain(tmp_path, 2)
    with Stub([WHOLE, *[says(reply(DENIED, "429 Later"))] * 5, WHOLE]) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url]
        shell([*words, "--model", "m"], 0)
        assert len(stub.seen) == 7


def test_a_row_at_which_a_server_ends_is_passed_although_none_was_answered_before(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked at once, and had not come back yet: each run ended there, one with --answered, too."""
    monkeypatch.setattr("redraft.measure.remote.AWAY_SEC", (0.05,) * 4)
    place, out = write_plain(tmp_path, 3)
    looks = [says(b""), says(b""), *[WHOLE, says(b""), says(b"")] * 2, WHOLE]

    def look(stub: Stub, write: Write) -> None:
        (looks.pop(0) if len(looks) > 1 else looks[0])(stub, write)

    with Stub([says(b""), says(b""), says(b""), WHOLE], well=look) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url]
        shell([*words, "--model", "m"], 3)
    assert statuses_of(out) == [502, 200, 200]


def test_a_user_hears_that_a_server_is_waited_for(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For five minutes nothing was said."""
    monkeypatch.setattr("redraft.measure.remote.AWAY_SEC", (0.01, 0.01, 0.01, 60.0))
    place, out = write_plain(tmp_path, 3)
    monkeypatch.setattr("redraft.measure.remote.LONG", 1)
    down = says(reply(DENIED, "502 Away"))
    looks = iter([down] * 20)
    with Stub([WHOLE, *[down] * 4, WHOLE], well=lambda *both: next(looks, WHOLE)(*both)) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--base-url", stub.url, "--model", "m"]
        said = shell([*words, "--at-once", "1"], 0).err
    assert said.count("answered 502: no; it is waited for, 1 minutes at most") == 1


def test_a_limiter_is_asked_about_as_often_as_it_answers(tmp_path: Path, shell: Shell, monkeypatch: Any) -> None:
    """Pauses that each row had alone grew to half a minute, so that a run took eight times as long."""
    monkeypatch.setattr("redraft.measure.remote.BUSY_SEC", 60.0)
    place, out = write_plain(tmp_path, 60)
    answered, lock = list[float](), threading.Lock()

    def limits(stub: Stub, write: Write) -> None:
        with lock:
            is_free = len(answered) < 20 or time.monotonic() > answered[-20] + 1
            answered.extend([time.monotonic()] if is_free else [])
        write(reply({"choices": [{}]}) if is_free else reply(DENIED, "429 Later"))

    with Stub([limits], well=WHOLE) as stub:
        shell(["run", str(place), str(out), "--backend", "openai", "--base-url", stub.url, "--model", "m"], 0)
        assert len(stub.seen) < 60 * 5
    assert statuses_of(out) == [200] * 60
    assert answered[-1] - answered[0] < 10, "two seconds at least"


def test_rows_in_line_ask_no_more_when_the_run_is_over() -> None:
    async def one(url: str) -> None:
        remote = Remote(Backend(url, model="m"))
        remote._window._until = time.monotonic() + 0.3
        row = asyncio.create_task(remote.post("completions", {"prompt": "a"}))
        await asyncio.sleep(0.1)
        remote._over = RunError("over")
        with pytest.raises(RunError, match="over"):
            await row
        await remote.aclose()

    with Stub([WHOLE]) as stub:
        asyncio.run(one(stub.url))
        assert not stub.seen


def test_answers_in_pieces_widen_the_window() -> None:
    """Behind some refusals each one of `eval` cost eight seconds for ever."""
    with Stub([says(reply(DENIED, "429 Later")), says(GOOD)]) as stub:

        async def both() -> None:
            remote = Remote(Backend(stub.url, model="m"))
            await remote.ask("a", {})
            assert (remote._window.size, remote._window._strikes) == (2, 0)
            await remote.aclose()

        asyncio.run(both())


def test_a_look_that_is_asked_too_much_gives_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited three times for as long as the server said, and all rows with it."""
    pauses = list[float]()

    async def one(url: str) -> None:
        remote = Remote(Backend(url, model="m"))
        real = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", lambda sec, *_: (pauses.append(sec), real(0))[1])
        with pytest.raises(RequestError, match="403"):
            await remote.post("completions", {"prompt": "a"})
        await remote.aclose()

    with Stub([says(reply(DENIED, "403 No"))], well=says(reply(DENIED, "429 Later", "retry-after: 600"))) as stub:
        asyncio.run(one(stub.url))
    assert 0 < sum(pauses) < 8


def test_a_busy_server_is_waited_for_as_long_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = list[float]()

    async def one(url: str) -> bytes:
        remote = Remote(Backend(url, model="m", seconds=600.0))
        real = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", lambda sec, *_: (pauses.append(sec), real(0))[1])
        try:
            return await remote.post("completions", {"prompt": "a"})
        finally:
            await remote.aclose()

    busy = [says(reply(DENIED, status, f"retry-after: {sec}")) for status, sec in (("529 a", 120), ("429 b", 9999))]
    with Stub([*busy, WHOLE]) as stub:
        asyncio.run(one(stub.url))
    assert [sec for sec in pauses if sec] == [120.0, 600.0]


def test_a_server_without_a_list_is_asked_with_the_rows_own_model(tmp_path: Path, shell: Shell) -> None:
    place, out = write_plain(tmp_path, 3, ', "model": "own"')
    with Stub([says(reply(DENIED, "403 No")), WHOLE], models=b"none", well=WHOLE) as stub:
        shell(["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url], 3)
    assert statuses_of(out) == [403, 200, 200]


@pytest.mark.parametrize("slow_sec", [0.0, 0.3])
def test_a_server_that_is_gone_is_waited_for_once(
    slow_sec: float, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each row that it failed; and where the looks themselves take time, no longer than the pauses."""
    monkeypatch.setattr("redraft.measure.remote.AWAY_SEC", (0.05 if slow_sec else 0.4,) * 4)
    place, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    place.write_text("".join(f'{{"messages": [], "seed": {i}}}\n' for i in range(6)))
    looks = []

    def look(stub: Stub, write: Write) -> None:
        looks.append(stub.asked.path)
        time.sleep(slow_sec)

    def gone(stub: Stub, write: Write) -> None:
        time.sleep(0.0 if stub.asked.body["seed"] else 0.1)  # the first row, which ends the run, is the last to know

    with Stub([gone], well=look) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", "6", "--base-url", stub.url]
        assert "nothing else is answered" in shell([*words, "--model", "m"], 1).err
    assert len(looks) == (2 if slow_sec else 10)  # by both paths each time
    assert out.read_bytes() == b""


def test_a_servers_long_error_is_cut(tmp_path: Path, shell: Shell) -> None:
    place, out = write_plain(tmp_path, 2)
    with Stub([WHOLE, says(reply({"error": {"message": "no " * 2**16}}, "400 No"))], well=WHOLE) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url]
        shell([*words, "--model", "m"], 3)
    assert len(out.read_bytes()) < 2000


def test_more_rows_at_once_than_a_process_may_open_are_refused(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row beyond them was an error of its own."""
    monkeypatch.setattr("resource.getrlimit", lambda which: (256, 256))
    monkeypatch.setattr("resource.setrlimit", lambda which, both: None)
    place, out = write_plain(tmp_path, 2)
    with Stub([WHOLE]) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--base-url", stub.url, "--at-once"]
        assert "lets this process open 224 connections; ask fewer" in shell([*words, "300"], 2).err
        shell([*words, "200"])


def test_rows_beside_one_that_ends_the_server_have_their_answers(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each broke off three times with it: 32 of 100 rows had an error."""
    monkeypatch.setattr("redraft.measure.remote.AWAY_SEC", (0.1,) * 9)
    place, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    place.write_text("".join(f'{{"prompt": "{"bad" if i == 3 else i}"}}\n' for i in range(12)))
    back = 0.0

    def fragile(stub: Stub, write: Write) -> None:
        nonlocal back
        began = time.monotonic()
        if stub.asked.body["prompt"] == "bad":
            back = began + 0.3
        time.sleep(0.1)
        if back <= began:  # it is there, and was all the time
            write(reply({"choices": [{}]}))

    with Stub([fragile], well=lambda stub, write: back <= time.monotonic() and WHOLE(stub, write)) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", "6", "--base-url", stub.url]
        shell([*words, "--model", "m"], 3)
    assert statuses_of(out) == [502 if i == 3 else 200 for i in range(12)]


@pytest.mark.parametrize("at_once", ["1", "3"])
def test_rows_that_name_their_models_need_no_list_of_them(at_once: str, tmp_path: Path, shell: Shell) -> None:
    """The first row's 403 ended every run where the server names no models; a row without one ended others' run."""
    place, out = write_plain(tmp_path, 3, ', "model": "own"')
    with Stub([says(reply(DENIED, "403 No")), WHOLE], models={"data": []}, well=WHOLE) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", at_once, "--base-url", stub.url]
        shell(words, 3)
        assert sorted(statuses_of(out)) == [200, 200, 403]
        out.unlink()
        with place.open("a") as file:
            file.write('{"prompt": "a"}\n')
        shell(words, 3)
    assert statuses_of(out) == [200, 200, 200, 400]
    assert "has these models: []; name one" in out.read_text()


def test_an_overload_of_any_number_is_tried_again(tmp_path: Path, shell: Shell) -> None:
    place, out = write_plain(tmp_path, 3)
    with Stub([WHOLE, says(reply(DENIED, "529 Overloaded")), WHOLE]) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url]
        shell([*words, "--model", "m"], 0)
    assert statuses_of(out) == [200] * 3


@pytest.mark.parametrize("number", ["1e400", "Infinity", "-1", "true", '"x"', "[1]"])
def test_whatever_a_row_says_of_its_answers_ends_no_run(number: str, tmp_path: Path, shell: Shell) -> None:
    place, out = write_plain(tmp_path, 3)
    lines = place.read_text().splitlines()
    place.write_text("\n".join([lines[0], f'{{"prompt": "a", "n": {number}}}', lines[2]]) + "\n")
    with Stub([WHOLE]) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--base-url", stub.url, "--model", "m"]
        main(words)
    assert [status for i, status in enumerate(statuses_of(out)) if i != 1] == [200, 200]


def test_rows_that_fail_while_a_server_is_away_are_asked_again(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart of half a minute ended the run, or made errors of up to 19 rows."""
    monkeypatch.setattr("redraft.measure.remote.AWAY_SEC", (0.05,) * 4)
    place, out = write_plain(tmp_path, 8)
    looks = [says(b""), says(reply(DENIED, "500 No", "retry-after: 0")), WHOLE]

    def look(stub: Stub, write: Write) -> None:
        (looks.pop(0) if len(looks) > 1 else looks[0])(stub, write)

    with Stub([WHOLE, *[says(b"")] * 3, WHOLE], well=look) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", "3", "--base-url", stub.url]
        shell([*words, "--model", "m"], 0)
    assert statuses_of(out) == [200] * 8


def test_a_row_whose_model_is_not_there_ends_no_run_although_none_was_answered_before(
    tmp_path: Path, shell: Shell
) -> None:
    """A first row for gpt-4 ended every run over 50 rows for a model that the server has."""
    place, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    names = ["gpt-4", "secret", *["m"] * 3]
    place.write_text("".join(f'{{"messages": [], "model": "{name}"}}\n' for name in names))

    def served(stub: Stub, write: Write) -> None:
        refusals = {"gpt-4": "404 No", "secret": "403 No"}
        name = stub.asked.body["model"]
        write(reply(DENIED, refusals[name]) if name in refusals else reply({"choices": [{}]}))

    with Stub([served], models={"data": [{"id": "secret"}, {"id": "m"}]}, well=served) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url]
        shell(words, 3)
        place.write_text("".join(place.read_text().splitlines(keepends=True)[:1]))
        shell([*words[:2], str(out.with_stem("again")), *words[3:]], 3)
    assert statuses_of(out) == [404, 403, 200, 200, 200]
    assert statuses_of(out.with_stem("again")) == [404]


@pytest.mark.parametrize("root", ["/", "/v1/"])
def test_a_row_that_is_not_found_leaves_the_url_as_it_is(root: str, tmp_path: Path, shell: Shell) -> None:
    """At a server without a /v1 one row's 404 sent all others there, in every run."""
    place, out = write_plain(tmp_path, 4)
    lines = place.read_text().splitlines()
    place.write_text("\n".join([*lines[:2], '{"messages": [], "model": "none"}', lines[3]]) + "\n")

    def served(stub: Stub, write: Write) -> None:
        is_known = stub.asked.path == f"{root}chat/completions" and stub.asked.body["model"] == "m"
        write(reply({"choices": [{}]}) if is_known else reply(DENIED, "404 No"))

    with Stub([served], well=served) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--model", "m", "--base-url"]
        shell([*words, stub.url.removesuffix("/v1")], 3)
    assert statuses_of(out) == [200, 200, 404, 200]


def test_a_failure_that_asks_for_long_is_tried_again_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It slept until its own time was up, and was a 504."""
    pauses, sleep = list[float](), asyncio.sleep

    async def noted(sec: float) -> None:
        pauses.append(sec)
        await sleep(0)

    async def one(url: str) -> bytes:
        remote = Remote(Backend(url, model="m"))
        try:
            return await remote.post("completions", {"prompt": "a"})
        finally:
            await remote.aclose()

    with Stub([says(reply(DENIED, "500 No", "retry-after: 3600")), WHOLE]) as stub:
        monkeypatch.setattr(asyncio, "sleep", noted)
        assert b"choices" in asyncio.run(one(stub.url))
    assert sum(pauses) == 30


def test_rows_of_a_server_that_was_restarted_are_asked_together_again(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other: a restart of 2 s held 64 rows up for 125 s."""
    monkeypatch.setattr("redraft.measure.remote.AWAY_SEC", (0.05,) * 4)
    place, out = write_plain(tmp_path, 8)
    under_way, most = 0, []

    def restarted(stub: Stub, write: Write) -> None:
        nonlocal under_way
        under_way += 1
        most.append(under_way)
        time.sleep(0.3)
        under_way -= 1
        if len(stub.seen) > 8:
            write(reply({"choices": [{}]}))

    looks = [says(b""), says(b""), WHOLE]

    def look(stub: Stub, write: Write) -> None:
        (looks.pop(0) if len(looks) > 1 else looks[0])(stub, write)

    with Stub([restarted], well=look) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", "8", "--base-url", stub.url]
        shell([*words, "--model", "m"])
        assert len(stub.seen) == 16
    assert max(most[8:]) > 4


def test_a_server_that_refuses_a_small_request_for_its_form_is_well(tmp_path: Path, shell: Shell) -> None:
    """As some do to `max_tokens`."""
    place, out = write_plain(tmp_path, 3)
    with Stub([WHOLE, says(reply(DENIED, "403 No")), WHOLE], well=says(reply(DENIED, "400 No"))) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url]
        said = shell([*words, "--model", "m"], 3).err
    assert statuses_of(out) == [200, 403, 200]
    mended = out.with_stem("out-mended")
    assert f"once they are mended, redraft run {place} {mended} --answered {out} asks these rows alone" in said


def test_a_servers_cookies_are_not_kept(tmp_path: Path, shell: Shell) -> None:
    """Each went with every later request: 381 rows took 900 MB."""
    place, out = write_plain(tmp_path, 3)
    with Stub([says(reply({"choices": [{}]}, "200 OK", "set-cookie: a=b; Path=/"))]) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url]
        shell([*words, "--model", "m"], 0)
    assert len(stub.seen) == 3
    assert not any("cookie" in headers for _, headers, _ in stub.seen)


def test_an_answer_of_very_many_values_is_not_read(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 MiB of empty lists took two gigabytes."""
    monkeypatch.setattr("redraft.measure.remote.MOST_VALUES", 1000)
    place, out = write_plain(tmp_path, 2)
    with Stub([WHOLE, says(reply(b'{"choices": [' + b"[]," * 1000 + b"1]}"))], well=WHOLE) as stub:
        shell(["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url], 3)
    assert statuses_of(out) == [200, 500]
    assert "answered with over 1000 values; ask for less" in out.read_text()


def test_a_row_that_is_slow_holds_up_none_behind_it(tmp_path: Path) -> None:
    """What had an answer counted as under way until an earlier one had its own: 1% of slow rows took 15 times as long
    as they did alone."""
    (tmp_path / "in").write_text('{"prompt": "a"}\n' * 60)
    last, most, under_way = asyncio.Event(), 0, 0

    async def answered(row: bytes, number: int) -> tuple[int, bytes]:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        await (last.wait() if number == 0 else asyncio.sleep(0))
        under_way -= 1
        if number == 59:
            last.set()
        return 200, b"{}"

    assert answer_rows(answered, tmp_path / "in", tmp_path / "out", at_once=4).rows == 60
    assert most == 4


def test_a_run_goes_on_at_full_width_behind_long_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written waits no more."""
    monkeypatch.setattr("redraft.cli.rows.MOST_HELD_BYTES", 50_000)
    (tmp_path / "in").write_text('{"prompt": "a"}\n' * 60)
    under_way, widths = 0, list[int]()

    async def answered(row: bytes, number: int) -> tuple[int, bytes]:
        nonlocal under_way
        under_way += 1
        await asyncio.sleep(0.001)
        widths.append(under_way)
        under_way -= 1
        return 200, b'{"a": "' + b"b" * 3000 + b'"}'

    assert answer_rows(answered, tmp_path / "in", tmp_path / "out", at_once=4).rows == 60
    assert max(widths[40:]) == 4


def test_a_row_that_ends_the_run_lets_no_further_one_begin(tmp_path: Path) -> None:
    (tmp_path / "in").write_text('{"prompt": "a"}\n' * 60)
    begun = 0

    async def answered(row: bytes, number: int) -> tuple[int, bytes]:
        nonlocal begun
        begun += 1
        if number == 2:
            raise RunError("over")
        await asyncio.sleep(0.2 if number == 0 else 0)
        return 200, b"{}"

    with pytest.raises(RunError, match="over"):
        answer_rows(answered, tmp_path / "in", tmp_path / "out", at_once=4)
    assert begun <= 6


def test_a_row_of_several_answers_counts_as_so_many(tmp_path: Path) -> None:
    """64 rows of 64 answers were under way, each of which may take megabytes."""
    rows = [
        '{"prompt": "a", "n": 3}',
        '{"prompt": ["a", "b", "c"]}',
        '{"prompt": [[1], [2], [3]]}',
        '{"prompt": [1, 2]}',
    ]
    counts = [3, 3, 3, 1]
    assert [answers_of(row.encode()) for row in rows] == counts
    assert [answers_of(row) for row in (b'{"n": 9999}', b'{"n": "x"}', b'{"prompt": []}', b'"n"')] == [64, 1, 1, 1]
    assert answers_of(rb'{"\u006e": 8, "prompt": "a"}') == 8
    (tmp_path / "in").write_text("\n".join(rows * 5) + "\n")
    under_way, most = 0, 0

    async def answered(row: bytes, number: int) -> tuple[int, bytes]:
        nonlocal most, under_way
        under_way += counts[number % 4]
        most = max(most, under_way)
        await asyncio.sleep(0.001)
        under_way -= counts[number % 4]
        return 200, b"{}"

    assert answer_rows(answered, tmp_path / "in", tmp_path / "out", at_once=4).rows == 20
    assert most == 4


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (reply(b"", "301 Moved"), 2),
        (reply({"error": {"code": 429}}), 1),
        (reply({"error": {"code": "429"}}), 1),
        (reply({"error": {"code": 401}}), 2),
    ],
)
def test_what_no_row_can_help_ends_the_run(answer: bytes, code: int, tmp_path: Path, shell: Shell) -> None:
    """A gateway that was asked too much, and said so with status 200, made errors of 2,000 rows."""
    place, out = write_plain(tmp_path, 3)
    with Stub([WHOLE, says(answer)]) as stub:
        shell(["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url], code)
    assert statuses_of(out) == [200]


@pytest.mark.parametrize("answer", [reply(b"<html>"), reply({"choices": []}), reply({}), reply({}, "404 No")])
def test_a_wrong_address_is_not_waited_for(
    answer: bytes, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server is that has answered before, or broke off."""
    monkeypatch.setattr("redraft.measure.remote.AWAY_SEC", (60.0,))
    place, out = write_plain(tmp_path, 3)
    began = time.monotonic()
    with Stub([says(answer)]) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--base-url", stub.url, "--model", "m"]
        shell(words, 2 if b"404" in answer else 1)
    assert time.monotonic() - began < 30
    assert out.read_bytes() == b""


def test_a_server_that_says_to_wait_is_waited_for(tmp_path: Path, shell: Shell) -> None:
    """Four tries were all, so that rows of several answers each ended the run at the server's own limit."""
    place, out = write_plain(tmp_path, 1)
    wait = says(reply({"error": {"message": "256 are under way"}}, "429 Wait", "retry-after: 0"))
    with Stub([*[wait] * 5, WHOLE]) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--base-url", stub.url]
        shell([*words, "--timeout", "1.5"], 0)
        assert len(stub.seen) == 6
        stub.acts[:], stub.seen[:] = [wait], []
        out.unlink()
        assert "answered 429: 256 are under way" in shell([*words, "--timeout", "0.3"], 1).err, "it does not pass"
    assert len(stub.seen) < 10
    assert out.read_text() == ""


def test_a_server_that_cannot_be_reached_ends_the_run(tmp_path: Path, shell: Shell) -> None:
    place, out = write_plain(tmp_path, 3, ', "model": "theirs"')
    with Stub([WHOLE]) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--base-url", stub.url]
    assert "cannot be reached" in shell(words, 1).err
    assert statuses_of(out) == []


@pytest.mark.parametrize("act", [says(b""), says(reply(b"[1]")), says(reply(b"{}")[:-1]), floods])
def test_a_row_at_which_a_server_that_is_well_breaks_off_has_an_error(act: Act, tmp_path: Path, shell: Shell) -> None:
    """The run ended there, and ended there again whenever it was continued."""
    place, out = write_plain(tmp_path, 3)
    with Stub([WHOLE, act, act, act, WHOLE], well=WHOLE) as stub:
        shell(["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url], 3)
        assert statuses_of(out) == [200, 500 if act is floods else 502, 200]
        out.unlink()
        stub.acts[:] = [WHOLE, act, WHOLE]
        shell(["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url], 0)
    assert statuses_of(out) == [200] * 3


def test_eval_and_bench_ask_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], shell: Shell) -> None:
    with Stub([says(GOOD)]) as stub:
        there = ["--backend", "openai", "--base-url", stub.url]
        (found,) = json.loads(shell(["eval", "--task", "records", "--count", "2", "--json", *there]).out)
        assert (found["task"], found["count"], found["exact"], found["mean_steps"]) == ("records", 2, 0.0, 7.0)
        stub.acts[0] = says(HEAD + chunk("x", "stop"))  # a server that counts nothing
        (found,) = json.loads(shell(["eval", "--task", "records", "--count", "1", "--json", *there]).out)
        assert found["mean_steps"] is found["tokens_per_sec"] is None
        stub.acts[0] = says(GOOD)
        assert "--preset was given" in shell(["eval", "--preset", "reference", *there], 2).err
        assert main(["eval", "--task", "infill-python", "--count", "2", *there]) == 2
        assert "fills a gap, which needs a canvas" in capsys.readouterr().err
        prompts = tmp_path / "prompts.txt"
        prompts.write_text('"record\\nSend 417 melu to Karomi."\nrecord\n', encoding="utf-8")
        record = json.loads(shell(["bench", "--prompts", str(prompts), "--json", "--threads", "1", *there]).out)
    assert record["figures"]["same"] == 0
    assert len(record["figures"]["there_pairs_ms"]) == len(record["figures"]["here_pairs_ms"]) == 2
    asked = [body["messages"][0]["content"] for _, _, body in stub.seen][-2:]
    assert asked == ["record\nSend 417 melu to Karomi.", "record"]


def test_flags_that_need_each_other(shell: Shell) -> None:
    for words, said in (
        (["generate", "x", "--base-url", "http://a"], "--base-url was given without --backend"),
        (["bench", "--prompts", "x"], "--prompts was given without --backend"),
        (["bench", "--adapter", "x"], "--adapter was given"),
        (["bench", "--backend", "openai", "--base-url", "http://a", "--prompts", "no"], "redraft: no cannot be read"),
        (["generate", "x", "--backend", "openai"], "needs --base-url"),
        (["bench", "--backend", "openai", "--base-url", "http://a", "--knee"], "were given together"),
        (["eval", "--backend", "openai", "--base-url", "http://a", "--timeout", "0"], "--timeout is 0.0"),
    ):
        assert said in shell(words, 2).err


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.measure.remote.AWAY_SEC", ())
    monkeypatch.setattr("redraft.measure.remote.BUSY_SEC", 0.0)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_rows_with_an_error_are_asked_again_and_answers_are_kept(tmp_path: Path, shell: Shell) -> None:
    """One had to cut the rows out, run them apart, and put the answers back in their places."""
    place, out = write_plain(tmp_path, 5)
    fails, mended = says(reply({"error": {"message": "no"}}, "400 No")), tmp_path / "mended.jsonl"
    words = ["--backend", "openai", "--at-once", "1", "--model", "m"]
    with Stub([WHOLE, fails, WHOLE]) as stub:
        shell(["run", str(place), str(out), *words, "--base-url", stub.url], 3)
    before = out.read_bytes()
    words += ["--answered", str(out)]
    late = says(reply({"choices": [{"text": "late"}]}))
    with Stub([fails, late]) as stub:
        shell(["run", str(place), str(mended), *words, "--base-url", stub.url], 3)  # it has its error once more
        assert len(stub.seen) == 1
        mended.unlink()
        said_first = shell(["run", str(place), str(mended), *words, "--base-url", stub.url], 0).err
        assert len(stub.seen) == 2
        said = shell(["run", str(place), str(out), *words, "--base-url", stub.url], 2).err
        assert "is the output itself; name another for this run" in said
    assert "4 of 4 answers of" in said_first
    old, new = before.splitlines(), mended.read_bytes().splitlines()
    assert out.read_bytes() == before
    assert [i for i in range(5) if old[i] != new[i]] == [1]
    assert statuses_of(mended) == [200] * 5
    assert json.loads(new[1])["response"]["body"]["choices"] == [{"text": "late"}]


def test_rows_that_were_edited_in_their_places_are_asked(tmp_path: Path, shell: Shell) -> None:
    """A row's mistake could not be mended without losing the answers behind it."""
    place, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    place.write_text("".join(f'{{"prompt": "{i}"}}\n' for i in range(5)))
    words = ["--backend", "openai", "--at-once", "1", "--model", "m"]
    with Stub([WHOLE, says(reply({"error": {"message": "no"}}, "400 No")), WHOLE]) as stub:
        shell(["run", str(place), str(out), *words, "--base-url", stub.url], 3)
    rows, old = place.read_text().splitlines(), out.read_text().splitlines()
    edited = [rows[0], '{"prompt": "mended"}', *rows[2:4], '{"prompt": "another"}', '{"prompt": "new"}']
    words += ["--answered", str(out)]
    for case, (given, wanted) in enumerate(
        [(edited, ["mended", "another", "new"]), (edited[:2], ["mended"]), (rows[1:2], None), ([], [])]
    ):
        place.write_text("".join(f"{row}\n" for row in given))
        with Stub([WHOLE]) as stub:
            target = tmp_path / f"mended{case}.jsonl"
            said = shell(["run", str(place), str(target), *words, "--base-url", stub.url], 2 if wanted is None else 0)
            assert [body["prompt"] for _, _, body in stub.seen] == (wanted or [])
        if wanted is None:
            assert "of which no line answers the row of" in said.err
        else:
            new = target.read_text().splitlines()
            assert [i for i, line in enumerate(new) if line in old] == [i for i in (0, 2, 3) if i < len(given)]


@pytest.mark.parametrize("held", [None, b"precious\n", b""])
def test_what_is_no_earlier_output_is_refused_before_a_row_is_asked(
    held: bytes | None, tmp_path: Path, shell: Shell
) -> None:
    place, out = write_plain(tmp_path, 2)
    if held is not None:
        (tmp_path / "old").write_bytes(held)
    with Stub([WHOLE]) as stub:
        words = ["--backend", "openai", "--model", "m", "--base-url", stub.url, "--answered", str(tmp_path / "old")]
        said = shell(["run", str(place), str(out), *words], 0 if held == b"" else 2).err
        assert len(stub.seen) == (2 if held == b"" else 0)
    wanted = {None: "is not a file; pass an earlier run's output", b"precious\n": "line 1 of", b"": ""}[held]
    assert wanted in said


def test_a_stream_of_very_many_lines_ends_in_time() -> None:
    """Each copied a million counts, in one piece that was unpacked from a few bytes: neither the limit nor Ctrl-C was
    seen until the end."""
    counts = b'data: {"choices": [], "usage": {' + b",".join(b'"%d": 0' % i for i in range(200_000)) + b"}}\n\n"
    data = gzip.compress(counts + b'data: {"choices": []}\n' * 2_000_000)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n"
    began = time.monotonic()
    with Stub([says(head + data)]) as stub, pytest.raises(RunError, match="had not answered after 1 s"):
        ask(stub, seconds=1.0)
    assert time.monotonic() - began < 20


def test_answers_that_wait_for_a_row_are_bounded_together(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 64 could be 64 MiB, and took many times as much where it waited."""
    monkeypatch.setattr("redraft.cli.rows.MOST_ANSWERS_BYTES", 2**16)
    place, out = write_plain(tmp_path, 2)
    words = ["run", str(place), str(out), "--backend", "openai", "--model", "m", "--at-once", "4"]
    with Stub([says(reply({"choices": [{"text": "a" * 2**15}]}))]) as stub:
        shell([*words, "--base-url", stub.url], 3)
    assert "answered with over 0.0156 MiB; look at the URL, or ask fewer rows at once" in out.read_text()
    out.unlink()
    with Stub([says(reply({"choices": [{"text": "a" * 2**13}]}))]) as stub:
        shell([*words, "--base-url", stub.url], 0)
    assert "it must be from 1 to 4096" in shell([*words, "--at-once", "4097", "--base-url", "http://a/v1"], 2).err


def test_no_row_begins_where_much_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.cli.rows.MOST_HELD_BYTES", 10_000)
    (tmp_path / "in").write_text('{"prompt": "a"}\n' * 40)
    first, begun = asyncio.Event(), 0

    async def answered(row: bytes, number: int) -> tuple[int, bytes]:
        nonlocal begun
        begun += 1
        if number == 0:
            await first.wait()
        if begun == 8:
            asyncio.get_running_loop().call_later(0.1, first.set)
        return 200, b'{"a": "' + b"b" * 2000 + b'"}'

    seen = list[int]()
    done = answer_rows(answered, tmp_path / "in", tmp_path / "out", at_once=8, report=lambda _: seen.append(begun))
    assert done.rows == 40
    assert seen[0] <= 9
    assert all(json.loads(line)["response"]["body"]["a"] for line in (tmp_path / "out").read_text().splitlines())


@pytest.mark.parametrize("name", ["a\0.png", "a\ud800.png", ["b.png", "a\0.png"]])
def test_an_image_whose_name_no_file_has_is_the_rows_error(name: Any, tmp_path: Path, shell: Shell) -> None:
    """The row was asked without its image, and its answer counted as right."""
    (tmp_path / "b.png").write_bytes(b"b")
    row = {"messages": [{"role": "user", "content": "What is that?"}], "image": name}
    (tmp_path / "in").write_text(json.dumps(row) + "\n")
    with Stub([WHOLE]) as stub:
        shell(["run", str(tmp_path / "in"), str(tmp_path / "out"), "--backend", "openai", "--base-url", stub.url], 3)
        assert not stub.seen
    error = json.loads((tmp_path / "out").read_text())["response"]["body"]["error"]
    assert error["param"] == "image"
    assert "name a file in the folder of the rows" in error["message"]


@pytest.mark.parametrize("status", ["503 No", "500 No"])
def test_what_is_kept_is_no_sign_that_a_server_is_well(status: str, tmp_path: Path, shell: Shell) -> None:
    """Answers of an earlier output stood between the failures, so that rows had an error that were to stay open."""
    place, out = write_plain(tmp_path, 60)
    bad, mended = says(reply({"error": {"message": "no"}}, "400 No")), tmp_path / "mended.jsonl"
    words = ["--backend", "openai", "--at-once", "1", "--model", "m"]
    with Stub([WHOLE, *[bad, WHOLE] * 29, WHOLE]) as stub:
        shell(["run", str(place), str(out), *words, "--base-url", stub.url], 3)
    words += ["--answered", str(out)]
    with Stub([says(reply({"error": {"message": "no"}}, status))]) as stub:
        said = shell(["run", str(place), str(mended), *words, "--base-url", stub.url], 1).err
    assert "nothing else is answered, so the rows stay open" in said
    assert statuses_of(mended) == [200]
    with Stub([WHOLE]) as stub:
        printed = shell(["run", str(place), str(mended), *words, "--base-url", stub.url, "--json"], 0).out
        assert len(stub.seen) == 29
    assert statuses_of(mended) == [200] * 60
    assert json.loads(printed)["rows"] == 60


def test_a_row_that_always_fails_does_not_hold_back_what_is_kept(tmp_path: Path, shell: Shell) -> None:
    place, out = write_plain(tmp_path, 6)
    mended = tmp_path / "mended.jsonl"
    words = ["--backend", "openai", "--at-once", "1", "--model", "m"]
    with Stub([WHOLE, says(reply({"error": {"message": "no"}}, "400 No")), WHOLE]) as stub:
        shell(["run", str(place), str(out), *words, "--base-url", stub.url], 3)
    with Stub([says(reply({"error": {"message": "no"}}, "502 No", "retry-after: 0"))], well=WHOLE) as stub:
        shell(["run", str(place), str(mended), *words, "--base-url", stub.url, "--answered", str(out)], 3)
    assert statuses_of(mended) == [200, 502, 200, 200, 200, 200]


def test_a_long_list_of_models_is_read_whatever_the_rows_at_once(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server whose list was longer than a row's answer may be counted as down."""
    monkeypatch.setattr("redraft.cli.rows.MOST_ANSWERS_BYTES", 2**14)
    place, out = write_plain(tmp_path, 3)
    models = {"data": [{"id": "theirs", "about": "a" * 2**15}]}
    with Stub([WHOLE, says(reply({"choices": [{"text": "a" * 2**15}]}))], models=models) as stub:
        words = ["run", str(place), str(out), "--backend", "openai", "--at-once", "1", "--base-url", stub.url]
        shell(words, 3)
    assert statuses_of(out) == [200, 500, 500]


def test_kept_answers_are_read_when_they_are_written(tmp_path: Path, shell: Shell, monkeypatch: Any) -> None:
    """All of an earlier output were in memory while they waited for a row; one that changes meanwhile is no answer."""
    place, out = write_plain(tmp_path, 4)
    mended = tmp_path / "mended.jsonl"
    words = ["run", str(place), str(mended), "--backend", "openai", "--model", "m", "--answered", str(out)]
    bad = says(reply({"error": {"message": "no"}}, "400 No"))
    with Stub([bad, says(reply({"choices": [{"text": "once" + "a" * 2**16}]}))]) as stub:
        shell([*words[:2], str(out), *words[3:-2], "--at-once", "1", "--base-url", stub.url], 3)
    before = out.read_bytes()

    def changes(stub: Stub, write: Write) -> None:
        out.write_bytes(before.replace(b'"row_sha256": "', b'"row_sha256": "0'))
        write(reply({"choices": [{"text": "late"}]}))

    with Stub([changes]) as stub:
        said = shell([*words, "--base-url", stub.url], 1).err
    assert "was changed while answers were taken over; run it again" in said
    assert statuses_of(mended) == [200]
    out.write_bytes(before)
    with Stub([WHOLE]) as stub:
        shell([*words, "--base-url", stub.url], 0)
        assert not stub.seen
    assert [line.count('"once') for line in mended.read_text().splitlines()] == [0, 1, 1, 1]


def test_rows_of_a_server_that_answers_nothing_stay_open_whatever_is_kept(tmp_path: Path, shell: Shell) -> None:
    place, out = write_plain(tmp_path, 6)
    mended = tmp_path / "mended.jsonl"
    words = ["--backend", "openai", "--at-once", "1", "--model", "m"]
    bad = says(reply({"error": {"message": "no"}}, "400 No"))
    with Stub([WHOLE, bad, WHOLE, bad, WHOLE]) as stub:
        shell(["run", str(place), str(out), *words, "--base-url", stub.url], 3)
    words += ["--answered", str(out)]
    with Stub([says(reply({"error": {"message": "loading"}}, "503 No"))]) as stub:
        shell(["run", str(place), str(mended), *words, "--base-url", stub.url], 1)
    assert statuses_of(mended) == [200]
    with Stub([WHOLE]) as stub:
        shell(["run", str(place), str(mended), *words, "--base-url", stub.url], 0)
    assert statuses_of(mended) == [200] * 6
