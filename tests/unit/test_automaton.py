"""Automata put together from parts, against Python's regular expressions on every short text."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft.constraints.compile.automaton import FAR, Dfa, intersect, subtract
from redraft.constraints.compile.builder import Builder, Part, any_of
from redraft.constraints.compile.lift import build_trie, lift
from redraft.constraints.compile.limits import CompileLimits
from redraft.constraints.compile.regex import whole_match
from redraft.errors import ConstraintError

TEXTS = ["".join(letters) for size in range(6) for letters in itertools.product("ab", repeat=size)]


def build(builder: Builder, tree: object) -> Part:
    """A part for a tree of tuples, the same tree that `spelt` writes as a pattern."""
    match tree:
        case str():
            return builder.literal(tree.encode())
        case ("then", left, right):
            return builder.then(build(builder, left), build(builder, right))
        case ("either", left, right):
            return builder.either([build(builder, left), build(builder, right)])
        case ("repeat", inner, int(low), high):
            return builder.repeat(lambda: build(builder, inner), low, high if isinstance(high, int) else None)
        case ("never",):
            return None
    raise AssertionError(tree)


def spelt(tree: object) -> str:
    match tree:
        case str():
            return re.escape(tree)
        case ("then", left, right):
            return f"(?:{spelt(left)}{spelt(right)})"
        case ("either", left, right):
            return f"(?:{spelt(left)}|{spelt(right)})"
        case ("repeat", inner, int(low), high):
            return f"(?:{spelt(inner)}){{{low},{'' if high is None else high}}}"
        case ("never",):
            return "(?!)"
    raise AssertionError(tree)


trees = st.recursive(
    st.text("ab", max_size=2) | st.just(("never",)),
    lambda inner: (
        st.tuples(st.just("then"), inner, inner)
        | st.tuples(st.just("either"), inner, inner)
        | st.tuples(st.just("repeat"), inner, st.integers(0, 2), st.none() | st.integers(2, 3))
    ),
    max_leaves=6,
)


def dfa_of(tree: object) -> Dfa:
    builder = Builder()
    return builder.finish(build(builder, tree))


@given(tree=trees)
def test_parts_make_the_language_that_a_pattern_names(tree: object) -> None:
    dfa, pattern = dfa_of(tree), re.compile(spelt(tree))
    for text in TEXTS:
        assert dfa.matches(text.encode()) == (pattern.fullmatch(text) is not None), text
        assert dfa.minimal().matches(text.encode()) == dfa.matches(text.encode())


def test_the_fewest_states_are_those_that_texts_can_tell_apart() -> None:
    """One for each number of letters up to four, whatever was written before."""
    dfa = dfa_of(("either", ("then", "a", ("repeat", ("either", "a", "b"), 3, 3)), ("then", "baab", "")))
    assert len(dfa.minimal()) == len({"", "a", "b", "aa", "ba", "aaa", "baa", "aaaa"})


@pytest.mark.parametrize("pattern", ['"(?s:.*)"', '"(é|日)+"', "[^\\x00-\\x7f]{2}", "(ü|x)y"])
def test_characters_that_are_not_ascii_stand_for_each_other_only_where_they_act_alike(pattern: str) -> None:
    """Each token leads from each state to where its bytes do, whole characters and parts of them."""
    pieces = [b"\xc3", b"\xa9", b"\xe6\x97", b"\xa5x", b'"', b"x", b"y"]
    pieces += [text.encode() for text in ("é", "日", "ü", "😀", "é日", "üy", '"é', '日"', "ߐx", "x日x")]
    dfa = whole_match(pattern)
    alive = dfa.to_end() < FAR
    lifted = lift(dfa, build_trie([None, *pieces]), frozenset({0}), frozenset({0}))
    to_end = lifted.to_end
    for state, (token, piece) in itertools.product(range(len(dfa)), enumerate(pieces, 1)):
        there = dfa.step(state, piece)
        if alive[state] and to_end[state] < FAR and (there < 0 or to_end[there] < FAR):
            assert lifted.after(state, [token]) == there, (state, piece)


@settings(max_examples=50)
@given(left=trees, right=trees)
def test_intersection_and_difference_are_those_of_sets(left: object, right: object) -> None:
    a, b = dfa_of(left), dfa_of(right)
    both, without = intersect(a, b), subtract(a, b)
    for text in TEXTS:
        in_a, in_b = a.matches(text.encode()), b.matches(text.encode())
        assert both.matches(text.encode()) == (in_a and in_b)
        assert without.matches(text.encode()) == (in_a and not in_b)


@given(tree=trees)
def test_every_state_that_is_kept_leads_to_an_end_at_the_distance_given(tree: object) -> None:
    dfa = dfa_of(tree)
    if dfa.is_empty:
        return
    assert (dfa.to_end() < FAR).all()
    shortest = min((len(text) for text in TEXTS if dfa.matches(text.encode())), default=None)
    if shortest is not None:
        assert int(dfa.to_end()[0]) == shortest


@given(tree=trees)
def test_a_language_without_long_texts_is_within_its_longest(tree: object) -> None:
    """By a walk, a level for each byte: one that goes on behind as many levels as there are states is in a loop."""
    dfa, longest = dfa_of(tree), None
    alive, size = {0} if len(dfa) else set[int](), 0
    while alive and size <= len(dfa):
        longest = size if any(dfa.accepts[state] for state in alive) else longest
        alive, size = {int(to) for state in alive for to in dfa.table[state] if to >= 0}, size + 1
    for most in range(12):
        assert dfa.is_within(most) == (not alive and (longest is None or longest <= most))


def test_one_text_is_one_text() -> None:
    assert any_of(["é"]).matches("é".encode())
    assert not any_of(["é"]).matches(b"e")
    assert not any_of(["ab"]).matches(b"a")


def test_a_limit_in_states_is_kept() -> None:
    builder = Builder(CompileLimits(states=50))
    with pytest.raises(ConstraintError, match="over 50 states"):
        builder.finish(builder.literal(b"x" * 500))


def test_a_language_that_the_tokens_cannot_spell_is_refused() -> None:
    with pytest.raises(ConstraintError, match="no tokens that could spell"):
        lift(any_of(["ab"]), build_trie([None, b"a"]), frozenset({0}), frozenset({0}))
    with pytest.raises(ConstraintError, match="no text satisfies"):
        lift(subtract(any_of(["a"]), any_of(["a"])), build_trie([None, b"a"]), frozenset({0}), frozenset({0}))


def test_a_long_bounded_string_needs_few_classes_of_a_large_vocabulary() -> None:
    """Tokens that spell as many characters act alike: classes grow with lengths, not with tokens."""
    builder = Builder()
    letter = builder.repeat(lambda: builder.either([builder.literal(bytes([b])) for b in range(97, 123)]), 0, 60)
    dfa = builder.finish(letter)
    source = np.random.default_rng(0)
    words = {bytes(source.integers(97, 123, source.integers(1, 9)).astype(np.uint8)) for _ in range(5000)}
    lifted = lift(dfa, build_trie([None, *sorted(words)]), frozenset({0}), frozenset({0}))
    assert lifted.classes == 8 + 3, "eight lengths, the unusable, the end, the tail"
    assert len(lifted.src) < 10 * lifted.states
