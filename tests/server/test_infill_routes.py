"""Gaps and edits, in the forms that editors send; and prompts with the marks of other models."""

from __future__ import annotations

import json

import httpx2
import pytest

from redraft.server.fim.marks import SETS, split
from redraft.text import Text

BEFORE, BEHIND = 'record\nSend 417 melu to Karomi.\n{"who":"', '","qty":417,"item":"melu"}'
SEED = {"seed": 3, "max_tokens": 6}

MARKED = {
    "qwen, codegemma": "<|fim_prefix|>{before}<|fim_suffix|>{behind}<|fim_middle|>",
    "starcoder": "<fim_prefix>{before}<fim_suffix>{behind}<fim_middle>",
    "codellama": "<PRE> {before} <SUF>{behind} <MID>",
    "deepseek": "<｜fim▁begin｜>{before}<｜fim▁hole｜>{behind}<｜fim▁end｜>",
    "codestral": "[SUFFIX]{behind}[PREFIX]{before}",
    "glm": "<|code_prefix|>{before}<|code_suffix|>{behind}<|code_middle|>",
    "tabby": "{before}<|FIM|>{behind}",
}


@pytest.fixture(scope="module")
def post(http: httpx2.Client):
    return lambda path, body: http.post(path, json=body)


@pytest.fixture(scope="module")
def filled(post) -> str:
    reported = post("/v1/completions", {"prompt": BEFORE, "suffix": BEHIND, **SEED})
    assert reported.status_code == 200, reported.text
    choice = reported.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert "delta" not in choice
    assert 0 < reported.json()["usage"]["completion_tokens"] <= 6
    return str(choice["text"])


def test_every_known_set_of_marks_is_tried() -> None:
    assert MARKED.keys() == SETS.keys()


@pytest.mark.parametrize("name", MARKED)
def test_a_marked_prompt_is_the_same_gap(post, filled: str, name: str) -> None:
    prompt = MARKED[name].format(before=BEFORE, behind=BEHIND)
    assert post("/v1/completions", {"prompt": prompt, **SEED}).json()["choices"][0]["text"] == filled


@pytest.mark.parametrize(
    "prompt",
    [
        "<|fim_prefix|>a<|fim_suffix|>b",
        "<|fim_suffix|>b<|fim_prefix|>a<|fim_middle|>",
        "<|fim_prefix|>a<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
        "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>c",
        "nothing",
    ],
)
def test_other_prompts_are_no_gaps(nano, prompt: str) -> None:
    text: Text = nano.text
    assert split(prompt, text) is None


def test_fim_has_the_text_where_each_client_looks(post, filled: str) -> None:
    choice = post("/v1/fim/completions", {"prompt": BEFORE, "suffix": BEHIND, **SEED}).json()["choices"][0]
    assert choice["text"] == choice["message"]["content"] == filled


def test_fim_streams(post, filled: str) -> None:
    reported = post("/v1/fim/completions", {"prompt": BEFORE, "suffix": BEHIND, "stream": True, **SEED}).text
    assert reported.endswith("data: [DONE]\n\n")
    assert reported.count('"delta"') == 2
    assert filled.replace('"', '\\"') in reported


def test_infill_answers_as_llama_cpp_does(post, filled: str) -> None:
    body = {
        "input_prefix": BEFORE[:20],
        "prompt": BEFORE[20:],
        "input_suffix": BEHIND,
        "input_extra": [],
        "n_predict": 6,
        "seed": 3,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 60_000,
        "response_fields": ["content"],
        "stream": False,
    }
    reported = post("/infill", body)
    assert reported.json()["content"] == filled
    assert reported.json()["truncated"] is False
    assert "samplers" in reported.headers["x-ignored-fields"]


@pytest.mark.parametrize(
    ("body", "missing"),
    [({}, "input_prefix"), ({"input_suffix": "b"}, "input_prefix"), ({"input_prefix": "a"}, "input_suffix")],
)
def test_a_gap_without_both_sides_is_refused_as_llama_cpp_means_to(post, body, missing: str) -> None:
    """An empty body was answered with a gap in nothing; a side that is empty is one all the same."""
    reported = post("/infill", body)
    assert (reported.status_code, reported.json()["error"]["param"]) == (400, missing)
    assert post("/infill", {"input_prefix": "", "input_suffix": "", "n_predict": 1}).status_code == 200
    for n in (1, 2, 3):  # the tokens at both seams would grow into it, and there is no room for more
        assert post("/infill", {"input_prefix": "Send 3", "input_suffix": "les", "n_predict": n}).status_code == 200


def test_an_edit_keeps_what_is_around_it(post) -> None:
    text = f"{BEFORE}<|code_to_edit|>Ka<|cursor|>romi<|/code_to_edit|>{BEHIND}"
    body = {"messages": [{"role": "user", "content": text}], "seed": 1, "strength": 0.3}
    reported = post("/v1/edit/completions", body)
    assert reported.status_code == 200, reported.text
    assert reported.json()["choices"][0]["message"]["content"]
    assert reported.json()["usage"]["forwards"] >= 2


def test_an_edit_by_an_instruction_keeps_to_the_bound_on_tokens(post) -> None:
    """It may grow, and a bound that allows no growth was dropped as one that binds nothing."""
    text = "<|code_to_edit|>Send 417 melu.<|/code_to_edit|>"
    body = {"messages": [{"role": "user", "content": text}], "instruction": "Longer.", "temperature": 4.0}
    for seed in range(4):
        reported = post("/v1/edit/completions", body | {"max_tokens": 20, "seed": seed})
        assert reported.status_code == 200, reported.text
        assert reported.json()["usage"]["completion_tokens"] <= 20
    free = [
        post("/v1/edit/completions", body | {"seed": seed}).json()["usage"]["completion_tokens"] for seed in range(4)
    ]
    assert max(free) > 20


def test_an_edit_streams_what_it_tells_whole(post) -> None:
    """One editor asks for its edits as streams, with a bound that none reaches."""
    text = f"{BEFORE}<|code_to_edit|>Karomi<|/code_to_edit|>{BEHIND}"
    body = {"messages": [{"role": "user", "content": text}], "seed": 1, "strength": 0.3}
    whole = post("/v1/edit/completions", body).json()
    more = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 4096}
    reported = post("/v1/edit/completions", body | more).text
    *events, done = [line.removeprefix("data: ") for line in reported.splitlines() if line]
    chunks = [json.loads(event) for event in events]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    said = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert (said, done) == (whole["choices"][0]["message"]["content"], "[DONE]")
    assert choices[-1]["finish_reason"] == "stop"
    assert chunks[-1]["usage"] == whole["usage"]


def test_apply_starts_from_the_original(post) -> None:
    original = '{"who":"Karomi","qty":1,"item":"melu"}'
    text = f"record\nSend 417 melu to Karomi.<|original_code|>\n{original}\n<|/original_code|>"
    reported = post("/v1/apply/completions", {"messages": [{"role": "user", "content": text}], "seed": 1}).json()
    details = reported["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] > 0
