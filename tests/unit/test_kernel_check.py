"""The self-check: a kernel that is wrong or does not run is replaced by its twin, is reported, and is remembered."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason=f"there is no triton for {sys.platform}")

from tests.helpers import released_json, tiny_config, tiny_model, with_kernels

from redraft.cli import doctor
from redraft.config import parse_model
from redraft.engine import kernel_check
from redraft.engine.kernel_check import AGREES, checked, key_of, known, results
from redraft.model.gemma import DiffusionGemma
from redraft.model.gpu import attention, dense, experts, tiles
from redraft.model.gpu.kernels import GPU
from redraft.model.head import pass_tiles
from redraft.model.kernels import FAST, Kernels, norm_fused
from redraft.model.linear import multiply_packed
from redraft.model.moe import PackedExperts, experts_grouped, experts_library
from redraft.model.packed import INT8_G32
from redraft.weights.build import empty_model
from redraft.weights.plan import PLANS, formats, make_room, packed_matrices
from redraft.weights.quantize import pack

pytestmark = pytest.mark.usefixtures("own_cache")


def ours(*args: Any, **named: Any) -> Any:
    return norm_fused(*args, **named)


def right_experts(*args: Any) -> Any:
    return experts_grouped(*args)


def one_expert_left_out(experts: Any, x: Any, weights: Any, chosen: Any) -> Any:
    return experts_grouped(experts, x, weights * (chosen != 3), chosen)


def does_not_compile(*_: Any, **__: Any) -> Any:
    raise RuntimeError("PassManager::run failed\nat line 3")


def wrong_head(*args: Any, **named: Any) -> Any:
    found = pass_tiles(*args, **named)
    return replace(found, soft=found.soft.roll(1, 0))


def nan_layer(layer: Any, x: Any, rows: Any) -> Any:
    plain = replace(layer.kernels, layer=None)
    layer.kernels, own = plain, layer.kernels
    try:
        found = layer(x, rows)
    finally:
        layer.kernels = own
    return torch.where(torch.arange(len(found))[:, None] == 5, torch.nan, found)


def model_on(**forms: Any) -> DiffusionGemma:
    return with_kernels(tiny_model(tiny_config(num_experts=6)), replace(FAST, **forms))


def pack_tensors(model: DiffusionGemma, names: list[str]) -> DiffusionGemma:
    """The same model with these of its tensors packed."""
    plain = dict(model.state_dict())
    for name, matrix in packed_matrices(make_room(model, dict.fromkeys(names, INT8_G32))).items():
        matrix.take(pack(plain[name], INT8_G32))
    return model


@pytest.mark.parametrize(
    ("forms", "wrong"),
    [
        ({"norm": ours, "experts": right_experts}, {}),
        ({"experts": one_expert_left_out}, {"experts": "the experts' sum of 6 rows is off by"}),
        ({"norm": does_not_compile, "experts": right_experts}, {"norm": "RuntimeError: PassManager::run failed"}),
        ({"head": wrong_head}, {"head": "the soft embedding is off by"}),
        ({"layer": nan_layer}, {"layer": "a sliding layer's rows in a forward of 44 is off by nan"}),
    ],
)
def test_a_kernel_that_disagrees_or_fails_is_replaced_and_reported(
    forms: dict[str, Any], wrong: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    model, lines = model_on(**forms), list[str]()
    found = checked(model, lines.append)
    assert {part for part, why in found.items() if why != AGREES} == set(wrong)
    assert set(found) == set(forms)
    for part, why in wrong.items():
        assert found[part].startswith(why)
        said = [line for line in lines if line.startswith(f"the kernel of {part} is not used, plain torch takes its")]
        assert len(said) == 1
        assert all(getattr(one.kernels, part) is getattr(FAST, part) for one in (model, *model.layers))
    for part in set(forms) - set(wrong):
        assert getattr(model.layers[0].kernels, part) is forms[part]
    assert lines[0].startswith("comparing the kernel of ")


def test_a_result_is_kept_and_belongs_to_a_card_its_software_and_these_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    first, lines = model_on(experts=does_not_compile), list[str]()
    checked(first, lines.append)
    again = model_on(experts=does_not_compile)
    lines.clear()
    checked(again, lines.append)
    assert len(lines) == 1, "only what is not used is said again"
    assert again.kernels.experts is FAST.experts
    assert len(list(results().iterdir())) == 1
    for change in ("driver", "_triton", "_sources"):
        monkeypatch.setattr(kernel_check, change, lambda: "another")
        lines.clear()
        checked(model_on(experts=does_not_compile), lines.append)
        assert len(lines) == 3, change
    wider = with_kernels(tiny_model(tiny_config(num_experts=5)), again.kernels)
    assert key_of(wider) != key_of(again)
    deeper = tiny_config(num_experts=6)
    deeper = replace(deeper, layers=deeper.layers * 3)
    assert key_of(with_kernels(tiny_model(deeper), again.kernels)) == key_of(again), "layers of the same shapes"
    path = next(results().iterdir())
    path.write_text("{")
    list(known())
    path.write_text(json.dumps({"found": {"unheard": "agrees"}, "key": {}}))
    list(known())


def test_products_are_checked_in_the_format_of_the_checkpoint() -> None:
    config = tiny_config(hidden_size=64, intermediate_size=64, moe_intermediate_size=64, num_experts=6)
    packed = formats(config, PLANS["int4"])

    def off_by_a_tenth(x: Any, weight: Any) -> Any:
        return multiply_packed(x, weight) * (1.1 if len(x) == 1 else 1.0)

    for form, wrong in ((off_by_a_tenth, True), (lambda x, weight: multiply_packed(x, weight), False)):
        model = empty_model(config, dtype=torch.float32, device="cpu", kernels=Kernels(product=form), packed=packed)
        draw = torch.Generator().manual_seed(1)
        for module in model.modules():
            if hasattr(module, "take"):
                shape = module.packed.shape
                module.take(pack(torch.randn(shape, generator=draw), module.format))
        found = checked(model.requires_grad_(False), lambda _: None, kept=False)["product"]
        assert found.startswith("a product of 1 rows with ") == wrong, found
        products = {module.product for module in model.modules() if hasattr(module, "product")}
        assert products == {multiply_packed if wrong else form}
    assert not results().exists()


def test_experts_are_checked_in_every_format_of_the_checkpoint() -> None:
    """Layers of a GGUF file may have two; the first layer alone was looked at."""
    config = tiny_config(hidden_size=64, intermediate_size=64, moe_intermediate_size=64, num_experts=6)
    names = [f"layers.1.experts.{name}" for name in ("gate_up", "down")]

    def packed_off(experts: Any, *rest: Any) -> Any:
        return experts_grouped(experts, *rest) * (1.1 if isinstance(experts, PackedExperts) else 1.0)

    for form, wrong in ((packed_off, True), (right_experts, False)):
        model = pack_tensors(with_kernels(tiny_model(config), replace(FAST, experts=form)), names)
        found = checked(model, lambda _: None, kept=False)["experts"]
        assert found.startswith("the experts' sum of 6 rows is off by") == wrong, found


def test_doctor_says_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: kernel_check.platform.machine())
    (nothing,) = doctor._kernels()
    assert "yet; the first load does" in nothing.found
    checked(model_on(experts=does_not_compile, norm=ours), lambda _: None)
    (found,) = doctor._kernels()
    assert found.state == "slow"
    assert "experts: RuntimeError: PassManager::run failed" in found.found
    assert "norm" not in found.found


ARCHS = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}  # KiB of shared memory that a program has


@pytest.mark.parametrize("plan", [None, "int8", "int4", "nvfp4"])
@pytest.mark.parametrize("arch", ARCHS)
def test_every_tile_that_forwards_of_the_26b_model_use_is_checked(
    arch: int, plan: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 513 rows on experts have other tiles than one canvas, attention on compute 9.0 from 509 and from 1,024."""
    for module in (tiles, experts, attention):
        monkeypatch.setattr(module, "shared_memory", lambda _: ARCHS[arch] * 1024 - tiles.SPARE)
        monkeypatch.setattr(module, "is_compute_10", lambda: arch == 100)
    tried, usable = set[Any](), dict[Any, set[Any]]()

    def note(part: Any, rows: int, tile_of: Any) -> None:
        tried.add((part, tile_of(rows)))
        if part not in usable:
            usable[part] = {(part, tile_of(n)) for n in range(1, 12 * 256 + 1)}

    def product(x: Any, weight: Any) -> Any:
        note(tuple(weight.shape), len(x), lambda n: dense.dense_tile(weight, n))
        return x

    def mixed(held: Any, x: Any, weights: Any, chosen: Any) -> Any:
        note("experts", chosen.numel() // 8, lambda n: experts.experts_tiles(held.gate_up, n / 16, x.dtype))
        return x

    def layer(held: Any, x: Any, _: Any) -> Any:
        q = torch.empty(1, 16, held.attention.layer.head_dim, dtype=x.dtype)
        note(tuple(q.shape), len(x), lambda n: attention.attention_tile(q.expand(n, -1, -1)))
        return x

    config = parse_model(released_json())[0]
    config, noting = replace(config, layers=config.layers[:6]), Kernels(experts=mixed, layer=layer, product=product)
    packed = formats(config, PLANS[plan] if plan else None)
    model = empty_model(config, dtype=torch.bfloat16, device="meta", kernels=noting, packed=packed)
    monkeypatch.setattr(kernel_check, "FAST", noting)
    monkeypatch.setattr(kernel_check, "off", lambda *_: 0.0)
    monkeypatch.setattr(kernel_check, "_random", lambda _, *shape: torch.empty(shape, dtype=model.dtype, device="meta"))
    for check in (kernel_check._product, kernel_check._experts, kernel_check._layers):
        assert len(list(check(model))) < 50
    assert tried == set[Any]().union(*usable.values())
    assert len(usable) >= 3


@pytest.mark.slow
def test_our_kernels_agree_under_the_interpreter() -> None:
    config = tiny_config(hidden_size=64, intermediate_size=96, moe_intermediate_size=64, head_dim=16, num_experts=6)
    model = with_kernels(tiny_model(replace(config, canvas_length=16)), replace(GPU, condition=None))
    found = checked(model, lambda _: None, kept=False)
    assert found == dict.fromkeys(("norm", "product", "experts", "head", "layer"), AGREES)


def test_the_experts_place_is_taken_by_the_library_where_it_agrees() -> None:
    config = tiny_config(hidden_size=64, intermediate_size=64, moe_intermediate_size=64, num_experts=6)
    model = with_kernels(tiny_model(config).bfloat16(), Kernels(experts=does_not_compile))
    lines: list[str] = []
    found = checked(model, lines.append, kept=False)
    assert found["library"] == AGREES, found
    assert model.layers[0].kernels.experts is experts_library
    assert any("torch's grouped matmuls take its place" in line for line in lines)
