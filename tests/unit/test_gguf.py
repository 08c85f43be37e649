"""GGUF files, written and unpacked by the package that defines them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import gguf
import numpy as np
import pytest
import torch
from tests.helpers import ROOT, new_prefix, tiny_config, tiny_json, tiny_model

from redraft.__main__ import main
from redraft.config import read_config
from redraft.errors import RunError, WeightsError
from redraft.measure.description import book
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import Kernels
from redraft.model.linear import multiply, tile
from redraft.model.moe import experts_grouped
from redraft.model.packed import unpack
from redraft.tune.base import Base
from redraft.weights.blocks import KINDS
from redraft.weights.gguf import ARCHITECTURE, GgufSource, open_source, released_name
from redraft.weights.load import load_model
from redraft.weights.memory import footprint
from redraft.weights.names import slots
from redraft.weights.place import Placement
from redraft.weights.plan import PLANS, packed_matrices

SIZES = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 96}
TYPES = gguf.GGMLQuantizationType
SHAPE, PAGE = ROOT / "recipes/shapes/26b", ROOT / "docs/26b.md"
KEPT = {TYPES.Q4_0: 4.5, TYPES.Q5_0: 6.5, TYPES.Q8_0: 8.5, TYPES.Q4_K: 4.625, TYPES.Q6_K: 6.5625}
"""Kinds of blocks that stay packed, and the bits of a weight here: 8 scales of 6 bits take a byte each, codes of 5 bits
six."""
OTHERS = {TYPES.Q4_K: TYPES.Q5_0, TYPES.Q6_K: TYPES.Q8_0}
"""What llama.cpp writes where rows are no blocks of 256, as those of 704 and 2,112 in the released model."""
# The names that llama.cpp's converter gives to the released ones, written out once more.
NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "layer_scalar": "layer_output_scale.weight",
}


def theirs(layers: int = 2) -> dict[str, str]:
    """Released name -> GGUF name of every tensor, by trying every name that GGUF files of the kind hold."""
    ends = (
        "attn_norm post_attention_norm ffn_norm pre_ffw_norm_2 post_ffw_norm_1 post_ffw_norm_2 post_ffw_norm"
        " attn_q attn_k attn_v attn_output attn_q_norm attn_k_norm ffn_gate ffn_up ffn_down ffn_gate_inp"
        " ffn_gate_up_exps ffn_down_exps layer_output_scale enc_layer_output_scale"
    )
    names = [f"blk.{i}.{end}.weight" for i in range(layers) for end in ends.split()]
    names += [f"blk.{i}.{end}.scale" for i in range(layers) for end in ("ffn_gate_inp", "ffn_down_exps")]
    names += ["token_embd.weight", "output_norm.weight"]
    names += [f"self_cond_{end}.weight" for end in ("pre_norm", "gate", "up", "down")]
    return {released_name(name): name for name in names}


def write(
    folder: Path,
    kind: TYPES,
    *,
    architecture: str = ARCHITECTURE,
    without: str = "",
    other: tuple[str, TYPES] = ("", TYPES.F32),
) -> DiffusionGemma:
    """A file of a random model, its matrices in `kind` where the kind allows, those with a name that ends as `other`
    says in its kind; returns the model it was made from."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny_json(**SIZES)))
    model = tiny_model(tiny_config(**SIZES))
    ours, names = model.state_dict(), theirs()
    writer = gguf.GGUFWriter(folder / "model.gguf", architecture)
    writer.add_tensor("rope_freqs.weight", np.ones(4, dtype=np.float32))
    for slot in slots(model.config):
        if slot.stored == without:
            continue
        values = ours[slot.target][slot.rows].numpy().copy()
        own = other[1] if other[0] and slot.stored.endswith(other[0]) else kind
        if values.shape[-1] % gguf.GGML_QUANT_SIZES[own][0]:
            own = OTHERS.get(own, own)
        if values.ndim >= 2 and values.shape[-1] % gguf.GGML_QUANT_SIZES[own][0] == 0 and own is not TYPES.F32:
            writer.add_tensor(names[slot.stored], blocks(own, values), raw_dtype=own)
        else:
            writer.add_tensor(names[slot.stored], values.astype(np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return model


def blocks(kind: TYPES, values: np.ndarray) -> np.ndarray:
    """Numbers in blocks of a kind; of a kind that the package can only unpack, random bytes with small factors."""
    try:
        return gguf.quantize(values, kind)
    except NotImplementedError:
        block, size = gguf.GGML_QUANT_SIZES[kind]
    draw, shape = np.random.default_rng(values.size), (*values.shape[:-1], values.shape[-1] // block)
    raw = draw.integers(0, 256, (*shape, size), dtype=np.uint8)
    factors = (draw.standard_normal((*shape, 2)) * 2e-4).astype(np.float16).view(np.uint8)
    at = 208 if kind is TYPES.Q6_K else 0
    raw[..., at : at + 4] = factors[..., : size - at]
    return raw.reshape(*values.shape[:-1], -1)


def stored_in(folder: Path) -> dict[str, gguf.ReaderTensor]:
    """The tensors of a file by their names there, read by the package."""
    return {one.name: one for one in gguf.GGUFReader(folder / "model.gguf").tensors}


def unpacked(one: gguf.ReaderTensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of a file as the package unpacks it."""
    return torch.from_numpy(gguf.dequantize(one.data, one.tensor_type).copy()).reshape(shape)


def test_every_tensor_of_the_model_has_a_name_there() -> None:
    wanted = {slot.stored for slot in slots(tiny_config(**SIZES))}
    assert wanted <= theirs().keys()
    for released, name in NAMES.items():
        assert theirs()[f"model.decoder.layers.0.{released}"] == f"blk.0.{name}"
    assert theirs()["model.encoder.language_model.layers.1.layer_scalar"] == "blk.1.enc_layer_output_scale.weight"


def test_plain_numbers_come_back_bit_equal(tmp_path: Path) -> None:
    model = write(tmp_path / "one", TYPES.F32)
    for name, tensor in load_model(tmp_path / "one")[0].state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


def test_a_run_that_begins_with_one_ends_with_a_model_and_knows_another(tmp_path: Path) -> None:
    """All steps were taken before it was said that such a folder has no weights."""
    trained, folder = write(tmp_path / "start", TYPES.F32), tmp_path / "start"
    found = Base(Mock(model=None, lora=None, start="start"), read_config(folder), Mock(), folder)
    (tmp_path / "out").mkdir()
    found.save(found.model(), tmp_path / "out")
    written = load_model(tmp_path / "out")[0].state_dict()
    assert all(torch.equal(value, written[name]) for name, value in trained.state_dict().items())
    before = found.digests
    with (folder / "model.gguf").open("r+b") as file:
        file.seek(-9, 2)
        file.write(b"otherwise")
    assert replace(found).digests != before


@pytest.mark.parametrize("kind", [TYPES.Q5_1, TYPES.Q5_K, TYPES.BF16], ids=lambda kind: kind.name)
def test_other_numbers_are_what_their_package_unpacks(tmp_path: Path, kind: TYPES) -> None:
    write(tmp_path / "one", kind)
    model, config = load_model(tmp_path / "one")
    stored, ours, kinds = stored_in(tmp_path / "one"), model.state_dict(), set()
    for slot in slots(config.model):
        one = stored[theirs()[slot.stored]]
        kinds.add(one.tensor_type)
        assert torch.equal(ours[slot.target][slot.rows], unpacked(one, slot.shape)), slot.stored
    assert kind in kinds


@pytest.mark.parametrize("kind", KEPT, ids=lambda kind: kind.name)
def test_blocks_are_kept_bit_for_bit_and_counted(tmp_path: Path, kind: TYPES) -> None:
    """Unpacked, they are the numbers of the package that defines them; the ledger knows their bytes before a load."""
    write(tmp_path / "one", kind)
    lines: list[str] = []
    model, config = load_model(tmp_path / "one", report=lines.append)
    stored, ours, packed = stored_in(tmp_path / "one"), model.state_dict(), packed_matrices(model)
    assert {name.split(".", 2)[2] for name in packed} == {
        *("attention.qkv.weight", "attention.out.weight", "mlp.gate_up.weight", "mlp.down.weight"),
        *("experts.gate_up", "experts.down"),
    }
    for slot in slots(config.model):
        one = stored[theirs()[slot.stored]]
        found = unpack(packed[slot.target].packed) if slot.target in packed else ours[slot.target]
        assert torch.equal(found[slot.rows], unpacked(one, slot.shape)), slot.stored
        if slot.target in packed:
            bits = 8 * packed[slot.target].format.num_bytes(1, slot.shape[-1]) / slot.shape[-1]
            assert bits == KEPT[one.tensor_type]
            whole = slot.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
            assert one.tensor_type is (kind if whole else OTHERS[kind])
    assert f"{kind.name} are unpacked" in lines[0], "the table, routers and self-conditioning are"
    kept = open_source(tmp_path / "one").kept(slots(config.model))
    held = sum(tensor.numel() * tensor.element_size() for tensor in ours.values())
    assert footprint(config.model, torch.float32, kept).fixed == held
    assert book(config.model, torch.float32, kept, None, (1, 64, False), graphs=False)["bytes"]["weights"] == held


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KEPT, ids=lambda kind: kind.name)
def test_a_model_of_kept_blocks_equals_one_that_is_unpacked(
    tmp_path: Path, kind: TYPES, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "one", kind)
    kept = load_model(tmp_path / "one", dtype=dtype)[0]
    monkeypatch.setattr(GgufSource, "kept", lambda *_: {})
    plain = load_model(tmp_path / "one", dtype=dtype)[0]
    assert packed_matrices(kept)
    assert not packed_matrices(plain)
    tokens = torch.arange(6)
    logits = [model.denoise(tokens, None, new_prefix(model)).float() for model in (plain, kept)]
    assert (logits[1] - logits[0]).norm() <= (1e-5 if dtype == torch.float32 else 0.03) * logits[0].norm()


def test_a_matrix_of_several_kinds_is_unpacked(tmp_path: Path) -> None:
    """Of a pair of experts' matrices each may have its kind, or both are unpacked."""
    write(tmp_path / "one", TYPES.Q4_0, other=("experts.down_proj", TYPES.Q5_1))
    names = {name.split(".", 2)[2] for name in packed_matrices(load_model(tmp_path / "one")[0])}
    assert names == {"attention.qkv.weight", "attention.out.weight", "mlp.gate_up.weight", "mlp.down.weight"}
    write(tmp_path / "two", TYPES.Q4_K, other=("0.self_attn.v_proj.weight", TYPES.Q6_K))
    found = packed_matrices(load_model(tmp_path / "two")[0])
    assert "layers.0.attention.qkv.weight" not in found
    assert {"layers.1.attention.qkv.weight", "layers.0.experts.down"} <= found.keys()


def test_blocks_on_the_host_multiply_the_same_in_the_planned_memory(tmp_path: Path) -> None:
    """Layers of two kinds, as llama.cpp mixes them: each kind has its own places on the device, which were counted as
    one."""
    write(tmp_path / "one", TYPES.Q4_K, other=("1.experts.down_proj", TYPES.Q8_0))
    near = load_model(tmp_path / "one", kernels=Kernels(experts=experts_grouped))[0]
    far, config = load_model(tmp_path / "one", placement=Placement.HOST)
    ours, theirs = (model.denoise(torch.arange(6), None, new_prefix(model)) for model in (far, near))
    assert torch.equal(ours, theirs)
    kept = open_source(tmp_path / "one").kept(slots(config.model))
    need = footprint(config.model, torch.float32, kept, Placement.HOST)
    couriers = {layer.experts.courier for layer in far.layers}
    assert len(couriers) == 2
    assert sum(courier.num_bytes for courier in couriers) == need.weights["experts"]


def released_head(folder: Path, kind: str) -> int:
    """The head of a file of the released shapes, as llama.cpp's quantizer would choose its kinds; its bytes are a hole.
    Returns their number."""
    shutil.copytree(SHAPE, folder)
    config, size = read_config(SHAPE).model, 0
    layers, names = len(config.layers), theirs(len(config.layers))
    writer = gguf.GGUFWriter(folder / "model.gguf", ARCHITECTURE)
    for slot in slots(config):
        name, own = names[slot.stored], TYPES.F32
        if len(slot.shape) >= 2 and "gate_inp" not in name:
            own = TYPES[kind.removesuffix("_M")]
            if kind.endswith("_M") and (name.startswith("token_embd") or more_bits(name, layers)):
                own = TYPES.Q6_K
            own = OTHERS[own] if slot.shape[-1] % gguf.GGML_QUANT_SIZES[own][0] else own
        block, each = gguf.GGML_QUANT_SIZES[own]
        held = slot.num_elements // block * each
        raw = (None, np.dtype(np.float32)) if own is TYPES.F32 else (own, np.dtype(np.uint8))
        shape = slot.shape if own is TYPES.F32 else (*slot.shape[:-1], slot.shape[-1] // block * each)
        writer.add_tensor_info(name, shape, raw[1], held, raw_dtype=raw[0])
        size += -(-held // 32) * 32
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_ti_data_to_file, writer.close):
        step()
    with (folder / "model.gguf").open("r+b") as file:
        file.truncate(file.seek(0, 2) + size + 32)
    return size


def more_bits(name: str, layers: int) -> bool:
    """Whether a Q4_K_M has this matrix in Q6_K: V and down of the first eighth of the layers, the last, and each third
    between."""
    if "attn_v." not in name and "ffn_down" not in name:
        return False
    layer = int(name.split(".")[1])
    return not layers // 8 <= layer < 7 * layers // 8 or (layer - layers // 8) % 3 == 2


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K_M", "Q6_K", "Q8_0"])
def test_files_of_the_released_shapes_take_what_the_page_says(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    size = released_head(tmp_path / "one", kind)
    found = [f"{size / 1e9:.1f} GB"]
    for memory in ("24", "80"):
        assert main(["inspect", str(tmp_path / "one"), "--memory", memory, "--context", "8192", "--json"]) == 0
        described = json.loads(capsys.readouterr().out)
        assert "GGUF" in described["stored_bytes"], "it said that the folder has no weights"
        ledger = described["ledger"]
        left = ledger["memory"] - sum(ledger["bytes"].values())
        found += [f"{ledger['bytes']['weights'] / 1e9:.1f} GB"] if memory == "24" else []
        found.append(f"{left / 1e9:.3g} GB" if left > 0 else f"{-left / 1e9:.2f} GB short")
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {kind} |")]
    cells = [cell.strip().partition(";")[0] for cell in row.strip("|").split("|")[1:]]
    assert cells == found


def test_inspect_says_of_a_file_that_it_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "one", TYPES.Q8_0)
    assert main(["inspect", str(tmp_path / "one")]) == 0
    (file,) = (tmp_path / "one").glob("*.gguf")
    os.truncate(file, file.stat().st_size // 2)
    assert main(["inspect", str(tmp_path / "one")]) == 2
    assert "fetch it again" in capsys.readouterr().err


def test_a_factor_that_is_no_number_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "one", TYPES.Q6_K)
    one = stored_in(tmp_path / "one")["blk.1.ffn_gate.weight"]
    raw = np.memmap(tmp_path / "one" / "model.gguf", mode="r+")
    raw[one.data_offset + 208 : one.data_offset + 210] = [0, 0x7C]  # infinity
    raw.flush()
    with pytest.raises(WeightsError, match=r"layers.1.mlp.gate_proj.weight holds NaN or infinity"):
        load_model(tmp_path / "one")


@pytest.mark.parametrize("kind", [TYPES.Q4_0, TYPES.Q4_K], ids=lambda kind: kind.name)
def test_blocks_of_four_bits_multiply_in_tiles(kind: TYPES) -> None:
    """Beside the numbers that the package unpacks, within bfloat16's rounding of scales and sums."""
    draw = torch.Generator().manual_seed(0)
    raw = blocks(kind, torch.randn(48, 512, generator=draw).numpy())
    size = gguf.GGML_QUANT_SIZES[kind][1]
    packed = KINDS[kind.name].read(KINDS[kind.name].format, torch.from_numpy(raw.reshape(48, -1, size)))
    x = torch.randn(70, 512, generator=draw).bfloat16()
    wanted = x.float() @ torch.from_numpy(gguf.dequantize(raw, kind)).T
    found = multiply(x, tile(replace(packed, codes=packed.codes.clone()))).float()
    assert (found - wanted).norm() <= 2**-7 * wanted.norm()


def test_a_file_can_be_packed_again_on_the_way_in(tmp_path: Path) -> None:
    write(tmp_path / "one", TYPES.Q8_0)
    plain = load_model(tmp_path / "one")[0]
    packed = load_model(tmp_path / "one", plan=PLANS["int4"])[0]
    tokens = torch.arange(6)
    logits = [model.denoise(tokens, None, new_prefix(model)) for model in (plain, packed)]
    assert 0 < float((logits[1] - logits[0]).norm() / logits[0].norm()) < 0.5


def test_blocks_that_are_unpacked_are_reported_and_refused_where_they_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of 4 bits takes the memory of its plain numbers; nothing is read before that is known to fit."""
    model = write(tmp_path / "one", TYPES.Q5_K)
    size = sum(tensor.numel() for tensor in model.state_dict().values()) * 2 / 1e9
    lines: list[str] = []
    load_model(tmp_path / "one", dtype=torch.bfloat16, report=lines.append)
    assert f"blocks of Q5_K are unpacked, to {size:.3g} GB of weights; --plan int4 packs them again" in lines[0]
    load_model(tmp_path / "one", plan=PLANS["int4"], report=lines.append)
    assert len(lines) == 1
    monkeypatch.setattr(GgufSource, "read", lambda *_: pytest.fail("a tensor was read"))
    monkeypatch.setattr("redraft.weights.load.free_memory", lambda _: 1_000_000)
    with pytest.raises(RunError, match=r"the model needs 0.0 GB .* of weights\) and 0.0 GB are free; no plan fits"):
        load_model(tmp_path / "one", dtype=torch.bfloat16, report=lines.append)
    assert "are unpacked" in lines[1]


def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "other", TYPES.F32, architecture="gemma4")
    with pytest.raises(WeightsError, match="architecture 'gemma4'; supported: 'diffusion-gemma'"):
        load_model(tmp_path / "other")
    write(tmp_path / "less", TYPES.F32, without="model.decoder.layers.1.router.scale")
    with pytest.raises(WeightsError, match=r"lacks 1 tensors .*layers.1.router.scale"):
        load_model(tmp_path / "less")
    write(tmp_path / "two", TYPES.F32)
    (tmp_path / "two" / "more.gguf").write_bytes(b"x")
    with pytest.raises(WeightsError, match="holds 2 GGUF files"):
        load_model(tmp_path / "two")
    (tmp_path / "two" / "model.gguf").unlink()
    with pytest.raises(WeightsError, match="is damaged or not a GGUF file"):
        load_model(tmp_path / "two")
    whole = (tmp_path / "other" / "model.gguf").read_bytes()
    for kept in (100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "two" / "more.gguf").write_bytes(whole[:kept])
        with pytest.raises(WeightsError, match=r"more.gguf is damaged or not a GGUF file .*; fetch it again"):
            load_model(tmp_path / "two")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(WeightsError, match=r"needs the gguf package; run: pip install 'redraft\[gguf\]'"):
        load_model(tmp_path / "less")
