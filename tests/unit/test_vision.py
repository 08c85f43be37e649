"""The vision tower's numbers: every stored tensor accounted for, loaded, refused, saved, packed around and counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.helpers import DATA, ORACLE, edit_tensors, released_json, tiny_checkpoint, tiny_json
from torch import Tensor

from redraft.config import ModelConfig, parse_model
from redraft.errors import ConfigError, WeightsError
from redraft.images.config import TINY_VISION, VisionConfig
from redraft.weights.names import VISION_PREFIXES
from redraft.weights.plan import PLANS
from redraft.weights.quantize import quantize_checkpoint
from redraft.weights.vision import (
    load_vision,
    random_tower,
    stored_shapes,
    stored_tensors,
    vision_bytes,
    vision_parameters,
)

TINY = VisionConfig(8, 12, 2, 2, 2, 4, patch_size=2, pooling=2, positions=16, clipped=True, standardize=True)
SECTION = {
    "model_type": "gemma4_vision",
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "patch_size": 2,
    "pooling_kernel_size": 2,
    "position_embedding_size": 16,
    "use_clipped_linears": True,
    "standardize": True,
}


def released() -> ModelConfig:
    vision = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
    vision |= {"num_key_value_heads": 16, "head_dim": 72}
    return parse_model(released_json() | {"vision_config": vision | {"standardize": True}})[0]


def tiny() -> ModelConfig:
    return parse_model(tiny_json() | {"vision_config": SECTION})[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with a clipped tower."""
    tower = random_tower(TINY, 32, seed=0)
    tiny_checkpoint(tmp_path / "model", tiny(), vision=stored_tensors(tower))
    return tmp_path / "model"


def test_every_vision_tensor_of_the_released_checkpoint_is_accounted_for() -> None:
    stored = {name: tuple(shape) for name, shape in json.loads((DATA / "real_26b_tensors.json").read_text()).items()}
    vision = {name: shape for name, shape in stored.items() if name.startswith(VISION_PREFIXES)}
    assert len(vision) == 356
    shape = VisionConfig(1152, 4304, 27, 16, 16, 72, standardize=True)
    assert stored_shapes(shape, 2816) == vision


def test_the_released_tower_is_counted() -> None:
    """572,794,416 numbers, 1.1 GB in bfloat16."""
    config = released()
    assert vision_parameters(config) == 572_794_416
    assert vision_bytes(config, torch.bfloat16) == 2 * 572_794_416


@pytest.mark.parametrize("vision", [{}, {"vision_config": TINY_VISION}])
def test_a_text_model_counts_none(vision: dict[str, object], tmp_path: Path) -> None:
    config, _ = parse_model(tiny_json() | vision)
    assert vision_bytes(config, torch.float32) == 0
    tiny_checkpoint(tmp_path, config)
    with pytest.raises(WeightsError, match="has no vision tower; use a checkpoint that has one, or leave images out"):
        load_vision(tmp_path)


def test_a_tower_is_loaded_as_it_was_saved(folder: Path) -> None:
    wanted = stored_tensors(random_tower(TINY, 32, seed=0))
    tower = load_vision(folder)
    assert not tower.training
    assert not any(parameter.requires_grad for parameter in tower.parameters())
    got = stored_tensors(tower)
    assert got.keys() == wanted.keys()
    assert all(torch.equal(got[name], tensor) for name, tensor in wanted.items())
    half = load_vision(folder, dtype=torch.bfloat16)
    assert {tensor.dtype for tensor in half.state_dict().values()} == {torch.bfloat16}
    with torch.no_grad():
        soft = half(torch.rand(24, 12), columns=6)
    assert (soft.shape, soft.dtype) == ((6, 32), torch.bfloat16)


def test_the_oracles_tower_is_loaded() -> None:
    """Written by transformers, not by us."""
    tower = load_vision(ORACLE / "ckpt")
    assert tower.config.standardize
    assert not tower.config.clipped


def test_a_packed_checkpoint_keeps_its_tower(folder: Path, tmp_path: Path) -> None:
    (folder / "processor_config.json").write_text('{"image_processor": {}}')
    quantize_checkpoint(folder, tmp_path / "packed", PLANS["int8"])
    got, wanted = load_vision(tmp_path / "packed"), load_vision(folder)
    assert all(torch.equal(a, b) for a, b in zip(got.state_dict().values(), wanted.state_dict().values(), strict=True))
    assert (tmp_path / "packed" / "processor_config.json").is_file()


TOWER = "model.encoder.vision_tower."


def put(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({TOWER + name: tensor})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.pop(TOWER + "std_bias"), r"lacks 1 tensors of the vision .* config\.json: .*std_bias"),
        (
            put("encoder.layers.2.mlp.up_proj.linear.weight", torch.ones(1)),
            r"surplus 1 tensors .*layers\.2\.mlp\.up_proj",
        ),
        (put("std_scale", torch.ones(9)), r"std_scale has shape \[9\]; config\.json makes it \[8\]"),
        (put("std_scale", torch.ones(8).int()), "std_scale is stored as I32; supported"),
        (put("std_scale", torch.ones(8).index_fill(0, torch.tensor(0), torch.inf)), "std_scale holds NaN or infinity"),
        (put("encoder.layers.0.mlp.up_proj.input_min", torch.tensor(torch.nan)), "input_min holds NaN or infinity"),
    ],
)
def test_a_damaged_tower_is_refused(change: Callable[[dict[str, Tensor]], object], said: str, folder: Path) -> None:
    edit_tensors(folder, change)
    with pytest.raises(WeightsError, match=said):
        load_vision(folder)


def test_a_stray_embedding_of_other_tools_is_left_out(folder: Path) -> None:
    stray = {"model.encoder.embed_vision.embedding.weight": torch.ones(2, 2)}
    edit_tensors(folder, lambda tensors: tensors.update(stray))
    load_vision(folder)


def test_unknown_keys_are_reported_and_unsupported_ones_refused(folder: Path) -> None:
    root = json.loads((folder / "config.json").read_text())
    root["vision_config"]["use_magic"] = True
    (folder / "config.json").write_text(json.dumps(root))
    lines: list[str] = []
    load_vision(folder, report=lines.append)
    assert lines == [f"{folder}: vision_config.use_magic is an unknown setting and has no effect"]
    root["vision_config"]["hidden_activation"] = "relu"
    (folder / "config.json").write_text(json.dumps(root))
    with pytest.raises(ConfigError, match=r"vision_config\.hidden_activation is 'relu'"):
        load_vision(folder)


def test_bounds_are_kept() -> None:
    """Without limits a clipped tower computes what the plain one does; with tight ones it does not."""
    clipped = random_tower(TINY, 32, seed=0)
    patches = torch.rand(16, 12)
    with torch.no_grad():
        free = clipped(patches, 4)
        clipped.layers[0].attention.q.output_max.fill_(0.01)
        assert not torch.equal(free, clipped(patches, 4))
