"""A server in front of another one: what it passes on, what it refuses, and that nobody's failure is a stranger's."""

from __future__ import annotations

import json
import threading
import typing
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params
from tests.server.conftest import ANSWER, RECORD, Process, end, eventually, start
from tests.unit.test_remote import GOOD, HEAD, KEY, Act, Stub, chunk, reply, says, talks_until

from redraft.__main__ import main

USER: list[Any] = [{"role": "user", "content": RECORD}]


def front(url: str, *words: str, env: dict[str, str] | None = None) -> Process:
    return start("--quiet", "--backend", "openai", "--base-url", url, *words, env=env)


@pytest.fixture(scope="module")
def stub() -> Iterator[Stub]:
    with Stub([says(GOOD)]) as made:
        yield made


@pytest.fixture(scope="module")
def before(stub: Stub) -> Iterator[Process]:
    """In front of the stub, which it gives a key, and with a key of its own."""
    words = ["--api-key-env", "THEIR_KEY", "--name", "ours", "--alias", "other", "--timeout", "60"]
    process = front(stub.url, *words, env={"THEIR_KEY": KEY, "REDRAFT_API_KEYS": "one-secret-key"})
    yield process
    end(process)


def ask(process: Process, path: str = "chat/completions", **body: Any) -> httpx2.Response:
    headers = {"authorization": "Bearer one-secret-key"}
    body = body if "prompt" in body else {"messages": USER} | body
    return httpx2.post(f"{process.base}/{path}", json=body, headers=headers, timeout=100)


@pytest.mark.parametrize(
    ("path", "params"), [("chat/completions", chat_params), ("completions", text_params)], ids=["chat", "text"]
)
def test_what_openai_names_is_passed_on_and_nothing_else(stub: Stub, before: Process, path: str, params: Any) -> None:
    """A router's list of `models` would have said who answers, which is said by --model there."""
    named = typing.get_type_hints(params.CompletionCreateParamsNonStreaming).keys() - {"model", "stream"}
    body = {name: {"of": [name]} for name in named}
    stub.acts[0] = says(reply({"choices": []}))
    assert ask(before, path, **body).status_code == 200
    assert stub.seen[-1][2] == body | {"model": "theirs"}
    asked = len(stub.seen)
    for name in ("models", "route", "provider", "fallbacks", "extra_body", "unheard"):
        error = ask(before, path, **body | {name: ["bigger"]}).json()["error"]
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")
        assert f"{name} is not a field of this endpoint" in error["message"]
    assert len(stub.seen) == asked


def test_the_openai_client_gets_what_the_other_server_says(server: Process) -> None:
    """Our own server behind ours, whole and streamed, beside the same asked directly."""
    process = front(server.base)
    try:
        told = []
        for base in (server.base, process.base):
            with OpenAI(base_url=base, api_key="none", max_retries=0) as client:
                (model,) = [one.id for one in client.models.list() if one.id != "other-name"]
                whole = client.chat.completions.create(model=model, messages=USER, seed=5)
                stream = client.chat.completions.create(
                    model=model, messages=USER, seed=5, stream=True, stream_options={"include_usage": True}
                )
                chunks = list(stream)
                text = client.completions.create(model=model, prompt="record", seed=5, max_tokens=8)
                said = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
                usage = chunks[-1].usage
                assert usage is not None
                told.append((whole.choices[0].message.content, said, usage.completion_tokens, text.choices[0].text))
                with pytest.raises(openai.BadRequestError, match="is not a field of this endpoint"):
                    client.chat.completions.create(model=model, messages=USER, extra_body={"strength": 1})
                with pytest.raises(openai.NotFoundError):
                    client.chat.completions.create(model="unheard-of", messages=USER)
        assert told[0] == told[1]
        assert told[0][0] == told[0][1]
        assert "other-name" in [one["id"] for one in httpx2.get(f"{server.base}/models", timeout=100).json()["data"]]
    finally:
        assert end(process) == 0


