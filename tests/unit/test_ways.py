"""The measurement of constraints: llguidance as a second opinion on our language, and how answers are judged."""

from __future__ import annotations

import json
from itertools import takewhile

import pytest
import torch

import redraft
from constraints import ARRAY, ASKED, OBJECT, RECORD, Asked, Way, _counted, _summary, right_fields
from guided import guided
from redraft.constraints.language import ready
from redraft.constraints.sources import schema_source
from redraft.engine.request import Options, Request


@pytest.mark.parametrize("schema", [RECORD, OBJECT, ARRAY])
def test_llguidance_takes_all_that_our_language_writes(schema: dict[str, object]) -> None:
    """Texts drawn from noise, token by token, by a library that knows nothing of automata over tokens."""
    pytest.importorskip("llguidance")
    engine = redraft.load("nano")
    language = ready(schema_source(schema), engine.vocabulary)
    other, ends = guided(engine, language), set(engine.config.generation.eos_token_ids)
    for seed in range(20):
        noise = torch.randn(48, engine.config.model.vocab_size, generator=torch.Generator().manual_seed(seed)) * 5
        draft = language.start(48)(torch.log_softmax(noise, -1)).draft.tolist()
        told = list(takewhile(lambda token: token not in ends, draft))
        assert other.start(48).matcher.validate_tokens(told) == len(told), engine.text.decode(told)


def test_the_causal_mode_can_be_held_by_llguidance() -> None:
    pytest.importorskip("llguidance")
    engine = redraft.load("nano")
    language = ready(schema_source(RECORD), engine.vocabulary)
    for seed in range(3):
        options = Options(seed=seed, causal=True)
        done = [
            engine.run(
                engine.resolve(Request("record\nSend 417 melu to Karomi.", chat=True, options=options, constraint=held))
            )
            for held in (guided(engine, language), language)
        ]
        assert done[0].text == done[1].text
        assert not language.problems(done[0].text)


@pytest.mark.parametrize("asked", [asked for asked in ASKED if asked.own], ids=lambda asked: asked.name)
def test_the_right_answers_of_a_task_are_of_the_schema_that_it_is_held_to(asked: Asked) -> None:
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    validator = jsonschema_rs.validator_for(asked.schema)
    for example in asked.examples(30):
        assert validator.is_valid(json.loads(example.answer))
        assert right_fields(example.answer, example.answer) == 1


def test_fields_of_a_list_count_where_they_should_be() -> None:
    wanted = '[{"a":1,"b":2},{"a":3,"b":4}]'
    assert right_fields(wanted, '[{"b":2,"a":1},{"a":3}]') == 0.75
    assert right_fields(wanted, '[{"a":3,"b":4},{"a":1,"b":2}]') == 0
    assert right_fields(wanted, '[{"a":1,"b":2},{"a":3,"b":4},{"a":5,"b":6}]') == 1
    assert [right_fields(wanted, text) for text in ('{"a":1,"b":2}', "[]", "[1,[2]]", "no")] == [0, 0, 0, 0]


def test_fields_are_counted_and_what_was_not_run_says_so() -> None:
    wanted = '{"a":1,"b":"x","c":true,"d":[1]}'
    assert right_fields(wanted, wanted) == 1
    assert right_fields(wanted, '{"a":1.0,"b":"x","c":1}') == 0.25
    assert [right_fields(wanted, text) for text in ("[1]", "no", "{}")] == [0, 0, 0]
    counted = _counted([(0.01, True), (0.07, False), (0.08, True), (9.0, False)])
    assert [(one["drafts"], one["wrong"]) for one in counted] == [(1, 0), (2, 1), (0, 0), (0, 0), (0, 0), (1, 1)]
    step = {"added_ms": 1.0, "plain_ms": 10.0, "share": 0.1}
    large = {
        "compile_sec": 1.0,
        "states": 1,
        "edges": 1,
        "projection_sec": 1.0,
        "messages_sec": 1.0,
        "softmax_and_entropy_sec": 1.0,
    }
    noise = {"invalid": 0, "trials": 9}
    told = dict(
        _summary([Way("llguidance", "records")], {"noise": noise, "large": large, "step": step, "doubts": counted})
    )
    assert told["records, llguidance: 0 prompts"] == "not installed"
    assert told["first drafts that were wrong, by nats of doubt"].startswith("0 of 1 from 0, 1 of 2 from 0.05")
