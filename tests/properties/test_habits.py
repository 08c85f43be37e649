"""What models are used to around an answer, against brute force: thinking ahead of it, a code block, letters' case."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.helpers import written_on_noise

from redraft.constraints.compile.automaton import NOWHERE, Dfa
from redraft.constraints.compile.lift import build_trie, lift
from redraft.constraints.compile.limits import DEFAULT_LIMITS
from redraft.constraints.condition.edge_layout import EdgeLayout
from redraft.constraints.condition.projection import Projection
from redraft.constraints.language import Language, Vocabulary, ready
from redraft.constraints.places import unfenced
from redraft.constraints.sources import choices_source, regex_source, schema_source
from redraft.constraints.thinking import ThinkingLanguage, after_thinking
from redraft.constraints.validation import schema_problems
from redraft.errors import ConstraintError

EOS, PAD, CLOSE, OPEN = 0, 1, 5, 6
PIECES = (None, None, b"a", b"b", b"ab", None, None)


@st.composite
def automata(draw: st.DrawFn) -> Dfa:
    states = draw(st.integers(1, 3))
    class_of = np.full(256, 2, np.int32)
    class_of[list(b"ab")] = range(2)
    table = np.full((states, 3), NOWHERE, np.int32)
    for state, byte in itertools.product(range(states), range(2)):
        table[state, byte] = draw(st.integers(-1, states - 1))
    return Dfa(table, class_of, np.array([draw(st.booleans()) for _ in range(states)], np.bool_)).trimmed()


def language_of(dfa: Dfa) -> ThinkingLanguage:
    lifted = lift(dfa, build_trie(PIECES), frozenset({EOS}), frozenset({EOS, PAD}))
    return after_thinking(Language(regex_source(""), EdgeLayout(lifted), False), CLOSE, OPEN)


def is_answer(dfa: Dfa, tokens: tuple[int, ...]) -> bool:
    """Read by hand: thinking up to the first closing mark, if it is begun, then a text of the language."""
    if tokens[:1] == (OPEN,):
        if CLOSE not in tokens or {EOS, PAD} & set(tokens[: tokens.index(CLOSE)]):
            return False
        tokens = tokens[tokens.index(CLOSE) + 1 :]
    return all(PIECES[token] for token in tokens) and dfa.matches(b"".join(PIECES[token] or b"" for token in tokens))


@given(automata())
@settings(max_examples=25)
def test_an_answer_behind_thinking_is_what_a_reader_takes_for_one(dfa: Dfa) -> None:
    assume(not dfa.is_empty)
    language = language_of(dfa)
    for count in range(5):
        for tokens in itertools.product(range(2, len(PIECES)), repeat=count):
            assert language.holds(tokens) == is_answer(dfa, tokens), tokens


@given(automata(), st.integers(1, 4), st.integers(0, 3), st.integers(0, 999))
def test_room_for_the_answer_is_kept_however_long_the_thinking(dfa: Dfa, width: int, more: int, seed: int) -> None:
    """Also where the model would think for ever, over canvases that cut anywhere; and the likeliest text is found."""
    assume(not dfa.is_empty)
    language = language_of(dfa)
    left = int(language.automaton.to_end[0]) + more
    draw = torch.Generator().manual_seed(seed)
    reported = written_on_noise(language.start(left), width, len(PIECES), EOS, draw, lifted=(2, 30.0))
    assert is_answer(dfa, tuple(reported))
    assert len(reported) <= left
    text = b"".join(PIECES[token] or b"" for token in language.answer(reported))
    assert dfa.matches(text)
    log_p = torch.log_softmax(torch.randn(3, len(PIECES), generator=draw, dtype=torch.float64), -1)
    scored = [
        (sum(float(log_p[i, token]) for i, token in enumerate(tokens)), tokens)
        for tokens in itertools.product(range(len(PIECES)), repeat=3)
        if is_answer(dfa, tokens)
    ]
    if scored:
        wanted = Projection(language.layout, 0, 3, 3)(log_p).draft.tolist()
        assert sum(float(log_p[i, token]) for i, token in enumerate(wanted)) == pytest.approx(max(scored)[0])


def test_marks_that_answers_may_hold_are_refused() -> None:
    lifted = lift(
        choices_source(["a"]).compile(DEFAULT_LIMITS).dfa, build_trie(PIECES), frozenset({EOS}), frozenset({EOS, PAD})
    )
    plain = Language(regex_source("a"), EdgeLayout(lifted), False)
    for closing, opening in ((2, OPEN), (EOS, OPEN), (CLOSE, 2), (CLOSE, CLOSE), (99, OPEN), (-1, OPEN)):
        with pytest.raises(ConstraintError, match="thinking is marked by tokens"):
            after_thinking(plain, closing, opening)


def test_a_fence_is_admitted_and_taken_off() -> None:
    schema = {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2, "uniqueItems": True}
    fenced, plain = (schema_source(schema, fence=on).compile(DEFAULT_LIMITS).dfa for on in (True, False))
    for values in ([], [1], [2, 1]):
        text = json.dumps(values)
        block = f"```json\n{text}\n```"
        assert plain.matches(text.encode())
        assert fenced.matches(text.encode())
        assert fenced.matches(block.encode())
        assert not plain.matches(block.encode())
        assert unfenced(block) == unfenced(text) == text
        assert schema_problems(schema, block) == []
    for text in ("```json\n[1]", "```\n[1]\n```", "[1]\n```", "```json\n[3]\n```", "```json\n\n```"):
        assert not fenced.matches(text.encode())
    (problem,) = schema_problems({"items": {"minimum": 5}}, "```json\n[7, 4]\n```")
    assert problem.span == (len("```json\n[7, "), len("```json\n[7, 4"))


@given(st.lists(st.text("abÄß-1", min_size=1, max_size=3), min_size=1, max_size=3), st.booleans())
def test_choices_in_any_case_are_those_that_read_the_same(choices: list[str], any_case: bool) -> None:
    """All texts of three letters are tried."""
    vocabulary = Vocabulary((None, None, *(bytes([byte]) for byte in range(256))), frozenset({EOS}), frozenset({EOS}))
    dfa = choices_source(choices, any_case=any_case).compile(DEFAULT_LIMITS).dfa
    ready(choices_source(choices, any_case=any_case), vocabulary)
    letters = "aAbBäÄß-1"
    for count in range(1, 4):
        for text in map("".join, itertools.product(letters, repeat=count)):
            read_alike = any(text.lower() == choice.lower() for choice in choices) if any_case else text in choices
            assert dfa.matches(text.encode()) == read_alike, text
