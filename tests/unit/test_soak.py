"""The soak on a tiny model: it must pass, repeat itself, and notice what it is there to notice."""

from dataclasses import replace
from random import Random

import pytest
from tests.unit.test_trouble import model

from redraft.config import CheckpointConfig, GenerationConfig
from redraft.diffusion.accept import AnyOf, Confidence, EntropyBound, Factor, Frechet, Gate, Margin
from redraft.diffusion.plan import Flow, Whole
from redraft.engine.request import Options
from redraft.engine.resolve import build_request
from redraft.errors import RunError
from soak import Soak, SoakClient, bench_soak

pytestmark = pytest.mark.slow


def shipped() -> CheckpointConfig:
    return CheckpointConfig(model().config, GenerationConfig(max_denoising_steps=6, eos_token_ids=(1,)))


def client(max_tokens: int = 16) -> SoakClient:
    asked = build_request([2, 3, 4], Options(max_tokens=max_tokens, seed=1, steps=3), shipped())
    return SoakClient(asked, abort_after=None, breaks_at=None)


def test_forty_random_requests_leave_nothing_behind() -> None:
    record = bench_soak(model(), shipped(), name="tiny", count=40)
    outcomes = record.figures["outcomes"]
    assert record.name == "soak"
    assert sum(count for reason, count in outcomes.items() if reason != "busy") == 40
    assert {"aborted", "deadline", "refused"} <= outcomes.keys()
    assert record.figures["left_requests"] == record.figures["left_bytes"] == 0
    assert record.figures["compared_with_alone"] > 0
    assert 0 < record.figures["forwards"] <= record.figures["ticks"]


def test_a_seed_repeats_a_soak() -> None:
    found = []
    for _ in range(2):
        soak = Soak(model(), shipped(), 20, Random(3))
        soak.run()
        found.append((soak.ticks, soak.loop.forwards, soak.seen, [one.events for one in soak.clients]))
    assert found[0] == found[1]


def test_a_loop_that_stands_still_is_called_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    soak = Soak(model(), shipped(), 3, Random(0))
    monkeypatch.setattr(soak.loop, "tick", lambda: True)
    with pytest.raises(RunError, match="a hang"):
        soak.run()


def test_the_most_forwards_of_a_request() -> None:
    """Three prompt tokens are one chunk; 33 tokens are three canvases of 16, of three steps each."""
    assert client(max_tokens=33).most_forwards == 1 + 3 * 3
    causal = build_request([2, 3, 4], Options(max_tokens=33, causal=True), shipped())
    assert replace(client(), request=causal).most_forwards == 1 + 33


def test_every_kind_of_request_is_drawn() -> None:
    """Causal requests, narrow canvases and every rule but the reference's were never soaked."""
    soak = Soak(model(), shipped(), 0, Random(0))
    drawn = [one.request for one in (soak._draw() for _ in range(400)) if one is not None]
    assert {request.causal for request in drawn} == {False, True}
    assert {request.end_aware for request in drawn} == {False, True}
    assert {1, 16} <= {request.width for request in drawn}
    assert {Whole, Flow} == {type(request.policy.plan) for request in drawn}
    accepts = {type(request.policy.accept) for request in drawn}
    assert accepts == {EntropyBound, Confidence, Factor, Frechet, Margin, Gate, AnyOf}
    assert soak.seen["refused"] > 5
