"""The device card on this machine's processor: every figure is there, a floor is a floor, what cannot be is refused."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from tests.helpers import Shell, released_json, tiny_checkpoint, tiny_config, tiny_json

from redraft.__main__ import main
from redraft.config import ModelConfig
from redraft.errors import RunError, WeightsError
from redraft.measure.device import device_card, filled_prefix, random_weights, touched_share
from redraft.measure.partial_results import PartialResults
from redraft.measure.record import Record
from redraft.measure.roofline import step_work
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import FAST
from redraft.weights.place import Placement
from redraft.weights.plan import PLANS, PackingPlan, check_device, formats, usable_plans

CPU = torch.device("cpu")
WIDE = tiny_config(hidden_size=64, intermediate_size=96, moe_intermediate_size=64)


def card(
    config: ModelConfig,
    *,
    canvases: tuple[int, ...],
    prefixes: tuple[int, ...],
    runs: int,
    plan: PackingPlan | None = None,
    placement: Placement = Placement.DEVICE,
    model: DiffusionGemma | None = None,
) -> Record:
    return device_card(
        config,
        name="tiny",
        device=CPU,
        dtype=torch.float32,
        plan=plan,
        kernels=FAST,
        placement=placement,
        model=model,
        canvases=canvases,
        prefixes=prefixes,
        runs=runs,
    )


@pytest.mark.parametrize("plan", [None, "int4", "fp8", "nvfp4"])
def test_a_card_tells_every_case_with_its_floor(plan: str | None) -> None:
    record = card(WIDE, plan=PLANS[plan] if plan else None, canvases=(1, 3), prefixes=(20, 40), runs=2)
    rows = record.figures["timed"]
    reported = [(row["what"], row["canvases"], row["prefix"]) for row in rows]
    steps = [("step", 1, 40), ("step", 3, 40), ("step", 1, 20)]
    assert reported == [*steps, ("commit", 1, 250), ("prefill", 1, 232), ("head", 1, 0)]
    packed = formats(WIDE, PLANS[plan]) if plan else {}
    touched = record.figures["experts_touched"]
    assert 0 < touched <= 1
    assert rows[1]["bytes"] == step_work(WIDE, torch.float32, packed, canvases=3, prefix=40, touched=touched).num_bytes
    for row in rows:
        assert len(row["runs_ms"]) == 2
        assert row["times_floor"] > 1, f"{row['what']} took less than is possible"
    assert len(record.summary) == len(rows) + 2


def test_a_shape_too_large_is_refused_before_its_numbers_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    """It took all of the memory until the system ended it."""
    (tmp_path / "config.json").write_text(json.dumps(released_json()))
    monkeypatch.setattr("redraft.weights.load.free_memory", lambda device: int(18e9))
    said = shell(["bench", "--device-card", "--model", str(tmp_path), "--dtype", "bfloat16"], 1).err
    assert "the model needs 51.1 GB (50.5 GB of weights) and 18.0 GB are free; --dtype bfloat16 with plan" in said


def test_a_model_of_random_numbers_is_finite_in_every_format() -> None:
    for plan in (None, *PLANS.values()):
        model = random_weights(WIDE, torch.bfloat16, CPU, formats(WIDE, plan) if plan else {}, FAST)
        prefix = filled_prefix(model, 30)
        prefix.check()
        assert prefix.length == 30
        logits = model.denoise(torch.arange(6), None, prefix)
        assert logits.isfinite().all()
        assert logits.std() > 0
        assert 0 < touched_share(model) <= 1


def test_the_command_measures_a_checkpoint_or_a_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_checkpoint(tmp_path / "whole", WIDE)
    (tmp_path / "shape").mkdir()
    (tmp_path / "shape" / "config.json").write_text(json.dumps(tiny_json()))
    quick = ["--device-card", "--runs", "1", "--canvases", "1", "--prefixes", "16"]
    assert main(["bench", *quick, "--model", str(tmp_path / "whole"), "--plan", "int8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == "device-whole"
    assert found["workload"]["plan"] == "int8"
    assert main(["bench", *quick, "--model", str(tmp_path / "shape")]) == 0
    assert "a step of 1 canvas behind 16 tokens (shape, plain, on cpu)" in capsys.readouterr().out


def test_a_card_without_eight_bit_floats_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    device = torch.device("cuda")
    for name in ("fp8", "nvfp4"):
        with pytest.raises(WeightsError, match=f"{name} needs 8-bit floats, .* 8.9 on; cuda has 8.6"):
            check_device(formats(WIDE, PLANS[name]), device)
    check_device(formats(WIDE, PLANS["int4"]), device)
    assert usable_plans(WIDE, device) == ["int8", "int4", "int4-g64", "int8-e8", "int4-g64-e8"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    check_device(formats(WIDE, PLANS["fp8"]), device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    for name in ("int8", "int4", "fp8"):
        with pytest.raises(WeightsError, match=r"need compute capability 8\.0 or more; cuda has 7\.5"):
            check_device(formats(WIDE, PLANS[name]), device)
    check_device({}, device)
    assert usable_plans(WIDE, device) == []


def test_what_fails_or_is_interrupted_costs_no_other_measurement() -> None:
    """On a device that is lent for minutes: one kernel that does not compile took the whole card with it."""
    fails = Mock(side_effect=ValueError("no such instruction\nand more"))
    interrupted = Mock(side_effect=KeyboardInterrupt)
    tried = PartialResults()
    with pytest.raises(KeyboardInterrupt):
        tried.take("too early", interrupted)
    tried.take("graph", fails)
    with pytest.raises(RunError, match="no such instruction"):
        tried.figures()
    tried.take("step", lambda: [{"ms": 1.0}])
    tried.take("prefill", interrupted)
    tried.take("head", lambda: [{"ms": 2.0}])
    reported = tried.figures()
    assert reported["timed"] == [{"ms": 1.0}]
    assert set(reported["failed"]) == {"graph", "prefill"}
    assert "no such instruction" in reported["failed"]["graph"]