def test_a_body_goes_as_it_came_under_the_name_the_model_has_there(stub: Stub, before: Process) -> None:
    stub.acts[0] = says(reply({"choices": [], "said": "é"}))
    told = ask(before, model="other", temperature=0.5, tools=[{"of": [1]}], user=None)
    assert (told.status_code, told.json()) == (200, {"choices": [], "said": "é"})
    path, headers, body = stub.seen[-1]
    assert path == "/v1/chat/completions"
    assert headers["authorization"] == f"Bearer {KEY}"
    assert "one-secret-key" not in json.dumps(headers)
    assert body == {"model": "theirs", "messages": USER, "temperature": 0.5, "tools": [{"of": [1]}]}
    assert ask(before, "completions", prompt="x").status_code == 200
    assert stub.seen[-1][0] == "/v1/completions"
    models = httpx2.get(f"{before.base}/models", headers={"x-api-key": "one-secret-key"}, timeout=100).json()["data"]
    assert [one["id"] for one in models] == ["ours", "other"]
    assert httpx2.post(f"{before.base}/chat/completions", json={"messages": USER}, timeout=100).status_code == 401


@pytest.mark.parametrize(
    ("act", "status", "said"),
    [
        (says(reply({"error": {"message": "no such thing"}}, "404 No")), 404, "answered 404: no such thing"),
        (says(reply({"error": {"message": f"bad key {KEY}"}}, "401 No")), 502, "bad key [the key]"),
        (says(reply({"error": "down"}, "500 Broken", "retry-after: 0")), 502, "answered 500: down"),
        (says(reply(b"<html>")), 502, "which is not of OpenAI's interface"),
        (says(b""), 502, "broke off the connection"),
    ],
)
def test_what_goes_wrong_there_is_told_as_such(stub: Stub, before: Process, act: Act, status: int, said: str) -> None:
    stub.acts[0] = act
    told = ask(before)
    assert (told.status_code, told.json()["error"]["code"]) == (status, "elsewhere")
    assert said in told.json()["error"]["message"]
    assert KEY not in told.text


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (HEAD + chunk("He") + b'data: {"error": {"message": "no room"}}\n\n', "gave up in the middle: no room"),
        (HEAD + chunk("He") + b"data: nonsense\n\n", "which is not of OpenAI's interface"),
        (HEAD + chunk("He"), "broke off in the middle"),
    ],
)
def test_a_stream_that_fails_ends_with_an_error(stub: Stub, before: Process, data: bytes, said: str) -> None:
    stub.acts[0] = says(data)
    told = ask(before, stream=True)
    assert told.status_code == 200
    pieces = [json.loads(line[6:]) for line in told.text.split("\n\n") if line.startswith("data: {")]
    assert pieces[0]["choices"][0]["delta"]["content"] == "He"
    assert said in pieces[-1]["error"]["message"]
    assert pieces[-1]["error"]["code"] == "elsewhere"


def test_a_stream_without_a_last_word_is_whole_once_it_has_a_reason(stub: Stub, before: Process) -> None:
    stub.acts[0] = says(HEAD + chunk("He", "stop"))
    told = ask(before, stream=True)
    assert told.text.endswith("data: [DONE]\n\n")
    assert "error" not in told.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("line", "status"), [("400 Bad", 400), ("401 No", 502), ("404 No", 404), ("422 No", 422), ("429 Wait", 429)]
)
def test_a_refusal_keeps_its_status_streamed_or_not(
    stub: Stub, before: Process, line: str, status: int, stream: bool
) -> None:
    stub.acts[0] = says(reply({"error": {"message": "no"}}, line, "retry-after: 0"))
    told = ask(before, stream=stream)
    assert (told.status_code, told.json()["error"]["code"]) == (status, "elsewhere")
    assert ("retry-after" in told.headers) == (status == 429)


