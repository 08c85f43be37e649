"""Images over HTTP: every form that clients send, what is refused and by which name, and what is never fetched."""

from __future__ import annotations

import base64
import http.server
import io
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import OpenAI
from PIL import Image
from tests.helpers import beside
from tests.pictures import drawn, encoded, write_whole
from tests.server.conftest import Inside, inside

from redraft.constraints.compile.limits import READING
from redraft.engine import vision
from redraft.errors import RequestError, WeightsError
from redraft.images.messages import GivenImage
from redraft.images.pixels import LIMITS, is_small
from redraft.measure.process_memory import resident_mib
from redraft.operations.engine import Engine
from redraft.server.http.errors import refusal_of
from redraft.server.http.fetch import Fetcher, is_public
from redraft.server.http.log import Log
from redraft.server.http.settings import Settings

SMALL = {"seed": 3, "max_tokens": 16, "max_steps": 3}


@pytest.fixture(scope="module")
def server(seeing: Engine) -> Iterator[Inside]:
    yield from inside(seeing, Settings(names=("eye",)))


def url_of(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def turns(*urls: str, text: str = "read") -> list[Any]:
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def test_chat_and_responses_give_what_python_gives(client: OpenAI, seeing: Engine) -> None:
    image = drawn(60, 40)
    url = url_of(encoded(image))
    python = [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "read"}]}]
    wanted = seeing.generate(python, seed=3, max_tokens=16, steps=3)
    extra = {"max_steps": 3}
    chat = client.chat.completions.create(model="eye", messages=turns(url), seed=3, max_tokens=16, extra_body=extra)
    assert chat.choices[0].message.content == wanted.text
    assert chat.usage is not None
    assert chat.usage.prompt_tokens == wanted.prompt_tokens > 12
    parts: Any = [{"type": "input_image", "image_url": url, "detail": "auto"}, {"type": "input_text", "text": "read"}]
    said = client.responses.create(
        model="eye", input=[{"role": "user", "content": parts}], max_output_tokens=16, extra_body=extra | {"seed": 3}
    )
    assert said.output_text == wanted.text
    stream = client.chat.completions.create(
        model="eye", messages=turns(url), seed=3, max_tokens=16, extra_body=extra, stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == wanted.text


def test_files_that_were_changed_are_no_fault_of_who_sends_an_image(tmp_path: Path) -> None:
    """It was a 400 that named the server's folder, and nothing was in the log."""
    folder, sink = write_whole(tmp_path), io.StringIO()
    engine = Engine.load(folder, device="cpu")
    os.utime(folder / "model.safetensors", (1, 1))
    for at in inside(engine, Settings(), Log(sink)):
        asked = {"messages": turns(url_of(encoded(drawn(8, 8))))} | SMALL
        reply = post(at, "chat/completions", asked)
        assert (reply.status_code, reply.json()["error"]["code"]) == (500, "engine_failed")
        streamed = post(at, "chat/completions", asked | {"stream": True})
        for text in reply.text, streamed.text:
            assert "a part of this server's model cannot be read" in text
            assert str(tmp_path) not in text
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    said = [line["kind"] for line in lines if line["event"] == "failure"]
    assert said
    assert all(f"WeightsError: the files of {folder} were changed since" in one for one in said)
    mine = refusal_of(WeightsError(f"{folder} is damaged"), local=True)
    assert (mine.status, mine.message) == (500, f"{folder} is damaged"), "whose rows they are has the files, too"


def post(server: Inside, path: str, body: dict[str, Any]) -> httpx2.Response:
    return httpx2.post(f"{server.url}/{path}", json=body, timeout=60)


def test_canvases_decisions_schemas_and_counts_take_images(server: Inside, seeing: Engine) -> None:
    assert seeing.vision is not None
    messages = turns(url_of(encoded(drawn(36, 36, 7))))
    before = seeing.vision.encodings
    canvas = post(server, "v1/canvas", {"messages": messages, **SMALL}).json()
    assert canvas["object"] == "canvas"
    counted = post(server, "tokenize", {"messages": messages}).json()["count"]
    assert counted == canvas["usage"]["prompt_tokens"]
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "boolean"}}}
    found = post(server, "v1/chat/completions", {"messages": messages, **SMALL, "response_format": schema, "n": 3})
    assert {choice["message"]["content"] for choice in found.json()["choices"]} <= {"true", "false"}
    asked = {"input": messages, "questions": [{"type": "predicate", "instructions": "red?"}]}
    shares = [post(server, "v1/decisions", asked).json()["answers"][0]["probability"]]
    asked["input"] = turns(url_of(encoded(drawn(36, 36, 8))))
    shares += [post(server, "v1/decisions", asked).json()["answers"][0]["probability"]]
    assert shares[0] != shares[1]
    assert seeing.vision.encodings == before + 2


