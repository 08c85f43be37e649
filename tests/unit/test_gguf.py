"""GGUF files, written and unpacked by the package that defines them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tests.helpers import new_prefix, tiny_config, tiny_json, tiny_model

from redraft.errors import RunError, WeightsError
from redraft.model.gemma import DiffusionGemma
from redraft.model.packed import unpack
from redraft.weights.gguf import ARCHITECTURE, GgufSource, released_name
from redraft.weights.load import load_model
from redraft.weights.names import slots
from redraft.weights.plan import PLANS, packed_matrices

SIZES = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 96}
TYPES = gguf.GGMLQuantizationType
# The names that llama.cpp's converter gives to the released ones, written out once more.
NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "layer_scalar": "layer_output_scale.weight",
}


def theirs() -> dict[str, str]:
    """Released name -> GGUF name of every tensor, by trying every name that GGUF files of the kind hold."""
    ends = (
        "attn_norm post_attention_norm ffn_norm pre_ffw_norm_2 post_ffw_norm_1 post_ffw_norm_2 post_ffw_norm"
        " attn_q attn_k attn_v attn_output attn_q_norm attn_k_norm ffn_gate ffn_up ffn_down ffn_gate_inp"
        " ffn_gate_up_exps ffn_down_exps layer_output_scale enc_layer_output_scale"
    )
    names = [f"blk.{i}.{end}.weight" for i in range(2) for end in ends.split()]
    names += [f"blk.{i}.{end}.scale" for i in range(2) for end in ("ffn_gate_inp", "ffn_down_exps")]
    names += ["token_embd.weight", "output_norm.weight"]
    names += [f"self_cond_{end}.weight" for end in ("pre_norm", "gate", "up", "down")]
    return {released_name(name): name for name in names}


def write(
    folder: Path, kind: TYPES, *, architecture: str = ARCHITECTURE, without: str = "", other: str = ""
) -> DiffusionGemma:
    """A file of a random model, its matrices in `kind` where the kind allows, those of `other` in Q8_0; returns the
    model it was made from."""
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
        own = TYPES.Q8_0 if other and slot.stored.endswith(other) else kind
        block = gguf.GGML_QUANT_SIZES[own][0]
        if values.ndim >= 2 and values.shape[-1] % block == 0 and own is not TYPES.F32:
            raw = random_blocks(own, values.shape) if own is TYPES.Q4_K else gguf.quantize(values, own)
            writer.add_tensor(names[slot.stored], raw, raw_dtype=own)
        else:
            writer.add_tensor(names[slot.stored], values.astype(np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return model


def random_blocks(kind: TYPES, shape: tuple[int, ...]) -> np.ndarray:
    """Bytes of a kind that the package can only unpack: random ones with sane scales."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 256, (*shape[:-1], shape[-1] // block, size), dtype=np.uint8)
    raw[..., :4] = np.array([0.001, 0.001], dtype=np.float16).view(np.uint8)
    return raw.reshape(*shape[:-1], -1)


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


@pytest.mark.parametrize("kind", [TYPES.Q8_0, TYPES.Q4_K, TYPES.BF16], ids=lambda kind: kind.name)
def test_packed_numbers_are_what_their_package_unpacks(tmp_path: Path, kind: TYPES) -> None:
    write(tmp_path / "one", kind)
    model, config = load_model(tmp_path / "one")
    stored = {one.name: one for one in gguf.GGUFReader(tmp_path / "one" / "model.gguf").tensors}
    ours, kinds = model.state_dict(), set()
    for slot in slots(config.model):
        one = stored[theirs()[slot.stored]]
        kinds.add(one.tensor_type)
        wanted = torch.from_numpy(gguf.dequantize(one.data, one.tensor_type).copy()).reshape(slot.shape)
        assert torch.equal(ours[slot.target][slot.rows], wanted), slot.stored
    assert kind in kinds


def test_blocks_of_q4_0_are_kept_bit_for_bit(tmp_path: Path) -> None:
    """Codes and scales as the file has them: unpacked, they are the numbers of the package that defines them."""
    write(tmp_path / "one", TYPES.Q4_0)
    lines: list[str] = []
    model, config = load_model(tmp_path / "one", report=lines.append)
    stored = {one.name: one for one in gguf.GGUFReader(tmp_path / "one" / "model.gguf").tensors}
    ours, packed = model.state_dict(), packed_matrices(model)
    assert {name.split(".", 2)[2] for name in packed} == {
        *("attention.qkv.weight", "attention.out.weight", "mlp.gate_up.weight", "mlp.down.weight"),
        *("experts.gate_up", "experts.down"),
    }
    for slot in slots(config.model):
        one = stored[theirs()[slot.stored]]
        wanted = torch.from_numpy(gguf.dequantize(one.data, one.tensor_type).copy()).reshape(slot.shape)
        found = unpack(packed[slot.target].packed) if slot.target in packed else ours[slot.target]
        assert torch.equal(found[slot.rows], wanted), slot.stored
        if slot.target in packed:
            assert packed[slot.target].format.num_bytes(slot.num_elements // 32, 32) == one.n_bytes
    assert "blocks of Q4_0 are unpacked" in lines[0], "the table, routers and self-conditioning are"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_of_kept_blocks_equals_one_that_is_unpacked(
    tmp_path: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "one", TYPES.Q4_0)
    kept = load_model(tmp_path / "one", dtype=dtype)[0]
    monkeypatch.setattr(GgufSource, "kept", lambda *_: {})
    plain = load_model(tmp_path / "one", dtype=dtype)[0]
    assert packed_matrices(kept)
    assert not packed_matrices(plain)
    tokens = torch.arange(6)
    logits = [model.denoise(tokens, None, new_prefix(model)).float() for model in (plain, kept)]
    assert (logits[1] - logits[0]).norm() <= (1e-5 if dtype == torch.float32 else 0.03) * logits[0].norm()


def test_a_matrix_that_is_not_q4_0_in_every_part_is_unpacked(tmp_path: Path) -> None:
    """A part of one matrix, and one of a pair of experts' matrices."""
    write(tmp_path / "one", TYPES.Q4_0, other="experts.down_proj")
    names = {name.split(".", 2)[2] for name in packed_matrices(load_model(tmp_path / "one")[0])}
    assert names == {"attention.qkv.weight", "attention.out.weight", "mlp.gate_up.weight", "mlp.down.weight"}
    write(tmp_path / "two", TYPES.Q4_0, other="0.self_attn.k_proj.weight")
    names = set(packed_matrices(load_model(tmp_path / "two")[0]))
    assert "layers.0.attention.qkv.weight" not in names
    assert {"layers.1.attention.qkv.weight", "layers.0.experts.down"} <= names


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
    model = write(tmp_path / "one", TYPES.Q4_K)
    size = sum(tensor.numel() for tensor in model.state_dict().values()) * 2 / 1e9
    lines: list[str] = []
    load_model(tmp_path / "one", dtype=torch.bfloat16, report=lines.append)
    assert f"blocks of Q4_K are unpacked, to {size:.3g} GB of weights; --plan int4 packs them again" in lines[0]
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
