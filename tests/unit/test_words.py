"""Checkpoints of AWQ, GPTQ and asymmetric compressed-tensors, each against an unpacking by its public definition."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from tests.helpers import DATA, edit_tensors, new_prefix, released_json, tiny_checkpoint, tiny_config

from redraft.config import parse_model
from redraft.errors import WeightsError
from redraft.model.gemma import DiffusionGemma
from redraft.model.linear import can_tile, multiply, tile
from redraft.model.packed import INT4_ASYM, pack, unpack
from redraft.weights.layouts import Matrix, matrices
from redraft.weights.load import load_model
from redraft.weights.memory import footprint
from redraft.weights.names import slots
from redraft.weights.place import Placement
from redraft.weights.plan import PackingPlan, formats, packed_matrices

CONFIG = tiny_config(hidden_size=64, intermediate_size=96, moe_intermediate_size=64)
UP = "model.decoder.layers.0.mlp.up_proj"
EXPERT = "model.decoder.layers.1.experts.3.down_proj"
Tensors = dict[str, torch.Tensor]
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
SETTINGS: dict[str, dict[str, Any]] = {
    "awq": AWQ,
    "gptq": GPTQ,
    "gptq_v2": GPTQ | {"checkpoint_format": "gptq_v2"},
    "gptq, symmetric": GPTQ | {"sym": True},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "pack-quantized"},
}


def words(made: np.random.Generator, *shape: int) -> np.ndarray:
    """Any 32 bits are eight codes."""
    return made.integers(-(2**31), 2**31, shape, dtype=np.int64).astype(np.int32)


def columns(packed: np.ndarray, order: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)) -> np.ndarray:
    """The codes of words along a row; the code in bits 4i of word w is that of column 8w + order[i]."""
    found = np.zeros((packed.shape[0], 8 * packed.shape[1]), dtype=np.int64)
    for w in range(packed.shape[1]):
        for i, place in enumerate(order):
            found[:, 8 * w + place] = packed[:, w].astype(np.int64) >> 4 * i & 15
    return found


def made_of(kind: str, prefix: str, outer: int, inner: int, seed: int) -> tuple[Tensors, np.ndarray]:
    """A matrix as a file has it, and its numbers."""
    made, groups = np.random.default_rng(seed), inner // 32
    scale = (made.random((groups, outer)) / 100 + 0.001).astype(np.float16)
    group = np.arange(inner) // 32
    if kind == "compressed-tensors":
        codes, zeros = words(made, outer, inner // 8), words(made, outer // 8, groups)
        q, zero = columns(codes).T, columns(zeros.T).astype(np.int64)
        stored = {"weight_packed": codes, "weight_scale": scale.T, "weight_zero_point": zeros}
        stored["weight_shape"] = np.array([outer, inner], dtype=np.int64)
    elif kind == "awq":
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        codes, zeros = words(made, inner, outer // 8), words(made, groups, outer // 8)
        q, zero = columns(codes, order), columns(zeros, order)
        stored = {"qweight": codes, "scales": scale, "qzeros": zeros}
    else:
        codes, zeros = words(made, inner // 8, outer), words(made, groups, outer // 8)
        if kind == "gptq":
            zeros &= 0x77777777  # as written, a zero point of 16 there is not
        if kind == "gptq, symmetric":
            zeros[:] = 0x77777777
        q, zero = columns(codes.T).T, columns(zeros) + (kind != "gptq_v2")
        stored = {"qweight": codes, "scales": scale, "qzeros": zeros, "g_idx": group.astype(np.int32)}
    wanted = (q - zero[group]) * scale.astype(np.float64)[group]
    tensors = {f"{prefix}.{name}": torch.from_numpy(np.ascontiguousarray(one)) for name, one in stored.items()}
    return tensors, wanted.T.astype(np.float32)


def every_matrix() -> list[Matrix]:
    return [matrix for slot in slots(CONFIG) for matrix in matrices(slot)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "model"
    tiny_checkpoint(folder, CONFIG)
    return folder


def rewritten(plain: Path, folder: Path, settings: dict[str, Any] | None, change: Callable[[Tensors], object]) -> Path:
    shutil.copytree(plain, folder)
    edit_tensors(folder, change)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | ({"quantization_config": settings} if settings else {})))
    return folder


def written(plain: Path, folder: Path, kind: str, **settings: Any) -> tuple[Path, dict[str, np.ndarray]]:
    """A checkpoint with every linear layer packed; and their numbers."""
    wanted: dict[str, np.ndarray] = {}

    def change(tensors: Tensors) -> None:
        for seed, matrix in enumerate(every_matrix()):
            tensors.pop(matrix.slot.stored, None)
            stored, wanted[matrix.prefix] = made_of(kind, matrix.prefix, *matrix.shape, seed)
            tensors.update(stored)

    return rewritten(plain, folder, SETTINGS[kind] | settings, change), wanted


def numbers(model: DiffusionGemma) -> dict[str, torch.Tensor]:
    held, found = packed_matrices(model), {}
    for matrix in every_matrix():
        whole = unpack(held[matrix.slot.target].packed)
        found[matrix.prefix] = (whole if matrix.expert is None else whole[matrix.expert])[matrix.rows]
    return found


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_number_is_the_one_that_the_format_defines(plain: Path, tmp_path: Path, kind: str) -> None:
    """Exactly, for scales of 11 bits times a difference of 4; and the whole model computes with them."""
    folder, wanted = written(plain, tmp_path / "packed", kind)
    model, config = load_model(folder)
    found = numbers(model)
    assert found.keys() == wanted.keys()
    for prefix, numbers_of_it in found.items():
        assert np.array_equal(numbers_of_it.numpy(), wanted[prefix]), prefix
    has_zeros = kind != "gptq, symmetric"
    assert all((held.zero is not None) == has_zeros for held in packed_matrices(model).values())
    need = footprint(config.model, torch.float32, {name: held.format for name, held in packed_matrices(model).items()})
    assert need.fixed == sum(t.numel() * t.element_size() for t in model.state_dict().values())

    def unpacked(tensors: Tensors) -> None:
        for matrix in every_matrix():
            place = tensors[matrix.slot.stored]
            place = place if matrix.expert is None else place[matrix.expert][matrix.rows]
            place.copy_(torch.from_numpy(wanted[matrix.prefix]))

    twin = load_model(rewritten(plain, tmp_path / "unpacked", None, unpacked))[0]
    far = load_model(folder, placement=Placement.HOST)[0]
    tokens = torch.arange(6) + 20
    logits, theirs, elsewhere = (one.denoise(tokens, None, new_prefix(one)) for one in (model, twin, far))
    torch.testing.assert_close(logits, theirs, rtol=1e-4, atol=1e-4)
    assert torch.equal(logits, elsewhere)


def test_the_released_model_takes_as_much_as_the_docs_say() -> None:
    """Groups of 64 in every linear layer: 4 bits a weight instead of 16, for 64 a scale of 16 and a zero point of 8.
    How many weights there are, the released checkpoint's own shapes say."""
    config = parse_model(released_json())[0]
    shapes = json.loads((DATA / "real_26b_tensors.json").read_text())
    linear = sum(
        prod(shape)
        for name, shape in shapes.items()
        if ".layers." in name and "vision" not in name and (".experts." in name or name.endswith("_proj.weight"))
    )
    for zeros, gigabytes in ((False, 14.5), (True, 14.9)):
        form = replace(INT4_ASYM, group=64, zeros=zeros)
        packed = formats(config, PackingPlan("all", form, form, form))
        found = footprint(config, torch.bfloat16, packed).fixed
        plain = footprint(config, torch.bfloat16, {}).fixed
        assert plain - found == linear * (16 - 4 - (16 + 8 * zeros) / 64) / 8
        assert round(found / 1e9, 1) == gigabytes


