"""Number formats against the package that defines the published ones, and packed matmuls against their twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import tiny_checkpoint, tiny_config
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from redraft.errors import WeightsError
from redraft.model.linear import (
    EXACT_IN_FLOAT,
    OUTER_IN_FLOAT,
    can_tile,
    float8_matmul,
    int_matmul,
    int_matmul_in_floats,
    multiply,
    multiply_unpacked,
    tile,
)
from redraft.model.moe import experts_grouped
from redraft.model.packed import FORMATS, FP8, INT4, INT4_G64, INT8, NVFP4, Format, error, pack, round_rows, unpack
from redraft.weights.layouts import stored_names
from redraft.weights.load import load_model
from redraft.weights.plan import PLANS

pytestmark = pytest.mark.typed

# How compressed-tensors names each format, and the settings that a file of it carries.
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "int8": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "int4": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}),
    "int4-g64": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64}),
    "fp8": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "nvfp4": ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}),
}


def random_matrix(outer: int, inner: int, seed: int = 0) -> Tensor:
    """Rows of very different sizes, an outlier and a row of zeros."""
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(outer, inner, generator=draw) * torch.logspace(-3, 1, outer)[:, None]
    weight[0] = 0
    weight[-1, 3] *= 20
    return weight


def scheme(form: Format) -> tuple[type[BaseCompressor], QuantizationScheme]:
    name, settings = THEIRS[form.name]
    args = QuantizationArgs(symmetric=True, **settings)
    if form is NVFP4:
        args.scale_dtype = torch.float8_e4m3fn
    return BaseCompressor.get_value_from_registry(name), QuantizationScheme(targets=["Linear"], weights=args)


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
def test_another_implementation_reads_the_same_numbers_from_what_we_store(form: Format) -> None:
    packed = pack(random_matrix(12, 192), form)
    stored = {name.removeprefix("p."): tensor for name, tensor in stored_names("p", packed).items()}
    if form.bits == 4 and not form.is_float:
        stored["weight_scale"] = stored["weight_scale"].float()  # they compute in the scale's dtype, we in float32
    compressor, settings = scheme(form)
    theirs = compressor.decompress(stored, settings)["weight"].float()
    # nvfp4 is decompressed to bfloat16 there, with two roundings on the way.
    torch.testing.assert_close(unpack(packed), theirs, rtol=1e-2 if form is NVFP4 else 1e-6, atol=0)


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
def test_what_another_implementation_packs_under_our_scales_is_what_we_pack(form: Format) -> None:
    weight = random_matrix(12, 192, seed=1)
    packed = pack(weight, form)
    ours = {name.removeprefix("p."): tensor for name, tensor in stored_names("p", packed).items()}
    given_them = {name: tensor.float() for name, tensor in ours.items() if "scale" in name}
    compressor, settings = scheme(form)
    theirs = compressor.compress({"weight": weight, **given_them}, settings)
    name = next(iter(theirs.keys() & {"weight", "weight_packed"}))
    assert theirs[name].dtype == ours[name].dtype
    if form is NVFP4:  # the sign of a zero is written in the code there, too, and zeros differ in rows of zeros only
        same = unpack(packed) == unpack(type(packed)(form, theirs[name], packed.scale, packed.top))
        assert same.float().mean() > 0.999
    else:
        assert torch.equal(theirs[name].view(torch.uint8), ours[name].view(torch.uint8))


@given(st.integers(1, 40), st.sampled_from([16, 32, 64, 96]), st.sampled_from([INT8, INT4, FP8, NVFP4]))
def test_rounding_stays_within_half_a_step(outer: int, inner: int, form: Format) -> None:
    if inner % (form.group or 1):
        return
    weight = torch.randn(outer, inner, generator=torch.Generator().manual_seed(outer))
    off = (unpack(pack(weight, form)) - weight).abs()
    largest = weight.unflatten(-1, (-1, form.group or inner)).abs().amax(-1)
    # Half of the widest gap between codes, for a group whose largest value is 1; int4 may clip to spare the rest.
    half = {"int8": 0.5 / 127, "fp8": 16 / 448, "int4": 0.31, "nvfp4": 1.25 / 6}[form.name]
    assert (off.unflatten(-1, (-1, form.group or inner)).amax(-1) <= half * largest + 1e-6).all()


def test_searched_int4_scales_beat_the_plain_ones() -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    changed, _ = error(weight, pack(weight, INT4))
    groups = weight.unflatten(-1, (-1, 32))
    step = groups.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 7.5
    plain = float(((groups / step).round().clamp(-8, 7) * step - groups).square().sum())
    assert changed < 0.9 * plain


@given(st.integers(1, 33), st.sampled_from(list(FORMATS.values())))
def test_packed_products_equal_their_twin(rows: int, form: Format) -> None:
    packed = pack(random_matrix(24, 128, seed=rows), form)
    x = torch.randn(rows, 128, generator=torch.Generator().manual_seed(rows))
    torch.testing.assert_close(multiply(x, packed), multiply_unpacked(x, packed), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("inner", [64, 1025, 3000])
@pytest.mark.parametrize("product", [int_matmul, int_matmul_in_floats])
def test_sums_of_int8_products_are_exact(product: Callable[[Tensor, Tensor], Tensor], inner: int) -> None:
    """The largest there are: on a CPU without VNNI they came out as something else."""
    draw = torch.Generator().manual_seed(inner)
    x, weight = ((torch.randint(0, 2, (rows, inner), generator=draw) * 255 - 128).to(torch.int8) for rows in (5, 24))
    x[0], weight[0] = -128, -128
    assert torch.equal(product(x, weight), (x.long() @ weight.long().T).int())


class Largest(TorchDispatchMode):
    """Bytes of the largest tensor that any operation within makes."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        tensors = [one for one in tree_leaves(made) if isinstance(one, Tensor)]
        self.bytes = max([self.bytes, *(one.numel() * one.element_size() for one in tensors)])
        return made


