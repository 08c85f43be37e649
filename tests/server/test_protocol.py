"""HTTP itself: heads and trailers have a bound, and a body that is no JSON object is refused in the one form."""

from __future__ import annotations

import gzip
import json
import socket
import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx2
import jsonschema_rs
import pytest
from tests.server.conftest import Process

from redraft.server.http.limits import HEAD_BYTES
from redraft.server.limits import read_json
from redraft.server.openai.exchange import Reply

PATH = "/v1/chat/completions"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = HEAD + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def reported(server: Process, *sent: bytes) -> bytes:
    """What the server answers to bytes, until it hangs up."""
    at = urlsplit(server.url)
    with socket.create_connection((at.hostname, at.port), timeout=60) as link:
        found = b""
        with suppress(ConnectionError):  # it hangs up while more is on its way
            for part in sent:
                link.sendall(part)
        with suppress(ConnectionError):
            while part := link.recv(2**16):
                found += part
        return found


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (b" 431 ", [HEAD, b"X-Long: ", *[b"a" * 2**14] * 64]),
        (b" 431 ", [b"GET /", *[b"a" * 2**14] * 64]),
        (b" 431 ", [HEAD, *[b"X-Many: " + b"a" * 1000 + b"\r\n"] * 1000]),
        (b" 400 ", [CHUNKED, b"2;", *[b"a" * 2**14] * 64]),
        (b" 400 ", [CHUNKED, b"2\r\n{}\r\n0\r\n", *[b"X-Many: " + b"a" * 1000 + b"\r\n"] * 1000]),
    ],
    ids=["header", "path", "headers", "chunk", "trailers"],
)
def test_what_is_no_body_has_an_end(server: Process, status: bytes, sent: list[bytes]) -> None:
    """A parser without a bound would keep all that is sent."""
    answer = reported(server, *sent)
    assert not answer or status in answer.partition(b"\r\n")[0]
    assert httpx2.get(f"{server.url}/live", timeout=100).status_code == 200


@pytest.mark.parametrize("head", [CHUNKED, CHUNKED.replace(b"127.0.0.1", b"elsewhere")], ids=["read", "refused"])
def test_a_body_in_very_many_pieces_stops_nobody(server: Process, head: bytes) -> None:
    """Each byte was a chunk, and each chunk an event on the event loop: /live waited 22 s for eight such bodies."""
    began = time.monotonic()
    answer = reported(server, head, *[b"1\r\n \r\n" * 40_000] * 8)
    assert not answer or b" 4" in answer.partition(b"\r\n")[0], "a hang-up on more may take the answer with it"
    assert httpx2.get(f"{server.url}/live", timeout=100).status_code == 200
    assert time.monotonic() - began < 5
    whole = b"".join(b"1\r\n" + bytes([byte]) + b"\r\n" for byte in b'{"messages": 1}' + b" " * 900) + b"0\r\n\r\n"
    assert b"messages is" in reported(server, CHUNKED.replace(b"\r\n", b"\r\nConnection: close\r\n", 1), whole)


def test_a_head_that_is_long_and_no_longer_is_read(server: Process) -> None:
    headers = {"x-long": "a" * 40_000}
    with httpx2.Client(base_url=server.url, timeout=60) as http:  # counted afresh for each on one connection
        assert [http.get("/live", headers=headers).status_code for _ in range(4)] == [200] * 4
        for size in (70_000, 100_000):
            assert http.get("/live", headers={"x-long": "a" * size}).status_code == 431


@pytest.mark.parametrize("end", [b"\r\n", b""], ids=["whole", "without end"])
def test_a_head_of_very_many_short_lines_is_too_long(server: Process, end: bytes) -> None:
    """84 KB passed, because the four bytes around a name and its value did not count; what had no end was called no
    HTTP. Little is beyond the bound: the system loses an answer to a client that is still sending."""
    head = HEAD.replace(b"POST " + PATH.encode(), b"GET /live")
    found = reported(server, head + b"x: abc\r\n" * (HEAD_BYTES // 8 + 20) + end)
    head, _, body = found.partition(b"\r\n\r\n")
    assert b" 431 " in head.partition(b"\r\n")[0]
    assert json.loads(body)["error"]["code"] == "head_too_large"


TOKENIZE = CHUNKED.replace(PATH.encode(), b"/tokenize").replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
TEXT = b'{"prompt": "a"}'


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (b" 431 ", HEAD + b"a:\r\n" * 200 + b"\r\n"),
        (b" 431 ", HEAD + b"a: b\r\n" + b" c\r\n" * 200 + b"\r\n"),
        (b" 200 ", TOKENIZE + b"f\r\n" + TEXT + b"\r\n0\r\n" + b"a:\r\n" * 100 + b"\r\n"),
        (b" 400 ", TOKENIZE + b"f\r\n" + TEXT + b"\r\n0\r\n" + b"a:\r\n" * 200 + b"\r\n"),
        (b" 200 ", TOKENIZE + b"f\r\n" + TEXT + b"\r\n" + b"100\r\n%b\r\n" % (b" " * 256) * 1200 + b"0\r\n\r\n"),
        (b" 400 ", TOKENIZE + b"f\r\n" + TEXT + b"\r\n" + b"40\r\n%b\r\n" % (b" " * 64) * 1200 + b"0\r\n\r\n"),
    ],
    ids=["headers", "folded", "few trailers", "trailers", "larger pieces", "pieces"],
)
def test_lines_and_pieces_are_counted(server: Process, status: bytes, sent: bytes) -> None:
    """600 heads of 15,000 short lines, sent without a key, held up /live for a minute; trailers and bodies in pieces of
    64 bytes half as long."""
    assert status in reported(server, sent).partition(b"\r\n")[0]