def test_another_reader_of_compressed_tensors_finds_the_same(plain: Path, tmp_path: Path) -> None:
    stored, wanted = made_of("compressed-tensors", "p", 24, 64, 0)
    args = QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=32, symmetric=False)
    own = {name.removeprefix("p."): tensor for name, tensor in stored.items()}
    own["weight_scale"] = own["weight_scale"].float()  # it computes in the type of the scale
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    theirs = compressor.decompress(own, QuantizationScheme(targets=["Linear"], weights=args))["weight"]
    assert np.array_equal(theirs.float().numpy(), wanted)


def put(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: make(tensors[name]).contiguous()})


@pytest.mark.parametrize(
    ("kind", "settings", "change", "message"),
    [
        ("gptq", {}, put(f"{UP}.g_idx", lambda t: t.flip(0)), "up_proj.g_idx has an order of inputs"),
        (
            "gptq",
            {},
            put(f"{UP}.g_idx", lambda t: t[:-1]),
            r"up_proj.g_idx has shape \[63\]; config.json makes it \[64",
        ),
        ("gptq", {"sym": True}, lambda _: None, r"qzeros has other zero points than 8; quantization_config.sym says"),
        ("gptq", {"bits": 8}, lambda _: None, r"quantization_config.bits is 8; gptq is read with 4 bits"),
        ("gptq", {"checkpoint_format": "marlin"}, lambda _: None, "gptq in format 'marlin'; supported: gptq, gptq_v2"),
        ("awq", {"version": "GEMV"}, lambda _: None, "awq in format 'gemv'; supported: gemm"),
        ("awq", {"quant_method": "modelopt"}, lambda _: None, "qweight is AWQ's or GPTQ's; quantization_config.quant_"),
        ("awq", {}, put(f"{UP}.scales", lambda t: t[:, :-1]), r"up_proj.scales has shape \[2, 95\]; config.json makes"),
        ("awq", {}, put(f"{UP}.scales", lambda t: t[:1]), r"up_proj.qzeros has shape \[2, 12\].*\[1, 12\]"),
        ("awq", {}, put(f"{UP}.scales", lambda t: t.repeat(2, 1)), "means groups of 16; supported: 32, 64, 128"),
        ("awq", {}, put(f"{UP}.scales", lambda t: t.int()), "scales is stored as I32; int4-asym has scales of"),
        (
            "awq",
            {},
            put(f"{UP}.qweight", lambda t: t.T),
            r"qweight has shape \[12, 64\]; config.json makes it \[64, 12",
        ),
        ("awq", {}, put(f"{UP}.qzeros", lambda t: t.long()), "up_proj.qzeros is stored as I64; int4-asym has words of"),
        ("awq", {}, lambda tensors: tensors.pop(f"{UP}.qzeros"), "up_proj.qweight has no qzeros beside it"),
        ("awq", {}, lambda tensors: tensors.pop(f"{EXPERT}.qweight"), "lacks .*3.down_proj, but has other parts of"),
        (
            "compressed-tensors",
            {},
            put(f"{UP}.weight_zero_point", lambda t: t[:, :1]),
            r"up_proj.weight_zero_point has shape \[12, 1\]; config.json makes it \[12, 2\]",
        ),
    ],
)
def test_what_is_wrong_is_refused_by_name_before_memory_is_taken(
    plain: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    settings: dict[str, Any],
    change: Callable[[Tensors], object],
    message: str,
) -> None:
    folder, _ = written(plain, tmp_path / "packed", kind, **settings)
    monkeypatch.setattr("redraft.weights.load.empty_model", lambda *_, **__: pytest.fail("memory was taken"))
    with pytest.raises(WeightsError, match=message):
        load_model(rewritten(folder, tmp_path / "wrong", None, change))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("zeros", [False, True])
def test_tiles_of_any_scales_multiply_as_the_unpacked_matrix_does(dtype: torch.dtype, zeros: bool) -> None:
    """The library reads scales in bfloat16 alone: those of AWQ, in float16, were an error in the first product."""
    form = replace(INT4_ASYM, scale_dtype=dtype, zeros=zeros)
    if not can_tile(form, torch.bfloat16, torch.device("cpu")):
        pytest.skip("this processor multiplies no tiles")
    draw = torch.Generator().manual_seed(3)
    packed = pack(torch.randn(48, 192, generator=draw), form)
    if packed.zero is not None:
        packed.zero.random_(0, 16, generator=draw)
    x = torch.randn(20, 192, generator=draw).bfloat16()
    wanted = x.float() @ unpack(packed).T
    tiled = tile(packed.each(torch.clone))
    off = (multiply(x, tiled).float() - wanted).norm() / wanted.norm()
    assert off < 2**-7
