"""The kernels compile for the GPUs they are meant for: no GPU is needed for that, and the interpreter never does it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.helpers import ROOT

if find_spec("triton") is None:
    pytest.skip(f"there is no triton for {sys.platform}", allow_module_level=True)

STEP = {"_norm", "_heads", "_attend", "_after_attention", "_gelu", "_route", "_place", "_gate_up", "_down"}
STEP |= {"_after_ffw", "_row"}
EVERY = STEP | {"_tile", "_shift", "_walk", "_back"}


def compiled(*arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: here kernels are the interpreter's. Six layers have one of each kind."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "bench/compiled.py", "--layers", "6", *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "plans", "part", "wanted"),
    [
        ("90", "nvfp4", "", {*EVERY, "_dense", "_join"}),
        ("120", "nvfp4", "step of", {*STEP, "_dense"}),
        ("89", "int4", "step of 1", {*STEP, "_dense", "_round"}),
        ("86", "asym", "step of 1", {*STEP, "_dense"}),
        ("80", "int8", "step of 1", {*STEP, "_dense", "_round"}),
        ("100", "none", "step of 1", STEP),
        ("89", "q4_k", "step of 1", {*STEP, "_dense"}),
        ("86", "q6_k", "step of 1", {*STEP, "_dense"}),
        ("100", "int8,fp8", "step of 3", {"_gate_up", "_down"}),
        ("120", "q4_k", "step of 3", {"_gate_up", "_down"}),
        ("120", "q4_k,q6_k", "prompt of 100", {"_gate_up", "_down", "_dense"}),
    ],
    ids=[
        *("H100", "RTX 50", "RTX 4090, 99 KB of shared memory", "RTX 30", "A100", "B200", "Q4_K", "Q6_K"),
        *("8 bits on a B200", "Q4_K in many rows", "GGUF in few rows"),
    ],
)
def test_kernels_as_they_are_launched_compile_without_spills(
    arch: str, plans: str, part: str, wanted: set[str], tmp_path: Path
) -> None:
    """And leave 2 KB of shared memory, and load ahead; on an H100 the products have its own matrix units. "step of 1"
    is also that of 12. The record `kernels-compiled` has every plan on every card."""
    found = compiled("--arch", arch, "--plans", plans, "--part", part, cache=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr[-2000:]
    assert {name for name in wanted if f" {name} " in found.stdout} == wanted, found.stdout
