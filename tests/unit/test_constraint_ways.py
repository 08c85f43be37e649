"""The measurement of constraints: llguidance as a second opinion on our language, and how answers are judged."""

from __future__ import annotations

from itertools import takewhile

import pytest
import torch

import redraft
from constraints import ARRAY, OBJECT, RECORD
from llguidance_language import guided
from redraft.constraints.language import ready
from redraft.constraints.sources import schema_source


@pytest.mark.parametrize("schema", [RECORD, OBJECT, ARRAY])
def test_llguidance_takes_all_that_our_language_writes(schema: dict[str, object]) -> None:
    """Texts drawn from noise, token by token, by a library that knows nothing of automata over tokens."""
    pytest.importorskip("llguidance")
    engine = redraft.load("nano-sudoku")
    language = ready(schema_source(schema), engine.vocabulary)
    other, ends = guided(engine, language), set(engine.config.generation.eos_token_ids)
    for seed in range(20):
        noise = torch.randn(48, engine.config.model.vocab_size, generator=torch.Generator().manual_seed(seed)) * 5
        draft = language.start(48)(torch.log_softmax(noise, -1)).draft.tolist()
        told = list(takewhile(lambda token: token not in ends, draft))
        assert other.start(48).matcher.validate_tokens(told) == len(told), engine.text.decode(told)
