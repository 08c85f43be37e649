"""The loop, driven by a lookup table instead of a network."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft.diffusion.accept import EntropyBound
from redraft.diffusion.canvas import Canvas, fresh
from redraft.diffusion.denoise import Policy, settle
from redraft.diffusion.noise import SeededNoise
from redraft.diffusion.schedule import FixedCooling
from redraft.diffusion.shaping import Shaping

pytestmark = pytest.mark.typed

VOCAB = 11


@dataclass
class Table:
    """A denoiser that answers with fixed logits per call and remembers what it was shown."""

    calls: list[torch.Tensor]
    seen: list[tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=list)
    dtype: torch.dtype = torch.float32

    def denoise(self, tokens: torch.Tensor, soft: torch.Tensor | None) -> torch.Tensor:
        self.seen.append((tokens, soft))
        return self.calls[min(len(self.seen), len(self.calls)) - 1]

    def soften(self, probabilities: torch.Tensor) -> torch.Tensor:
        return probabilities


def peaked(tokens: list[int], sure: float = 40.0) -> torch.Tensor:
    logits = torch.zeros(len(tokens), VOCAB)
    logits[range(len(tokens)), tokens] = sure
    return logits


def run(table: Table, policy: Policy, width: int = 4, **seed: torch.Tensor) -> list[Canvas]:
    noise = SeededNoise(0)
    return list(settle(table, fresh(noise, 0, width, VOCAB, **seed), policy, noise))


def test_a_certain_model_settles_in_two_steps_and_its_reading_is_the_answer() -> None:
    steps = run(Table([peaked([1, 2, 3, 4])]), Policy())
    assert [canvas.settled for canvas in steps] == [False, True]
    assert steps[-1].draft.tolist() == [1, 2, 3, 4]
    assert steps[-1].tokens.tolist() == [1, 2, 3, 4]


def test_first_step_has_no_soft_embedding_and_later_ones_have_the_last_distribution() -> None:
    table = Table([peaked([1, 2, 3, 4], 3.0)])
    run(table, Policy(max_steps=3))
    assert table.seen[0][1] is None
    cold = Policy().schedule.temperature(1, 3)
    torch.testing.assert_close(table.seen[1][1], torch.softmax(peaked([1, 2, 3, 4], 3.0) / cold, -1))


def test_an_undecided_model_stops_at_the_cap_with_its_argmax() -> None:
    """At the cap the canvas still holds noise; what is emitted is the reading, never the noise."""
    steps = run(Table([peaked([1, 2, 3, 4], 1.0)]), Policy(max_steps=5))
    assert len(steps) == 5
    assert not steps[-1].settled
    assert steps[-1].draft.tolist() == [1, 2, 3, 4]


def test_at_top_k_1_a_canvas_shows_its_draft() -> None:
    """Also where two logits differ by less than their probabilities can: the draft is read from the logits."""
    logits = torch.zeros(4, VOCAB)
    logits[::2, 3:5], logits[1::2, 3:5] = torch.tensor([0.1, 0.1 + 1e-8]), torch.tensor([0.1 + 1e-8, 0.1])
    policy = Policy(FixedCooling(1.0, 1.0, 1), accept=EntropyBound(1e9), max_steps=2, shaping=Shaping(top_k=1))
    assert torch.softmax(logits, -1)[:, 3:5].unique().numel() == 1
    for canvas in run(Table([logits]), policy):
        assert canvas.tokens.tolist() == canvas.draft.tolist() == [4, 3, 4, 3]


def test_rejected_positions_show_the_noise_of_their_address() -> None:
    table = Table([peaked([1, 2, 3, 4], 1.0)])
    first, *_ = run(table, Policy(max_steps=2))
    random = SeededNoise(0).tokens(0, 1, 4, VOCAB)
    assert not bool(first.accepted.all())
    assert torch.equal(first.tokens[~first.accepted], random[~first.accepted])


@settings(max_examples=40)
@given(st.lists(st.booleans(), min_size=6, max_size=6), st.integers(0, 2**32), st.floats(0.1, 20))
def test_pins_never_move(pins: list[bool], seed: int, sure: float) -> None:
    given_tokens = torch.tensor([9, 8, 7, 6, 5, 4])
    noise = SeededNoise(seed)
    start = fresh(noise, 0, 6, VOCAB, seed=given_tokens, pinned=torch.tensor(pins))
    for canvas in settle(Table([peaked([1, 2, 3, 1, 2, 3], sure)]), start, Policy(max_steps=6), noise):
        assert torch.equal(canvas.tokens[pins], given_tokens[pins])
        assert torch.equal(canvas.draft[pins], given_tokens[pins])


def test_the_same_seed_gives_the_same_steps_and_another_seed_others() -> None:
    table = [peaked([1, 2, 3, 4], 1.5)]
    one, two = run(Table(table), Policy(max_steps=6)), run(Table(table), Policy(max_steps=6))
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(one, two, strict=True))
    noise = SeededNoise(1)
    other = list(settle(Table(table), fresh(noise, 0, 4, VOCAB), Policy(max_steps=6), noise))
    assert any(not torch.equal(a.tokens, b.tokens) for a, b in zip(one, other, strict=True))


def test_a_settled_canvas_takes_no_further_step() -> None:
    table = Table([peaked([1, 2, 3, 4])])
    last = run(table, Policy())[-1]
    assert list(settle(table, last, Policy(), SeededNoise(0))) == []
    assert list(settle(table, replace(last, settled=False, step=48), Policy(), SeededNoise(0))) == []