def test_an_image_is_decoded_once_for_a_request(
    server: Inside, seeing: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was decoded again for each number of turns that `truncation` tried, for each question, and to see whether a
    name is printed; and for a question while all others waited."""
    decoded, plain = list[str](), vision.load_rgb

    def load_rgb(*given: Any, **named: Any) -> Any:
        decoded.append(named["part"])
        assert READING.mine is None
        return plain(*given, **named)

    monkeypatch.setattr(vision, "load_rgb", load_rgb)
    one = {"type": "input_image", "image_url": url_of(encoded(drawn(36, 36, 9)))}
    turn = {"role": "user", "content": [one, {"type": "input_text", "text": "read " * 40}]}
    body = {"input": [turn] * 12, "truncation": "auto", "max_output_tokens": 16, "max_steps": 3}
    assert post(server, "v1/responses", body).status_code == 200
    assert len(decoded) == 1
    question = {"type": "predicate", "instructions": "red?"}
    asked = {"input": turns(one["image_url"]), "questions": [question] * 3, "joint": False}
    assert post(server, "v1/decisions", asked).status_code == 200
    assert len(decoded) == 2
    named = post(server, "v1/chat/completions", {"messages": [asked["input"][0] | {"name": "Bob"}], **SMALL})
    assert (named.headers["x-ignored-fields"], len(decoded)) == ("messages[].name", 3)


# -- bad input ---------------------------------------------------------------------------------------------------------


def animated() -> bytes:
    return encoded(drawn(8, 8), "GIF", save_all=True, append_images=[drawn(8, 8, 1)])


def bomb() -> bytes:
    """A PNG of 10 kB that says it has 400 million pixels."""
    return png(20_000, (b"IDAT", zlib.compress(bytes(10**7))))


def png(side: int, *more: tuple[bytes, bytes]) -> bytes:
    parts = [(b"IHDR", side.to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])), *more]
    chunks = [
        len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big") for name, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "truncated": (lambda: encoded(drawn(80, 80))[:2000], "is damaged or cut short"),
    "animated": (animated, "is an animation; send a single frame"),
    "bomb": (bomb, "has over 89478485 pixels; make it smaller"),
    "a pdf": (lambda: b"%PDF-1.7 and so on", "is no PNG, JPEG, WebP or GIF image"),
    "nothing": (lambda: b"", "is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_image_gets_a_400_that_names_the_part(server: Inside, name: str) -> None:
    make, said = BAD[name]
    reply = post(
        server, "v1/chat/completions", {"messages": turns(url_of(encoded(drawn(8, 8))), url_of(make())), **SMALL}
    )
    error = reply.json()["error"]
    assert reply.status_code == 400
    assert error["param"] == "messages[0].content[1]"
    assert error["message"].startswith("messages[0].content[1] ")
    assert said in error["message"]


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(drawn(60, 40), "JPEG", exif=exif)


GOOD: dict[str, Callable[[], bytes]] = {
    "cmyk": lambda: encoded(drawn(30, 20).convert("CMYK"), "JPEG"),
    "sixteen bits": lambda: encoded(Image.new("I;16", (30, 20), 40_000)),
    "one by ten thousand": lambda: encoded(Image.new("RGB", (1, 700))),
    "turned": turned,
    "palette": lambda: encoded(drawn(30, 20).convert("P")),
    "one frame": lambda: encoded(drawn(8, 8), "GIF"),
    "webp": lambda: encoded(drawn(8, 8), "WEBP"),
}


@pytest.mark.parametrize("name", GOOD)
def test_odd_images_are_read(server: Inside, name: str) -> None:
    reply = post(server, "v1/chat/completions", {"messages": turns(url_of(GOOD[name]())), **SMALL})
    assert reply.status_code == 200, reply.text


def test_a_picture_longer_than_the_tower_is_refused(server: Inside) -> None:
    """The small tower places 64 patches in a row; the released one takes 1 x 10000 (test_pixels)."""
    image = Image.new("RGB", (1, 10_000))
    reply = post(server, "v1/chat/completions", {"messages": turns(url_of(encoded(image))), **SMALL})
    assert reply.status_code in (200, 400)


@pytest.mark.parametrize(
    ("messages", "param", "said"),
    [
        (turns(*[url_of(b"x")] * 21), "messages", "messages has 21 images; at most 20"),
        (turns("https://images.example/a.png"), "messages[0].content[0]", "this server fetches nothing"),
        (turns("http://127.0.0.1:1/a.png"), "messages[0].content[0]", "this server fetches nothing"),
        (turns("/etc/passwd"), "messages[0].content[0]", "nothing is fetched"),
        (turns("file:///etc/passwd"), "messages[0].content[0]", "nothing is fetched"),
        (turns("data:image/png;base64,%%%"), "messages[0].content[0]", "is not base64"),
        (
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": turns(url_of(b"x"))[0]["content"]}],
            "messages[1].content[0]",
            "is an image in a turn of the assistant",
        ),
    ],
)
def test_parts_that_cannot_be_taken(server: Inside, messages: list[Any], param: str, said: str) -> None:
    reply = post(server, "v1/chat/completions", {"messages": messages, **SMALL})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert said in reply.json()["error"]["message"]


def test_responses_name_the_item_of_their_input(server: Inside) -> None:
    item = {"role": "user", "content": [{"type": "input_image", "image_url": url_of(b"GIF")}]}
    reply = post(server, "v1/responses", {"input": [item], "instructions": "Be brief."})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "input[0].content[0]"


def test_a_text_model_says_so(served: Inside) -> None:
    reply = post(served, "v1/chat/completions", {"messages": turns(url_of(encoded(drawn(8, 8))))})
    assert reply.status_code == 400
    assert (
        "messages[0].content[0] is an image, and this checkpoint reads text alone" in reply.json()["error"]["message"]
    )


def test_images_go_where_images_are_read(server: Inside) -> None:
    body = {"messages": turns(url_of(encoded(drawn(8, 8)))), "prediction": {"type": "content", "content": "a"}}
    assert post(server, "v1/chat/completions", body | SMALL).status_code == 200
    body["messages"][0]["content"][-1]["text"] = "<|code_to_edit|>a<|/code_to_edit|>"
    reply = post(server, "v1/edit/completions", {"messages": body["messages"]})
    assert reply.status_code == 400
    assert "an image was sent where text alone is read" in reply.json()["error"]["message"]


def test_a_large_picture_fits_the_body_and_a_larger_one_does_not(server: Inside, served: Inside) -> None:
    """A text model keeps the small bound on bodies."""
    body = {"messages": turns(url_of(bytes(5 * 2**20)))}
    assert post(server, "v1/chat/completions", body).status_code == 400
    assert post(served, "v1/chat/completions", body).status_code == 413
    assert post(server, "v1/chat/completions", {"messages": turns(url_of(bytes(25 * 2**20)))}).status_code == 413


# -- fetched -----------------------------------------------------------------------------------------------------------


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """A host of images."""

    seen: list[str] = []  # noqa: RUF012, one list for all requests is what is wanted

    def do_GET(self) -> None:
        self.seen.append(self.path)
        if self.path == "/away":
            self.send_response(302)
            self.send_header("location", "/a.png")
            self.end_headers()
            return
        if self.path == "/head":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        else:
            self.send_response(404 if self.path == "/none" else 200)
            if self.path == "/crumbs":
                self.send_header("transfer-encoding", "chunked")
            self.end_headers()
        try:
            if self.path in ("/slow", "/head"):
                for _ in range(100):
                    self.wfile.write(b"x")
                    self.wfile.flush()
                    threading.Event().wait(0.1)
            for _ in range(1100 if self.path == "/crumbs" else 0):
                self.wfile.write(b"1\r\nx\r\n")
            self.wfile.write(bytes(10**6) if self.path == "/big" else encoded(drawn(8, 8)))
        except OSError:
            pass  # the reader has gone

    def log_message(self, *args: Any) -> None:
        """Silent."""


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, list[str]]]:
    """Name and port of a host, and the paths that it was asked for."""
    Elsewhere.seen = []
    host = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=host.serve_forever, daemon=True).start()
    yield f"localhost:{host.server_address[1]}", Elsewhere.seen
    host.shutdown()
    host.server_close()


def test_an_allowed_host_with_a_private_address_is_not_asked(elsewhere: tuple[str, list[str]]) -> None:
    host, seen = elsewhere
    with pytest.raises(RequestError, match=r"part is at localhost, an address that is not public; nothing was fetched"):
        Fetcher((host,)).fetch(f"http://{host}/a.png", "part")
    assert not seen


def test_the_address_that_was_checked_is_the_one_that_is_asked(
    elsewhere: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that stands for another address the second time gets nobody further."""
    host, seen = elsewhere
    port = int(host.partition(":")[2])
    names: list[str] = []

    def resolve(name: str, *_: object, **__: object) -> list[tuple[Any, ...]]:
        names.append(name)
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr("redraft.server.http.fetch.socket.getaddrinfo", resolve)
    found = Fetcher((f"images.example:{port}",), allows=lambda _: True).fetch(
        f"http://images.example:{port}/a.png?x=1", "part"
    )
    assert found == encoded(drawn(8, 8))
    assert seen == ["/a.png?x=1"]
    assert names.count("images.example") == 1


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("away", "answered a redirect, which is not followed"),
        ("none", "answered 404"),
        ("big", "part is at localhost and too large: send at most 5000 bytes"),
        ("crumbs", "part is at localhost and comes in too small pieces"),
        ("slow", "has not come from localhost within 1 seconds"),
        ("head", "has not come from localhost within 1 seconds"),
    ],
)
def test_bounds_of_what_is_fetched(elsewhere: tuple[str, list[str]], path: str, said: str) -> None:
    host, seen = elsewhere
    fetcher = Fetcher((host,), seconds=1, max_bytes=5000, allows=lambda _: True)
    began = time.monotonic()
    with pytest.raises(RequestError, match=said):
        fetcher.fetch(f"http://{host}/{path}", "part")
    assert time.monotonic() - began < 8
    assert seen == [f"/{path}"]


