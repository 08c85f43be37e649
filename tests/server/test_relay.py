"""The relay in front of a fleet, with pretended replicas: what a client sees when one of them is lost."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
from starlette.types import Message

from redraft.server.http import limits
from redraft.server.http.keys import digest_of
from redraft.server.http.limits import ServerLimits
from redraft.server.http.metrics import merged
from redraft.server.http.places import BLOCK_BYTES, blocks_of
from redraft.server.http.relay import TRIES, Relay
from redraft.server.http.settings import Settings

NAME = (b"x-request-id", b"req-1")
HEAD = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), NAME],
}
JSON_HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json"), NAME]}


class Lost(Exception):
    """A replica is gone."""


def part(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


Script = Sequence[Message | BaseException | float]


def ask(
    scripts: Sequence[Script],
    *,
    body: bytes = b"{}",
    path: str = "/v1/chat/completions",
    method: str = "POST",
    limits: ServerLimits | None = None,
    leaves: bool = False,
    cut: int | None = None,
    figures: Mapping[str, bytes] | None = None,
) -> tuple[list[Message], list[str]]:
    """What a client gets where the i-th replica that is asked follows the i-th script, and what the replicas did."""
    left, sent, did = list(scripts), list[Message](), list[str]()

    async def replica(
        scope: Mapping[str, Any], given: bytes, blocks: Sequence[bytes]
    ) -> AsyncGenerator[Sequence[Message], None]:
        assert given == body
        did.append("asked")
        try:
            for step in left.pop(0):
                if isinstance(step, BaseException):
                    raise step
                if isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    yield [step]
        except (asyncio.CancelledError, GeneratorExit):
            did.append("ended")
            raise

    async def of_each() -> Mapping[str, bytes]:
        return figures or {}

    inputs: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if inputs:
            return inputs.pop()
        await asyncio.sleep(0.05 if leaves else 100)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    relay = Relay(replica, (Lost,), of_each, Settings(limits=limits or ServerLimits()))
    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}

    async def run() -> None:
        answering = asyncio.ensure_future(relay(scope, receive, send))
        if cut is not None:  # behind so many messages
            while (not did or len(sent) < cut) and not answering.done():
                await asyncio.sleep(0.01)
            answering.cancel()
        await asyncio.wait_for(answering, 30)

    asyncio.run(run())
    return sent, did


def text_of(sent: Sequence[Message]) -> bytes:
    return b"".join(message.get("body", b"") for message in sent[1:])


def test_an_answer_passes_as_it_comes() -> None:
    sent, _ = ask([[HEAD, part(b"data: 1\n\n"), part(b"data: 2\n\n", more=False)]])
    assert sent == [HEAD, part(b"data: 1\n\n"), part(b"data: 2\n\n", more=False)]


def test_a_stream_of_which_nothing_was_seen_is_asked_again() -> None:
    """Comments are sent while an answer waits, and say nothing of it."""
    sent, did = ask([[HEAD, part(b": waiting\n\n"), Lost()], [HEAD, part(b"data: 2\n\n", more=False)]])
    assert did == ["asked", "asked"]
    assert sent[0] == HEAD
    assert text_of(sent) == b": waiting\n\ndata: 2\n\n"
    assert [message["type"] for message in sent].count("http.response.start") == 1


@pytest.mark.parametrize("cut", [[], [HEAD], [JSON_HEAD], [JSON_HEAD, part(b"{")]])
def test_messages_that_end_before_their_answer_does_are_a_lost_replicas(cut: list[Message]) -> None:
    sent, did = ask([cut, [HEAD, part(b"data: 2\n\n", more=False)]])
    assert did == ["asked", "asked"]
    assert (sent[0]["status"], text_of(sent)) == (200, b"data: 2\n\n")
    begun, _ = ask([[HEAD, part(b"data: 1\n\n")]])
    assert b"replica_lost" in text_of(begun)


def test_a_stream_that_has_begun_ends_with_an_error_event() -> None:
    sent, did = ask([[HEAD, part(b"data: 1\n\n"), Lost()]])
    assert did == ["asked"]
    _, error, done, _ = text_of(sent).split(b"\n\n")
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "replica_lost"
    assert done == b"data: [DONE]"
    assert not sent[-1].get("more_body", False)


@pytest.mark.parametrize("last", [[part(b"data: [DONE]\n\n")], [part(b"data: [DONE]\n\n"), part(b"", more=False)]])
def test_a_replica_that_is_lost_behind_its_last_event_costs_nothing(last: list[Message]) -> None:
    sent, did = ask([[HEAD, part(b"data: 1\n\n"), *last, Lost()]])
    assert (did, text_of(sent)) == (["asked"], b"data: 1\n\ndata: [DONE]\n\n")
    assert [message.get("more_body", False) for message in sent[1:]].count(False) == 1


def test_a_whole_answer_is_held_until_it_is_whole() -> None:
    sent, did = ask([[JSON_HEAD, part(b'{"a":'), Lost()], [JSON_HEAD, part(b'{"a":'), part(b"1}", more=False)]])
    assert did == ["asked", "asked"]
    assert text_of(sent) == b'{"a":1}'


def test_whatever_else_goes_wrong_is_an_answer_in_our_form(caplog: pytest.LogCaptureFixture) -> None:
    """It was a 500 in plain text, as where a message was too long to be carried."""
    sent, did = ask([[RuntimeError("too long")]])
    assert (did, sent[0]["status"], json.loads(text_of(sent))["error"]["code"]) == (["asked"], 502, "replica_lost")
    assert "too long" in caplog.text
    sent, _ = ask([[HEAD, part(b"data: 1\n\n"), RuntimeError()]])
    assert b"could not be passed on" in text_of(sent)
    sent, _ = ask([[HEAD, part(b"data: 1\n\n"), part(b"data: [DONE]\n\n"), RuntimeError()]])
    assert text_of(sent) == b"data: 1\n\ndata: [DONE]\n\n"


def test_what_the_end_of_the_relay_cuts_off_says_so() -> None:
    """It was a 500 in plain text, and streams ended without a word."""
    sent, did = ask([[100.0]], cut=0)
    assert (sent[0]["status"], json.loads(text_of(sent))["error"]["code"]) == (503, "draining")
    assert (dict(sent[0]["headers"])[b"retry-after"], did) == (b"5", ["asked", "ended"])
    sent, _ = ask([[HEAD, part(b"data: 1\n\n"), 100.0]], cut=2)
    assert sent[0] == HEAD
    assert b"draining" in text_of(sent)
    assert text_of(sent).endswith(b"data: [DONE]\n\n")
    sent, _ = ask([[HEAD, part(b"data: [DONE]\n\n"), 100.0]], cut=2)
    assert text_of(sent) == b"data: [DONE]\n\n"
    assert not sent[-1].get("more_body", False)


def test_a_relay_lives_without_replicas() -> None:
    """A probe that ends what does not live would have ended the relay that waited for them."""
    sent, did = ask([], path="/live", method="GET")
    assert (sent[0]["status"], did) == (200, [])


def test_a_request_that_ends_every_replica_is_given_up() -> None:
    sent, did = ask([[Lost()]] * (TRIES + 1))
    assert len(did) == TRIES
    assert sent[0]["status"] == 502
    assert json.loads(text_of(sent))["error"]["code"] == "replica_lost"


def test_a_second_replica_that_refuses_a_stream_ends_it_with_an_error() -> None:
    """Its head is sent, so the status of the refusal cannot be."""
    busy = {**JSON_HEAD, "status": 503}
    sent, _ = ask([[HEAD, part(b": waiting\n\n"), Lost()], [busy, part(b"{}", more=False)]])
    assert sent[0]["status"] == 200
    assert b"replica_lost" in text_of(sent)
    assert b"{}" not in text_of(sent)


def test_a_client_who_leaves_ends_the_work() -> None:
    sent, did = ask([[HEAD, part(b"data: 1\n\n"), 60.0]], leaves=True)
    assert did == ["asked", "ended"]
    assert text_of(sent) == b"data: 1\n\n"


def test_too_large_a_body_goes_nowhere() -> None:
    sent, did = ask([], body=b"x" * 11, limits=ServerLimits(body_bytes=10, image_body_bytes=10))
    assert (sent[0]["status"], did) == (413, [])


def test_a_probe_does_not_wait_for_replicas_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.server.http.relay.PROBE_SEC", 0.05)
    sent, did = ask([[60.0]], path="/ready", method="GET", body=b"")
    assert (sent[0]["status"], did) == (503, ["asked", "ended"])


PAGE = b"""# HELP redraft_tokens_total Useful tokens answered
# TYPE redraft_tokens_total counter
redraft_tokens_total 3.0
# HELP redraft_steps_per_block Steps
# TYPE redraft_steps_per_block histogram
redraft_steps_per_block_bucket{le="1.0"} 1.0
redraft_steps_per_block_bucket{le="+Inf"} 2.0
redraft_steps_per_block_count 2.0
redraft_steps_per_block_sum 5.0
"""


def test_figures_are_summed_or_named_by_replica() -> None:
    pages = {"a": PAGE, "b": PAGE.replace(b"total 3.0", b"total 4.0")}
    lines = merged(pages, apart=False).decode().splitlines()
    assert {"redraft_tokens_total 7.0", 'redraft_steps_per_block_bucket{le="+Inf"} 4.0'} <= set(lines)
    assert "# TYPE redraft_tokens_total counter" in lines
    apart = merged(pages, apart=True).decode().splitlines()
    assert {'redraft_tokens_total{replica="a"} 3.0', 'redraft_tokens_total{replica="b"} 4.0'} <= set(apart)


@pytest.mark.parametrize(
    ("path", "expected"), [("/metrics", b"total 6.0"), ("/metrics/replicas", b'{replica="b"} 3.0')]
)
def test_figures_are_for_those_whom_a_replica_lets_in(path: str, expected: bytes) -> None:
    plain = {**JSON_HEAD, "headers": [(b"content-type", b"text/plain"), (b"content-length", b"7")]}
    pages = {"a": PAGE, "b": PAGE}
    sent, _ = ask([[plain, part(b"# HELP ", more=False)]], path=path, method="GET", body=b"", figures=pages)
    assert expected in text_of(sent)
    refused = {**JSON_HEAD, "status": 401}
    sent, _ = ask([[refused, part(b'{"error":1}', more=False)]], path=path, method="GET", body=b"", figures=pages)
    assert (sent[0]["status"], text_of(sent)) == (401, b'{"error":1}')


def test_figures_are_added_up_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of many replicas take the event loop's thread long, and a stranger's scrapes are without number."""
    asked: list[int] = []

    async def figures() -> Mapping[str, bytes]:
        asked.append(1)
        await asyncio.sleep(0.01)
        if len(asked) == 1:
            raise Lost
        return {"a": PAGE}

    async def run() -> set[bytes]:
        relay = Relay(None, (Lost,), figures, Settings())  # type: ignore[arg-type]  # no replica is asked
        with pytest.raises(Lost):
            await relay._added("/metrics")
        leaving = asyncio.ensure_future(relay._added("/metrics"))
        others = [asyncio.ensure_future(relay._added("/metrics")) for _ in range(50)]
        await asyncio.sleep(0)
        leaving.cancel()
        found = set(await asyncio.gather(*others))
        assert len(asked) == 2, "an error is not kept"
        monkeypatch.setattr("redraft.server.http.relay.FIGURES_SEC", -1.0)
        return found | {await relay._added("/metrics")}

    (page,) = asyncio.run(run())
    assert b"redraft_tokens_total 3.0" in page
    assert len(asked) == 3