def test_head_gets_a_head_alone(server: Process) -> None:
    host = server.url.removeprefix("http://").encode()
    answer = reported(server, b"HEAD /live HTTP/1.1\r\nhost: " + host + b"\r\nconnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n")
    assert answer.count(b"\r\n\r\n") == 1


def test_what_is_no_request_is_refused(server: Process) -> None:
    assert reported(server, b"what\r\n\r\n").startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("content", "kind", "code"),
    [
        (b"{", "application/json", "invalid_json"),
        (b"", "application/json", "invalid_json"),
        (b"\xff", "application/json", "invalid_json"),
        (b"[" * 100_000, "application/json", "invalid_json"),
        (b'{"messages": []}', "text/plain", "invalid_json"),
        (b"[]", "application/json", "invalid_value"),
        (b"null", "application/json", "invalid_json"),
        (b"{}", "application/json; charset=utf-8", "missing_required_parameter"),
        (b"{}", "Application/JSON", "missing_required_parameter"),
    ],
)
def test_a_body_that_is_none_is_refused(server: Process, content: bytes, kind: str, code: str) -> None:
    found = httpx2.post(server.url + PATH, content=content, headers={"content-type": kind}, timeout=60)
    assert (found.status_code, found.json()["error"]["code"]) == (400, code)


FORM = {"content-type": "application/x-www-form-urlencoded"}
"""What `curl -d` sends without a word about the type."""
TYPES = ("application/json", FORM["content-type"], "Application/X-WWW-Form-Urlencoded; charset=utf-8")


def test_json_is_read_under_the_type_that_curl_gives_it(server: Process) -> None:
    asked = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "seed": 1}'
    under = [
        httpx2.post(server.url + PATH, content=asked, headers={"content-type": kind}, timeout=60) for kind in TYPES
    ]
    assert [one.status_code for one in under] == [200] * len(TYPES)
    assert len({one.json()["choices"][0]["message"]["content"] for one in under}) == 1


