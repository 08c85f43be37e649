"""Acceptance, halting, temperature, shaping and readings, against values worked out another way."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from redraft.diffusion import noise as noise_module
from redraft.diffusion.accept import Accept, AnyOf, Confidence, EntropyBound, Factor, Frechet, Gate, Margin, Needs
from redraft.diffusion.canvas import fresh
from redraft.diffusion.denoise import Policy, settle
from redraft.diffusion.halt import EitherOf, StableAndConfident, Sure, UntilEnd, for_draws
from redraft.diffusion.noise import SeededNoise
from redraft.diffusion.rules import read_rule, read_rules
from redraft.diffusion.schedule import FixedCooling, LinearTemperature
from redraft.diffusion.shaping import FEW, Shaping
from redraft.diffusion.stats import Stats, read_logits
from redraft.errors import RequestError

pytestmark = pytest.mark.typed


def stats_of(entropy: list[float], argmax: list[int] | None = None) -> Stats:
    tokens = torch.tensor(argmax or [0] * len(entropy))
    return Stats(tokens, tokens, torch.tensor(entropy), torch.zeros(len(entropy), 1))


def sure_of(confidence: list[float], second: list[float] | None = None, argmax: list[int] | None = None) -> Stats:
    """Readings with these largest probabilities, and the rest on one other token; the surer, the less entropy."""
    stats = stats_of([1 - c for c in confidence], argmax)
    return replace(stats, top=torch.tensor([confidence, second or [1 - c for c in confidence]]).T)


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
    assert EntropyBound(bound)(stats_of(entropy)).tolist() == kept


entropies = st.lists(st.floats(0, 5, width=32), min_size=1, max_size=20, unique=True)


@pytest.mark.parametrize(
    ("rule", "confidence", "kept"),
    [
        (Confidence(0.9), [0.95, 0.5, 0.9], [True, False, True]),
        (Confidence(0.9), [0.3, 0.5, 0.2], [False, True, False]),  # nobody passes: the most confident
        (Factor(0.75), [0.9, 0.8, 0.7], [True, True, False]),  # 2·0.1, 3·0.2 < 0.75, but 4·0.3 is not
        (Factor(0.75), [0.6, 0.8, 0.7], [False, True, False]),  # 2·0.2 < 0.75, 3·0.3 is not
        (Factor(0.1), [0.6, 0.8, 0.7], [False, True, False]),  # not even one: the most confident
        (Frechet(0.25), [0.9, 0.8, 0.7], [True, True, False]),  # 0.1+0.1, 0.3+0.2 < 0.75, but 0.6+0.3 is not
        (Frechet(0.25), [0.99, 0.97, 0.7], [True, True, True]),  # 0.01+0.03+0.3+0.3 = 0.64; Factor: 4·0.3 = 1.2
        (Factor(0.75), [0.99, 0.97, 0.7], [True, True, False]),
        (Frechet(0.99), [0.9, 0.8, 0.7], [True, False, False]),
        (Margin(0.6), [0.9, 0.75, 0.8], [True, False, True]),  # leads of 0.8, 0.5 and 0.6
    ],
)
def test_confidence_rules_by_hand(rule: Accept, confidence: list[float], kept: list[bool]) -> None:
    assert rule(sure_of(confidence)).tolist() == kept


# Rules from strict to loose: each keeps all that the one before it keeps.
ORDERED: list[list[Accept]] = [
    [EntropyBound(bound) for bound in (0.05, 0.3, 2.0)],
    [Confidence(threshold) for threshold in (0.95, 0.8, 0.3)],
    [Factor(factor) for factor in (0.2, 0.75, 2.0)],
    [Frechet(margin) for margin in (0.75, 0.25, 0.0)],
    [Margin(threshold) for threshold in (0.9, 0.5, 0.1)],
    [AnyOf((Confidence(0.9),)), AnyOf((Confidence(0.9), Factor(0.75))), AnyOf((Confidence(0.7), Factor(0.75)))],
    [Factor(0.75), Frechet(0.25)],
]
confidences = st.lists(st.floats(0.25, 1, width=32), min_size=1, max_size=20)


@given(confidences, st.sampled_from(ORDERED))
def test_a_looser_rule_never_keeps_less(confidence: list[float], rules: list[Accept]) -> None:
    masks = [rule(sure_of(confidence)) for rule in rules]
    assert all(bool((strict <= loose).all()) for strict, loose in pairwise(masks))


@given(confidences, st.sampled_from([*(rule for rules in ORDERED for rule in rules), Gate(1, Margin(0.5))]), st.data())
def test_pins_stay_outside_every_rule_and_something_open_is_kept(
    confidence: list[float], rule: Accept, data: st.DataObject
) -> None:
    size = len(confidence)
    pins = torch.tensor(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    drafts = (torch.tensor(data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size))),)
    mask = rule(replace(sure_of(confidence), pinned=pins), drafts)
    assert not bool((mask & pins).any())
    if not bool(pins.all()):
        assert bool(mask.any())
        open_only = sure_of([c for c, pin in zip(confidence, pins.tolist(), strict=True) if not pin])
        assert mask[~pins].tolist() == rule(open_only, tuple(draft[~pins] for draft in drafts)).tolist()


def test_the_gate_lets_through_what_is_sure_and_unchanged() -> None:
    stats = sure_of([0.95, 0.95, 0.5], argmax=[4, 5, 6])
    same, other = torch.tensor([4, 5, 6]), torch.tensor([4, 9, 6])
    assert Gate(1, Confidence(0.9))(stats, (same,)).tolist() == [True, True, False]
    assert Gate(1, Confidence(0.9))(stats, (other,)).tolist() == [True, False, False]
    assert Gate(1, Confidence(0.9))(stats, (other, same)).tolist() == [True, True, False], "looked too far back"
    assert Gate(2, Confidence(0.9))(stats, (other, same)).tolist() == [True, False, False]
    assert Gate(2, Confidence(0.9))(stats, (same,)).tolist() == [True, False, False], "too little history"
    changed = torch.tensor([9, 9, 9])
    assert Gate(1, Confidence(0.9))(stats, (changed,)).tolist() == [True, False, False], "nothing was kept"


def test_rules_in_words_by_hand() -> None:
    assert read_rule("confidence") == Confidence()
    assert read_rule("frechet:0.5") == Frechet(0.5)
    assert read_rule("gate:factor:0.5") == Gate(1, Factor(0.5))
    assert read_rule("gate:3:entropy:0.2") == Gate(3, EntropyBound(0.2))
    assert read_rule("gate:gate:2:margin") == Gate(1, Gate(2, Margin()))
    assert read_rules(("entropy", "gate:margin")) == AnyOf((EntropyBound(), Gate(1, Margin())))


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("", "names ''"),
        ("turbo:1", "names 'turbo'"),
        ("confidence:high", "'high'; it must be a number"),
        ("confidence:nan", "'nan'; it must be a number"),
        ("margin:0.5:0.6", "has 2 values"),
        ("gate", "a gate before no rule"),
        ("gate:2", "a gate before no rule"),
        ("gate:1.5:margin", "1.5 steps"),
        ("gate:0:margin", "looks back 0 steps"),
        ("gate:2:turbo", "names 'turbo'"),
    ],
)
def test_a_rule_that_nobody_knows_is_refused(word: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read_rule(word)


def test_rules_say_what_they_need() -> None:
    assert Gate(3, EntropyBound()).needs == Needs(drafts=3)
    assert EntropyBound().needs == Needs()
    assert AnyOf((Gate(3, EntropyBound()), Gate(2, Factor()))).needs == Needs(top=True, drafts=3)


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


@given(st.lists(st.lists(st.floats(-9, 9), min_size=3, max_size=3), min_size=1, max_size=4), st.floats(0.01, 3.0))
def test_a_sure_canvas_is_wrong_no_more_often_than_it_says(logits: list[list[float]], nats: float) -> None:
    """The chance of another text than the draft, summed over all of them, is at most nats / (2 ln 2)."""
    p = torch.softmax(torch.tensor(logits, dtype=torch.float64), -1)
    stats = stats_of((-(p * p.log()).sum(-1)).tolist(), p.argmax(-1).tolist())
    other = sum(
        math.prod(float(p[i, token]) for i, token in enumerate(text))
        for text in product(range(3), repeat=len(p))
        if list(text) != stats.argmax.tolist()
    )
    assert not Sure(nats)(stats, ()) or other <= nats / (2 * math.log(2)) + 1e-6


@dataclass(frozen=True)
class Held:
    """A canvas held to a language, as far as a halting rule looks at it: whatever else it is asked fails the test."""

    doubt: float
    draft: torch.Tensor
    fixed = 0

    def shifted(self) -> torch.Tensor:
        raise NotImplementedError

    def draw(self, uniform: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def finished(self) -> torch.Tensor | None:
        raise NotImplementedError

    def forced(self) -> list[bool]:
        raise NotImplementedError

    def log_mass(self, tokens: Sequence[int]) -> list[float]:
        raise NotImplementedError


@pytest.mark.parametrize(("doubt", "halts"), [(0.04, True), (0.06, True), (99.0, True)])
def test_sure_lets_any_doubt_pass_in_a_text_of_a_language_that_stands(doubt: float, halts: bool) -> None:
    stats, other = stats_of([0.7, 0.7, 0.7], [4, 5, 6]), torch.tensor([4, 7, 6])
    held = replace(stats, conditioned=Held(doubt, stats.argmax))
    assert Sure(0.2).memory == 2
    assert Sure(0.2)(held, (other, stats.argmax, stats.argmax)) is halts
    for drafts in ((stats.argmax,), (stats.argmax, other), (other, stats.argmax)):
        assert Sure(0.2)(held, drafts) is (doubt < 0.05)
    drawn = for_draws(EitherOf((Sure(0.2), StableAndConfident(5))))
    assert drawn(held, (stats.argmax, stats.argmax)) is (doubt < 0.5), "what is drawn may be another text"
    assert not Sure(0.2)(stats, (stats.argmax, stats.argmax)), "without a language the entropies decide"


@dataclass(frozen=True)
class Narrowed(Held):
    """Another distribution than the model's own, instead of one conditioned by a language."""

    log_p: torch.Tensor

    def shifted(self) -> torch.Tensor:
        return self.log_p