def chat(text: str) -> bytes:
    return json.dumps({"seed": 1, "messages": [{"role": "user", "content": text}]}).encode()


def row(text: str) -> bytes:
    return json.dumps({"custom_id": "a", "body": json.loads(chat(text))}).encode()


@pytest.mark.parametrize("form", [chat, row])
def test_prompts_that_begin_alike_share_the_blocks_of_their_beginning(form: Callable[[str], bytes]) -> None:
    begins = "x" * 3 * BLOCK_BYTES
    first, second, other = (blocks_of(form(text)) for text in (begins + "a" * 2000, begins + "b" * 2000, "y" * 2000))
    shared = [a == b for a, b in zip(first, second, strict=True)]
    assert shared[:3] == [True] * 3
    assert not any(shared[4:])
    assert first[0] != other[0]


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"3", chat("short"), b'{"prompt": null}', b"\xff"])
def test_what_has_no_block_has_no_place(body: bytes) -> None:
    assert blocks_of(body) == []


@pytest.mark.parametrize("content", [b"[]," * 5_000_000 + b"1", b"1," * 5_000_000 + b"1", b"[" * 5_000_000])
def test_whoever_routes_is_not_held_up_by_a_body(content: bytes) -> None:
    """Its values became objects: two seconds of the event loop and 600 MB for thirty million bytes of brackets."""
    body = b'{"seed": 1, "x": [' + content + b'], "messages": [' + content + b"]}"
    tracemalloc.start()
    began = time.monotonic()
    blocks_of(body)
    assert time.monotonic() - began < 1
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


