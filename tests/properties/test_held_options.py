"""Answers held to a language are valid under every mixture of what decides how they are made."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import redraft
from redraft.constraints.sources import choices_source, regex_source, schema_source
from redraft.diffusion.presets import PRESETS
from redraft.engine.request import Options, Request
from redraft.errors import ConstraintError, RequestError
from redraft.operations.engine import Engine

SOURCES = (
    schema_source(
        {
            "type": "object",
            "properties": {"who": {"type": "string"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}}},
            "required": ["who"],
            "additionalProperties": False,
        }
    ),
    schema_source({"type": "array", "items": {"type": "integer"}, "minItems": 2}),
    regex_source("[A-Z][a-z]*( [a-z]+)*[.]"),
    choices_source(["yes", "no", "it depends on what is meant"]),
)
PROMPTS = ("record\nSend 417 melu to Karomi.", "repair\n{'melu:1", "Well?", "")


@lru_cache(maxsize=1)
def engine() -> Engine:
    torch.set_num_threads(1)
    return redraft.load("nano-sudoku")


rules = st.one_of(
    st.fixed_dictionaries({"preset": st.sampled_from(sorted(PRESETS)), "steps": st.none() | st.integers(1, 6)}),
    st.fixed_dictionaries({"effort": st.floats(0, 1)}),
    st.fixed_dictionaries({"target_ms": st.floats(1, 400), "min_effort": st.none() | st.floats(0, 1)}),
    st.just({"causal": True}),
)
lengths = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 90),
        "min_tokens": st.sampled_from([0, 0, 1, 5, 20]),
        "canvas": st.none() | st.integers(1, 80),
        "end_aware": st.sampled_from([None, True, False]),
        "temperature": st.sampled_from([1.0, 0.0, 0.3, 4.0]),
        "draw": st.booleans(),
        "seed": st.integers(0, 2**32),
    }
)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SOURCES), st.sampled_from(PROMPTS), rules, lengths)
def test_an_answer_is_valid_and_of_its_length_or_refused_beforehand(
    source: Any, prompt: str, rule: dict[str, Any], length: dict[str, Any]
) -> None:
    """Cuts into blocks, narrowing canvases, early halts and times to keep end an answer; none may end it midway."""
    language = engine().language(source)
    given = {name: value for name, value in {**length, **rule}.items() if value is not None}
    if rule.get("causal"):
        given = {name: value for name, value in given.items() if name not in ("canvas", "end_aware", "draw")}
    refused, request = "", None
    try:
        request = engine().resolve(Request(prompt or "x", Options(**given), chat=bool(prompt), constraint=language))
    except (ConstraintError, RequestError) as error:
        refused = str(error)
    if request is None:
        assert any(name in refused for name in given), "what is refused is named"
        return
    done = engine().run(request)
    assert language.holds(done.tokens)
    assert language.problems(done.text) == []
    assert length["min_tokens"] <= len(done.tokens) <= length["max_tokens"]
    assert len(done.log_mass) == len(done.tokens)
