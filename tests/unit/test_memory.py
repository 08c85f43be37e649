"""The memory plan: equal to what is allocated where it can be allocated, and to the published sizes where it cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
from tests.helpers import DATA, released_json, tiny_checkpoint, tiny_config

from redraft.cache import Prefix
from redraft.config import ModelConfig, parse_model
from redraft.errors import RunError
from redraft.model.packed import INT4
from redraft.weights import load
from redraft.weights.build import empty_model
from redraft.weights.load import load_model
from redraft.weights.memory import STEP_LOGITS, Room, check_fits, footprint, free_memory
from redraft.weights.names import slots
from redraft.weights.plan import PLANS, formats

RELEASED: ModelConfig = parse_model(released_json())[0]
HALF = torch.bfloat16


def need(plan: str | None, config: ModelConfig = RELEASED, dtype: torch.dtype = HALF):
    return footprint(config, dtype, formats(config, PLANS[plan]) if plan else {})


@pytest.mark.parametrize("plan", [None, *PLANS])
def test_weights_are_counted_as_they_are_allocated(plan: str | None) -> None:
    config = tiny_config(hidden_size=64, intermediate_size=96, moe_intermediate_size=64)
    packed = formats(config, PLANS[plan]) if plan else {}
    model = empty_model(config, dtype=HALF, device="cpu", packed=packed)
    held = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    assert need(plan, config).fixed == held


def test_the_cache_is_counted_as_it_is_allocated() -> None:
    config = replace(tiny_config(), layers=tiny_config().layers * 3)
    rooms = [Prefix(config.layers, room=room, dtype=HALF).num_bytes for room in (500, 1500)]
    found = need(None, config)
    assert rooms[1] - rooms[0] == 1000 * found.token
    soft = 2 * 4 * config.canvas_length * config.hidden_size
    assert rooms[0] == found.request - soft + 500 * found.token


def test_the_released_model_is_as_large_as_its_tensors() -> None:
    """51,647,562,456 bytes of the released files less the vision tower; 26.3 GB in fp8, experts of 4.5 bits."""
    shapes = json.loads((DATA / "real_26b_tensors.json").read_text())
    text = {name: prod(shape) for name, shape in shapes.items() if "vision" not in name}
    assert need(None).fixed == 2 * sum(text.values())
    experts = sum(size for name, size in text.items() if ".experts." in name)
    assert need("nvfp4-experts").weights["experts"] == pytest.approx(experts * 4.5 / 8, rel=0.01)
    assert need("int4").weights["experts"] == experts * 4.5 / 8
    packed = sum(size for name, size in text.items() if any(part in name for part in (".experts.", ".mlp.", "_proj.")))
    assert need("fp8").fixed == pytest.approx(2 * sum(text.values()) - packed, rel=0.005)


@pytest.mark.parametrize(
    ("plan", "memory", "context"),
    [("int4", 18e9, 8192), ("int4", 24e9, 32768), ("nvfp4", 24e9, 32768), ("fp8", 32e9, 32768), (None, 80e9, 262144)],
)
def test_what_must_fit_fits(plan: str | None, memory: float, context: int) -> None:
    found = need(plan).longest_context(int(memory))
    assert found is not None
    assert found >= context, f"{plan} in {memory / 1e9} GB: {found}"


def test_the_longest_context_fills_the_memory_and_not_more() -> None:
    found = need("int4")
    for context in (0, 1, 5000):
        assert found.longest_context(found.total(context)) == context
        assert found.longest_context(found.total(context) - 1) == (context - 1 if context else None)
    assert found.longest_context(10**15) == 262144, "no context is longer than the model's"
    for canvases in (1, 7):
        assert found.most_canvases(found.total(4096, canvases), 4096) == canvases
        assert found.most_canvases(found.total(4096, canvases) - 1, 4096) == canvases - 1
    assert found.most_canvases(10**9, 0) == 0


def test_a_short_vocabulary_is_counted_with_its_logits() -> None:
    config = replace(tiny_config(), canvas_length=64)
    more = need(None, replace(config, vocab_size=1064)).canvas - need(None, replace(config, vocab_size=64)).canvas
    assert more == STEP_LOGITS * 4 * 64 * 1000


def test_too_little_memory_is_said_before_loading_with_what_would_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_checkpoint(tmp_path / "model")
    monkeypatch.setattr(load, "free_memory", lambda device: 30_000)
    monkeypatch.setattr(load, "empty_model", None)
    with pytest.raises(RunError, match=r"the model needs 0.0 GB .* GB are free; no plan fits; use a larger device"):
        load_model(tmp_path / "model")
    for free, words in (
        (60e9, "--dtype bfloat16 fits"),
        (24e9, "plan nvfp4-experts fits, with a context of"),
        (9e9, "no plan"),
    ):
        with pytest.raises(RunError, match=words):
            check_fits(RELEASED, torch.float32, {}, Room(int(free)), print)


def test_no_plan_is_offered_that_the_card_would_refuse() -> None:
    """nvfp4 was, to cards without 8-bit floats."""
    for plans, offered in ((None, "nvfp4"), (["int8", "int4"], "int4"), ([], "no plan fits")):
        with pytest.raises(RunError, match=rf"24\.0 GB are free; .*{offered}"):
            check_fits(RELEASED, HALF, {}, Room(int(24e9), None, "cuda", plans), print)


def test_a_large_load_is_announced_with_its_parts() -> None:
    lines: list[str] = []
    check_fits(RELEASED, HALF, formats(RELEASED, PLANS["int4"]), Room(int(24e9)), lines.append)
    assert len(lines) == 1
    for words in (
        "16.0 GB of weights",
        "experts 12.8",
        "attention 1.1",
        "of 24.0 GB free",
        "a context of 262144 tokens",
    ):
        assert words in lines[0], lines
    check_fits(tiny_config(), HALF, {}, Room(int(24e9)), lines.append)
    assert len(lines) == 1, "a small model has nothing to announce"


def test_this_machine_says_how_much_is_free() -> None:
    free = free_memory(torch.device("cpu"))
    assert free is None or 1e8 < free < 1e14
    assert free_memory(torch.device("meta")) is None
    assert {slot.target for slot in slots(RELEASED)} >= {"layers.0.experts.down"}
    assert INT4.num_bytes(1, 704) == 704 // 2 + 22 * 2
