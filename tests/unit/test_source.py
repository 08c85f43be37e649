"""Where stored tensors come from, and everything that can be wrong with them."""

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from redraft.errors import WeightsError
from redraft.weights import source
from redraft.weights.source import EMBEDDED, INDEX, SINGLE, WeightSource, locate

A, B, C = torch.arange(6.0).view(2, 3), torch.ones(4, dtype=torch.bfloat16), torch.zeros(1)


def write_shards(folder: Path) -> None:
    save_file({"a": A}, folder / "model-00001-of-00002.safetensors")
    save_file({"b": B, "c": C}, folder / "model-00002-of-00002.safetensors")
    write_index(folder, {"a": 1, "b": 2, "c": 2})


def write_index(folder: Path, shards: dict[str, int]) -> None:
    weight_map = {name: f"model-0000{number}-of-00002.safetensors" for name, number in shards.items()}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_a_single_file_is_read(tmp_path: Path) -> None:
    save_file({"a": A, "b": B}, tmp_path / SINGLE)
    found = WeightSource(tmp_path)
    assert {(name, stored.shape, stored.dtype) for name, stored in found.tensors.items()} == {
        ("a", (2, 3), "F32"),
        ("b", (4,), "BF16"),
    }
    assert torch.equal(found.read("a"), A)


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    write_shards(tmp_path)
    found = WeightSource(tmp_path)
    streamed = {stored.name: tensor for stored, tensor in found.stream({"a", "c"})}
    assert found.tensors.keys() == {"a", "b", "c"}
    assert streamed.keys() == {"a", "c"}
    assert torch.equal(streamed["a"], A)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"neither model\.safetensors nor"):
        WeightSource(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.pth", "model.pt", "last.ckpt"])
def test_pickled_weights_are_never_read(tmp_path: Path, name: str) -> None:
    torch.save({"a": A}, tmp_path / name)
    with pytest.raises(WeightsError, match=f"{name}.*never read"):
        WeightSource(tmp_path)


def test_both_layouts_at_once_are_refused(tmp_path: Path) -> None:
    """Reading either would be a guess about which save was the last."""
    write_shards(tmp_path)
    save_file({"a": A}, tmp_path / SINGLE)
    with pytest.raises(WeightsError, match="holds both"):
        WeightSource(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 8, 20, -1])
def test_a_file_cut_short_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / SINGLE
    save_file({"a": A, "b": B}, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(WeightsError, match=r"model\.safetensors is damaged or cut short"):
        WeightSource(tmp_path)


def test_a_file_with_bytes_behind_its_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / SINGLE
    save_file({"a": A}, path)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(WeightsError, match="damaged"):
        WeightSource(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        b"not json at all....",
        b'{"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 20]}}',
        b'{"a": {"dtype": "F33", "shape": [2, 3], "data_offsets": [0, 24]}}',
        b'{"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [8, 32]}}',
        b'{"a": {"dtype": "F32", "shape": [1000000000, 3], "data_offsets": [0, 24]}}',
    ],
    ids=["no json", "size", "dtype", "gap", "shape"],
)
def test_a_header_that_contradicts_itself_is_refused(tmp_path: Path, header: bytes) -> None:
    (tmp_path / SINGLE).write_bytes(len(header).to_bytes(8, "little") + header + bytes(24))
    with pytest.raises(WeightsError, match="damaged"):
        WeightSource(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model-00002-of-00002\.safetensors is named by .* does not exist"):
        WeightSource(tmp_path)


def test_a_tensor_that_only_the_index_knows_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path)
    write_index(tmp_path, {"a": 1, "b": 2, "c": 2, "d": 2})
    with pytest.raises(WeightsError, match=r"lacks 1 tensors .*: d"):
        WeightSource(tmp_path)


def test_a_tensor_that_the_index_does_not_know_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path)
    write_index(tmp_path, {"a": 1, "b": 2})
    with pytest.raises(WeightsError, match=r"holds 1 tensors .*: c"):
        WeightSource(tmp_path)


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "weights.bin", 7])
def test_an_index_cannot_point_outside_its_folder(tmp_path: Path, shard: object) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(WeightsError, match=r"must be a \.safetensors file beside it"):
        WeightSource(tmp_path)


def test_nano_is_the_embedded_model_even_beside_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    for name in ("nano", "nano-sudoku"):
        (package / "assets" / name).mkdir(parents=True)
        (package / "assets" / name / "config.json").touch()
    (tmp_path / "nano").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(source, "files", lambda name: package)
    assert [locate(name) for name in EMBEDDED] == [package / "assets" / name for name in ("nano", "nano-sudoku")]
    assert locate("./nano") == Path("nano")


def test_an_install_without_the_embedded_model_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "files", lambda name: tmp_path)
    with pytest.raises(WeightsError, match="embedded model 'nano-sudoku' is missing"):
        locate("nano-sudoku")


@pytest.mark.parametrize("name", ["", "no such folder", "a/b/c", "/no/such/place", "../gone", "owner/"])
def test_locate_says_what_it_takes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if not name:
        assert locate(name) == Path()  # as everywhere, the empty path is here
        return
    with pytest.raises(WeightsError, match="give 'nano' or 'nano-sudoku', an existing folder, or a repository name"):
        locate(name)


def cached(home: Path, *names: str) -> Path:
    """A Hugging Face cache that holds these files of owner/model."""
    repository = home / "models--owner--model"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    for name in names:
        (snapshot / name).touch()
    return snapshot


def test_locate_finds_a_pulled_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    snapshot = cached(tmp_path, "config.json", SINGLE)
    assert locate("owner/model") == snapshot


def test_locate_asks_to_pull_what_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(WeightsError, match="run: redraft pull owner/model"):
        locate("owner/model")


def test_locate_asks_to_pull_again_what_is_cached_without_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    cached(tmp_path, "config.json")
    with pytest.raises(WeightsError, match=r"only partly.*redraft pull owner/model"):
        locate("owner/model")
