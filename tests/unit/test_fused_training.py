"""The fused form of training beside the plain one: losses and gradients of every weight, under Triton's interpreter."""

from __future__ import annotations

import sys

import msgspec
import pytest
import torch

pytest.importorskip("triton", reason=f"there is no triton for {sys.platform}")

from redraft.cache import Prefix
from redraft.model.gemma import DiffusionGemma
from redraft.tune import fused
from redraft.tune.fused import can_fuse, fuse, fuse_checked
from redraft.tune.initial import initial_model
from redraft.tune.layout import Row, Spot, pack
from redraft.tune.lora import adapt, adapters
from redraft.tune.objective import Batch, corrupt, losses
from redraft.tune.recipe import LoraRecipe, ModelRecipe, ObjectiveRecipe, model_config

SHAPE = ModelRecipe(
    hidden_size=24,
    intermediate_size=20,
    moe_intermediate_size=12,
    num_heads=4,
    num_kv_heads=2,
    num_full_kv_heads=1,
    head_dim=8,
    full_head_dim=16,
    num_experts=4,
    top_k_experts=2,
    layers=("sliding", "full"),
    window=5,
    max_positions=128,
    canvas_length=16,
)
VOCAB = 31
OBJECTIVE = ObjectiveRecipe(own=0.5, own_steps=2, rolled=0.3, plausible=0.2)


def batch(pack_tokens: int = 0) -> Batch:
    """Sequences of several lengths with canvases of several widths, some of them pinned."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    for length, width, blocks in ((9, 4, 1), (6, 4, 2), (13, 8, 1), (3, 8, 1)):
        clean = tuple(torch.randint(VOCAB, (length + width * blocks,), generator=generator).tolist())
        spots = [
            Spot(at, clean[at : at + width], (False,) * (width - 1) + (blocks == 1,), width)
            for at in range(length, len(clean), width)
        ]
        rows.append(Row(clean, (False, *[True] * (len(clean) - 1)), tuple(spots)))
    (found,) = pack(rows, draws=2, merge_rows=10_000, pack_tokens=pack_tokens)
    return found


def both() -> tuple[DiffusionGemma, DiffusionGemma]:
    """The same weights twice, none of them at a value that hides an error; the second model is fused."""
    models = []
    for _ in range(2):
        model = initial_model(model_config(SHAPE, VOCAB), seed=1).requires_grad_(True).train()
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for _, value in sorted(model.state_dict().items()):
                value.mul_(1 + 0.3 * torch.rand(value.shape, generator=generator))
        models.append(model)
    fuse(models[1])
    return models[0], models[1]


def gradients(model: DiffusionGemma, given: Batch, *, canvases: bool) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss of a batch, and the gradient of every weight that has one."""
    noise = corrupt(given, VOCAB, torch.Generator().manual_seed(4), OBJECTIVE)
    found = losses(model, given, noise if canvases else None, OBJECTIVE)
    found.total.backward()
    return found.total.item(), {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("canvases", [False, True])
@pytest.mark.parametrize("pack_tokens", [0, 64])
def test_the_fused_form_has_the_plain_ones_losses_and_gradients(canvases: bool, pack_tokens: int) -> None:
    plain, other = both()
    given = batch(pack_tokens)
    loss, wanted = gradients(plain, given, canvases=canvases)
    got, found = gradients(other, given, canvases=canvases)
    assert got == pytest.approx(loss, rel=1e-5)
    assert found.keys() == wanted.keys()
    for name, right in wanted.items():
        assert torch.linalg.vector_norm(found[name] - right) <= 1e-4 * torch.linalg.vector_norm(right), name


def test_a_model_of_many_experts_keeps_its_form() -> None:
    wide = msgspec.structs.replace(SHAPE, num_experts=8)
    assert can_fuse(both()[0])
    assert not can_fuse(initial_model(model_config(wide, VOCAB), seed=1))


def test_a_form_that_disagrees_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check at the start of a run on a GPU: right kernels are taken, a wrong one is named and left out."""
    monkeypatch.setattr(fused, "LINES", 3)
    monkeypatch.setattr(fused, "WIDTH", 4)
    model, other = (initial_model(model_config(SHAPE, VOCAB), seed=1).requires_grad_(True) for _ in range(2))
    assert fuse_checked(model, bfloat16=False) is None
    assert "forward" in vars(model)
    assert all(one.grad is None for one in model.parameters())
    forward = fused.FusedForward.forward
    monkeypatch.setattr(fused.FusedForward, "forward", lambda *given: 1.01 * forward(*given))
    why = fuse_checked(other, bfloat16=False)
    assert why is not None
    assert "is off by" in why
    assert other.forward == DiffusionGemma.forward.__get__(other)


def test_two_batches_before_a_step_add_up_and_adapters_are_trained() -> None:
    """Adapters stand beside the matrices, whose sums are what is multiplied; they begin at zero, where A has none."""
    models = both()
    lora = LoraRecipe(rank=2, parts=("attention", "mlp", "experts"))
    for model in models:
        adapt(model, lora, seed=5)
        generator = torch.Generator().manual_seed(6)
        with torch.no_grad():
            for low in adapters(model).values():
                low.b.copy_(0.02 * torch.randn(low.b.shape, generator=generator))
    for _ in range(2):
        wanted, found = (gradients(model, batch(), canvases=True)[1] for model in models)
    assert found.keys() == wanted.keys()
    assert any("parametrizations" in name for name in found)
    for name, right in wanted.items():
        assert torch.linalg.vector_norm(found[name] - right) <= 1e-4 * torch.linalg.vector_norm(right), name


def test_other_contexts_take_the_plain_way() -> None:
    plain, other = both()
    tokens = torch.arange(7)
    prefixes = [Prefix(model.config.layers) for model in (plain, other)]
    with torch.no_grad():
        assert torch.equal(*(model.encode(tokens, at) for model, at in zip((plain, other), prefixes, strict=True)))


def test_heads_that_are_no_power_of_two_keep_the_plain_form() -> None:
    odd = msgspec.structs.replace(SHAPE, head_dim=12)
    model = initial_model(model_config(odd, VOCAB), seed=1).requires_grad_(True)
    assert fuse_checked(model, bfloat16=False) == (
        "its layers have many experts, packed ones, or heads whose size is no power of two"
    )


def test_a_gradient_that_is_rounding_alone_is_no_disagreement(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one expert of two, the router's softmax of one number has no slope."""
    monkeypatch.setattr(fused, "LINES", 2)
    monkeypatch.setattr(fused, "WIDTH", 4)
    one = msgspec.structs.replace(SHAPE, num_experts=2, top_k_experts=1)
    model = initial_model(model_config(one, VOCAB), seed=1).requires_grad_(True)
    assert fuse_checked(model, bfloat16=False) is None
