"""How many operations a denoising step of the 26B model launches on a GPU, counted on tensors without numbers.

Between two launches a GPU waits for the host, wherever no graph repeats them: at 5 microseconds each, 600 are 3 ms of a
step whose floor is 15 (docs/devices.md).
"""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("triton", reason=f"there is no triton for {sys.platform}")

import launches
from redraft.config import read_config
from redraft.measure.roofline import CARDS

CONFIG = read_config(launches.SHAPE).model


@pytest.mark.parametrize(("canvases", "most"), [(1, 600), (8, 800)])
def test_a_step_takes_few_launches(canvases: int, most: int) -> None:
    names = [one.name for one in launches.launches_of(CONFIG, None, canvases)]
    assert names.count("_attend") == 30, "every layer attends once, whatever the number of canvases"
    assert len(names) < most, sorted(names)


@pytest.mark.slow
def test_launches_at_full_rate_leave_room_below_what_is_wanted() -> None:
    """1.5 times the floor is wanted of one canvas in bfloat16, 1.7 in fewer bits. What `computed` asserts is that all
    products of a step are those of the floor, which is worked out from the model's shape alone."""
    rows = [row for row in launches.computed(CONFIG) if row["card"] == CARDS[1].name and row["canvases"] == 1]
    times = {row["plan"]: row["least_ms"] / row["floor_ms"] for row in rows}
    assert times["bfloat16"] < 1.25
    assert max(times[plan] for plan in ("int8", "fp8", "nvfp4-experts")) < 1.55
    assert times["int4"] < 1.75
