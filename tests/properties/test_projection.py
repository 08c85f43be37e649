"""The projection against brute force: every token string of a small canvas is tried, and its bytes are read by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from redraft.constraints.compile.automaton import NOWHERE, Dfa
from redraft.constraints.compile.lift import build_trie, lift
from redraft.constraints.condition.edge_layout import NONE, EdgeLayout
from redraft.constraints.condition.forward_backward import best_paths, log_messages
from redraft.constraints.condition.projection import Projected, Projection
from redraft.errors import ConstraintError

pytestmark = pytest.mark.typed

EOS, PAD = 0, 1
PIECES = (None, None, b"a", b"b", b"ab", b"ba", b"c")


@dataclass(frozen=True)
class Language:
    """A random automaton over a, b, c, and its own plain reading: a dict of moves and a set of ends."""

    moves: dict[tuple[int, int], int]
    ends: frozenset[int]
    states: int

    def dfa(self) -> Dfa:
        class_of = np.full(256, 3, np.int32)
        class_of[list(b"abc")] = range(3)
        table = np.full((self.states, 4), NOWHERE, np.int32)
        for (state, byte), target in self.moves.items():
            table[state, class_of[byte]] = target
        return Dfa(table, class_of, np.isin(np.arange(self.states), list(self.ends))).trimmed()

    def read(self, tokens: tuple[int, ...], state: int | str = 0) -> int | str | None:
        """The state behind some tokens, "over" behind the end, None for what is not of the language."""
        here: int | str = state
        for token in tokens:
            if here == "over":
                if token not in (EOS, PAD):
                    return None
            elif token in (EOS, PAD):
                if token == PAD or here not in self.ends:
                    return None
                here = "over"
            else:
                for byte in PIECES[token] or b"":
                    assert isinstance(here, int)
                    if (here, byte) not in self.moves:
                        return None
                    here = self.moves[here, byte]
        return here

    def fits(self, state: int | str | None, low: int, high: int) -> bool:
        """Whether `low` to `high` more tokens can end the answer; by trying all token counts, breadth first."""
        if state is None or state == "over":
            return False
        reached = {state}
        for count in range(high + 1):
            if count >= low and reached & self.ends:
                return True
            steps = {self.read((token,), state) for state in reached for token in range(2, len(PIECES))}
            reached = {after for after in steps if isinstance(after, int)}
        return False


@st.composite
def languages(draw: st.DrawFn) -> Language:
    states = draw(st.integers(1, 4))
    keys = [(state, byte) for state in range(states) for byte in b"abc"]
    targets = draw(st.lists(st.integers(-1, states - 1), min_size=len(keys), max_size=len(keys)))
    moves = {key: target for key, target in zip(keys, targets, strict=True) if target >= 0}
    return Language(moves, frozenset(draw(st.sets(st.integers(0, states - 1), min_size=1))), states)


def valid_strings(language: Language, width: int, left: int, least: int) -> list[tuple[int, ...]]:
    """All token strings of a canvas that are, or can still become, an answer of `least` to `left` tokens."""
    found = []
    for tokens in itertools.product(range(len(PIECES)), repeat=width):
        after = language.read(tokens)
        content = next((i for i, token in enumerate(tokens) if token in (EOS, PAD)), width)
        if after == "over":
            keep = least <= content <= left
        else:
            keep = content <= left and language.fits(after, max(0, least - width), left - width)
        if keep:
            found.append(tokens)
    return found


def projection(language: Language, left: int, least: int) -> Projection:
    return Projection(
        EdgeLayout(lift(language.dfa(), build_trie(PIECES), frozenset({EOS}), frozenset({EOS, PAD}))), 0, left, least
    )


cases = given(
    language=languages(),
    width=st.integers(1, 4),
    left=st.integers(1, 6),
    least=st.integers(0, 2),
    scale=st.sampled_from([0.0, 1.0, 20.0]),
    seed=st.integers(0, 2**16),
)


def log_probabilities(width: int, scale: float, seed: int) -> torch.Tensor:
    logits = torch.randn(width, len(PIECES), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.log_softmax(logits * scale, -1)


@cases
def test_best_path_total_and_marginals_are_those_of_brute_force(
    language: Language, width: int, left: int, least: int, scale: float, seed: int
) -> None:
    log_p = log_probabilities(width, scale, seed)
    assume(not language.dfa().is_empty)
    strings = valid_strings(language, width, left, min(least, left))
    project = projection(language, left, min(least, left))
    if not strings:
        with pytest.raises(ConstraintError):
            project.check()
        return
    project.check()
    found = project(log_p)
    scores = [sum(float(log_p[i, token]) for i, token in enumerate(tokens)) for tokens in strings]
    total = math.log(sum(math.exp(score - max(scores)) for score in scores)) + max(scores)
    draft = tuple(found.draft.tolist())
    assert draft in strings
    assert sum(float(log_p[i, token]) for i, token in enumerate(draft)) == pytest.approx(max(scores))
    assert found.log_total == pytest.approx(total)
    reported = draft.index(EOS) + 1 if EOS in draft else width
    same = sum(math.exp(score - total) for tokens, score in zip(strings, scores, strict=True) if tokens[:reported] == draft[:reported])  # fmt: skip  # noqa: E501
    assert found.doubt == pytest.approx(-math.log(same), abs=1e-9)
    marginals = torch.zeros_like(log_p)
    for tokens, score in zip(strings, scores, strict=True):
        for i, token in enumerate(tokens):
            marginals[i, token] += math.exp(score - total)
    torch.testing.assert_close(found.shifted().exp(), marginals, atol=1e-9, rtol=1e-9)
    assert tuple(found.draw(uniform(width, seed)).tolist()) in strings


def uniform(width: int, seed: int) -> torch.Tensor:
    """A number for each position, often the least or the greatest there is."""
    numbers = torch.rand(width, generator=torch.Generator().manual_seed(seed))
    return torch.where(numbers < 0.2, 0.0, torch.where(numbers > 0.8, 1 - 2.0**-24, numbers))


def test_draws_come_as_often_as_their_probability() -> None:
    language = Language({(0, 97): 1, (1, 98): 0, (0, 99): 0, (1, 97): 1}, frozenset({0}), 2)
    project, log_p = projection(language, 4, 0), log_probabilities(4, 1.0, 3)
    strings = valid_strings(language, 4, 4, 0)
    scores = [math.exp(sum(float(log_p[i, token]) for i, token in enumerate(tokens))) for tokens in strings]
    count = 4000
    numbers = torch.rand(count, 4, generator=torch.Generator().manual_seed(0))
    for found in (project(log_p), project.log_messages(log_p)):
        seen = [tuple(found.draw(row).tolist()) for row in numbers]
        for tokens, score in zip(strings, scores, strict=True):
            share = score / sum(scores)
            room = 4 * math.sqrt(share * (1 - share) / count) + 1e-3
            assert seen.count(tokens) / count == pytest.approx(share, abs=room)


def test_a_pinned_token_is_held_and_one_that_contradicts_is_refused() -> None:
    language = Language({(0, 97): 0, (0, 98): 1}, frozenset({1}), 2)
    project, log_p = projection(language, 3, 0), log_probabilities(3, 1.0, 0)
    held = torch.full_like(log_p, -1e9)
    held[0], held[2] = log_p[0], log_p[2]
    held[1, 2] = 0.0
    assert project(held).draft.tolist() == [2, 2, 3]
    held[1] = -1e9
    held[1, 6] = 0.0
    with pytest.raises(ConstraintError, match="no valid answer is left"):
        project(held)


def test_peaked_logits_do_not_make_a_language_look_empty() -> None:
    """A first form in the linear domain underflowed: every way to an end weighed e^-2000 of what was most likely."""
    language = Language({(0, 97): 1, (1, 98): 0}, frozenset({0}), 2)
    log_p = torch.full((40, len(PIECES)), -2000.0)
    log_p[:, 6] = 0.0
    found = projection(language, 40, 0)(log_p)
    assert language.read(tuple(found.draft.tolist())) in (0, "over")
    assert found.log_total < -50_000
    assert torch.isfinite(found.shifted().softmax(-1)).all()


def test_the_tail_is_scored() -> None:
    """With end and padding free of charge, the shortest answer would always be the best one."""
    language = Language({(0, 97): 0}, frozenset({0}), 1)
    log_p = torch.full((8, len(PIECES)), math.log(0.01))
    log_p[:6, 2] = math.log(0.9)
    log_p[6:, EOS] = math.log(0.9)
    assert projection(language, 8, 0)(log_p).draft.tolist() == [2] * 6 + [EOS] * 2


@given(language=languages(), pieces=st.lists(st.binary(min_size=1, max_size=3).map(lambda b: bytes(97 + x % 3 for x in b)), min_size=1, max_size=20))  # fmt: skip  # noqa: E501
def test_a_lifted_automaton_reads_tokens_as_the_bytes_they_are(language: Language, pieces: list[bytes]) -> None:
    dfa = language.dfa()
    assume(not dfa.is_empty)
    try:
        lifted = lift(dfa, build_trie([None, *pieces]), frozenset({0}), frozenset({0}))
    except ConstraintError:
        return
    for count in range(3):
        for tokens in itertools.product(range(1, len(pieces) + 1), repeat=count):
            byte_state = dfa.step(0, b"".join(pieces[token - 1] for token in tokens))
            state = lifted.after(0, tokens)
            if state == NOWHERE:  # then the bytes are wrong, or no tokens lead on from there
                assert byte_state == NOWHERE or lifted.to_end[byte_state] > len(dfa)
            else:
                assert state == byte_state
        if len(pieces) ** count > 400:
            break


@given(language=languages(), width=st.integers(1, 3), total=st.integers(1, 6), seed=st.integers(0, 999))
def test_blocks_of_noise_always_make_a_whole_answer(language: Language, width: int, total: int, seed: int) -> None:
    """The guarantee of completion: whatever the logits and wherever the cuts, the answer is valid at its limit."""
    assume(not language.dfa().is_empty)
    project = projection(language, total, 0)
    automaton = project.layout.automaton
    assume(automaton.to_end[0] <= total)
    reported: list[int] = []
    state, block = 0, 0
    while state != automaton.end and len(reported) < total:
        found = Projection(project.layout, state, total - len(reported))(
            log_probabilities(width, 20.0, seed + 7919 * block)
        )
        tokens = found.draft.tolist()[: total - len(reported)]
        state, block = automaton.after(state, tokens), block + 1
        reported += tokens
    content = tuple(itertools.takewhile(lambda token: token not in (EOS, PAD), reported))
    assert language.read(content) in language.ends


@given(
    language=languages(),
    width=st.integers(1, 40),
    left=st.integers(1, 60),
    least=st.integers(0, 20),
    scale=st.sampled_from([0.0, 1.0, 20.0, 300.0]),
    sure=st.none() | st.tuples(st.integers(0, 39), st.floats(0, 60)),
    pin=st.none() | st.tuples(st.integers(0, 39), st.integers(0, len(PIECES) - 1)),
    seed=st.integers(0, 2**16),
)
def test_the_quick_messages_are_the_careful_ones(
    language: Language,
    width: int,
    left: int,
    least: int,
    scale: float,
    sure: tuple[int, float] | None,
    pin: tuple[int, int] | None,
    seed: int,
) -> None:
    """Also behind an end that the model is sure of, where the quick ones stop, and around a pin."""
    assume(not language.dfa().is_empty)
    project, log_p = projection(language, left, min(least, left)), log_probabilities(width, scale, seed)
    if sure is not None:
        log_p[sure[0] :, EOS] += sure[1]
        log_p = torch.log_softmax(log_p, -1)
    if pin is not None:
        log_p[pin[0] : pin[0] + 1] = -1e9
        log_p[pin[0] : pin[0] + 1, pin[1]] = 0.0
    try:
        slow = project.log_messages(log_p)
    except ConstraintError:
        with pytest.raises(ConstraintError):
            project(log_p)
        return
    fast = project(log_p)
    assert fast.log_total == pytest.approx(slow.log_total, abs=1e-8)
    torch.testing.assert_close(fast.shifted().exp(), slow.shifted().exp(), atol=1e-9, rtol=1e-6)
    assert fast.log_mass(fast.draft.tolist()) == pytest.approx(slow.log_mass(fast.draft.tolist()), abs=1e-9)
    gates, layout = project.gates(width), project.layout
    careful = Projected(project, fast.weights, log_messages(layout, fast.weights, project.state, gates, layout.merged))
    assert careful.log_total == pytest.approx(slow.log_total, abs=1e-8)
    torch.testing.assert_close(careful.shifted().exp(), slow.shifted().exp(), atol=1e-9, rtol=1e-6)
    every = best_paths(project.layout, slow.weights, project.state, gates, stride=width + 1)
    final = np.where(project.allowed(width), every[-1], NONE).max()
    assert sum(float(log_p[i, token]) for i, token in enumerate(fast.draft.tolist())) == pytest.approx(final, abs=1e-8)
    drawn = fast.draw(uniform(width, seed)).tolist()
    assert len(drawn) == width
    assert language.read(tuple(drawn)) is not None
