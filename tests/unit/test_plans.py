"""The comparison of number formats: every plan is there, its size and error are those of its format."""

import pytest

from plans import bench_plans
from redraft.weights.source import locate

pytestmark = pytest.mark.slow


def test_plans_are_measured_beside_each_other() -> None:
    plans = ("int8", "int4", "fp8")
    record = bench_plans(locate("nano"), count=1, plans=plans, steps=2)
    found = record.figures
    assert found.keys() == {"none", *plans, "2 times as wide", "4 times as wide"}
    assert found["none"]["logit_error"] == 0
    assert found["none"]["bytes"] > found["fp8"]["bytes"] > found["int4"]["bytes"]
    assert 0.001 < found["int8"]["logit_error"] < found["int4"]["logit_error"] < 0.3
    assert all(0 <= share <= 1 for plan in plans for share in found[plan]["exact"].values())
    assert found["4 times as wide"].keys() == {"float32", "int8"}
    assert len(record.summary) == len(plans) + 3
