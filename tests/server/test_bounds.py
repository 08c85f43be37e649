"""The table of bounds: each field at its bound and behind it, and inputs that once hung, grew or broke the server."""

from __future__ import annotations

import json
import time
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from annotated_types import Ge, Gt, Le, MaxLen
from hypothesis import given, settings, strategies
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError
from tests.server.conftest import USER, Process, inside

from redraft.engine.events import Event
from redraft.engine.scope import CancelScope, Observer, Submitted
from redraft.measure.process_memory import resident_mib
from redraft.operations.engine import Engine
from redraft.server import limits
from redraft.server.http.body import Body
from redraft.server.http.errors import ApiError
from redraft.server.http.limits import ServerLimits
from redraft.server.http.settings import Settings
from redraft.server.limits import BOUNDS, read_json, short
from redraft.server.openai.fields import Chat

PATH = "/v1/chat/completions"
MARKS = "".join(map(chr, range(0xE000, 0xF8FF)))
DEEP = '{"a":' * 200 + json.dumps(["b"] * 400_000) + "}" * 200
TURN = {"messages": USER}


def called(*arguments: str) -> dict[str, Any]:
    """A conversation with a call of one tool for each of these."""
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": one}} for one in arguments]
    return {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": calls}]}


def bodies(kind: type[Body] = Body) -> Iterator[type[Body]]:
    """Every body and part of one."""
    for below in kind.__subclasses__():
        yield below
        yield from bodies(below)


def free(annotation: Any, metadata: tuple[Any, ...] = ()) -> Iterator[Any]:
    """The numbers, texts, lists and objects in an annotation that nothing bounds."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        more = [one for mark in arguments[1:] for one in (mark.metadata if isinstance(mark, FieldInfo) else [mark])]
        yield from free(arguments[0], (*metadata, *more))
        return
    kinds = {type(one) for one in metadata}
    origin = typing.get_origin(annotation) or annotation
    if origin in (list, dict, str):
        if MaxLen not in kinds and BeforeValidator not in kinds:
            yield annotation
    elif origin in (int, float) and not (kinds & {Ge, Gt} and Le in kinds):
        yield annotation
    for inner in () if origin is typing.Literal else arguments:
        if inner not in (Any, type(None), ...) and not (origin is dict and inner is str):
            yield from free(inner)


def test_no_field_is_without_a_bound() -> None:
    """A field that somebody adds has one, too."""
    found = {
        f"{body.__name__}.{name}": [*free(field.annotation, tuple(field.metadata))]
        for body in bodies()
        for name, field in body.model_fields.items()
    }
    assert len(found) > 100
    assert not {name: kinds for name, kinds in found.items() if kinds}


def test_the_interface_has_the_bounds(server: Process) -> None:
    shown = httpx2.get(f"{server.url}/openapi.json", timeout=100).json()["components"]["schemas"]["Chat"]["properties"]
    (n,) = (one for one in shown["n"]["anyOf"] if one["type"] == "integer")
    assert (n["minimum"], n["maximum"]) == (BOUNDS["n"].least, BOUNDS["n"].most) == (1, 64)
    assert (shown["messages"]["minItems"], shown["messages"]["maxItems"]) == (1, BOUNDS["messages"].most)
    assert Chat.model_fields["n"].description


def refused(server: Process, path: str, body: Any, param: str | None = "") -> str:
    """Its message; it names the field, and came at once."""
    began = time.monotonic()
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    told = httpx2.post(server.url + path, content=content, headers={"content-type": "application/json"}, timeout=100)
    assert told.status_code == 400, told.text[:300]
    error = told.json()["error"]
    assert param in ("", error["param"]), error
    assert time.monotonic() - began < 5, "a second of a busy machine, not the minute that it took"
    return str(error["message"])


@pytest.mark.parametrize("n", [0, 65, 10**6, 2**31, 2**63, 2**64, 10**400, -1])
def test_more_answers_than_a_request_may_have(server: Process, n: int) -> None:
    """2^63 hung the whole process, a million took 21 s and 2 GB for its 400."""
    refused(server, PATH, TURN | {"n": n}, "n")


def test_more_prompts_than_a_request_may_have(server: Process) -> None:
    """400,000 of them took 42 s, in which others waited."""
    assert "at most 64" in refused(server, "/v1/completions", {"prompt": ["a"] * 400_000}, "prompt")
    assert "512 answers" in refused(server, "/v1/completions", {"prompt": ["a"] * 64, "n": 8}, "n")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": [-1]}, "prompt.0"),
        ("/v1/completions", {"prompt": [2**32]}, "prompt.0"),
        ("/v1/completions", {"prompt": [2**20]}, "prompt"),
        ("/v1/completions", {"prompt": [[1], [2**20]]}, "prompt"),
        ("/v1/canvas", {"segments": [{"text": "a"}, {"hole": {"contains": ["\ud800"]}}]}, "segments.1.hole.contains.0"),
        ("/v1/canvas", {"segments": [{"text": "a"}, {"hole": {"regex": "\ud800"}}]}, "segments.1.hole.regex"),
        ("/completion", {"prompt": "a", "n_predict": 2, "max_tokens": 3}, "n_predict"),
        ("/completion", {"prompt": "a", "t_max_predict_ms": 2, "deadline_ms": 3}, "t_max_predict_ms"),
        (
            "/v1/completions",
            {"prompt": "a", "echo": True, "logprobs": 1, "canvas": {"preset": "fast"}},
            "canvas.preset",
        ),
        ("/v1/canvas", {"segments": [{"text": "a"}, {"hole": {"regex": "("}}]}, "segments.1.hole.regex"),
        ("/v1/canvas", {"segments": [{"text": "a"}, {"hole": {"lacks": [""]}}]}, "segments.1.hole.lacks"),
        ("/v1/canvas", {"segments": [{"revise": {"text": "a", "slack": 300}}]}, "segments.0.revise.slack"),
        ("/v1/canvas", {"segments": [{"text": "a"}, {"revise": {"text": ""}}]}, "segments.1.revise"),
        ("/v1/canvas", {"prompt": "a", "structured_outputs": {"regex": "("}}, "structured_outputs"),
        ("/v1/canvas", {"prompt": "a", "pins": [{"at": 2**32, "token": 1}]}, "pins.0.at"),
        ("/v1/canvas", {"prompt": "a", "pins": [{"at": 0, "token": 5}, {"at": 0, "token": 6}]}, "pins"),
        ("/v1/canvas", {"prompt": "a", "given": [{"at": 250, "token": 5}], "max_tokens": 8}, "given"),
        ("/v1/canvas", {"prompt": "a", "pins": [{"at": 0, "text": "ab " * 300}] * 4000}, "pins"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "n_indent": 2**32}, "n_indent"),
        (PATH, TURN | {"bad_words": [MARKS[:900]] * 256}, "bad_words"),
        (PATH, {"messages": called(*["{}"] * 120)["messages"] * 50}, None),
        (PATH, TURN | {"canvas": {"accept": ["gate:" * 500 + "factor"]}}, "canvas.accept.0"),
        (PATH, TURN | {"canvas": {"accept": ["gate:" * 15 + "factor"]}}, None),
        (PATH, TURN | {"canvas": {"accept": ["gate:1e300:factor"]}}, None),
        (PATH, TURN | {"logit_bias": {str(i): "a" for i in range(200_000)}}, "logit_bias"),
        (PATH, TURN | {f"x{i}": 1 for i in range(1000)}, None),
        (PATH, TURN | {"a\ud800": 1}, None),
        (PATH, TURN | {"top_p": float("nan")}, "top_p"),
        (PATH, b'{"messages": 1e400}', "messages"),
        (PATH, TURN | {"stop": ["a"] * 17}, "stop"),
        (PATH, TURN | {"stop": [1.5] * 500_000}, "stop.0"),
        (PATH, TURN | {"tools": [{"function": {"name": "a", "parameters": {"enum": ["x" * 70_000]}}}]}, None),
    ],
)
def test_what_broke_names_its_field(server: Process, path: str, body: Any, param: str | None) -> None:
    refused(server, path, body, "" if param is None else param)


def test_a_text_of_all_characters_for_private_use_has_an_answer(server: Process) -> None:
    """The search for one that was free never ended for who waited, and the server kept room for it."""
    text = {"messages": [{"role": "user", "content": "<eos>" + MARKS}]}
    assert httpx2.post(server.url + "/tokenize", json=text, timeout=60).status_code == 200


@pytest.mark.parametrize("sent", [b"[" * 65 + b"]" * 65, b'{"a":' * 65 + b"1" + b"}" * 65, b"[" * 4_000_000])
def test_a_body_that_nests_too_deep_is_no_object_ever(server: Process, sent: bytes) -> None:
    assert "nests" in refused(server, PATH, sent, None)
    assert read_json(b'["' + b"[" * 100 + b'\\"[", [[]]]') == ["[" * 100 + '"[', [[]]], "brackets in texts are texts"
    for encoding in ("utf-16", "utf-16-le", "utf-32-be"):
        assert read_json('["\\"", [[]]]'.encode(encoding)) == ['"', [[]]]
        with pytest.raises(ValueError, match="levels deep"):
            read_json(('["\\"", ' + "[" * 100 + "]" * 100 + "]").encode(encoding))


def test_numbers_have_a_bound_together() -> None:
    """While 31 MB of them were read nobody else had an answer, for 3.5 seconds. Tokens of a whole context are fewer."""
    assert len(read_json(json.dumps([262_143] * 262_144).encode())) == 262_144
    assert read_json(json.dumps(["1," * 2_000_000]).encode())
    with pytest.raises(ValueError, match="it has 4000003 bytes outside of strings; at most 2621440"):
        read_json(b"[" + b"1e-400," * 571_428 + b"10000]")


@settings(max_examples=300)
@given(
    strategies.recursive(
        strategies.text('a"\\[]{},1e', max_size=9) | strategies.sampled_from([1e300, 5, -2.5e-9]),
        lambda of: strategies.lists(of, max_size=5),
    )
)
def test_the_shape_of_a_body_is_counted_in_pieces(value: Any) -> None:
    """Beside a parser that goes over it character by character."""
    deep = level = count = bare = powers = 0
    text, within, escaped = json.dumps([value, ","], ensure_ascii=False), False, False
    for last, one in pairwise(f" {text}"):
        ends = one == '"' and not escaped
        within ^= ends
        bare += not within
        powers += not within and one in "eE" and last.isdigit()
        escaped = one == "\\" and not escaped
        if not within and one in "[]":
            level += 1 if one == "[" else -1
            count, deep = count + (one == "["), max(deep, level)
    with pytest.MonkeyPatch.context() as patch:
        for name, least in (("PIECE", 7), ("FEW", 0)):
            patch.setattr(limits, name, least)
        assert limits._shape(text.encode()) == (deep, count, bare, powers)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {"messages": [{"role": "user", "content": "a b" * 1_300_000}]}),
        (PATH, TURN | {"prediction": {"content": "a b" * 1_300_000}}),
        ("/v1/completions", {"prompt": "a b" * 1_300_000}),
        (
            "/v1/edit/completions",
            {"messages": [{"role": "user", "content": f"<|code_to_edit|>{'a b' * 10**6}<|/code_to_edit|>"}]},
        ),
        ("/v1/decisions", {"input": "a b" * 1_300_000, "questions": [{"type": "predicate", "instructions": "b"}]}),
        ("/tokenize", {"prompt": "a b" * 1_300_000}),
        *((PATH, called(arguments)) for arguments in ("<eos>" * 400_000, DEEP, "<eos>" + DEEP)),
        ("/completion", {"prompt": [["a"] * 20_000] * 9}),
    ],
)
def test_a_text_far_beyond_the_context_costs_nothing(server: Process, path: str, body: Any) -> None:
    """Each took 600 MB, of which most was kept."""
    with of_little_memory(server):
        assert "context is" in refused(server, path, body)


@pytest.mark.parametrize(("path", "tag"), [("edit", "code_to_edit"), ("apply", "original_code")])
def test_marks_that_begin_and_never_end_cost_nothing(server: Process, path: str, tag: str) -> None:
    """An expression looked for the end from each beginning, on the event loop: 200 KB took 40 seconds of everybody."""
    began = time.monotonic()
    body = {"messages": [{"role": "user", "content": f"<|{tag}|>" * 100_000}]}
    assert f"no <|{tag}|>" in refused(server, f"/v1/{path}/completions", body)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "suffix": "a b" * 1_300_000}),
        ("/v1/canvas", {"segments": [{"text": "a b" * 1_300_000}, {"hole": {}}]}),
    ],
)
def test_what_lies_out_of_sight_of_a_gap_is_not_tokenized(server: Process, path: str, body: Any) -> None:
    """A gap is shown as much of the text around it as the context holds, so a long text is no mistake."""
    with of_little_memory(server):
        reply = httpx2.post(f"{server.url}{path}", json=body | {"max_tokens": 4}, timeout=60)
    assert reply.status_code == 200, reply.text[:300]


@contextmanager
def of_little_memory(server: Process) -> Iterator[None]:
    """What is done within leaves the server no more than 60 MiB larger."""
    refused(server, "/tokenize", {"prompt": "a b" * 1_300_000})  # reading a body takes some, once
    before = resident_mib(process=server.popen.pid)
    yield
    after = resident_mib(process=server.popen.pid)
    assert before is not None
    assert after is not None
    assert after - before < 60


def test_what_compiles_longer_than_an_answer_may_take_is_refused(nano: Engine) -> None:
    """A server of quick answers compiled for ten seconds first."""
    for at in inside(nano, Settings(limits=ServerLimits(request_sec=0.3))):
        bomb = TURN | {"structured_outputs": {"regex": "(a|b)*a(a|b){17}"}}
        reply = httpx2.post(f"{at.url}{PATH}", json=bomb, timeout=100)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_schema")
        assert "0.3 seconds to compile" in reply.json()["error"]["message"]


@pytest.mark.parametrize(("parse_special", "marks"), [(None, 0), (False, 0), (True, 1)])
def test_a_mark_in_a_message_is_a_token_only_where_it_is_asked_for(
    nano: Engine, parse_special: bool | None, marks: int
) -> None:
    """A user's text that spells the end of a turn forged one."""

    class Prompts(Observer):
        def event(self, handle: Submitted, event: Event) -> None:
            seen.append(handle.request.prompt)

    def prompt(content: str) -> Sequence[int]:
        seen.clear()
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1, "parse_special": parse_special}
        assert httpx2.post(f"{at.url}{PATH}", json=body, timeout=100).status_code == 200
        return seen[0]

    seen: list[Sequence[int]] = []
    mark = nano.text.tokenizer.token_to_id("<turn|>")
    assert mark is not None
    with CancelScope(Prompts()) as scope:
        for at in inside(nano.within(scope), Settings()):  # noqa: B007, `prompt` asks it
            plain, forged = prompt("ab"), prompt("a<turn|>b")
            assert [*forged].count(mark) == [*plain].count(mark) + marks
            assert "a<turn|>b" in nano.text.decode(forged, skip_special=False)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/completion", {"prompt": ["a"] * 800_000, "n_predict": 1}, "it has 800000 texts; at most 4096"),
        ("/completion", {"prompt": ["a"] * 65, "n_predict": 1}, "65 answers were requested at once; at most 64"),
        (
            "/v1/canvas",
            {"prompt": "a", "pins": [{"at": 0, "text": "a"}] * 4096, "max_tokens": 16},
            "pins has over",
        ),
        (PATH, TURN | {"b" * 4_000_000: 1}, f"{'b' * 200} is not a field of this endpoint"),
        (PATH, TURN | {"logit_bias": {"b" * 4_000_000: 1}}, f"logit_bias names '{'b' * 100}'"),
    ],
    ids=["texts", "prompts", "pins", "field", "bias"],
)
def test_what_was_read_to_its_end_before_it_was_refused(
    server: Process, path: str, body: dict[str, Any], said: str
) -> None:
    """Prompts without number took 7.7 seconds, pins on pins 6.7, and a long name came back twice."""
    began = time.monotonic()
    reply = httpx2.post(server.url + path, json=body, timeout=100)
    assert reply.status_code == 400
    assert said in reply.json()["error"]["message"]
    assert len(reply.content) < 2000
    assert time.monotonic() - began < 5