@pytest.mark.parametrize(
    ("content", "more"),
    [
        (b"%7B%22messages%22%3A+%5B%5D%7D=", {}),  # what an HTML form makes of JSON in a field's name
        (b'{"messages": []}', {"sec-fetch-site": "same-origin"}),
        (b'{"messages": []}', {"cookie": "a=b"}),
        (b'{"messages": []}', {"content-type": "text/plain"}),
        (b'{"messages": []}', {"content-type": "multipart/form-data; boundary=x"}),
    ],
)
def test_what_a_page_elsewhere_can_post_is_not_read(server: Process, content: bytes, more: dict[str, str]) -> None:
    found = httpx2.post(server.url + PATH, content=content, headers=FORM | more, timeout=60)
    assert (found.status_code, found.json()["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_a_page_elsewhere_is_refused_whatever_it_posts(server: Process, origin: str) -> None:
    headers = FORM | {"origin": origin, "sec-fetch-site": "cross-site"}
    found = httpx2.post(server.url + PATH, content=b'{"messages": []}', headers=headers, timeout=60)
    assert (found.status_code, found.json()["error"]["code"]) == (403, "origin")
    twice = [("origin", server.url), ("origin", origin)]
    for headers_of_two in (twice, twice[::-1]):
        found = httpx2.post(server.url + PATH, content=b'{"messages": []}', headers=headers_of_two, timeout=60)
        assert (found.status_code, found.json()["error"]["code"]) == (403, "origin")


@pytest.mark.parametrize("packing", ["gzip", "br, gzip"])
def test_a_compressed_body_is_refused_by_that_name(server: Process, packing: str) -> None:
    packed = gzip.compress(b'{"messages": [{"role": "user", "content": "hi"}]}')
    sent = [packing], packing.split(", "), ["identity", packing]  # of two headers the last one counted
    for headers in (
        [("content-type", "application/json"), *(("content-encoding", one) for one in each)] for each in sent
    ):
        found = httpx2.post(server.url + PATH, content=packed, headers=headers, timeout=60)
        assert (found.status_code, found.json()["error"]["code"]) == (415, "content_encoding")
        assert packing in found.json()["error"]["message"]


def test_the_interface_still_has_every_body(server: Process) -> None:
    paths = httpx2.get(f"{server.url}/openapi.json", timeout=100).json()["paths"]
    posts = {path: reported["post"] for path, reported in paths.items() if "post" in reported}
    assert len(posts) >= 12
    assert all("$ref" in post["requestBody"]["content"]["application/json"]["schema"] for post in posts.values())
    assert all("422" not in post["responses"] and "default" in post["responses"] for post in posts.values())
    types = {path: set(post["responses"]["200"]["content"]) for path, post in posts.items()}
    streams = {path for path, names in types.items() if names == {"application/json", "text/event-stream"}}
    assert types.keys() - streams == {"/v1/decisions", "/tokenize", "/detokenize"}
    assert set(paths["/metrics"]["get"]["responses"]["200"]["content"]) == {"text/plain"}


def test_an_error_is_of_the_form_that_the_interface_tells(server: Process) -> None:
    interface = httpx2.get(f"{server.url}/openapi.json", timeout=100).json()
    reported = interface["paths"][PATH]["post"]["responses"]["default"]["content"]["application/json"]["schema"]
    error = httpx2.post(server.url + PATH, json={"messages": 1}, timeout=100).json()
    assert jsonschema_rs.is_valid(reported, error)
    assert reported["properties"]["error"]["properties"].keys() == error["error"].keys()


@pytest.mark.parametrize("value", [{"a": [1, -0.5, None, True, "é\n"]}, {"a": 2**70}, [1e300, 5e-324]])
def test_a_reply_is_written_as_any_parser_reads_it(value: Any) -> None:
    """An integer of over 64 bits, too, which the fast writer refuses."""
    assert json.loads(Reply(value).body) == value


def test_more_token_ids_than_the_context_has_are_refused_by_their_number(server: Process) -> None:
    """A million of them were looked at one by one, while another client's answers waited for seconds."""
    error = httpx2.post(f"{server.url}/v1/completions", json={"prompt": [5] * 200_000}, timeout=100).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "200000 token ids; the model's context is" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/detokenize", {"tokens": [5] * 70_000}, "tokens has 70000 token ids; at most 65536"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": ""}] * 1025},
            "there are 1025 turns; the model's context",
        ),
        (
            "/v1/canvas",
            {"prompt": "a", "canvas": {"causal": True}, "pins": [{"at": 0, "text": "a"}]},
            "canvas.causal and pins were both",
        ),
        (PATH, {"messages": [], "canvas": {"causal": True, "width": 16}}, "canvas.causal and canvas.width were both"),
        (PATH, {"messages": [], "canvas": {"accept": ["entropy:-1"]}}, "canvas.accept is -1.0"),
    ],
)
def test_what_is_refused_is_named_as_it_was_sent(server: Process, path: str, body: dict[str, Any], said: str) -> None:
    if "messages" in body and not body["messages"]:
        body = body | {"messages": [{"role": "user", "content": "a"}]}
    reply = httpx2.post(f"{server.url}{path}", json=body, timeout=100)
    assert (reply.status_code, said in reply.json()["error"]["message"]) == (400, True), reply.text


@pytest.mark.parametrize(
    "text",
    [
        b'[123456789012345678901234567890, -0, 1.0, 1e5, "a", null, true, {"a": 1, "a": 2}]',
        b'["\\ud800"]',
        b"[1e400]",
        b"[NaN]",
        "\ufeff[1]".encode(),
        "[1]".encode("utf-16"),
        b"[1] x",
        b"[" + b"9" * 5000 + b"]",
    ],
)
def test_the_fast_reader_of_numbers_reads_as_the_other(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> object:
        try:
            return repr(read_json(text))
        except ValueError as error:
            return str(error)

    monkeypatch.setattr("redraft.server.limits.FEW", 0)
    plain = read()
    monkeypatch.setattr("redraft.server.limits.QUICKLY", 0)
    assert read() == plain


def test_a_path_with_one_slash_more_is_none(server: Process) -> None:
    reply = httpx2.post(f"{server.url}{PATH}/", json={"messages": []}, timeout=100)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
