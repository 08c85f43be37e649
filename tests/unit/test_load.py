"""From a folder to a model: what is placed where, and everything that is refused."""

import weakref
from collections.abc import Callable, Container, Iterator
from math import inf, nan
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from tests.helpers import ORACLE, edit_tensors, new_prefix, python, tiny_checkpoint, tiny_config
from torch import Tensor

from redraft.errors import RunError, WeightsError
from redraft.weights import build
from redraft.weights.load import load_model
from redraft.weights.source import SINGLE, Stored, WeightSource, locate

UP = "model.decoder.layers.0.mlp.up_proj.weight"
EMBED = "model.decoder.embed_tokens.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_checkpoint(tmp_path / "model")
    return tmp_path / "model"


def test_a_saved_model_comes_back_bit_equal(tmp_path: Path) -> None:
    saved = tiny_checkpoint(tmp_path)
    loaded, config = load_model(tmp_path)
    assert config.model == saved.config
    assert config.generation.eos_token_ids == (1,)
    for name, tensor in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_a_loaded_model_is_ready_to_run(folder: Path) -> None:
    model, _ = load_model(folder)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    prefix = new_prefix(model)
    model.encode(torch.arange(5), prefix)
    assert model.denoise(torch.arange(6), None, prefix).isfinite().all()