def test_numbers_with_exponents_have_a_bound() -> None:
    """2.6 MB of 9e307 took 5 s to read, and nothing else ran meanwhile."""
    for many in (["9e307"] * 400_000, ["1E-9"] * 20_000, ["9e307"] * 4097 + ["7"] * 50_000):
        data, began = ("[" + ",".join(many) + "]").encode(), time.process_time()
        with pytest.raises(ValueError, match="numbers with exponents; at most 4096"):
            read_json(data)
        assert time.process_time() - began < 0.5
    assert len(read_json(("[" + ",".join(["9e307"] * 4000 + ["7"] * 50_000) + "]").encode())) == 54_000
    assert read_json(json.dumps(["1e5" * 100_000] * 3 + [True] * 20_000).encode())[0][:3] == "1e5"


@pytest.mark.parametrize(
    "many", [[1.234567890123456e-285] * 118_000, {"a": [[1e-7] * 60_000] * 3}, {"a": "x" * 66_000}]
)
def test_a_schema_that_is_too_long_is_refused_before_it_is_written(many: Any) -> None:
    """Its numbers were written out twice, a second of one call, to say that they are too many."""
    for body in (
        {"structured_outputs": {"json": many}},
        {"response_format": {"type": "json_schema", "json_schema": many}},
    ):
        began = time.process_time()
        with pytest.raises(ApiError) as found:
            Chat.read({"messages": [{"role": "user", "content": "x"}], **body})
        assert time.process_time() - began < 0.3
        assert len(found.value.message) < 500


def test_a_schema_up_to_the_bound_is_taken() -> None:
    most = int(BOUNDS["constraint"].most)
    assert short({"a": "x" * (most - len('{"a": ""}'))})
    with pytest.raises(PydanticCustomError, match="at least"):
        short({"a": "x" * (most + 1 - len('{"a": ""}'))})
    assert short({"enum": [1.5] * 10_000}), "50,000 characters"
