"""Fused layers give the numbers of the layers they replace, in every mode, and only where they should replace them."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import FULL, SLIDING, tiny_config, tiny_model

from redraft.cache import Prefix
from redraft.model.fused import FusedLayer, fuse_layers
from redraft.model.gemma import DiffusionGemma
from redraft.model.packed import INT8, Packed
from redraft.model.rows import Mode, Span
from redraft.weights.fill import pack_model
from redraft.weights.plan import PLANS

KINDS = [[FULL], [SLIDING, FULL], [SLIDING, SLIDING, FULL, SLIDING, FULL]]


def twins(kinds: list[str], num_experts: int, top_k: int, seed: int) -> tuple[DiffusionGemma, DiffusionGemma]:
    config = tiny_config(
        layer_types=kinds, num_hidden_layers=len(kinds), num_experts=num_experts, top_k_experts=top_k, sliding_window=9
    )
    plain = tiny_model(config, seed)
    fused = fuse_layers(copy.deepcopy(plain))
    assert all(isinstance(layer, FusedLayer) for layer in fused.layers)
    return plain, fused


def run(model: DiffusionGemma, prompt: int, canvas: int, seed: int) -> list[torch.Tensor]:
    """Logits of a prompt, a canvas without and with a soft embedding, and a commit fused with the next canvas."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model.config.vocab_size, (prompt + 2 * canvas,), generator=draw)
    soft = 0.5 * torch.randn(canvas, model.config.hidden_size, generator=draw)
    prefix = Prefix(model.config.layers)
    with torch.inference_mode():
        found = [model.logits(model.encode(tokens[:prompt], prefix))]
        block = tokens[prompt : prompt + canvas]
        found += [model.denoise(block, None, prefix), model.denoise(block, soft, prefix)]
        rows = model.rows([Span(prefix, canvas, Mode.ENCODE), Span(prefix, canvas, Mode.DENOISE)])
        found.append(model.logits(model(tokens[prompt:], None, rows)))
    return found


@given(
    st.sampled_from(KINDS),
    st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]),
    st.integers(1, 20),
    st.integers(1, 12),
    st.integers(0, 99),
)
def test_fused_layers_equal_plain_ones(
    kinds: list[str], experts: tuple[int, int], prompt: int, canvas: int, seed: int
) -> None:
    plain, fused = twins(kinds, *experts, seed)
    for wanted, got in zip(run(plain, prompt, canvas, seed), run(fused, prompt, canvas, seed), strict=True):
        spread = float(wanted.max() - wanted.min())  # what rounding leaves grows with it: 2e-5 of it in 3,000 draws
        torch.testing.assert_close(got, wanted, atol=1e-4 * spread, rtol=0)


def test_fusing_holds_no_second_copy_of_a_matrix() -> None:
    """The plain layers are let go, so peak memory is one layer more, not one model."""
    plain, fused = twins(KINDS[1], 4, 2, 0)
    size = {m: sum(t.numel() for t in [*m.parameters(), *m.buffers()]) for m in (plain, fused)}
    assert size[fused] <= size[plain] * 1.05


def test_packed_fused_layers_stay_near_the_exact_ones() -> None:
    config = tiny_config(hidden_size=64, intermediate_size=96, moe_intermediate_size=64)
    plain = tiny_model(config)
    packed = fuse_layers(copy.deepcopy(plain), INT8)
    assert all(isinstance(layer, FusedLayer) and isinstance(layer.inner, Packed) for layer in packed.layers)
    for wanted, got in zip(run(plain, 9, 6, 0), run(packed, 9, 6, 0), strict=True):
        assert float((got - wanted).norm() / wanted.norm()) < 0.05


@pytest.mark.parametrize("plan", PLANS)
def test_packed_layers_are_not_fused(plan: str) -> None:
    """Folding a norm into rounded numbers would round them twice; a plan may leave some matrices plain."""
    config = tiny_config(hidden_size=64, intermediate_size=128, moe_intermediate_size=64, head_dim=16)
    model = pack_model(tiny_model(config), PLANS[plan])
    before = run(model, 9, 6, 0)
    assert not any(isinstance(layer, FusedLayer) for layer in fuse_layers(model).layers)
    assert all(torch.equal(a, b) for a, b in zip(before, run(model, 9, 6, 0), strict=True))
