"""The live canvas, pins, documents, and the newer text interface."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from openai import OpenAI
from tests.server.conftest import ANSWER, RECORD, USER, Process

PUZZLE = "sudoku\n1..4\n..1.\n..42\n4..."


def chunks(text: str) -> list[dict[str, Any]]:
    """What a stream reported, its end left out."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def replayed(frames: list[dict[str, Any]]) -> list[str]:
    """The tokens of a canvas, put together from its frames as a client does."""
    shown = [""] * frames[0]["width"]
    for frame in frames:
        for at, token in zip(frame["positions"], frame["tokens"], strict=True):
            shown[at] = token
    return shown


def test_frames_ride_on_valid_chunks_only_when_asked_for(http: httpx2.Client) -> None:
    body = {"messages": USER, "stream": True, "seed": 7}
    plain = chunks(http.post("/v1/chat/completions", json=body).text)
    assert not any("canvas" in chunk for chunk in plain)
    reported = chunks(http.post("/v1/chat/completions", json=body | {"canvas": {"stream": True}}).text)
    frames = [chunk["canvas"] for chunk in reported if "canvas" in chunk]
    assert [frame["step"] for frame in frames] == list(range(len(frames))), "the noise is step 0"
    noise = chunks(http.post("/v1/canvas", json=body).text)[0]
    assert (noise["type"], noise["tokens"]) == ("noise", frames[0]["tokens"])
    assert all(chunk["choices"][0]["delta"] == {} for chunk in reported if "canvas" in chunk)
    shown = replayed(frames)
    assert "".join(shown[: frames[-1]["end"]]) == ANSWER
    assert all(len(frame["entropy"]) == len(frame["accepted"]) == frame["width"] for frame in frames)


def test_a_canvas_streams_drafts_then_blocks_then_the_end(http: httpx2.Client) -> None:
    reported = chunks(http.post("/v1/canvas", json={"messages": USER, "stream": True, "seed": 7}).text)
    kinds = [one["type"] for one in reported]
    assert kinds == sorted(kinds, key=["noise", "draft", "block", "finished"].index)
    assert kinds.count("noise") == 1
    assert len(reported[0]["tokens"]) == reported[0]["width"] == reported[1]["width"]
    assert kinds.count("finished") == 1
    assert reported[-1]["text"] == ANSWER
    whole = http.post("/v1/canvas", json={"messages": USER, "seed": 7}).json()
    assert whole["blocks"] == reported[-1]["blocks"]
    (block,) = whole["blocks"]
    assert "".join(block["pieces"]) == ANSWER
    assert len(block["entropy"]) == len(block["settled_at"]) == len(block["tokens"])


def test_a_document_keeps_its_texts(http: httpx2.Client) -> None:
    segments = [
        {"text": '{"who":"'},
        {"hole": {"max_tokens": 4}},
        {"text": '","qty":'},
        {"hole": {"regex": "[0-9]{1,3}", "max_tokens": 4}},
        {"text": "}"},
    ]
    reported = http.post("/v1/canvas", json={"segments": segments, "seed": 2})
    assert reported.status_code == 200, reported.text
    one, two = (hole["text"] for hole in reported.json()["holes"])
    assert reported.json()["text"] == f'{{"who":"{one}","qty":{two}}}'
    assert two.isdigit()
    assert one


HOLE = [{"text": "sudoku\n1234\n3412\n"}, {"hole": {"max_tokens": 6}}, {"text": "\n4321"}]
REVISION = [{"text": "Send "}, {"revise": {"text": "417", "strength": 1.0, "slack": 1}}, {"text": " melu."}]