def test_the_images_of_one_request_have_their_bytes_together(elsewhere: tuple[str, list[str]]) -> None:
    host, _ = elsewhere
    size = len(encoded(drawn(8, 8)))
    fetcher = Fetcher((host,), max_bytes=2 * size - 1, allows=lambda _: True).of_one_request
    assert len(fetcher.fetch(f"http://{host}/a.png", "first")) == size
    assert len(fetcher.fetch(f"http://{host}/a.png", "the same again")) == size
    beside = f"second is at localhost and too large beside the {size} bytes .*: send at most {2 * size - 1} bytes"
    with pytest.raises(RequestError, match=beside):
        fetcher.fetch(f"http://{host}/b.png", "second")


@pytest.mark.parametrize(
    "url",
    [
        "http://other.example/a.png",
        "http://images.example:81/a.png",
        "http://images.example@other.example/a.png",
        "http://user:word@images.example/a.png",
        "ftp://images.example/a.png",
        "http://images.example.other.example/",
        "http://[::1]/",
        "http://",
        "http://images.example\\@other.example/",
    ],
)
def test_only_hosts_of_the_list_are_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.server.http.fetch.socket.getaddrinfo", lambda *_, **__: pytest.fail("resolved"))
    with pytest.raises(RequestError, match=r"^part "):
        Fetcher(("images.example",)).fetch(url, "part")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.20.0.1", False),
        ("192.168.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("fec0::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::a00:1", False),
        ("2002:a00:1::", False),
        ("ff02::1", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) == public


def test_a_server_fetches_from_its_hosts_alone(seeing: Engine, elsewhere: tuple[str, list[str]]) -> None:
    host, seen = elsewhere
    fetcher = Fetcher((host,), allows=lambda _: True)
    for server in inside(seeing, Settings(names=("eye",), fetcher=fetcher)):
        reply = post(server, "v1/chat/completions", {"messages": turns(f"http://{host}/a.png"), **SMALL})
        assert reply.status_code == 200, reply.text
        refused = post(server, "v1/chat/completions", {"messages": turns("http://localhost/a.png"), **SMALL})
        assert refused.status_code == 400
    assert seen == ["/a.png"]


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_hundred_images_leave_memory_flat(server: Inside, client: OpenAI) -> None:
    """Other pixels every time: soft tokens and prefixes are kept within their bounds."""

    def ask(seed: int) -> None:
        messages = turns(url_of(encoded(drawn(1200, 900, seed), "JPEG"), "jpeg"), text="x" * 300)
        client.chat.completions.create(
            model="eye", messages=messages, seed=3, max_tokens=4, extra_body={"max_steps": 1}
        )

    for seed in range(20):
        ask(seed)
    before = resident_mib()
    for seed in range(100):
        ask(100 + seed)
    assert resident_mib() - before < 48


def test_a_small_image_waits_for_no_large_one(seeing: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited seconds for one whose decoding nothing can interrupt."""
    assert seeing.vision is not None
    small, large = (GivenImage("image", encoded(Image.new("RGB", (side, side)))) for side in (64, 4200))
    assert [is_small(one.image) for one in (small, large) if isinstance(one.image, bytes)] == [True, False]
    profile = b"a\0\0" + zlib.compress(bytes(2**20))
    remarks = encoded(Image.new("L", (8, 8)), "GIF")[:-1] + b"!\xfe" + b"\1a" * 2**21 + b"\0;"
    assert not is_small(remarks)  # of a byte each, which take seconds to skip, while it waits for no small one
    for data in (b"no image", png(8, *[(b"iCCP", profile)] * 3000)):  # the second takes seconds to open
        began = time.monotonic()
        assert is_small(data)
        assert time.monotonic() - began < 0.5
    held, goes = threading.Event(), threading.Event()
    plain = vision.load_rgb

    def load_rgb(given: Any, **named: Any) -> Any:
        if given == large.image:
            held.set()
            goes.wait(30)
        return plain(given, **named)

    monkeypatch.setattr(vision, "load_rgb", load_rgb)
    with beside(lambda: seeing.vision and seeing.vision._decode(large, LIMITS)):
        assert held.wait(30)
        seeing.vision._decode(small, LIMITS)
        goes.set()
