"""Experts on the host: the same answers, as much memory as planned, refusals by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import Shell, new_prefix, released_json, tiny_checkpoint, tiny_config
from torch import Tensor

import redraft
from redraft.config import CheckpointConfig, GenerationConfig, ModelConfig, parse_model
from redraft.diffusion.noise import SeededNoise
from redraft.engine.events import Block
from redraft.engine.request import Options
from redraft.engine.resolve import build_request
from redraft.engine.runner import run_alone
from redraft.errors import RequestError, RunError
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import Kernels
from redraft.model.moe import experts_grouped
from redraft.weights.load import load_model
from redraft.weights.memory import Room, check_fits, footprint
from redraft.weights.offload import HostExperts, keep_on_host
from redraft.weights.place import Placement
from redraft.weights.plan import PLANS, formats

RELEASED: ModelConfig = parse_model(released_json())[0]
WIDE = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 64}
HOST, HALF = Placement.HOST, torch.bfloat16
GROUPED = Kernels(experts=experts_grouped)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "model"
    tiny_checkpoint(folder, tiny_config(**WIDE))
    return folder


def told(model: DiffusionGemma, seed: int) -> list[list[int]]:
    shipped = CheckpointConfig(model.config, GenerationConfig(max_denoising_steps=5, eos_token_ids=(1,)))
    request = build_request([2, 17, 31, 44, 5, 9], Options(max_tokens=14, seed=seed), shipped)
    return [event.tokens for event in run_alone(model, request, SeededNoise(seed)) if isinstance(event, Block)]


@pytest.mark.parametrize("plan", [None, "int4", "nvfp4"])
def test_answers_with_experts_on_the_host_are_the_same(plain: Path, plan: str | None) -> None:
    chosen = PLANS[plan] if plan else None
    near = load_model(plain, kernels=GROUPED, plan=chosen)[0]
    far = load_model(plain, plan=chosen, placement=HOST)[0]
    for seed in range(3):
        assert told(far, seed) == told(near, seed)
    tokens = torch.arange(6) + 20
    ours, theirs = (model.denoise(tokens, None, new_prefix(model)) for model in (far, near))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("plan", [None, "int4", "nvfp4"])
def test_only_experts_that_rows_are_sent_to_are_copied_into_the_planned_memory(plain: Path, plan: str | None) -> None:
    chosen = PLANS[plan] if plan else None
    model, config = load_model(plain, plan=chosen, placement=HOST)
    sent: list[set[int]] = []

    def spied(experts: Any, x: Tensor, weights: Tensor, numbers: Tensor) -> Tensor:
        sent.append(set(numbers.unique().tolist()))
        return experts_grouped(experts, x, weights, numbers)

    for layer in model.layers:
        layer.kernels = replace(layer.kernels, experts=spied)
    model.encode(torch.tensor([7]), new_prefix(model))
    first = model.layers[0].experts
    assert isinstance(first, HostExperts)
    need = footprint(config.model, torch.float32, formats(config.model, chosen), HOST)
    one = need.host // (2 * config.model.num_experts)
    assert all(len(numbers) == 2 for numbers in sent)
    assert first.courier.copied == sum(map(len, sent)) * one
    assert first.courier.num_bytes == need.weights["experts"] == 2 * one
    whole = footprint(config.model, torch.float32, formats(config.model, chosen))
    assert need.host == whole.weights["experts"]
    assert need.fixed == whole.fixed - need.host + 2 * one


def test_layers_in_different_forms_share_no_places(plain: Path) -> None:
    near, packed = load_model(plain, kernels=GROUPED)[0], load_model(plain, plan=PLANS["int4"])[0]
    near.layers[1].experts = packed.layers[1].experts
    wanted = told(near, 1)
    far = keep_on_host(near)
    assert told(far, 1) == wanted
    assert far.layers[0].experts.courier is not far.layers[1].experts.courier


def test_a_pair_stays_whole_while_it_is_used(plain: Path) -> None:
    """The next expert is fetched while one is multiplied: it must go to the other place."""
    experts = load_model(plain, placement=HOST)[0].layers[0].experts
    for e, (gate_up, down) in zip([3, 0, 2, 1], experts.fetch([3, 0, 2, 1]), strict=True):
        assert torch.equal(gate_up, experts.gate_up[e])
        assert torch.equal(down, experts.down[e])


def test_the_plan_of_memory_offers_the_host_where_a_card_is_too_small() -> None:
    """bfloat16 keeps 4.8 GB on the card and 45.7 GB of experts beside it."""
    need = footprint(RELEASED, HALF, {}, HOST)
    assert need.host == 22_837_985_280 * 2
    assert 4.7e9 < need.fixed < 4.9e9
    with pytest.raises(RunError, match=r"bfloat16 fits with --offload experts, slower, with 45.7 GB"):
        check_fits(RELEASED, HALF, {}, Room(int(8e9), int(64e9), "cuda"), print)
    with pytest.raises(RunError, match=r"bfloat16 with plan int8 fits with --offload experts, slower, with 22.9 GB"):
        check_fits(RELEASED, HALF, {}, Room(int(8e9), int(32e9), "cuda"), print)
    for room in (Room(int(8e9), int(64e9), "cpu"), Room(int(3e9), int(64e9), "cuda")):
        with pytest.raises(RunError) as refused:
            check_fits(RELEASED, HALF, {}, room, print)
        assert "--offload" not in str(refused.value)
    lines: list[str] = []
    check_fits(RELEASED, HALF, {}, Room(int(8e9), int(64e9), "cuda"), lines.append, HOST)
    assert "and 45.7 GB of experts on the host" in lines[0]
    with pytest.raises(RunError, match=r"the experts need 45.7 GB in the processor's memory and 20.0 GB are free"):
        check_fits(RELEASED, HALF, {}, Room(int(8e9), int(20e9), "cuda"), print, HOST)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experts": "elsewhere"}, "experts is 'elsewhere'; supported: device, host"),
        ({"experts": "host"}, "the device is cpu, which is the host"),
    ],
)
def test_a_place_that_cannot_be_had_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        redraft.load("nano-sudoku", **options)


@pytest.mark.parametrize(("flags", "message"), [(["--offload", "experts", "x"], "the device is cpu")])
def test_flags_that_cannot_be_honoured_are_refused(flags: list[str], message: str, shell: Shell) -> None:
    assert message in shell(["generate", *flags], 2).err