@pytest.mark.parametrize("segments", [HOLE, REVISION])
def test_a_documents_canvases_can_be_watched(http: httpx2.Client, segments: list[dict[str, Any]]) -> None:
    """The result is that of no stream, and the winner's last draft reads so; all others are reported to be over."""
    body = {"segments": segments, "seed": 2}
    reported = chunks(http.post("/v1/canvas", json=body | {"stream": True}).text)
    alone = http.post("/v1/canvas", json=body).json()
    assert reported[-1] == {"type": "finished"} | alone
    begun = {one["index"]: one for one in reported if one["type"] == "request"}
    assert len(begun) == (alone["holes"][0]["tried"] if "holes" in alone else 3)
    over = {one["index"]: one["finish"] for one in reported if one["type"] == "over"}
    assert over.keys() == begun.keys()
    assert "aborted" in over.values()
    text = alone["holes"][0]["text"] if "holes" in alone else alone["revised"]
    assert (alone["holes"][0] if "holes" in alone else alone)["finish"] == "stop"
    read = set()
    for index in (i for i, finish in over.items() if finish != "aborted"):
        frames = [one for one in reported if one["type"] == "draft" and one["index"] == index]
        read.add("".join(replayed(frames)[: begun[index]["gap"]]))
    assert any(text in one for one in read), "healed tokens may stand around it"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": "a", "messages": USER},
        {"segments": [{"text": "a"}]},
        {"segments": [{"text": "a", "hole": {}}]},
        {"segments": [{"hole": {}}, {"revise": {"text": "a"}}]},
        {"segments": [{"hole": {"max_tokens": 0}}]},
        {"prompt": "a", "pins": [{"at": 0}]},
        {"prompt": "a", "pins": [{"at": 9999, "token": 5}]},
        {"prompt": "a", "n": 2},
        {"prompt": "a", "pins": [{"at": 8, "token": 300}], "max_tokens": 8},
        {"segments": [{"text": "a "}, {"hole": {"width": 12}}], "max_tokens": 3},
        {"segments": [{"text": "a "}, {"hole": {"max_tokens": 12}}], "max_tokens": 1},
        {"segments": [{"text": "a "}, {"revise": {"text": "3 apples"}}], "max_tokens": 1},
    ],
)
def test_what_makes_no_canvas_is_refused(http: httpx2.Client, body: dict[str, Any]) -> None:
    for stream in (False, True):
        reported = http.post("/v1/canvas", json=body | {"stream": stream})
        assert reported.status_code == 400
        assert reported.json()["error"]["message"]


def test_responses_answer_and_stream(server: Process) -> None:
    with OpenAI(base_url=server.base, api_key="none", max_retries=0) as client:
        done = client.responses.create(model="nano", input=RECORD)
        assert (done.output_text, done.status) == (ANSWER, "completed")
        assert done.usage is not None
        assert done.usage.output_tokens == 18
        turns = client.responses.create(model="nano", input=USER, max_output_tokens=5)
        assert (turns.status, turns.incomplete_details) != ("completed", None)
        assert [item.to_dict()["status"] for item in turns.output] == ["incomplete"]
        with client.responses.stream(model="nano", input=RECORD) as stream:
            kinds = [event.type for event in stream]
            assert stream.get_final_response().output_text == ANSWER
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"


@pytest.mark.parametrize("name", ["ask_fields", "verbatim", "read_back"])
def test_what_only_chat_can_do_is_refused_elsewhere(http: httpx2.Client, name: str) -> None:
    """It did nothing, and nobody said so."""
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "a", "structured_outputs": {"json": "who"}},
        "/completion": {"prompt": "a"},
        "/v1/fim/completions": {"prompt": "a", "suffix": "b"},
        "/v1/edit/completions": {"messages": [{"role": "user", "content": "<|code_to_edit|>ab<|/code_to_edit|>"}]},
        "/v1/canvas": {"prompt": "a"},
    }
    for path, body in bodies.items():
        reply = http.post(path, json=body | {"canvas": {name: True}})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, f"canvas.{name}"), path


def test_a_refusal_names_what_was_sent(http: httpx2.Client) -> None:
    both = http.post("/v1/canvas", json={"prompt": "a", "messages": USER}).json()["error"]
    assert (both["param"], "messages and prompt were sent" in both["message"]) == ("prompt", True)
    assert http.put("/v1/canvas").json()["error"]["code"] is None
    assert http.get("/v1/nowhere").json()["error"]["code"] == "not_found"