def test_without_vnni_a_large_matrix_is_never_floats_as_a_whole() -> None:
    """Logits of 262,144 tokens needed seven times their own memory, and a gigabyte of floats beside it."""
    draw = torch.Generator().manual_seed(0)
    x, weight = (torch.randint(-128, 128, (rows, 1100), generator=draw, dtype=torch.int8) for rows in (2, 20_000))
    with Largest() as largest:
        found = int_matmul_in_floats(x, weight)
    assert torch.equal(found, (x.double() @ weight.double().T).int())
    assert largest.bytes <= max(4 * EXACT_IN_FLOAT * OUTER_IN_FLOAT, weight.numel())


@pytest.mark.parametrize("rows", [1, 16, 33])
def test_products_in_eight_bit_floats_equal_their_twin(rows: int) -> None:
    """What a GPU runs; the library has it on a CPU, too."""
    packed = pack(random_matrix(32, 128, seed=rows), FP8)
    x = torch.randn(rows, 128, generator=torch.Generator().manual_seed(rows)).bfloat16()
    ours, twin = float8_matmul(*round_rows(x, FP8), packed).float(), multiply_unpacked(x.float(), packed)
    assert float((ours - twin).norm() / twin.norm()) < 0.005


@given(st.integers(1, 40), st.integers(0, 40))
def test_a_rows_int8_product_does_not_depend_on_its_neighbours(rows: int, others: int) -> None:
    """Bit for bit: an answer in a batch is the answer alone."""
    packed = pack(random_matrix(24, 128), INT8)
    draw = torch.Generator().manual_seed(rows * 41 + others)
    x, beside = torch.randn(rows, 128, generator=draw), 50 * torch.randn(others, 128, generator=draw)
    assert torch.equal(multiply(x, packed), multiply(torch.cat([x, beside]), packed)[:rows])


@pytest.mark.parametrize("form", [INT8, FP8], ids=lambda form: form.name)
def test_rows_are_rounded_one_by_one(form: Format) -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, -0.5], [1e4, 1.0]])
    codes, scale = round_rows(x, form)
    torch.testing.assert_close(codes.float() * scale, x, rtol=0, atol=1e4 / 127 / 2)
    assert torch.equal((codes.float() * scale)[1].abs().max(), torch.tensor(1.0))


@pytest.mark.parametrize(("form", "inner"), [(INT4, 48), (NVFP4, 24)])
def test_groups_that_do_not_divide_a_row_are_refused_by_name(form: Format, inner: int) -> None:
    with pytest.raises(WeightsError, match=f"blk has rows of {inner} numbers, which groups of {form.group}"):
        pack(torch.zeros(4, inner), form, "blk")


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
def test_bytes_are_what_is_held(form: Format) -> None:
    packed = pack(torch.randn(3, 64, 192), form)
    stored = sum(tensor.numel() * tensor.element_size() for tensor in (packed.codes, packed.scale))
    assert packed.num_bytes - (0 if packed.top is None else 4 * 3 * 64) == stored
    assert packed.num_bytes == 3 * form.num_bytes(64, 192)
    assert packed.shape == (3, 64, 192)
    assert torch.equal(unpack(packed[1]), unpack(packed)[1])


@pytest.mark.parametrize("form", [INT4, INT4_G64], ids=lambda form: form.name)
@pytest.mark.parametrize("rows", [1, 16, 70])
def test_tiles_multiply_as_the_unpacked_matrix_does(form: Format, rows: int) -> None:
    """Within bfloat16's rounding of the result: sums are taken in float32 on both sides."""
    if not can_tile(form, torch.bfloat16, torch.device("cpu")):
        pytest.skip("this processor multiplies no tiles")
    draw = torch.Generator().manual_seed(rows)
    packed = pack(torch.randn(2, 48, 192, generator=draw), form)
    x = torch.randn(rows, 192, generator=draw).bfloat16()
    plain = x.float() @ unpack(packed)[1].T
    tiled = tile(replace(packed, codes=packed.codes.clone()))
    torch.testing.assert_close(multiply(x, tiled[1]).float(), plain, rtol=2**-7, atol=2**-7)
    with pytest.raises(AssertionError, match="tiles are unpacked by a product"):
        unpack(tiled)


def test_experts_of_four_bits_are_tiled_by_a_load_where_that_is_faster(tmp_path: Path) -> None:
    if not can_tile(INT4, torch.bfloat16, torch.device("cpu")):
        pytest.skip("this processor multiplies no tiles")
    config = tiny_config(hidden_size=64, intermediate_size=64, moe_intermediate_size=64, num_experts=6)
    tiny_checkpoint(tmp_path / "plain", config, dtype=torch.bfloat16)
    tiled = load_model(tmp_path / "plain", dtype=torch.bfloat16, plan=PLANS["int4"])[0]
    plain = load_model(tmp_path / "plain", dtype=torch.float32, plan=PLANS["int4"])[0]
    assert all(matrix.tiled for layer in tiled.layers for matrix in layer.experts.matrices.values())
    assert not any(matrix.tiled for layer in plain.layers for matrix in layer.experts.matrices.values())
    x = torch.randn(30, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    weights, chosen = torch.full((30, 2), 0.5), torch.arange(60).view(30, 2) % 6
    ours = experts_grouped(tiled.layers[0].experts, x, weights, chosen).float()
    wanted = experts_grouped(plain.layers[0].experts, x.float(), weights, chosen)
    assert float((ours - wanted).norm() / wanted.norm()) < 2**-6