def test_what_only_the_language_makes_certain_is_kept_last() -> None:
    """The first of three positions is sure by the language alone, the others by the model as well."""
    sharp, flat = [0.997, 0.001, 0.001, 0.001], [0.25] * 4
    model, held = torch.tensor([flat, sharp, sharp]).log(), torch.tensor([sharp, sharp, sharp]).log()
    conditioned = Narrowed(0.0, torch.tensor([0, 0, 0]), held)
    stats = read_logits(model, 1.0, lambda p: p.argmax(-1), lambda p: p, condition=lambda _: conditioned)
    sure, unsure = (-sum(p * math.log(p) for p in row) for row in (sharp, flat))
    assert stats.entropy.tolist() == pytest.approx([sure] * 3, rel=1e-4)
    assert stats.cost.tolist() == pytest.approx([unsure, sure, sure], rel=1e-4)
    own = [pytest.approx(row, rel=1e-4) for row in (flat, sharp, sharp)]
    assert stats.soft.tolist() == own, "what is fed back is what the model by itself believes"
    bound = EntropyBound(1.2 * sure)
    assert bound(stats).tolist() == [False, True, True]
    assert bound(replace(stats, own=None)).tolist() == [True, True, False]
    assert Gate(1, bound)(stats).tolist() == [False, True, False]
    free = read_logits(model, 1.0, lambda p: p.argmax(-1), lambda p: p)
    assert free.own is None
    assert torch.equal(free.cost, free.entropy)


