"""Bounds that nobody sets follow from the model, or from what was measured on this machine; what is set wins."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import tiny_config, tiny_model

import redraft
from redraft.__main__ import main
from redraft.engine.knee import knee_key, knees_file, read_knee, write_knee
from redraft.engine.loop import Loop
from redraft.engine.settings import LoopConfig, default_rows
from redraft.errors import RequestError
from redraft.measure import knee
from redraft.weights.source import locate


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def rows(loop: LoopConfig | None = None, plan: str | None = None) -> int:
    return redraft.load("nano-sudoku", loop=loop, plan=plan).loop.scheduler.max_rows


def test_a_forward_takes_as_many_canvases_as_fill_the_experts_where_nobody_has_measured() -> None:
    """By hand: nano's experts see half of the rows, the 26B model's one in sixteen; more than a dozen never go."""
    assert rows() == 2 * 256
    tiny = tiny_config()
    sparse = replace(tiny, canvas_length=32)
    most = 12 * 32
    assert default_rows(replace(sparse, canvas_length=256, num_experts=8, top_k_experts=1), "cpu") == 8 * 256
    assert default_rows(replace(sparse, num_experts=128, top_k_experts=8), "cpu") == most
    assert default_rows(replace(sparse, num_experts=4, top_k_experts=4), "cuda") == most
    short = tiny_model(replace(tiny, canvas_length=32))
    assert Loop(short).scheduler.max_rows == default_rows(short.config, "cpu")


def test_a_knee_that_bench_measured_is_used_by_the_next_load(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(knee, "CANVASES", (1, 2))
    assert main(["bench", "--model", "nano-sudoku", "--knee", "--runs", "1", "--threads", "1", "--json"]) == 0
    told = capsys.readouterr()
    measured = json.loads(told.out)["figures"]["knee_rows"]
    assert str(cache / "redraft" / "knees.json") in told.err
    assert rows() == measured in (256, 512)
    assert (
        main(["bench", "--model", "nano-sudoku", "--knee", "--plan", "int8", "--runs", "1", "--threads", "1", "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["workload"]["plan"] == "int8"
    assert sorted("with plan int8" in key for key in json.loads(knees_file().read_text())) == [False, True]
    assert rows(loop=LoopConfig(max_rows=100)) == 100, "what is set wins"


def test_a_knee_belongs_to_a_checkpoint_a_format_a_device_and_threads(tmp_path: Path) -> None:
    nano = locate("nano-sudoku")
    write_knee(knee_key(nano, "float32", "cpu"), 77)
    assert rows() == 77
    assert read_knee(knee_key(nano, "bfloat16", "cpu")) is None
    assert rows(plan="int8") == 512, "int8 is faster, so its knee is elsewhere"
    write_knee(knee_key(nano, "float32", "cpu", "int8"), 88)
    assert (rows(plan="int8"), rows()) == (88, 77)
    torch.set_num_threads(2)
    try:
        assert rows() == 512
        write_knee(knee_key(nano, "float32", "cpu"), 55)
        assert rows() == 55
    finally:
        torch.set_num_threads(1)
    assert rows() == 77, "one knee took another's place"
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_bytes((nano / "config.json").read_bytes())
    (other / "model.safetensors").write_bytes(b"x")
    assert knee_key(other, "float32", "cpu") != knee_key(nano, "float32", "cpu")


@pytest.mark.parametrize("held", ["", "[]", "{", '{"a": "b"}', '{"a": 0}', '{"a": true}', "\x00", "9" * 5000])
def test_a_file_that_cannot_be_used_is_told_of_and_written_anew(held: str) -> None:
    knees_file().parent.mkdir()
    knees_file().write_text(held, encoding="utf-8")
    told: list[str] = []
    redraft.load("nano-sudoku", report=told.append)
    assert [line for line in told if "knees.json cannot be used" in line]
    key = knee_key(locate("nano-sudoku"), "float32", "cpu")
    write_knee(key, 99)
    assert rows() == 99


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_rows", 0), ("max_rows", -5), ("max_running", 0), ("max_waiting", 0), ("prefix_bytes", -1)],
)
def test_a_bound_that_bounds_nothing_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"{name} is {value!r}; "):
        Loop(tiny_model(tiny_config()), replace(LoopConfig(), **{name: value}))
