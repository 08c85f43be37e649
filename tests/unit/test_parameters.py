"""What a checkpoint is made of, against the published counts and the tensors of the released files."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import DATA, python, released_json, tiny_config, tiny_model

from redraft.config import ModelConfig, parse_model
from redraft.measure.parameters import count_parameters, stored_bytes
from redraft.weights.memory import STEP_LOGITS
from redraft.weights.source import WeightSource, locate

RELEASED: ModelConfig = parse_model(released_json())[0]


def test_the_released_model_has_the_published_counts() -> None:
    found = count_parameters(RELEASED)
    assert found.groups == {
        "experts": 22_837_985_280,
        "attention": 1_110_197_760,
        "embedding": 738_197_504,
        "dense MLPs": 535_265_280,
        "self-conditioning": 17_844_992,
        "routers": 10_901_760,
        # seven norms and two scalars in each of 30 layers, and the norm behind the last
        "norms and scalars": 591_360 + 60 + 2_816,
    }
    assert found.total == 25_250_986_812


def test_the_total_is_that_of_the_released_text_tensors() -> None:
    shapes = json.loads((DATA / "real_26b_tensors.json").read_text())
    text = {name: shape for name, shape in shapes.items() if "vision" not in name}
    assert count_parameters(RELEASED).total == sum(map(prod, text.values()))


def test_a_row_multiplies_with_its_own_experts_only() -> None:
    """8 of 128 experts of 5,947,392 parameters in each of 30 layers: the "A4B" of the name."""
    assert count_parameters(RELEASED).active == 25_250_986_812 - 30 * 120 * 5_947_392 == 3_840_375_612


def test_the_cache_grows_on_full_layers_alone() -> None:
    """Five full layers of 2 heads of 512, keys and values, two bytes each."""
    assert count_parameters(RELEASED).cache_growth == {"bfloat16": 20_480, "float32": 40_960}


def test_the_sliding_caches_stop_growing_at_the_window() -> None:
    """25 layers of 8 heads of 256, 1023 tokens, keys and values, two bytes each: 209.5 MB."""
    assert count_parameters(RELEASED).cache_window["bfloat16"] == 25 * 8 * 256 * 1023 * 2 * 2 == 209_510_400


def test_counts_are_those_of_a_model_that_exists() -> None:
    config = tiny_config()
    for shape in (config, replace(config, layers=config.layers[1:]), replace(config, layers=config.layers * 2)):
        assert count_parameters(shape).total == sum(
            tensor.numel() for tensor in tiny_model(shape).state_dict().values()
        )


STEP = """
import json, sys, torch
from dataclasses import replace
from pathlib import Path
from tests.helpers import new_prefix, tiny_config, tiny_model
from redraft.config import GenerationConfig
from redraft.diffusion.canvas import fresh
from redraft.diffusion.denoise import reference_policy, step
from redraft.diffusion.noise import SeededNoise
from redraft.diffusion.shaping import Shaping

def resident(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))

torch.set_num_threads(1)
width, vocab = 64, 2**17
model = tiny_model(replace(tiny_config(vocab_size=vocab), canvas_length=width), dtype=getattr(torch, sys.argv[1]))
prefix, noise = new_prefix(model), SeededNoise(0)
policy = replace(reference_policy(GenerationConfig()), shaping=Shaping(**json.loads(sys.argv[2])))
with torch.inference_mode():
    model.encode(torch.arange(5), prefix)
    canvas = replace(fresh(noise, 0, width, vocab), pinned=torch.arange(width) < int(sys.argv[3]))
    for turn in range(3):
        if turn == 1:  # the first step also makes what libraries keep
            Path("/proc/self/clear_refs").write_text("5")
            before = resident("VmRSS")
        canvas = step(canvas, model.denoise(canvas.tokens, canvas.soft, prefix), model, policy, noise)
print((resident("VmHWM") - before) / (4 * width * vocab))
"""

FLAT = {"temperature": 10.0, "top_p": 0.99}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's count of peak memory")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("shaping", "pins"), [({}, 0), ({"top_k": 2**16}, 0), (FLAT, 0), (FLAT | {"bias": [[3, 1]]}, 9)]
)
def test_a_step_holds_as_many_logits_as_are_counted(dtype: str, shaping: dict[str, Any], pins: int) -> None:
    """Three were counted, and five were there: what was said to fit did not. How many a CPU's kernels hold beside what
    they are given is theirs to choose, so the bounds are wide. A top_p that needs most of the vocabulary made it
    eleven, with a bias twelve."""
    printed = float(python(STEP, dtype, json.dumps(shaping), str(pins)).stdout)
    assert STEP_LOGITS / 2 < printed < 1.25 * STEP_LOGITS, f"{printed:.2f} tensors of the logits' size"


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ([("F32", 10), ("F32", 1)], {"F32": 44}),
        ([("BF16", 3), ("F16", 5), ("F8_E4M3", 7), ("I64", 2)], {"BF16": 6, "F16": 10, "F8_E4M3": 7, "I64": 16}),
        ([("BOOL", 9)], {"BOOL": 9}),
        ([], {}),
    ],
)
def test_bytes_on_disk_by_format(headers: list[tuple[str, int]], wanted: dict[str, int]) -> None:
    assert stored_bytes(headers) == wanted


def test_the_model_in_the_package_weighs_what_its_file_weighs() -> None:
    folder = locate("nano-sudoku")
    stored = WeightSource(folder).tensors.values()
    num_bytes = sum(stored_bytes((one.dtype, prod(one.shape)) for one in stored).values())
    whole = (folder / "model.safetensors").stat().st_size
    assert 0 < whole - num_bytes < 100_000, "the rest is the file's header"