@pytest.mark.parametrize("shard_bytes", [10**9, 20_000])
def test_one_stored_tensor_is_in_memory_at_a_time(
    tmp_path: Path, shard_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop's own variable kept each tensor until the next was there: two of a 26B model's experts are 4 GB."""
    tiny_checkpoint(tmp_path, max_shard_bytes=shard_bytes)
    given: list[weakref.ref[Tensor]] = []
    alive = []
    stream = WeightSource.stream

    def counted(source: WeightSource, names: Container[str]) -> Iterator[tuple[Stored, Tensor]]:
        for stored, tensor in stream(source, names):
            given.append(weakref.ref(tensor))
            alive.append(sum(one() is not None for one in given))
            pair = [(stored, tensor)]
            del tensor
            yield pair.pop()

    monkeypatch.setattr(WeightSource, "stream", counted)
    load_model(tmp_path)
    assert len(alive) > 20
    assert set(alive) == {1}


def test_loading_imports_no_compiler() -> None:
    """A draw on the meta device imported torch's compiler, 0.9 of the 2.4 seconds before a first step; to leave that
    device by `to_empty` imported sympy, 0.4 of 3 (docs/log.md)."""
    look = "import redraft, sys; redraft.load('nano'); print({'torch._dynamo', 'sympy'} & {*sys.modules})"
    assert python(look).stdout == "set()\n"


def test_numbers_are_cast(folder: Path) -> None:
    exact, _ = load_model(folder)
    rounded, _ = load_model(folder, dtype=torch.bfloat16)
    assert rounded.dtype == torch.bfloat16
    assert all(tensor.dtype == torch.bfloat16 for tensor in rounded.state_dict().values())
    assert torch.equal(rounded.embed.weight, exact.embed.weight.bfloat16())


def test_other_number_types_are_refused(folder: Path) -> None:
    with pytest.raises(WeightsError, match=r"torch\.float16; supported: float32, bfloat16"):
        load_model(folder, dtype=torch.float16)


def test_stacked_rows_are_where_the_parts_were(folder: Path) -> None:
    stored = load_file(folder / SINGLE)
    ours = load_model(folder)[0].state_dict()
    parts = [stored[f"model.decoder.layers.0.self_attn.{part}_proj.weight"] for part in "qkv"]
    assert torch.equal(ours["layers.0.attention.qkv.weight"], torch.cat(parts))
    gate = stored["model.decoder.layers.0.mlp.gate_proj.weight"]
    assert torch.equal(ours["layers.0.mlp.gate_up.weight"], torch.cat([gate, stored[UP]]))


def test_both_scalars_of_a_layer_are_kept_apart() -> None:
    model, _ = load_model(ORACLE / "ckpt")
    assert [round(float(layer.encode_scalar), 2) for layer in model.layers] == [0.90, 0.95, 1.00, 1.05]
    assert [round(float(layer.denoise_scalar), 2) for layer in model.layers] == [1.05, 1.02, 0.99, 0.96]


def test_vision_tensors_are_reported() -> None:
    lines: list[str] = []
    load_model(ORACLE / "ckpt", report=lines.append)
    assert [line for line in lines if "18 tensors of the vision tower are loaded with the first image" in line]


def test_a_vision_tower_of_our_own_making_is_nothing_to_tell() -> None:
    """Every command on a model tuned from nano began by naming 18 vision tensors, which are there for the format."""
    lines: list[str] = []
    load_model(locate("nano-sudoku"), report=lines.append)
    assert lines == []


def drop_seven(tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if name.endswith("proj.weight")][:7]:
        del tensors[name]


def put(name: str, make: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({name: make(tensors[UP])})


def one_of_them(bad: float) -> Callable[[Tensor], Tensor]:
    return lambda t: t.index_put((torch.tensor(3), torch.tensor(5)), torch.tensor(bad))


NOT_FINITE = r"layers\.0\.mlp\.up_proj\.weight holds NaN or infinity"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop_seven, r"lacks 7 tensors .*proj\.weight.* and 2 more"),
        (
            put("model.decoder.layers.2.layer_scalar", lambda _: torch.ones(1)),
            r"holds 1 tensors .*\.layers\.2\.layer_",
        ),
        (put(UP, lambda t: t[1:].clone()), r"up_proj\.weight has shape \[23, 32\]; config\.json makes it \[24, 32\]"),
        (put(UP, lambda t: t.T.contiguous()), r"shape \[32, 24\]"),  # as many numbers: only the shape tells
        *((put(UP, one_of_them(bad)), NOT_FINITE) for bad in (nan, inf, -inf)),
        (put(UP, lambda t: t.to(torch.float8_e4m3fn)), r"up_proj\.weight has no weight_scale beside it"),
    ],
)
def test_damaged_weights_are_refused_by_name(
    folder: Path, change: Callable[[dict[str, Tensor]], object], said: str
) -> None:
    edit_tensors(folder, change)
    with pytest.raises(WeightsError, match=said):
        load_model(folder)


def test_equal_copies_of_tied_tensors_are_accepted(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[EMBED].clone()}))
    load_model(folder)


@pytest.mark.parametrize("change", ["value", "shape", "dtype"])
def test_a_copy_that_differs_is_refused(folder: Path, change: str) -> None:
    def untie(tensors: dict[str, Tensor]) -> None:
        copy = tensors[EMBED].clone()
        if change == "value":
            copy[0, 0] += 1
        tensors["lm_head.weight"] = {"shape": copy[1:], "dtype": copy.double()}.get(change, copy)

    edit_tensors(folder, untie)
    with pytest.raises(WeightsError, match=r"lm_head\.weight should be a copy of model\.decoder\.embed_tokens"):
        load_model(folder)


def test_everything_is_refused_before_memory_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other way round, a 50 GB allocation came before the news that a name was wrong."""
    edit_tensors(folder, lambda tensors: tensors.pop(UP) is None)
    monkeypatch.setattr("redraft.weights.load.empty_model", lambda *args, **options: pytest.fail("allocated"))
    with pytest.raises(WeightsError):
        load_model(folder)


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB\nMore advice")
    monkeypatch.setattr(torch, "empty_strided", Mock(side_effect=error))
    with pytest.raises(RunError, match=r"needs \d+ bytes on cpu as torch\.float32.*use bfloat16") as caught:
        build.empty_model(tiny_config(), dtype=torch.float32, device="cpu")
    assert "More advice" not in str(caught.value)


def test_a_random_model_follows_its_seed() -> None:
    first, again, other = (build.random_model(tiny_config(), seed) for seed in (1, 1, 2))
    assert torch.equal(first.embed.weight, again.embed.weight)
    assert not torch.equal(first.embed.weight, other.embed.weight)
    assert all(parameter.requires_grad for parameter in first.parameters())
