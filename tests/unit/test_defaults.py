"""What a load chooses where nothing is named: the device that is there, the numbers as they are stored."""

from __future__ import annotations

import json
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from tests.helpers import tiny_checkpoint, tiny_config

from redraft.config import read_config
from redraft.errors import RequestError
from redraft.weights.defaults import device_of, dtype_of, report_choice
from redraft.weights.source import locate

CPU = torch.device("cpu")


def test_the_device_is_a_gpu_where_one_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("auto") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("redraft.weights.defaults.usable_device", torch.device)
    assert device_of("auto") == torch.device("cuda")


def test_a_driver_that_does_not_work_leaves_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("redraft.weights.defaults.usable_device", Mock(side_effect=RequestError("it cannot be used")))
    assert device_of("auto") == CPU


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_numbers_stay_as_they_are_stored(stored: torch.dtype, tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path, dtype=stored)
    assert dtype_of("auto", tmp_path, tiny_config(), CPU) == stored
    assert dtype_of("float32", tmp_path, tiny_config(), CPU) == torch.float32
    assert dtype_of("bfloat16", tmp_path, tiny_config(), CPU) == torch.bfloat16


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_a_config_may_want_float32_of_numbers_that_are_stored_in_half_of_it(key: str, tmp_path: Path) -> None:
    """transformers goes by either name."""
    tiny_checkpoint(tmp_path, dtype=torch.bfloat16)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config.pop("dtype", None)
    path.write_text(json.dumps(config | {key: "float32"}))
    assert dtype_of("auto", tmp_path, read_config(tmp_path).model, CPU) == torch.float32


def test_the_model_in_the_package_stays_in_float32() -> None:
    """Law 2 promises bits in float32 alone."""
    folder = locate("nano-sudoku")
    assert dtype_of("auto", folder, read_config(folder).model, CPU) == torch.float32


def test_a_gpu_that_only_emulates_bfloat16_computes_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_checkpoint(tmp_path, dtype=torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert dtype_of("auto", tmp_path, tiny_config(), torch.device("cuda")) == torch.float32


def test_a_format_that_is_none_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"dtype is 'bfloat61'; supported: auto, float32, bfloat16; did you mean"):
        dtype_of("bfloat61", tmp_path, tiny_config(), CPU)


def test_a_driver_too_old_is_refused_where_a_gpu_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "The NVIDIA driver on your system is too old (found version 11040). Please update it"
    monkeypatch.setattr(torch, "empty", Mock(side_effect=RuntimeError(said)))
    with pytest.raises(RequestError, match=r"'cuda' cannot be used \(The NVIDIA driver on your system is too old"):
        device_of("cuda")


def test_what_was_chosen_is_said_unless_it_is_float32_on_a_cpu() -> None:
    said: list[str] = []
    report_choice(("auto", "auto"), CPU, torch.float32, said.append)
    report_choice(("cpu", "bfloat16"), CPU, torch.bfloat16, said.append)
    assert said == []
    report_choice(("auto", "auto"), CPU, torch.bfloat16, said.append)
    assert said == ["running on cpu in bfloat16; --device and --dtype choose others"]


@pytest.mark.parametrize(
    ("built", "says"),
    [
        (None, "torch is a CPU build; install a CUDA build to use the GPU"),
        ("12.8", r"that torch .* cannot use \(.*\); up"),
    ],
)
def test_a_driver_that_torch_cannot_use_is_reported(
    built: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver too old was passed over in silence, and a 26B model ran on the processor."""
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01")
    monkeypatch.setattr("redraft.weights.defaults.DRIVER", version)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    lines: list[str] = []
    report_choice(("auto", "auto"), CPU, torch.float32, lines.append)
    (line,) = lines
    assert re.search(says, line), line
    report_choice(("cpu", "auto"), CPU, torch.float32, lines.append)
    assert len(lines) == 1, "who asks for the processor needs no driver"
