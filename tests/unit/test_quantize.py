"""Packed checkpoints on disk: written, read by others, read back, and refused when they are wrong."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.utils.match import match_name
from safetensors import safe_open
from tests.helpers import (
    DATA,
    Shell,
    alone,
    edit_tensors,
    new_prefix,
    released_json,
    side_by_side,
    tiny_checkpoint,
    tiny_config,
    tiny_model,
)
from torch import Tensor

from redraft.config import CheckpointConfig, GenerationConfig, parse_model
from redraft.engine.loop import Loop
from redraft.engine.request import Options
from redraft.engine.resolve import build_request
from redraft.errors import CallerError, WeightsError
from redraft.model.head import LONG, Head, read_head
from redraft.model.packed import NVFP4, TABLE8, pack, unpack
from redraft.weights.fill import pack_model
from redraft.weights.layouts import matrices, read_layout
from redraft.weights.load import load_model
from redraft.weights.names import slots
from redraft.weights.plan import PLANS, formats, packed_matrices
from redraft.weights.quantize import _SHARD_BYTES, quantization_json, quantize_checkpoint, source_state
from redraft.weights.source import Stored, WeightSource

WRITTEN = [name for name, plan in PLANS.items() if plan.table is None]
WIDE = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 64}
"""Sizes that groups of 64 divide, the dense MLP apart."""
UP = "model.decoder.layers.0.mlp.up_proj"
ROUTER, EMBED = "model.decoder.layers.1.router.proj.weight", "model.decoder.embed_tokens.weight"
EXPERT = "model.decoder.layers.1.experts.3.down_proj"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "model"
    tiny_checkpoint(folder, tiny_config(**WIDE), max_shard_bytes=200_000)
    return folder


def packed_copy(plain: Path, tmp_path: Path, plan: str = "int4", **options: Any) -> Path:
    target = tmp_path / "packed"
    quantize_checkpoint(plain, target, PLANS[plan], **options)
    return target


def their_weights(folder: Path) -> Mapping[str, Tensor]:
    """Every packed weight as compressed-tensors decompresses it, guided by the config alone."""
    settings = QuantizationConfig.model_validate(
        json.loads((folder / "config.json").read_text())["quantization_config"]
    )
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    found = {}
    for prefix in {name.rsplit(".", 1)[0] for name in stored if name.endswith(".weight_scale")}:
        schemes = [s for s in settings.config_groups.values() if any(match_name(prefix, t) for t in s.targets)]
        assert len(schemes) == 1, prefix
        assert not any(match_name(prefix, one) for one in settings.ignore or []), prefix
        compressor = BaseCompressor.get_value_from_registry(schemes[0].format)
        own = {name.removeprefix(f"{prefix}."): t for name, t in stored.items() if name.startswith(f"{prefix}.")}
        found[prefix] = compressor.decompress(own, schemes[0])["weight"].float()
    return found


@pytest.mark.parametrize("plan", WRITTEN)
def test_another_reader_finds_the_weights_that_we_load(plain: Path, tmp_path: Path, plan: str) -> None:
    folder = packed_copy(plain, tmp_path, plan)
    model, config = load_model(folder)
    theirs, held = their_weights(folder), packed_matrices(model)
    seen = 0
    for slot in slots(config.model):
        for matrix in matrices(slot) if slot.target in held else ():
            whole = unpack(held[slot.target].packed)
            ours = (whole if matrix.expert is None else whole[matrix.expert])[matrix.rows]
            torch.testing.assert_close(ours, theirs[matrix.prefix], rtol=1e-2, atol=1e-6)  # they compute in bfloat16
            seen += 1
    assert seen == len(theirs) > 0


@pytest.mark.parametrize("plan", ["int8", "int4", "nvfp4"])
def test_packing_on_the_way_in_equals_packing_in_memory_and_on_disk(plain: Path, tmp_path: Path, plan: str) -> None:
    here = load_model(plain, plan=PLANS[plan])[0]
    disk = load_model(packed_copy(plain, tmp_path, plan))[0]
    memory = pack_model(load_model(plain)[0], PLANS[plan])
    tokens = torch.arange(6) + 20
    logits = [model.denoise(tokens, None, new_prefix(model)) for model in (here, disk, memory)]
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-4)
    assert torch.equal(logits[0], logits[2])


def test_a_target_that_exists_and_a_packed_source_are_refused(plain: Path, tmp_path: Path) -> None:
    folder = packed_copy(plain, tmp_path)
    with pytest.raises(WeightsError, match="exists; give the name of a folder that does not"):
        quantize_checkpoint(plain, folder, PLANS["int4"])
    with pytest.raises(WeightsError, match="is packed already"):
        quantize_checkpoint(folder, tmp_path / "twice", PLANS["int8"])
    with pytest.raises(WeightsError, match="is packed already; plan int8 needs"):
        load_model(folder, plan=PLANS["int8"])


def test_what_cannot_be_loaded_is_not_packed(plain: Path, tmp_path: Path) -> None:
    """What a config does not have was left out without a word, and NaN written into a folder that nothing loads."""
    norm = "model.decoder.norm.weight"

    def surplus(tensors: dict[str, Tensor]) -> None:
        tensors["model.decoder.layers.9.layer_scalar"] = torch.ones(1)

    def broken(tensors: dict[str, Tensor]) -> None:
        tensors[norm] = tensors[norm] * torch.nan

    for change, said in (
        (surplus, "holds 1 tensors that the model in its config.json does not have"),
        (broken, f"{norm} holds NaN or infinity"),
    ):
        folder, target = tmp_path / change.__name__, tmp_path / f"{change.__name__}-packed"
        tiny_checkpoint(folder, tiny_config(**WIDE))
        edit_tensors(folder, change)
        with pytest.raises(WeightsError, match=said):
            quantize_checkpoint(folder, target, PLANS["int8"])
        assert not target.exists()
    blocks = tmp_path / "blocks"
    blocks.mkdir()
    (blocks / "config.json").write_bytes((plain / "config.json").read_bytes())
    (blocks / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(WeightsError, match="holds GGUF, whose blocks are quantized already"):
        quantize_checkpoint(blocks, tmp_path / "blocks-packed", PLANS["int8"])


def test_two_of_one_new_folder_do_not_mix(plain: Path, tmp_path: Path) -> None:
    """The second emptied the folder of the first, or was refused by the system's words for it."""
    stage = tmp_path / ".packed.quantizing"
    stage.mkdir()
    handle = os.open(stage, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)  # as the first one holds it
    (stage / "model-half.safetensors").touch()
    with pytest.raises(CallerError, match="packed is being written by another program; name another place"):
        quantize_checkpoint(plain, tmp_path / "packed", PLANS["int4"])
    assert (stage / "model-half.safetensors").exists()
    os.close(handle)
    quantize_checkpoint(plain, tmp_path / "packed", PLANS["int4"])
    assert not (tmp_path / "packed" / "model-half.safetensors").exists()


