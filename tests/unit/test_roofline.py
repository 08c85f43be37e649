"""The floor against figures worked out elsewhere: the model's published sizes and an independent roofline table."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.helpers import released_json

from redraft.config import ModelConfig, parse_model
from redraft.measure.roofline import Card, StepWork, attention_flops, cache_bytes, linear_flops, step_work
from redraft.model.packed import NVFP4
from redraft.weights.memory import footprint
from redraft.weights.plan import PLANS, PackingPlan, formats

RELEASED: ModelConfig = parse_model(released_json())[0]
HALF = torch.bfloat16
H100 = Card("as in the table", 80 * 10**9, 3.35e12, 790e12, 2 * 790e12)
ALL_NVFP4 = PackingPlan("all", NVFP4, NVFP4, NVFP4)


def work(plan: PackingPlan | None, canvases: int = 1, prefix: int = 2048, touched: float = 1.0) -> StepWork:
    packed = formats(RELEASED, plan) if plan else {}
    found = step_work(RELEASED, HALF, packed, canvases=canvases, prefix=prefix, touched=touched)
    table = footprint(RELEASED, HALF, packed).weights["embedding"]
    return replace(found, num_bytes=found.num_bytes + table)  # the specification reads it twice


def test_arithmetic_is_that_of_the_specification() -> None:
    """Model spec 5.4, in TFLOP for one canvas: 1.588 in the layers, twice 0.378 in the head, attention by prefix."""
    assert 256 * linear_flops(RELEASED) / 1e12 == pytest.approx(1.588, abs=0.001)
    for prefix, wanted in ((512, 0.11), (2048, 0.23), (8192, 0.49), (32768, 1.52), (131072, 5.6)):
        found = attention_flops(RELEASED, 256, prefix + 256, 256) / 1e12
        assert found == pytest.approx(wanted, rel=0.06), prefix
    assert work(None).flops / 1e12 == pytest.approx(2.58, abs=0.02)


@pytest.mark.parametrize(
    ("plan", "gigabytes"),
    [(None, 51.98), (PLANS["fp8"], 27.49), (PLANS["nvfp4-experts"], 19.15), (ALL_NVFP4, 16.78)],
    ids=["bf16", "fp8", "experts", "all"],
)
def test_weights_read_are_those_of_the_specification(plan: PackingPlan | None, gigabytes: float) -> None:
    """Model spec 5.3, with every expert touched and the table read twice."""
    assert work(plan, prefix=0).num_bytes / 1e9 == pytest.approx(gigabytes, rel=0.005)


@pytest.mark.parametrize(
    ("plan", "canvases", "memory", "compute"),
    [
        (None, 1, 15.6, 3.3),
        (None, 8, 16.1, 26.1),
        (None, 16, 16.7, 52.1),
        (PLANS["fp8"], 1, 8.3, 2.3),
        (PLANS["fp8"], 8, 8.8, 18.0),
        (ALL_NVFP4, 1, 5.1, 3.3),
        (ALL_NVFP4, 4, 5.3, 13.0),
    ],
)
def test_floors_are_those_of_the_table(plan: PackingPlan | None, canvases: int, memory: float, compute: float) -> None:
    """Model spec 5.6, milliseconds on an H100 of 3.35 TB/s and 790 TFLOPS behind 2,048 tokens."""
    found = work(plan, canvases)
    assert 1e3 * found.memory_seconds(H100) == pytest.approx(memory, rel=0.03)
    assert 1e3 * found.compute_seconds(H100) == pytest.approx(compute, rel=0.03)
    assert found.seconds(H100) == max(found.memory_seconds(H100), found.compute_seconds(H100))


def test_experts_elsewhere_take_their_way_over_the_bus() -> None:
    card = Card("one", 10**9, 1e12, 1e15, bus=25e9)
    assert StepWork(10**9, 10**12, 0, sent=5 * 10**10).seconds(card) == 2.0
    assert StepWork(10**9, 10**12, 0, sent=10**6).seconds(card) == 1e-3
    assert StepWork(10**9, 10**12, 0, sent=10**12).seconds(H100) == pytest.approx(10**12 / H100.bf16)


def test_the_cache_is_that_of_the_specification() -> None:
    """20,480 bytes a token on full layers; at most 209.5 MB on sliding ones."""
    assert cache_bytes(RELEASED, HALF, 500) == 500 * (20_480 + 25 * 8192)
    assert cache_bytes(RELEASED, HALF, 100_000) == 100_000 * 20_480 + 209_510_400