def test_sure_adds_up_what_is_open_and_either_rule_is_enough() -> None:
    stats = stats_of([0.1, 0.05, 0.3], [4, 5, 6])
    assert [Sure(nats)(stats, ()) for nats in (0.44, 0.46)] == [False, True]
    assert Sure(0.16)(replace(stats, pinned=torch.tensor([False, False, True])), ())
    either = EitherOf((StableAndConfident(1, 0.2), Sure(0.2)))
    assert either.memory == 2
    assert not either(stats, ())
    assert either(stats, (torch.tensor([4, 5, 6]),)), "the mean is below 0.2 and the draft has stood"
    assert either(stats_of([0.1, 0.05, 0.0], [4, 5, 6]), ()), "the sum is below 0.2"


def test_temperature_follows_the_published_endpoints() -> None:
    """Model spec 3.2: 0.8 at the first of 48 steps, 0.40833 at the last."""
    schedule = LinearTemperature(0.4, 0.8)
    assert schedule.temperature(1, 48) == pytest.approx(0.8, abs=1e-7)
    assert schedule.temperature(48, 48) == pytest.approx(0.40833, abs=1e-5)


@pytest.mark.parametrize(
    ("shaping", "law"),
    [
        (Shaping(), [0.1, 0.4, 0.2, 0.3]),
        (Shaping(top_k=2), [0, 0.4, 0, 0.3]),
        (Shaping(top_k=9), [0.1, 0.4, 0.2, 0.3]),
        (Shaping(top_p=0.5), [0, 0.4, 0, 0.3]),  # 0.4 is not enough, 0.7 is
        (Shaping(top_p=0.01), [0, 0.4, 0, 0]),  # the likeliest is always there
        (Shaping(top_k=2, top_p=0.5), [0, 0.4, 0, 0]),  # 0.4 is 57% of what top_k left
    ],
)
def test_narrowing_by_hand(shaping: Shaping, law: list[float]) -> None:
    torch.testing.assert_close(shaping.narrowed(torch.tensor([[0.1, 0.4, 0.2, 0.3]])), torch.tensor([law]))