def test_a_folder_of_somebody_elses_is_not_emptied(plain: Path, tmp_path: Path) -> None:
    """Its name is known beforehand: what lay there was deleted, and behind a link, too."""
    stage = tmp_path / ".packed.quantizing"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    stage.symlink_to(tmp_path / "mine")
    with pytest.raises(CallerError, match="is a link, and what it leads to is not ours"):
        quantize_checkpoint(plain, tmp_path / "packed", PLANS["int4"])
    stage.unlink()
    (tmp_path / "mine").rename(stage)
    with pytest.raises(CallerError, match=r"holds thesis.txt, which this did not write; remove the folder"):
        quantize_checkpoint(plain, tmp_path / "packed", PLANS["int4"])
    assert (stage / "thesis.txt").exists()


@pytest.mark.parametrize(
    "progress",
    [b"", b"[]", b'{"making": 5}', b'{"making": MAKING}', b'{"making": MAKING, "done": 5}']
    + [
        b'{"making": MAKING, "done": {"model.safetensors": %s}}' % done
        for done in (b"5", b'{"a": [1]}', b'{"a": [1, 1]}')
    ]
    + [b'{"making": MAKING, "done": {"x": {"a": ["b", "c"]}}}', b'{"making": MAKING, "done": {"config.json": {}}}'],
)
def test_progress_that_cannot_be_is_none(progress: bytes, plain: Path, tmp_path: Path) -> None:
    """It was an internal error, or a shard of it was taken for one that is written."""
    whole, stage = packed_copy(plain, tmp_path / "whole"), tmp_path / ".again.quantizing"
    stage.mkdir()
    (stage / "model.safetensors").write_bytes(b"half")
    (stage / "config.json").write_bytes(b"half")
    making = {"plan": "int4", "shards": _SHARD_BYTES, "source": source_state([plain])}
    (stage / "progress.json").write_bytes(progress.replace(b"MAKING", json.dumps(making).encode()))
    quantize_checkpoint(plain, tmp_path / "again", PLANS["int4"])
    for path in whole.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name
    assert len(list((tmp_path / "again").iterdir())) == len(list(whole.iterdir()))