def test_json_that_others_write_comes_through(stub: Stub, before: Process) -> None:
    """Half a character in each of two chunks, and a number that JSON does not have."""
    odd = b'{"choices": [{"index": 0, "delta": {"content": "\\ud83d"}, "finish_reason": "stop"}], "worth": NaN}'
    stub.acts[0] = says(reply(odd))
    told = ask(before)
    assert (told.status_code, repr(json.loads(told.text))) == (200, repr(json.loads(odd)))
    stub.acts[0] = says(HEAD + b"data: " + odd + b"\n\n" + chunk("on") + b"data: [DONE]\n\n")
    lines = [line[6:] for line in ask(before, stream=True).text.split("\n\n") if line]
    assert repr(json.loads(lines[0])) == repr(json.loads(odd))
    assert lines[2:] == ["[DONE]"]


@pytest.mark.parametrize("path", ["canvas", "decisions", "responses", "fim/completions", "edit/completions"])
def test_what_needs_a_model_at_hand_is_refused_with_the_reason(before: Process, path: str) -> None:
    told = ask(before, path)
    assert (told.status_code, told.json()["error"]["code"]) == (501, "needs_a_model")
    assert "needs a model at hand" in told.json()["error"]["message"]


def test_a_client_that_goes_away_ends_the_question_there(stub: Stub, before: Process) -> None:
    left = threading.Event()
    stub.acts[0] = talks_until(left)
    headers = {"authorization": "Bearer one-secret-key"}
    body = {"messages": USER, "stream": True}
    with httpx2.stream("POST", f"{before.base}/chat/completions", json=body, headers=headers, timeout=100) as told:
        assert next(told.iter_lines())
    assert left.wait(60)

    def figures() -> str:
        return httpx2.get(f"{before.url}/metrics", headers=headers, timeout=100).text

    assert eventually(lambda: "redraft_disconnects_total 1.0" in figures(), 60)
    stub.acts[0] = says(reply({"choices": []}))
    assert eventually(lambda: ask(before).status_code == 200, 60)


@pytest.fixture(scope="module")
def next_to(stub: Stub) -> Iterator[Process]:
    """A model at hand, and the stub beside it, both with keys."""
    words = ["--quiet", "--beside", stub.url, "--their-model", "big", "--api-key-env", "THEIR_KEY"]
    process = start(*words, env={"THEIR_KEY": KEY, "REDRAFT_API_KEYS": "one-secret-key"})
    yield process
    end(process)


def ask_beside(process: Process, path: str = "chat/completions", **body: Any) -> httpx2.Response:
    headers = {"authorization": "Bearer one-secret-key"}
    body = body if "prompt" in body else {"messages": USER} | body
    return httpx2.post(f"{process.url}/beside/{path}", json=body, headers=headers, timeout=100)


def test_a_server_beside_ours_is_asked_under_a_path_of_its_own(stub: Stub, next_to: Process) -> None:
    stub.acts[0] = says(reply({"choices": [], "said": "é"}, "200 OK", "set-cookie: whose=another"))
    asked = len(stub.seen)
    own = ask(next_to, seed=5).json()
    assert own["model"] == "nano"
    assert own["choices"][0]["message"]["content"] == ANSWER
    assert len(stub.seen) == asked, "our own answers are nobody else's affair"
    told = ask_beside(next_to, seed=5)
    assert (told.status_code, told.json()) == (200, {"choices": [], "said": "é"})
    path, headers, body = stub.seen[-1]
    assert (path, body) == ("/v1/chat/completions", {"model": "big", "messages": USER, "seed": 5})
    assert headers["authorization"] == f"Bearer {KEY}"
    assert "one-secret-key" not in json.dumps(headers)
    assert ask_beside(next_to, "completions", prompt="x").status_code == 200
    path, headers, _ = stub.seen[-1]
    assert path == "/v1/completions"
    assert "cookie" not in headers, "what it remembers of one of ours is not told of another"
    (model,) = httpx2.get(f"{next_to.base}/models", headers={"x-api-key": "one-secret-key"}, timeout=100).json()["data"]
    assert model["beside"] == stub.url
    stub.acts[0] = says(GOOD)
    assert ask_beside(next_to, stream=True).text.endswith("data: [DONE]\n\n")


