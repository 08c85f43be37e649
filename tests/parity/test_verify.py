"""`redraft verify` calls random checkpoints right in both number formats, and a checkpoint with one real fault wrong.

An absolute bound had called correct ones wrong: 3e-4 of a spread of 20 in float32, more in bfloat16.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.helpers import FULL, ORACLE, PROMPT, SLIDING, tiny_json, tiny_model, vision_tensors

from redraft import load
from redraft.config import GenerationConfig, parse_model
from redraft.errors import RunError
from redraft.measure.verify import Difference, Verification, load_reference, verify
from redraft.model.gemma import DiffusionGemma
from redraft.weights.save import save_model
from redraft.weights.source import locate

pytest.importorskip("transformers", minversion="5.23.0")
pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours to fix

DTYPES = ["float32", "bfloat16"]


def save(folder: Path, seed: int, fault: Callable[[DiffusionGemma], None] | None = None) -> Path:
    """A random checkpoint with nano's tokenizer; `fault` changes it before it is written."""
    vision = json.loads((ORACLE / "ckpt" / "config.json").read_text())["vision_config"]
    nano = json.loads((locate("nano-sudoku") / "config.json").read_text())
    root = tiny_json(
        vocab_size=nano["text_config"]["vocab_size"],
        hidden_size=(32, 64)[seed % 2],
        num_hidden_layers=4,
        layer_types=[SLIDING, SLIDING, SLIDING, FULL],
        num_experts=(4, 12)[seed % 2],  # plain layers are folded in float32 where experts are few
        sliding_window=16,
    )
    model = tiny_model(parse_model(root | {"canvas_length": 32, "vision_config": vision})[0], seed)
    if fault is not None:
        with torch.no_grad():
            fault(model)
    generation = GenerationConfig(eos_token_ids=(1,), max_denoising_steps=5)
    save_model(model, folder, generation=generation, vision=vision_tensors(model.config.hidden_size))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(locate("nano-sudoku") / name, folder / name)
    return folder


def swap_experts(model: DiffusionGemma) -> None:
    experts = model.layers[0].experts
    for stack in (experts.gate_up, experts.down):
        stack[[0, 1]] = stack[[1, 0]]


def forget_a_norm(model: DiffusionGemma) -> None:
    model.layers[1].post_ffw_norm.weight.fill_(1.0)


def described(found: Verification) -> str:
    return f"ours {found.ours}, noise {found.noise}, allowed {found.limit}"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", DTYPES)
def test_random_checkpoints_agree(dtype: str, seed: int, tmp_path: Path) -> None:
    folder = save(tmp_path / "model", seed)
    found = verify(load(str(folder), dtype=dtype), folder, PROMPT, seed=seed)
    assert found.agrees, described(found)
    assert found.dtype == dtype
    assert [one.name for one in found.passes][:2] == ["encode", "step 1"]
    assert found.noise.median > 0, "transformers' ways of computing were not told apart"


@pytest.mark.parametrize("fault", [swap_experts, forget_a_norm])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(2))
def test_a_fault_is_beyond_the_noise(
    dtype: str, seed: int, fault: Callable[[DiffusionGemma], None], tmp_path: Path
) -> None:
    right, wrong = save(tmp_path / "right", seed), save(tmp_path / "wrong", seed, fault)
    found = verify(load(str(wrong), dtype=dtype), right, PROMPT, seed=seed)
    assert not found.agrees, described(found)


@pytest.mark.parametrize("part", ["attn_implementation", "experts_implementation"])
def test_a_checkpoint_names_no_program_for_transformers(part: str, tmp_path: Path) -> None:
    """transformers would have fetched, and run, the kernel of a repository that config.json names."""
    folder = save(tmp_path / "model", 1)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {part: "kernels-community/flash-mla"}))
    assert load_reference(folder, torch.float32)[1]


@pytest.mark.parametrize(
    ("file", "more"),
    [
        ("config.json", {"transformers_weights": "elsewhere.safetensors"}),
        ("adapter_config.json", {"peft_type": "LORA", "base_model_name_or_path": "none"}),
    ],
)
def test_what_transformers_cannot_load_is_one_line(file: str, more: dict[str, str], tmp_path: Path) -> None:
    """It was an internal error: transformers follows keys and files that nothing here reads."""
    folder = save(tmp_path / "model", 1)
    path = folder / file
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | more))
    with pytest.raises(
        RunError, match=r"transformers cannot load .*, so there is nothing to compare with: ."
    ) as caught:
        load_reference(folder, torch.float32)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("where", ["median", "ninth_decile"])
def test_nan_does_not_agree(where: str) -> None:
    """Python's max of 0.0 and nan is 0.0: a model that computes nothing but nan was verified."""
    ours = Difference(**{"median": 0.0, "ninth_decile": 0.0, where: float("nan")})
    assert not Verification("5.23.0", "float32", [], ours, Difference(1.0, 1.0)).agrees
    assert not Verification("5.23.0", "float32", [], Difference(0.5, 0.5), Difference(float("nan"), 0.1)).agrees