probabilities = st.lists(st.floats(0.125, 1, width=32), min_size=2, max_size=12)


@given(probabilities, st.integers(1, 12), st.floats(0.05, 1))
def test_a_narrowed_law_keeps_the_likeliest_and_grows_with_its_limits(law: list[float], k: int, p: float) -> None:
    row = torch.tensor([law]) / sum(law)
    kept, wider = Shaping(top_k=k, top_p=p).narrowed(row), Shaping(top_k=k + 1, top_p=p).narrowed(row)
    assert float(kept.max()) == float(row.max())
    assert int((kept > 0).sum()) <= min(k, len(law))
    assert int((wider > 0).sum()) >= int((kept > 0).sum())
    assert bool(((kept == 0) | (kept == row)).all()), "narrowing changed a probability that it kept"


@pytest.mark.parametrize("sharpness", [0.1, 0.5, 8.0])
def test_top_p_of_a_large_vocabulary_equals_a_full_sort(sharpness: float) -> None:
    """Sharp rows need a few of the 5,000 tokens, flat ones nearly all: both ways of ranking them are taken."""
    law = torch.softmax(sharpness * torch.randn(3, 5000, generator=torch.Generator().manual_seed(3)), -1).double()
    ordered, order = law.sort(dim=-1, descending=True)
    wanted = torch.zeros_like(law).scatter(-1, order, ordered * (ordered.cumsum(-1) - ordered < 0.9))
    kept = Shaping(top_p=0.9).narrowed(law)
    assert (kept > 0).sum(-1).tolist() == (wanted > 0).sum(-1).tolist()
    torch.testing.assert_close(kept.sum(-1), wanted.sum(-1))


def ranked_whole(shaping: Shaping, p: torch.Tensor) -> torch.Tensor:
    """Twin of `narrowed` that ranks all rows at once."""
    likeliest, ids = p.topk(min(shaping.top_k or FEW, p.shape[-1]))
    enough = shaping.top_p * (likeliest if shaping.top_k else p).sum(-1, keepdim=True)
    if shaping.top_k is None and bool((likeliest.sum(-1, keepdim=True) < enough).any()):
        likeliest, ids = p.sort(-1, descending=True)
    outside = likeliest.cumsum(-1) - likeliest >= enough
    outside[:, 0] = False
    return torch.zeros_like(p).scatter(-1, ids, likeliest.masked_fill(outside, 0))


