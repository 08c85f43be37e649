"""How far probabilities can be believed: by hand, and on outcomes drawn at a known temperature."""

from __future__ import annotations

import math
from random import Random

import pytest

import redraft
from redraft.engine.fields import field_confidence, field_entropy
from redraft.engine.request import Options
from redraft.errors import RequestError
from reliability import Guess, calibration_error, fitted, reliability, surprise

HALVES = [Guess(0.9, True), Guess(0.8, False), Guess(0.3, False), Guess(0.1, True)]


def test_bins_hold_equal_counts_and_the_error_is_their_mean_distance() -> None:
    low, high = reliability(HALVES, 2)
    assert (low.count, low.right, high.count, high.right) == (2, 0.5, 2, 0.5)
    assert [low.told, high.told] == pytest.approx([0.2, 0.85])
    assert calibration_error(HALVES, 2) == pytest.approx((0.3 + 0.35) / 2)
    assert [one.count for one in reliability(HALVES, 10)] == [1, 1, 1, 1]
    assert calibration_error([]) == 0


def test_surprise_is_the_mean_of_minus_the_log_of_what_happened() -> None:
    assert surprise(HALVES) == pytest.approx(-(math.log(0.9) + math.log(0.2) + math.log(0.7) + math.log(0.1)) / 4)
    assert math.isfinite(surprise([Guess(1.0, False)]))


def test_the_temperature_that_outcomes_were_drawn_at_is_found_again() -> None:
    """One of two choices, its odds e^z; it happens with odds e^(z/2), so the right temperature is 2."""
    rng = Random(1)
    odds = [rng.uniform(-4, 4) for _ in range(4000)]
    came = [rng.random() < 1 / (1 + math.exp(-z / 2)) for z in odds]

    def at(temperature: float) -> list[Guess]:
        return [Guess(1 / (1 + math.exp(-z / temperature)), ok) for z, ok in zip(odds, came, strict=True)]

    assert fitted(at) == pytest.approx(2, rel=0.15)
    assert calibration_error(at(2)) < 0.04 < calibration_error(at(0.5))


def test_a_fields_confidence_is_e_to_its_tokens_entropies() -> None:
    engine = redraft.load("nano")
    options = Options(seed=1, steps=1)
    done = engine.generate(
        "record\nSend 417 melu to Karomi.", chat=True, regex='\\{"qty":[1-9][0-9]{2}\\}', options=options
    )
    pieces = [engine.text.decode([token]) for token in done.tokens]
    digits = [nats for piece, nats in zip(pieces, done.entropy, strict=True) if piece.isdigit()]
    assert "".join(pieces) == done.text
    assert sum(map(len, filter(str.isdigit, pieces))) == 3
    assert field_confidence(engine.text, done) == {"/qty": pytest.approx(math.exp(-sum(digits)))}
    assert field_confidence(engine.text, done, 4.0) == {"/qty": pytest.approx(math.exp(-sum(digits) / 4))}
    assert field_entropy(engine.text, done) == {"/qty": pytest.approx(max(digits))}
    with pytest.raises(RequestError, match="temperature is 0"):
        field_confidence(engine.text, done, 0.0)
