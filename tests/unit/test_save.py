"""From a model to a folder: the layout, and that a failure leaves nothing behind."""

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tests.helpers import ORACLE, tiny_checkpoint, tiny_model

from redraft import load
from redraft.config import GenerationConfig, read_config
from redraft.errors import RunError, WeightsError
from redraft.weights import save
from redraft.weights.load import load_model
from redraft.weights.save import save_model
from redraft.weights.source import INDEX, SINGLE, WeightSource

GENERATION = GenerationConfig(eos_token_ids=(1,))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_oracle_checkpoint_survives_a_round_trip(tmp_path: Path) -> None:
    model, config = load_model(ORACLE / "ckpt")
    save_model(model, tmp_path, generation=config.generation, vision=WeightSource(ORACLE / "ckpt"))
    before, after = load_file(ORACLE / "ckpt" / SINGLE), load_file(tmp_path / SINGLE)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = read_config(tmp_path)
    assert again == config
    assert again.model.vision == config.model.vision


def test_without_vision_tensors_the_config_does_not_promise_a_vision_tower(tmp_path: Path) -> None:
    model, config = load_model(ORACLE / "ckpt")
    save_model(model, tmp_path, generation=config.generation)
    assert "vision_config" not in json.loads((tmp_path / "config.json").read_text())
    assert not any("vision" in name for name in load_file(tmp_path / SINGLE))


def test_files_carry_the_word_transformers_asks_for(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path)
    with safe_open(tmp_path / SINGLE, "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_shards_stay_below_the_limit_and_read_back(tmp_path: Path) -> None:
    model = tiny_checkpoint(tmp_path, max_shard_bytes=20_000)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert shards[0].name == f"model-00001-of-{len(shards):05}.safetensors"
    for shard in shards:
        tensors = load_file(shard)
        assert len(tensors) == 1 or sum(t.numel() * t.element_size() for t in tensors.values()) <= 20_000
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(t.numel() * 4 for t in model.state_dict().values())
    loaded, _ = load_model(tmp_path)
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


def test_a_smaller_dtype_is_stored_and_said(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path, dtype=torch.bfloat16)
    assert {stored.dtype for stored in WeightSource(tmp_path).tensors.values()} == {"BF16"}
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_later_save_replaces_an_earlier_one(tmp_path: Path) -> None:
    """Left-over shards would be refused by the next load, or worse, mixed in."""
    tiny_checkpoint(tmp_path, max_shard_bytes=20_000)
    (tmp_path / "tokenizer.json").write_text("{}")
    tiny_checkpoint(tmp_path)
    assert names(tmp_path) == {"config.json", "generation_config.json", "redraft.json", SINGLE, "tokenizer.json"}
    tiny_checkpoint(tmp_path, max_shard_bytes=20_000)
    assert SINGLE not in names(tmp_path)
    load_model(tmp_path)


@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_leaves_the_target_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool, failing: int
) -> None:
    folder = tmp_path / "model"
    if existing:
        tiny_checkpoint(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()} if existing else {}
    real, calls = save.save_file, []

    def full(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        calls.append(path)
        if len(calls) > failing:
            path.write_bytes(b"half a fi")
            raise OSError(28, "No space left on device")
        real(tensors, path, metadata=metadata)

    monkeypatch.setattr(save, "save_file", full)
    with pytest.raises(RunError, match="No space left on device"):
        save_model(tiny_model(seed=5), folder, generation=GENERATION, max_shard_bytes=20_000)
    assert names(tmp_path) == ({"model"} if existing else set())
    assert ({path.name: path.read_bytes() for path in folder.iterdir()} if existing else {}) == before


def test_a_model_that_diverged_is_not_saved(tmp_path: Path) -> None:
    model = tiny_model()
    model.layers[1].router.scale[3] = float("nan")
    with pytest.raises(WeightsError, match=r"layers\.1\.router\.scale holds NaN or infinity"):
        save_model(model, tmp_path / "model", generation=GENERATION)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("moved", range(15))
def test_shards_of_two_saves_are_never_loaded_together(
    moved: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save that broke off between two moves left old and new shards of the same names under the old index."""
    tiny_checkpoint(tmp_path, max_shard_bytes=20_000)
    old = load_model(tmp_path)[0].state_dict()
    replace, left = os.replace, iter(range(moved))

    def breaks(source: Path, target: Path) -> None:
        if next(left, None) is None:
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", breaks)
    model = tiny_model(seed=5)
    with suppress(RunError):
        save_model(model, tmp_path, generation=GENERATION, max_shard_bytes=20_000)
    with suppress(WeightsError):
        found = load_model(tmp_path)[0].state_dict()
        same = [all(torch.equal(found[name], one[name]) for name in found) for one in (old, model.state_dict())]
        assert sum(same) == 1, "a mixture of two saves was loaded"


def test_a_fused_model_says_what_to_save_instead(tmp_path: Path) -> None:
    """The error spoke of adapters and quantization, which the model of a loaded engine does not have."""
    with pytest.raises(WeightsError, match=r"layers are fused for inference.*load_model"):
        save_model(load("nano-sudoku").model, tmp_path / "model", generation=GENERATION)
    assert names(tmp_path) == set()
