"""The comparison of presets: every preset on every canvas, the reference beside itself."""

import pytest

import redraft
from presets import bench_presets
from redraft.diffusion.presets import PRESETS
from redraft.weights.source import locate


def test_presets_are_compared_on_canvases_narrower_than_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redraft.measure.dial.TASKS", ("records",))
    rows = bench_presets(locate("nano"), redraft.load("nano"), count=3).figures["records"]
    assert {(row["preset"], row["canvas"]) for row in rows} >= {
        (name, canvas) for name in PRESETS for canvas in (None, 16)
    }
    assert all(row["gained"] == row["lost"] == 0 for row in rows if row["preset"] == "reference")
    assert all(row["tokens_per_pass"] <= row["tokens_per_forward"] for row in rows)