def test_modelopt_files_are_read(plain: Path, tmp_path: Path) -> None:
    """The same nvfp4 numbers under modelopt's names, with the scales of activations and caches it adds."""
    folder = packed_copy(plain, tmp_path, "nvfp4-experts")
    before = load_model(folder)[0].denoise(torch.arange(6), None, new_prefix(load_model(folder)[0]))

    def rename(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.endswith(".weight_packed")]:
            prefix = name.removesuffix(".weight_packed")
            tensors[f"{prefix}.weight"] = tensors.pop(name)
            tensors[f"{prefix}.weight_scale_2"] = 1 / tensors.pop(f"{prefix}.weight_global_scale")[0]
            tensors[f"{prefix}.input_scale"] = torch.tensor(0.5)

    edit_tensors(folder, rename)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    (folder / "config.json").write_text(json.dumps(config))
    lines: list[str] = []
    model = load_model(folder, report=lines.append)[0]
    torch.testing.assert_close(model.denoise(torch.arange(6), None, new_prefix(model)), before, rtol=1e-6, atol=1e-6)
    assert any("24 scales of activations" in line for line in lines), lines


def drop(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.pop(name)


def put(
    name: str, make: Callable[[Tensor], Tensor], source: str | None = None
) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({name: make(tensors[source or name])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop(f"{UP}.weight_scale"), r"up_proj.weight has no weight_scale beside it"),
        (
            put(f"{UP}.weight_scale", lambda t: t[:-1].clone()),
            r"up_proj.weight_scale has shape \[95, 1\]; int8 makes it",
        ),
        (
            put(f"{UP}.weight_scale", lambda t: t.to(torch.int8)),
            r"up_proj.weight_scale is stored as I8; int8 has scales",
        ),
        (
            put(f"{UP}.weight", lambda t: t[:, :-1].clone()),
            r"up_proj.weight has shape \[96, 63\]; config.json makes it",
        ),
        (put(f"{UP}.weight", lambda t: t.to(torch.int16)), r"up_proj.weight is stored as I16; supported: plain"),
        (put(f"{EXPERT}.weight_scale", lambda t: t[:, :1].repeat(1, 4)), r"groups of 16; supported: 32, 64, 128"),
        (put(f"{EXPERT}.weight_packed", lambda t: t.repeat(1, 2)), r"down_proj.weight_packed has shape \[64, 16\]"),
        (put(f"{UP}.weight_zero_point", torch.clone, f"{UP}.weight_scale"), r"zero point .*; int8 is read without"),
        (put(f"{EXPERT}.weight_g_idx", torch.clone, f"{EXPERT}.weight_packed"), r"has an order of inputs"),
        (drop(f"{EXPERT}.weight_packed"), r"lacks model.decoder.layers.1.experts.3.down_proj, but has other parts"),
        (put(f"{EXPERT}.weight_scale", lambda t: t * torch.nan), r"holds NaN or infinity"),
        (put(ROUTER, lambda t: t.to(torch.int8)), r"router.proj.weight is stored as I8; supported: F32, BF16, F16"),
        (put(EMBED, lambda t: t.to(torch.int8)), r"embed_tokens.weight is stored as I8; supported: F32, BF16, F16"),
        (
            put(f"{UP}.weight", torch.Tensor.float),
            r"layers.0.mlp.gate_up.weight is stored partly packed and partly plain",
        ),
        (
            put(f"{EXPERT}.weight_scale", torch.Tensor.half),
            r"3.down_proj is stored as int4 with torch.float16 scales, oth",
        ),
        (put("model.decoder.layers.9.mlp.up_proj.weight", torch.clone, f"{UP}.weight"), r"does not have"),
    ],
)
def test_damaged_packed_files_are_refused_by_name(
    plain: Path, tmp_path: Path, change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    folder = packed_copy(plain, tmp_path)
    edit_tensors(folder, change)
    with pytest.raises(CallerError, match=message):
        load_model(folder)


def test_a_global_scale_of_another_kind_is_refused_by_name(plain: Path, tmp_path: Path) -> None:
    folder = packed_copy(plain, tmp_path, "nvfp4")
    edit_tensors(folder, put(f"{UP}.weight_global_scale", lambda t: t.repeat(2)))
    with pytest.raises(WeightsError, match=r"up_proj.weight_global_scale is F32 \[2\]; it must be one F32 number"):
        load_model(folder)


@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_fits_the_real_shapes(plan: str) -> None:
    """704 and 2112 are not multiples of 128: groups must divide them."""
    found = formats(parse_model(released_json())[0], PLANS[plan])
    parts = {target.split(".")[2] for target in found if target != "embed.weight"}
    assert "experts" in parts
    assert not parts - {"experts", "attention", "mlp"}
    if plan in WRITTEN:
        QuantizationConfig.model_validate(quantization_json(found))
    assert (NVFP4 in found.values()) == plan.startswith("nvfp4")


def test_the_command_writes_scores_and_refuses(plain: Path, tmp_path: Path, shell: Shell) -> None:
    out = tmp_path / "packed"
    found = json.loads(shell(["quantize", str(plain), "--plan", "int4", "--out", str(out), "--json"]).out)
    assert found["plan"] == "int4"
    assert found["bytes_after"] == (out / "model.safetensors").stat().st_size
    assert "exists; give the name" in shell(["quantize", str(plain), "--plan", "int4", "--out", str(out)], 2).err
    for wrong, message in (
        (["--plan", "int3"], "plan is 'int3'; supported: int8, int4"),
        (["--plan", "int4-g64-e8"], "packs the embedding table, which files have plain; use --plan on loading"),
        (["--plan", "int4", "--eval", "0"], "--eval is 0; it must be at least 1"),
        (["--plan", "int4", "--task", "records"], "--task is records without --eval"),
    ):
        assert message in shell(["quantize", str(plain), "--out", str(tmp_path / "x"), *wrong], 2).err


def test_nano_answers_as_before_in_eight_bits(tmp_path: Path, shell: Shell) -> None:
    out = tmp_path / "nano-int8"
    command = [
        "quantize",
        "nano-sudoku",
        "--plan",
        "int8",
        "--out",
        str(out),
        "--eval",
        "8",
        "--task",
        "records",
        "--json",
    ]
    found = json.loads(shell(command).out)
    assert found["before"][0]["exact"] == found["after"][0]["exact"] == 1.0


def test_one_matrix_is_read_at_a_time(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The released model's largest stack of experts is 1 GB, and its files are 50."""
    sizes: list[int] = []

    def spied(name: str) -> None:
        kept = getattr(WeightSource, name)

        def read(self: WeightSource, *given: Any) -> Tensor:
            found: Tensor = kept(self, *given)
            sizes.append(found.numel())
            return found

        monkeypatch.setattr(WeightSource, name, read)

    spied("read")
    spied("read_rows")
    packed_copy(plain, tmp_path)
    config = tiny_config(**WIDE)
    one_expert = 2 * config.moe_intermediate_size * config.hidden_size
    assert max(sizes) == max(one_expert, config.num_heads * 16 * config.hidden_size), "never a stack of experts"


@pytest.mark.parametrize("plan", ["int8", "int4"])
def test_a_packed_answer_does_not_depend_on_its_neighbours(plan: str) -> None:
    """Bit for bit, with matrices multiplied as integers and with unpacked ones."""
    config = replace(tiny_config(**WIDE), canvas_length=7)
    model = pack_model(tiny_model(config), PLANS[plan])
    shipped = CheckpointConfig(config, GenerationConfig(max_denoising_steps=5, eos_token_ids=(1,)))
    requests = [build_request([2] * (1 + 4 * seed), Options(max_tokens=14, seed=seed), shipped) for seed in range(3)]
    assert side_by_side(Loop(model), requests) == alone(model, requests)


def real_headers(pack_it: Callable[[str], str | None]) -> dict[str, Stored]:
    """Headers of a published checkpoint of the released shapes: linear layers that `pack_it` names are packed."""
    shapes = json.loads((DATA / "real_26b_tensors.json").read_text())
    layers: dict[str, tuple[int, ...]] = {}
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, shape in shapes.items():
        if ".experts." in name:  # published files hold experts one by one
            base, kind = name.rsplit(".", 1)
            parts = {"gate_proj": 2, "up_proj": 2} if kind == "gate_up_proj" else {"down_proj": 1}
            layers |= {
                f"{base}.{e}.{part}": (shape[1] // cut, shape[2])
                for e in range(shape[0])
                for part, cut in parts.items()
            }
        elif name.endswith("_proj.weight") and "vision" not in name:
            layers[name.removesuffix(".weight")] = tuple(shape)
        else:
            found[name] = (tuple(shape), "BF16")
    for prefix, (outer, inner) in layers.items():
        kind = pack_it(prefix)
        if kind == "fp8":
            found |= {f"{prefix}.weight": ((outer, inner), "F8_E4M3"), f"{prefix}.weight_scale": ((outer, 1), "BF16")}
        elif kind == "nvfp4":
            found |= {
                f"{prefix}.weight": ((outer, inner // 2), "U8"),
                f"{prefix}.weight_scale": ((outer, inner // 16), "F8_E4M3"),
                f"{prefix}.weight_scale_2": ((), "F32"),
                f"{prefix}.input_scale": ((), "F32"),
            }
        else:
            found[f"{prefix}.weight"] = ((outer, inner), "BF16")
    return {name: Stored(name, shape, dtype, Path("x")) for name, (shape, dtype) in found.items()}


def test_the_published_nvfp4_checkpoint_is_recognised_and_as_large_as_it_is() -> None:
    """Experts only, under modelopt's names; 18,823,855,888 bytes with headers and the scales of the cache."""
    config = parse_model(released_json())[0]
    headers = real_headers(lambda prefix: "nvfp4" if ".experts." in prefix else None)
    found = read_layout(headers, slots(config), {"quant_method": "modelopt"})
    assert found.formats.keys() == formats(config, PLANS["nvfp4-experts"]).keys()
    assert len(found.unread) == 30 * 128 * 3
    width = {"BF16": 2, "U8": 1, "F8_E4M3": 1, "F32": 4}
    size = sum(prod(stored.shape) * width[stored.dtype] for stored in headers.values())
    assert 0 < 18_823_855_888 - size < 10_000_000


@pytest.mark.parametrize("long", [False, True])
def test_a_packed_table_reads_as_its_numbers_do(long: bool) -> None:
    """Looked up, as the head, fed back, and as a stream: against a model whose plain table holds the same numbers."""
    config = tiny_config(**WIDE, vocab_size=LONG if long else 64)
    plain = tiny_model(config)
    packed = pack_model(tiny_model(config), PLANS["int4-g64-e8"])
    twin = pack_model(plain, PLANS["int4-g64"])
    exact = twin.embed.weight.clone()
    twin.embed.weight.copy_(unpack(pack(exact, TABLE8)))
    off = float((twin.embed.weight - exact).norm() / exact.norm())
    assert 0.001 < off < 0.01, "8 bits a number, and rounded"
    tokens, draw = torch.arange(6) + 20, torch.Generator().manual_seed(2)
    soft = torch.randn(6, 64, generator=draw)
    ours, theirs = (model.denoise(tokens, soft, new_prefix(model)) for model in (packed, twin))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    shares = torch.softmax(torch.randn(6, config.vocab_size, generator=draw), -1)
    torch.testing.assert_close(packed.soften(shares), twin.soften(shares), rtol=1e-5, atol=1e-5)
    uniform, warm = torch.rand(6, generator=draw), torch.full((6, 1), 0.7)
    read = [read_head(soft, Head(model.table, 30.0), warm, uniform) for model in (packed, twin)]
    assert torch.equal(read[0].argmax, read[1].argmax)
    assert torch.equal(read[0].sample, read[1].sample)
    torch.testing.assert_close(read[0].soft, read[1].soft, rtol=1e-4, atol=1e-4)


def test_an_interrupted_run_goes_on_and_ends_the_same(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began anew where the weights are in another folder, and the first was named from here and then in full."""
    other = WeightSource(Path(shutil.copytree(plain, tmp_path / "other", copy_function=shutil.copy)))
    monkeypatch.chdir(plain.parent)
    whole = packed_copy(plain, tmp_path / "whole", max_shard_bytes=60_000)
    target, writes = tmp_path / "again", []

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(
            Path(plain.name), target, PLANS["int4"], max_shard_bytes=60_000, progress=stop, source=other
        )
    assert not target.exists()
    stage = tmp_path / ".again.quantizing"
    before = {path.name: path.stat().st_mtime_ns for path in stage.glob("*.safetensors")}
    assert before
    short = stage / min(before)  # a disk lost its end: it is written again
    short.write_bytes(short.read_bytes()[:-1])
    del before[short.name]
    (part := next(stage.glob("*.part"))).unlink()
    part.symlink_to(tmp_path / "mine")  # through which the rest of the shard was written
    (stage / ".config.json.0123abcd").write_text("of a killed one")  # it was in the finished folder
    quantize_checkpoint(
        plain, target, PLANS["int4"], max_shard_bytes=60_000, progress=lambda *done: writes.append(done), source=other
    )
    assert {path.name for path in target.iterdir()} == {path.name for path in whole.iterdir()}
    assert {name: (target / name).stat().st_mtime_ns for name in before} == before
    assert writes[-1][0] == writes[-1][1]
    assert not (tmp_path / "mine").exists()
    for path in whole.iterdir():
        assert (target / path.name).read_bytes() == path.read_bytes(), path.name
    assert not stage.exists()


def test_nothing_is_done_twice(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link without an end was found behind all the work, which was then done again from its beginning."""
    stage, target, move = tmp_path / ".packed.quantizing", tmp_path / "packed", os.replace
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda one, other: other == target or move(one, other))
        with pytest.raises(WeightsError, match="cannot be made"):
            packed_copy(plain, tmp_path)
    with pytest.raises(WeightsError, match="File name too long; give another folder"):
        quantize_checkpoint(plain, tmp_path / ("a" * 250), PLANS["int8"])
    target.symlink_to(tmp_path / "absent")
    with pytest.raises(WeightsError, match="packed exists; give the name of a folder that does not"):
        packed_copy(plain, tmp_path)
    target.unlink()
    made = (stage / "model.safetensors").stat().st_mtime_ns
    packed_copy(plain, tmp_path)
    assert (target / "model.safetensors").stat().st_mtime_ns == made
