"""Pure noise through random schemas, tokenizers and cuts; `bench/constraints.py` goes through a thousand."""

from __future__ import annotations

from noise import NoiseTrial, noise_trial


def test_nothing_invalid_comes_of_noise() -> None:
    trials = [trial for number in range(40) if (trial := noise_trial(number)) is not None]
    assert len(trials) > 20
    assert [(trial.text, trial.problems) for trial in trials if trial.problems] == []
    assert sum(trial.canvases > 1 for trial in trials) > len(trials) / 3


def test_a_trial_is_a_function_of_its_number() -> None:
    first, again = noise_trial(1), noise_trial(1)
    assert isinstance(first, NoiseTrial)
    assert first == again
