"""What is wanted of a text, judged by plain Python; healed seams; and the gap's language beside brute force."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import alone, side_by_side

from redraft.constraints.language import Vocabulary
from redraft.engine.request import Options
from redraft.errors import ConstraintError, RequestError
from redraft.operations.engine import Engine
from redraft.operations.gap import GapContext
from redraft.operations.gap_constraint import GapConstraint, grows_left, grows_right, of_width, span_language, spelt

PIECES = (None, None, b"a", b"b", b" ", b"ab", b"ba", b"a b", "é".encode()[:1], "é".encode()[1:], b"\n")
SMALL = Vocabulary(PIECES, frozenset({1}), frozenset({0, 1}))


def is_wanted(wanted: GapConstraint, text: str) -> bool:
    """The same in plain Python."""
    words = text.split()
    return (
        (text != "" if wanted.regex is None else re.fullmatch(wanted.regex, text) is not None)
        and all(len(words) >= number and words[number - 1] == word for number, word in wanted.words)
        and all(part in text for part in wanted.contains)
        and not any(part in text for part in wanted.lacks)
    )


bits = st.text("ab é\n", min_size=1, max_size=3)
conditions = st.fixed_dictionaries(  # not built here: beartype draws from `random`, which hypothesis forbids
    {
        "regex": st.sampled_from([None, "[ab ]*", "a.*", "(ab|ba|\n)+"]),
        "words": st.lists(st.tuples(st.integers(1, 3), st.text("abé", min_size=1, max_size=2)), max_size=2).map(tuple),
        "contains": st.lists(bits, max_size=2).map(tuple),
        "lacks": st.lists(bits, max_size=2).map(tuple),
    }
)


@settings(max_examples=150)
@given(conditions, st.lists(st.text("ab é\n", max_size=8), min_size=1, max_size=8))
def test_the_automaton_accepts_what_plain_python_would(asked: dict[str, Any], texts: list[str]) -> None:
    wanted = GapConstraint(**asked)
    try:
        dfa = wanted.dfa()
    except ConstraintError:
        assert not any(is_wanted(wanted, text) for text in texts)
        return
    for text in texts:
        assert dfa.matches(text.encode()) is is_wanted(wanted, text), text


@settings(max_examples=25)
@given(conditions, st.integers(1, 3), st.sampled_from([b"", b"a"]), st.sampled_from([b"", b"b"]), st.integers(0, 9))
def test_a_span_gets_the_likeliest_wanted_text_and_the_rest_is_left_alone(
    asked: dict[str, Any], width: int, begins: bytes, ends: bytes, seed: int
) -> None:
    """Brute force over every token string of the span."""
    wanted = GapConstraint(**asked)
    log_p = torch.log_softmax(torch.randn(5, len(PIECES), generator=torch.Generator().manual_seed(seed)) * 3, -1)
    scored = {}
    for tokens in product(range(2, len(PIECES)), repeat=width):
        text = spelt(SMALL, tokens)
        inner = text[len(begins) : len(text) - len(ends)] if len(text) >= len(begins + ends) else None
        if inner is not None and text.startswith(begins) and text.endswith(ends):
            try:
                if is_wanted(wanted, inner.decode()):
                    scored[tokens] = sum(float(log_p[i, token]) for i, token in enumerate(tokens))
            except UnicodeDecodeError:
                continue
    try:
        language = of_width(span_language(wanted, SMALL, begins=begins, ends=ends), width)
        projected = language.start(5)(log_p)
    except ConstraintError:
        assert not scored
        return
    draft = tuple(projected.draft.tolist())
    assert scored[draft[:width]] == pytest.approx(max(scored.values()))
    assert draft[width:] == tuple(log_p[width:].argmax(-1).tolist())
    assert torch.equal(projected.shifted()[width:], log_p[width:])
    assert language.holds(draft)
    # Marginals: each token's share among all wanted texts.
    shares = torch.zeros(width, len(PIECES), dtype=torch.float64)
    for tokens, score in scored.items():
        shares[range(width), tokens] += torch.tensor(score, dtype=torch.float64).exp()
    found = torch.softmax(projected.shifted()[:width].double(), -1)
    torch.testing.assert_close(found, shares / shares.sum(-1, keepdim=True), atol=2e-4, rtol=0)


def test_which_tokens_grow() -> None:
    assert [grows_right(SMALL, token) for token in range(len(PIECES))] == [b"", b"", b"a", b"b", *[b""] * 7]
    assert [grows_left(SMALL, token) for token in range(len(PIECES))] == [b"", b"", b"a", b"b", *[b""] * 7]


@pytest.mark.parametrize("strength", [0.3, 1.0])
def test_an_edited_span_is_as_wanted(engine: Engine, strength: float) -> None:
    """An untrained use of the model: whatever it says, the conditions hold and the rest stays."""
    text = "Karomi ordered 417 crates of melu.\nSend 12 rofa to Tavi."
    span = (text.index("417"), text.index("."))
    wanted = GapConstraint(words=((1, "88"), (3, "of")), lacks=("melu", '"'))
    done = engine.edit(text, span, strength=strength, slack=2, constraint=wanted, seed=4)
    words = done.after.split()
    assert (words[0], words[2]) == ("88", "of")
    assert "melu" not in done.after
    assert '"' not in done.after
    assert done.text == text[: span[0]] + done.after + text[span[1] :]


def test_a_filled_gap_is_as_wanted_whatever_width_wins(engine: Engine) -> None:
    for seed in range(3):
        done = engine.infill(
            '{"who":"Karomi","qty":', "}", max_tokens=6, constraint=GapConstraint("[1-9][0-9]{0,4}"), seed=seed
        )
        for candidate in done.candidates:
            assert re.fullmatch("[1-9][0-9]{0,4}", candidate.gap)


def test_a_held_gap_in_a_batch_is_what_it_is_alone(engine: Engine) -> None:
    language = span_language(GapConstraint(words=((2, "melu"),)), engine.vocabulary)
    around = GapContext((2, *engine.text.encode("Send ", bos=False)), tuple(engine.text.encode(" to Tavi.", bos=False)))
    asked = [around.request(width, Options(seed=width), engine, language) for width in (4, 5, 8)]
    assert side_by_side(engine.loop, asked) == alone(engine.model, asked)


def test_a_healed_seam_may_join_and_is_still_exact(engine: Engine) -> None:
    """nano's "who" is one token and "w" another, so a gap behind "w" takes it in."""
    (last,) = engine.text.encode("w", bos=False)
    assert grows_right(engine.vocabulary, last) == b"w"
    done = engine.infill("record w", "o", max_tokens=3, seed=1, constraint=GapConstraint("h"))
    assert done.text == "record who"
    assert engine.text.decode(done.answer.tokens).startswith("w")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GapConstraint(words=((0, "a"),)), "word 0 is 'a'; words are counted from 1"),
        (lambda: GapConstraint(words=((99999, "x"),)), "word 99999 is 'x'; words are counted from 1 to 256"),
        (lambda: GapConstraint(words=((1, "a b"),)), "a word is not empty and has no white space"),
        (lambda: GapConstraint(words=((1, ""),)), "a word is not empty"),
        (lambda: GapConstraint(contains=("",)), "an empty text occurs everywhere"),
        (lambda: GapConstraint(lacks=("x", "")), "an empty text occurs everywhere"),
        (lambda: GapConstraint(contains=("ab",), lacks=("b",)).dfa(), "no text satisfies all of these conditions"),
        (lambda: GapConstraint(words=((1, "a"), (1, "b"))).dfa(), "no text satisfies all of these conditions"),
        (lambda: GapConstraint(regex="(").dfa(), "regex"),
    ],
)
def test_what_cannot_be_wanted_is_refused(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises((RequestError, ConstraintError), match=words):
        make()


def test_lengths_that_nothing_wanted_has_are_refused_before_a_step(engine: Engine) -> None:
    forwards = engine.loop.forwards
    with pytest.raises(ConstraintError, match="no text of 1 to 3 tokens satisfies the constraint"):
        engine.infill("a", "b", max_tokens=3, constraint=GapConstraint("[0-9]{9}"), heal=False, seed=1)
    with pytest.raises(ConstraintError, match="no text of 3 tokens is what was asked for"):
        engine.edit("a 123 b", (2, 5), constraint=GapConstraint("[0-9]{9}"), options=Options(seed=1))
    length = engine.config.model.canvas_length
    with pytest.raises(RequestError, match="only one canvas can be held to something"):
        engine.edit("1" * (length + 20), (2, length + 10), constraint=GapConstraint("[0-9]+"), options=Options(seed=1))
    assert engine.loop.forwards == forwards
