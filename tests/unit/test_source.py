"""Where stored tensors come from, and everything that can be wrong with them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from redraft.errors import WeightsError
from redraft.weights import source
from redraft.weights.source import EMBEDDED, INDEX, SINGLE, WeightSource, locate

Damage = Callable[[Path], object]
SECOND = "model-00002-of-00002.safetensors"
A, B, C = torch.arange(6.0).view(2, 3), torch.ones(4, dtype=torch.bfloat16), torch.zeros(1)


def write_shards(folder: Path) -> None:
    save_file({"a": A}, folder / "model-00001-of-00002.safetensors")
    save_file({"b": B, "c": C}, folder / SECOND)
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


def cut(kept: int) -> Damage:
    return lambda folder: (folder / SINGLE).write_bytes((folder / SINGLE).read_bytes()[:kept])


def header(text: bytes) -> Damage:
    return lambda folder: (folder / SINGLE).write_bytes(len(text).to_bytes(8, "little") + text + bytes(24))


def pickle(name: str) -> Damage:
    return lambda folder: torch.save({"a": A}, folder / name)


def index_of(shard: object) -> Damage:
    return lambda folder: (folder / INDEX).write_text(json.dumps({"weight_map": {"a": shard}}))


NOTHING, ONE, SHARDS = (lambda _: None), (lambda folder: save_file({"a": A, "b": B}, folder / SINGLE)), write_shards


@pytest.mark.parametrize(
    ("write", "damage", "said"),
    [
        (NOTHING, NOTHING, r"neither model\.safetensors nor"),
        *((NOTHING, pickle(f"model{end}"), f"model{end}.*never read") for end in (".bin", ".pth", ".pt", ".ckpt")),
        (SHARDS, ONE, "holds both"),  # reading either would be a guess about which save was the last
        *((ONE, cut(kept), r"model\.safetensors is damaged or cut short") for kept in (0, 4, 8, 20, -1)),
        (ONE, lambda folder: (folder / SINGLE).write_bytes((folder / SINGLE).read_bytes() + b"more"), "damaged"),
        (NOTHING, header(b"not json at all...."), "damaged"),
        (NOTHING, header(b'{"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 20]}}'), "damaged"),
        (NOTHING, header(b'{"a": {"dtype": "F33", "shape": [2, 3], "data_offsets": [0, 24]}}'), "damaged"),
        (NOTHING, header(b'{"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [8, 32]}}'), "damaged"),
        (NOTHING, header(b'{"a": {"dtype": "F32", "shape": [1000000000, 3], "data_offsets": [0, 24]}}'), "damaged"),
        (SHARDS, lambda folder: (folder / SECOND).unlink(), f"{SECOND} is named by .* does not exist"),
        (SHARDS, lambda folder: write_index(folder, {"a": 1, "b": 2, "c": 2, "d": 2}), r"lacks 1 tensors .*: d"),
        (SHARDS, lambda folder: write_index(folder, {"a": 1, "b": 2}), r"holds 1 tensors .*: c"),
        *(
            (NOTHING, index_of(shard), r"must be a \.safetensors file beside it")
            for shard in ("a" * 5000 + ".safetensors", "../model.safetensors", "/etc/passwd", "weights.bin", 7)
        ),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, write: Damage, damage: Damage, said: str) -> None:
    write(tmp_path)
    damage(tmp_path)
    with pytest.raises(WeightsError, match=said):
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


def test_what_was_pulled_before_stays_until_a_newer_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's client names the newest commit before it has a byte of it, and then a disk may be full."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    snapshot = cached(tmp_path, "config.json", SINGLE)
    (tmp_path / "models--owner--model/refs/main").write_text("f" * 40)
    assert locate("owner/model") == snapshot
    newer = snapshot.parent / ("f" * 40)
    newer.mkdir()
    (newer / SINGLE).touch()
    assert locate("owner/model") == snapshot
    others = snapshot.parent / ("e" * 40)  # another program has fetched a part of it
    others.mkdir()
    (others / "config.json").touch()
    (others / INDEX).write_text('{"weight_map": {"a": "model-00001-of-00001.safetensors"}}')
    assert locate("owner/model") == snapshot
    (newer / "config.json").touch()  # it comes last
    assert locate("owner/model") == newer
    (tmp_path / "models--owner--model/refs/main").unlink()
    with pytest.raises(WeightsError, match="run: redraft pull owner/model"):
        locate("owner/model")


def test_a_name_that_the_hub_refuses_is_no_model() -> None:
    with pytest.raises(WeightsError, match=r"no model 'a/b\.\.c'"):
        locate("a/b..c")


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
