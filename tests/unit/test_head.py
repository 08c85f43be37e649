"""The streamed head reads what the plain path reads, draws the same tokens, and looks at one row at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from redraft.diffusion.noise import SeededNoise
from redraft.diffusion.stats import Stats, read_logits
from redraft.model.head import Head, pass_tiles, read_head

pytestmark = pytest.mark.typed


def states(rows: int, hidden: int, vocab: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Head]:
    made = torch.Generator().manual_seed(seed)
    table = (0.5 * torch.randn(vocab, hidden, generator=made)).to(dtype)
    return torch.randn(rows, hidden, generator=made).to(dtype), Head(table, 30.0, dtype)


def plainly(hidden: Tensor, head: Head, temperature: Tensor, noise: SeededNoise, wide: torch.dtype) -> Stats:
    z = (hidden @ head.table.T).to(wide)
    z = torch.tanh(z / head.cap) * head.cap
    soften = lambda p: p.to(hidden.dtype) @ head.table  # noqa: E731
    if wide == torch.float64:
        soften = lambda p: p @ head.table.double()  # noqa: E731
    feedback = torch.float32 if head.feedback == torch.float32 else head.feedback
    return read_logits(z, temperature.to(wide), lambda p: noise.sample(0, 1, p.float()), soften, feedback, top=True)


@given(
    st.integers(1, 20),
    st.sampled_from([2, 63, 64, 65, 1000, 4097]),
    st.sampled_from([64, 256, 4096]),
    st.integers(0, 9),
)
def test_the_stream_reads_what_the_plain_path_reads(rows: int, vocab: int, tile: int, seed: int) -> None:
    """In float64 on the other side, so that neither is the measure of the other's rounding."""
    hidden, head = states(rows, 16, vocab, seed)
    temperature = 0.3 + torch.rand(rows, 1, generator=torch.Generator().manual_seed(seed))
    noise = SeededNoise(seed)
    plain = plainly(hidden, head, temperature, noise, torch.float64)
    uniform = noise.uniform(0, 1, rows)
    got = read_head(hidden, head, temperature, uniform, lambda *given: pass_tiles(*given, tile=tile))
    assert torch.equal(got.argmax, plain.argmax)
    assert torch.equal(got.sample, plain.sample)
    torch.testing.assert_close(got.entropy.double(), plain.entropy, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.top.double(), plain.top, rtol=1e-4, atol=1e-6)
    p = torch.softmax(torch.tanh((hidden @ head.table.T).double() / 30) * 30 / temperature.double(), dim=-1)
    torch.testing.assert_close(got.soft.double(), p @ head.table.double(), rtol=1e-3, atol=1e-4)


def test_in_bfloat16_logits_are_rounded_before_they_are_fed_back() -> None:
    """The reference's rule (model spec 3.2): leaving the rounding out is off by several times the tolerance here."""
    hidden, head = states(12, 32, 700, 0, torch.bfloat16)
    temperature, noise = torch.full((12, 1), 0.4), SeededNoise(3)
    plain = plainly(hidden, head, temperature, noise, torch.float32)
    got = read_head(hidden, head, temperature, noise.uniform(0, 1, 12))
    unrounded = read_head(hidden, Head(head.table, 30.0), temperature, noise.uniform(0, 1, 12))
    off = [
        float((one.soft.float() - plain.soft.float()).norm() / plain.soft.float().norm()) for one in (got, unrounded)
    ]
    assert off[0] < 0.01 < off[1], off
    assert torch.equal(got.argmax, plain.argmax)
    assert torch.equal(got.sample, plain.sample)


@given(st.integers(1, 9), st.integers(0, 30))
def test_a_row_is_read_the_same_beside_any_others(rows: int, others: int) -> None:
    hidden, head = states(rows + others, 16, 500, rows)
    temperature, uniform = torch.full((rows + others, 1), 0.6), SeededNoise(1).uniform(0, 1, rows + others)
    whole = read_head(hidden, head, temperature, uniform)
    alone = read_head(hidden[:rows], head, temperature[:rows], uniform[:rows])
    for name in ("argmax", "sample", "entropy", "soft", "top"):
        assert torch.equal(getattr(whole, name)[:rows], getattr(alone, name)), name


@pytest.mark.parametrize("where", [0.0, 0.5, 1 - 2**-24])
def test_a_sample_is_never_a_token_of_no_probability(where: float) -> None:
    """At either end of the uniform, with all but two tokens out of reach."""
    table = torch.full((300, 1), -100.0)
    table[[70, 299]] = 100.0
    hidden, head = torch.ones(1, 1), Head(table, 30.0)
    got = read_head(hidden, head, torch.full((1, 1), 0.1), torch.tensor([where]))
    assert int(got.sample) in (70, 299)
    assert float(got.entropy) == pytest.approx(0.6931, abs=1e-3)