def test_nothing_of_a_request_says_where_beside_is_or_who_answers_there(stub: Stub, next_to: Process) -> None:
    asked = len(stub.seen)
    for name in ("model", "models", "provider"):
        told = ask_beside(next_to, **{name: "bigger"})
        assert (told.status_code, told.json()["error"]["param"]) == (400, name)
    for path in ("models", "chat/completions/../models", "http://127.0.0.1:9/v1/chat/completions"):
        assert ask_beside(next_to, path).status_code == 404
    assert (
        httpx2.post(f"{next_to.url}/beside/chat/completions", json={"messages": USER}, timeout=100).status_code == 401
    )
    assert len(stub.seen) == asked


def test_without_the_flag_there_is_no_such_path(server: Process) -> None:
    assert ask_beside(server).status_code == 404
    assert "/beside/chat/completions" not in httpx2.get(f"{server.url}/openapi.json", timeout=100).json()["paths"]
    assert httpx2.get(f"{server.base}/models", timeout=100).json()["data"][0]["beside"] is None


def test_a_server_beside_that_is_down_or_fails_breaks_nothing_of_ours(stub: Stub, next_to: Process) -> None:
    stub.acts[0] = says(reply({"error": f"key {KEY} is down"}, "500 Broken", "retry-after: 0"))
    told = ask_beside(next_to, stream=True)
    assert (told.status_code, told.json()["error"]["code"]) == (502, "elsewhere")
    assert "answered 500: key [the key] is down" in told.json()["error"]["message"]
    assert ask(next_to, seed=5).json()["choices"][0]["message"]["content"] == ANSWER
    away = start("--quiet", "--beside", "http://127.0.0.1:9/v1")  # it may be started later
    try:
        told = ask_beside(away)
        assert told.status_code == 502
        assert "http://127.0.0.1:9/v1 does not answer" in told.json()["error"]["message"]
        assert ask(away, seed=5).json()["choices"][0]["message"]["content"] == ANSWER
    finally:
        assert end(away) == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--backend", "openai"], 2, "needs --base-url"),
        (["--base-url", "http://a"], 2, "without --backend"),
        (["--backend", "openai", "--base-url", "http://a", "--plan", "int8"], 2, "--plan was given"),
        (["--backend", "openai", "--base-url", "http://a", "--preset", "fast"], 2, "--preset was given"),
        (["--backend", "openai", "--base-url", "http://a", "--max-running", "2"], 2, "--max-running was given"),
        (["--backend", "openai", "--base-url", "http://127.0.0.1:9/v1"], 1, "does not answer"),
        (["--backend", "openai", "--base-url", "http://a", "--beside", "http://b"], 2, "--beside was given"),
        (["--backend", "openai", "--base-url", "http://a", "--their-model", "b"], 2, "--their-model was given"),
        (["--beside", "http://a", "--base-url", "http://b"], 2, "--base-url was given"),
        (["--beside", "a/v1"], 2, "the base URL is 'a/v1'"),
        (["--beside", "http://a", "--timeout", "0"], 2, "the time for an answer is 0"),
        (["--beside", "http://a", "--api-key-env", "NOT_SET_ANYWHERE"], 2, "the variable NOT_SET_ANYWHERE"),
        (["--their-model", "a"], 2, "--their-model was given without --beside URL; add that"),
        (["--timeout", "3"], 2, "--timeout was given without"),
    ],
)
def test_flags_that_do_not_go_together(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port", "0", *words]) == code
    assert said in capsys.readouterr().err