async def reading(relay: Relay, size: int, **scope: Any) -> tuple[list[Message], int]:
    """What a client gets whose body of `size` comes by 64 KiB and never ends, and how much of it was read."""
    left, sent, read = size, list[Message](), 0

    async def receive() -> Message:
        nonlocal left, read
        if not left:
            await asyncio.sleep(0.2)
            return {"type": "http.disconnect"}
        left, read = left - 2**16, read + 2**16
        await asyncio.sleep(0)
        return {"type": "http.request", "body": bytes(2**16), "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    kind = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [], "query_string": b""}
    await relay({**kind, "client": ("192.0.2.1", 1), **scope}, receive, send)
    return sent, read


def relay_of(keys: tuple[bytes, ...] = ()) -> Relay:
    async def replica(*_: Any) -> AsyncGenerator[Sequence[Message], None]:
        yield [{**JSON_HEAD, "status": 401}, part(b"{}", more=False)]

    async def of_each() -> Mapping[str, bytes]:
        return {}

    return Relay(replica, (Lost,), of_each, Settings(keys=keys))


def test_what_no_replica_answers_has_its_name_and_may_be_read_by_pages_that_may_call() -> None:
    """It had neither: a page elsewhere saw only that the network had failed. Each replica has the same name for it."""
    seen, sent, page = list[str](), list[Message](), "https://app.example"

    async def replica(scope: Mapping[str, Any], *_: Any) -> AsyncGenerator[Sequence[Message], None]:
        seen.append(dict(scope["headers"])[b"x-request-id"].decode())
        raise Lost
        yield []

    async def of_each() -> Mapping[str, bytes]:
        return {}

    async def receive() -> Message:
        if sent or seen:
            await asyncio.sleep(100)
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    relay = Relay(replica, (Lost,), of_each, Settings(origins=(page,)))
    headers = [(b"origin", page.encode()), (b"x-request-id", b"mine")]
    asyncio.run(relay({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, send))
    answered = dict(sent[0]["headers"])
    assert (sent[0]["status"], seen) == (502, ["mine"] * TRIES)
    assert answered[b"x-request-id"] == b"mine"
    assert answered[b"access-control-allow-origin"] == page.encode()
    assert answered[b"x-content-type-options"] == b"nosniff"


def test_a_websocket_is_refused() -> None:
    """Where Ray's own server is in front, the handshake was a 500 in plain text."""
    sent = list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(relay_of()({"type": "websocket", "path": "/v1/models", "headers": []}, Mock(), send))
    assert sent == [{"type": "websocket.close"}]


def test_bodies_on_their_way_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 2,048 connections could send 32 MiB to the one process in front of all replicas."""
    monkeypatch.setattr(limits, "BODIES_OF_ONE", 2**20)

    async def two() -> tuple[list[Message], list[Message]]:
        relay = relay_of()
        first = asyncio.create_task(reading(relay, 2**20 - 2**17))
        await asyncio.sleep(0.05)
        (second, _), (other, _) = await asyncio.gather(
            reading(relay, 2**19), reading(relay, 2**19, client=("192.0.2.2", 1))
        )
        assert not other
        await first
        return second, (await reading(relay, 2**19))[0]

    refused, later = asyncio.run(two())
    assert (refused[0]["status"], later) == (503, [])


def test_a_body_of_a_client_without_a_key_is_not_read() -> None:
    key = (b"authorization", b"Bearer key-number-one")
    relay = relay_of((digest_of("key-number-one"),))
    sent, read = asyncio.run(reading(relay, 2**30))
    assert sent[0]["status"] == 401
    assert read < 2**22, "as it was answered at once"
    assert asyncio.run(reading(relay, 2**20, headers=[key]))[1] == 2**20
