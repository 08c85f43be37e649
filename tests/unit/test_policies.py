"""Acceptance, halting, temperature and readings, against values worked out another way."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from redraft.diffusion.accept import EntropyBound
from redraft.diffusion.halt import StableAndConfident
from redraft.diffusion.schedule import LinearTemperature
from redraft.diffusion.stats import Stats, read_logits
from redraft.errors import RequestError


def stats_of(entropy: list[float], argmax: list[int] | None = None) -> Stats:
    tokens = torch.tensor(argmax or [0] * len(entropy))
    return Stats(tokens, tokens, torch.tensor(entropy), torch.zeros(len(entropy), 1))


@pytest.mark.parametrize(
    ("entropy", "bound", "kept"),
    [
        ([0.5, 0.02, 0.03], 0.1, [True, True, True]),  # 0.02, 0.03 spent before the largest: 0.05 <= 0.1
        ([0.5, 0.08, 0.03], 0.1, [False, True, True]),  # 0.11 spent before the largest
        ([2.0, 3.0, 4.0], 0.1, [True, False, False]),  # the first is always kept
        ([0.0, 0.0, 0.0], 0.1, [True, True, True]),
    ],
)
def test_entropy_bound_by_hand(entropy: list[float], bound: float, kept: list[bool]) -> None:
    assert EntropyBound(bound)(stats_of(entropy), None).tolist() == kept


entropies = st.lists(st.floats(0, 5, width=32), min_size=1, max_size=20, unique=True)


@given(entropies, st.floats(0.01, 3))
def test_a_larger_bound_never_keeps_less(entropy: list[float], bound: float) -> None:
    small, large = EntropyBound(bound)(stats_of(entropy), None), EntropyBound(2 * bound)(stats_of(entropy), None)
    assert bool((small <= large).all())
    assert bool(small.any())


@given(entropies, st.data())
def test_pinned_positions_are_neither_judged_nor_paid_for(entropy: list[float], data: st.DataObject) -> None:
    pins = data.draw(st.lists(st.booleans(), min_size=len(entropy), max_size=len(entropy)))
    mask = EntropyBound(0.3)(stats_of(entropy), torch.tensor(pins))
    free = [nats for nats, pin in zip(entropy, pins, strict=True) if not pin]
    assert not bool((mask & torch.tensor(pins)).any())
    if free:
        alone = EntropyBound(0.3)(stats_of(free), None)
        assert mask[~torch.tensor(pins)].tolist() == alone.tolist()


def test_halting_needs_a_repeat_and_certainty() -> None:
    rule = StableAndConfident(1, 0.01)
    draft = torch.tensor([4, 5])
    sure, unsure = stats_of([0.001, 0.002], [4, 5]), stats_of([0.001, 0.9], [4, 5])
    assert not rule(sure, ()), "stopped on the first step, with nothing to compare"
    assert rule(sure, (draft,))
    assert not rule(unsure, (draft,))
    assert not rule(sure, (torch.tensor([4, 6]),))
    assert StableAndConfident(0, 0.01)(sure, ()), "stability 0 must drop the test"
    assert not StableAndConfident(2, 0.01)(sure, (torch.tensor([4, 6]), draft))


def test_temperature_follows_the_published_endpoints() -> None:
    """Model spec 3.2: 0.8 at the first of 48 steps, 0.40833 at the last."""
    schedule = LinearTemperature(0.4, 0.8)
    assert schedule.temperature(1, 48) == pytest.approx(0.8, abs=1e-7)
    assert schedule.temperature(48, 48) == pytest.approx(0.40833, abs=1e-5)


def test_readings_equal_torch_distributions() -> None:
    logits = 6 * torch.randn(16, 40, generator=torch.Generator().manual_seed(1))
    found = read_logits(logits, 0.7, lambda p: p.argmin(-1), lambda p: p @ torch.eye(40))
    law = torch.distributions.Categorical(logits=logits.double() / 0.7)
    torch.testing.assert_close(found.entropy.double(), law.entropy(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.soft.double(), law.probs, atol=1e-6, rtol=1e-5)
    assert torch.equal(found.argmax, logits.argmax(-1))
    assert torch.equal(found.sample, law.probs.argmin(-1))


def test_feedback_is_rounded_to_the_parameter_dtype() -> None:
    logits = torch.tensor([[30.2, 30.0, -5.0]])
    seen = []
    read_logits(logits, 0.4, lambda p: p.argmax(-1), lambda p: seen.append(p) or p, torch.bfloat16)
    rounded = [math.exp(float(z)) for z in (logits / 0.4).bfloat16()[0].float() - 75]
    torch.testing.assert_close(seen[0][0], torch.tensor(rounded) / sum(rounded))


@pytest.mark.parametrize(
    "make",
    [
        lambda: EntropyBound(0.0),
        lambda: StableAndConfident(-1),
        lambda: StableAndConfident(1, 0.0),
        lambda: LinearTemperature(0.9, 0.4),
        lambda: LinearTemperature(0.0, 0.4),
    ],
)
def test_meaningless_settings_are_refused(make: object) -> None:
    with pytest.raises(RequestError):
        make()  # type: ignore[operator]