@pytest.mark.parametrize("rows", [1, 5, 16, 40])
@pytest.mark.parametrize(
    "limits", [{"top_p": 0.9}, {"top_k": 3}, {"top_k": 2500}, {"top_k": 2500, "top_p": 0.5}], ids=str
)
def test_a_canvas_is_ranked_in_parts_as_it_would_be_at_once(rows: int, limits: dict[str, Any]) -> None:
    """Ranks of a whole canvas took 11 times its logits, where the ledger counts 7. Logits in steps have equals."""
    logits = torch.randn(rows, 5000, generator=torch.Generator().manual_seed(rows)).mul(8).round() / 8
    for sharpness in (torch.linspace(0.1, 8, rows)[:, None], 8.0):
        p = torch.softmax(sharpness * logits, -1)
        assert torch.equal(Shaping(**limits).narrowed(p), ranked_whole(Shaping(**limits), p))


def test_bias_is_added_everywhere_and_a_forbidden_token_is_impossible() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    shaped = Shaping(bias=((0, 0.5), (0, 1.0)), forbidden=(2,)).biased(logits)
    assert shaped[:, :2].tolist() == [[2.5, 2.0], [4.5, 2.0]]
    found = read_logits(shaped, 8.0, lambda p: p.argmin(-1), lambda p: p)
    assert found.soft[:, 2].tolist() == [0.0, 0.0]
    assert bool(found.entropy.isfinite().all())
    assert Shaping().biased(logits) is logits


class Stubborn:
    """A model that is sure of token 1 everywhere, whatever it is shown."""

    dtype = torch.float32

    def denoise(self, tokens: torch.Tensor, soft: torch.Tensor | None) -> torch.Tensor:
        return 40 * torch.nn.functional.one_hot(torch.ones_like(tokens), 5).float()

    def soften(self, p: torch.Tensor) -> torch.Tensor:
        return p


def test_a_canvas_settles_although_the_model_disagrees_with_a_pin() -> None:
    pinned, noise = torch.tensor([True, False, False]), SeededNoise(0)
    start = fresh(noise, 0, 3, 5, seed=torch.tensor([4, 0, 0]), pinned=pinned)
    *_, last = settle(Stubborn(), start, Policy(), noise)
    assert (last.settled, last.step, last.draft.tolist()) == (True, 2, [4, 1, 1])


def test_no_impossible_token_is_drawn_where_a_uniform_rounds_up_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """2^32 - 1 is 2^32 in float32; taken as 1 it exceeds every cumulated probability and drew the last token."""
    largest = np.full((4, 2), 2**32 - 1, dtype=np.uint64)
    monkeypatch.setattr(noise_module, "_words", lambda *_: largest)
    assert SeededNoise(0).sample(0, 1, torch.tensor([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0]])).tolist() == [1, 0]


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
        lambda: Sure(0.0),
        lambda: Sure(math.nan),
        lambda: EitherOf(()),
        lambda: LinearTemperature(0.9, 0.4),
        lambda: LinearTemperature(0.0, 0.4),
        lambda: FixedCooling(0.9, 0.4),
        lambda: FixedCooling(0.4, 0.8, 0),
        lambda: Confidence(0.0),
        lambda: Confidence(1.1),
        lambda: Factor(0.0),
        lambda: Frechet(1.0),
        lambda: Frechet(-0.1),
        lambda: Margin(0.0),
        lambda: Margin(math.nan),
        lambda: Gate(0, Margin()),
        lambda: AnyOf(()),
        lambda: Shaping(temperature=0.0),
        lambda: Shaping(temperature=math.inf),
        lambda: Shaping(top_k=0),
        lambda: Shaping(top_p=0.0),
        lambda: Shaping(top_p=1.5),
        lambda: Shaping(bias=((3, math.nan),)),
    ],
)
def test_meaningless_settings_are_refused(make: object) -> None:
    with pytest.raises(RequestError):
        make()  # type: ignore[operator]


def test_until_end_judges_the_answer_alone() -> None:
    """The tail behind the end token flickers and is uncertain; the answer before it is settled."""
    rule = UntilEnd(StableAndConfident(1, 0.01), frozenset({9}))
    now, before = stats_of([0.001, 0.001, 2.0], [4, 9, 7]), torch.tensor([4, 9, 1])
    assert rule(now, (before,))
    assert not rule.rule(now, (before,))
    assert not rule(now, (torch.tensor([5, 9, 7]),)), "the answer itself changed"
    unended = stats_of([0.001, 0.001, 2.0], [4, 3, 7])
    assert not rule(unended, (torch.tensor([4, 3, 7]),)), "without an end the whole canvas counts"
