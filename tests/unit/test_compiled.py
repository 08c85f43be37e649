"""The kernels compile for the GPUs they are meant for: no GPU is needed for that, and the interpreter never does it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("triton") is None:
    pytest.skip(f"there is no triton for {sys.platform}", allow_module_level=True)

# In a process of its own: here kernels are the interpreter's. Types are those of the 26B model in bfloat16.
COMPILE = """
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from redraft.model.triton import attention, dense, experts, head, norm, walk, ways, classes

def build(kernel, constants, warps, **types):
    names = kernel.arg_names
    signature = {name: types.get(name, "constexpr") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values)
    found = triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options={"num_warps": warps})
    assert found.asm["cubin"] and found.metadata.shared <= 99 * 1024, found.metadata
    print(kernel.__name__)

sizes = {"BLOCK_ROWS": 16, "BLOCK_OUT": 64, "BLOCK_IN": 64}
blocks = dict.fromkeys(("order", "block_expert", "block_start", "block_end"), "*i64")
steps = dict.fromkeys(("hidden", "ffn", "codes_step", "scale_step"), "i32")
formats = {"int4": (2, 32, "*u8", "*bf16", "*bf16"), "nvfp4": (3, 16, "*u8", "*fp8e4nv", "*fp32"),
           "int8": (1, 0, "*i8", "*fp32", "*fp32"), "fp8": (1, 0, "*fp8e4nv", "*fp32", "*fp32")}
kind, group, codes, scale, top = formats[sys.argv[2]]
rows = codes if group == 0 else "*bf16"  # 8 bits meet 8 bits
held = {"x": rows, "x_scale": "*fp32", "codes": codes, "scale": scale, "top": top, **blocks, **steps}
sums = triton.language.int32 if sys.argv[2] == "int8" else triton.language.float32
constants = {"GROUP": group, "KIND": kind, "SUMS": sums, **sizes}
build(experts._gate_up, constants, 8, **held, choices="i32", result="*bf16")
constants["ROUND"] = triton.language.bfloat16
build(experts._down, constants, 8, **held, weights="*fp32", result="*fp32")
if group:
    del constants["ROUND"], constants["SUMS"]
    build(dense._dense, constants | {"BLOCK_ROWS": 64}, 8, rows="i32", outer="i32", inner="i32", result="*bf16",
          **{name: held[name] for name in ("x", "codes", "scale", "top")})
if len(sys.argv) > 3:
    sys.exit()
names = ("largest", "second", "total", "weighted", "fed_total", "shrink", "mass", "base", "temperature")
sums = dict.fromkeys(names, "*fp32")
build(head._row, {"ROUND": True, "BLOCK": 4096, "STRIPE": 64}, 4, products="*bf16", fed="*bf16", argmax="*i64",
      start="i32", width="i32", cap="fp32", **sums)
rows = dict.fromkeys(("x", "weight", "onto", "out"), "*bf16")
build(norm._norm, {"WEIGHT": True, "ONTO": True, "BLOCK": 4096}, 4, **rows, size="i32", weights="i32", eps="fp32")
numbers = dict.fromkeys(("rows", "heads", "keys", "window", "k_head", "k_key", "v_head", "v_key"), "i32")
tensors = dict.fromkeys(("q", "k", "v", "out"), "*bf16")
tile = {"GROUP": 8, "DIM": 512, "CAUSAL": True, "STANDING": False, "BLOCK_ROWS": 32, "BLOCK_KEYS": 32}
build(attention._attend, tile, 8, **tensors, **numbers, extent="*i64")
tile |= {"CAUSAL": False, "STANDING": True}
build(attention._attend, tile, 8, **tensors, **numbers, extent="*i64")
numbers = dict.fromkeys(("width", "places", "nodes", "states", "count"), "i32")
tensors = dict.fromkeys(("rows", "weights", "levels", "firsts", "others", "kinds", "path"), "*i32")
tensors |= {"shares": "*i64", "sums": "*i64", "tops": "*fp64", "best": "*fp64", "gates": "*i8", "ends": "*i8"}
sizes = {name: getattr(ways, name) for name in ("ROWS", "WIDE", "FEWER", "WIDER")}
build(walk._walk, sizes | {"DEEP": 3, "GATED": True, "NOTHING": -(2**30), "NONE": -1e30}, 16, **tensors, **numbers)
types = {"log_p": "*fp32", "vocab": "i32", "classes": "i32", **tensors, "likeliest": "*i32", "tokens": "*i32"}
types |= dict.fromkeys(("begins", "ends"), "*i32") | dict.fromkeys(("largest", "sums", "bias", "out"), "*fp32")
build(classes._tile, {"NONE": -1e30, "WIDE": 2048}, 4, **types)
build(classes._shift, {"WIDE": 2048}, 4, **types, class_of="*i64", faintest="fp32", nothing="fp32")
build(walk._back, {"NONE": -1e30, "AT_ONCE": 128}, 1, **tensors, **numbers)
"""


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (
            ["90", "nvfp4"],
            ["_gate_up", "_down", "_dense", "_row", "_norm", "_attend", "_attend", "_walk", "_tile", "_shift", "_back"],
        ),
        (["90", "fp8", "products alone"], ["_gate_up", "_down"]),
        (["80", "int8", "products alone"], ["_gate_up", "_down"]),
        (["80", "int4", "products alone"], ["_gate_up", "_down", "_dense"]),
    ],
    ids=["H100", "H100, fp8", "A100, int8", "A100"],
)
def test_kernels_compile(arguments: list[str], wanted: list[str], tmp_path: Path) -> None:
    """Compute 8.0 has no 8-bit floats, so there 4-bit integers are the format."""
    root = Path(__file__).resolve().parents[2]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(root / "src"), "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COMPILE, *arguments]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.split() == wanted
