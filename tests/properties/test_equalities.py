"""The equalities that make fast paths trustworthy: cached = uncached, batched = alone, committed = prefilled, chunked =
whole, fused = apart. All in fp32 on random small networks, with windows below, at and above the prefix."""

from collections.abc import Sequence
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import tiny_config, tiny_model

from redraft.cache import LayerPrefix, Prefix
from redraft.config import LayerConfig, RopeConfig
from redraft.model.gemma import DiffusionGemma
from redraft.model.rows import Mode, Span

pytestmark = pytest.mark.typed

CLOSE = {"atol": 2e-5, "rtol": 1e-4}
windows = st.integers(2, 20)


@lru_cache
def build(window: int) -> DiffusionGemma:
    return tiny_model(tiny_config(sliding_window=window))


def tokens(count: int, seed: int, model: DiffusionGemma) -> torch.Tensor:
    return torch.randint(model.config.vocab_size, (count,), generator=torch.Generator().manual_seed(seed))


def encoded(model: DiffusionGemma, chunks: Sequence[torch.Tensor]) -> tuple[Prefix, torch.Tensor]:
    prefix = Prefix(model.config.layers)
    hidden = []
    with torch.inference_mode():
        for chunk in chunks:
            hidden.append(model.encode(chunk, prefix))
            prefix.check()
    return prefix, torch.cat(hidden)


def visible(prefix: Prefix) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of every layer that a next canvas could see."""
    found = []
    for layer in prefix.layers:
        first = 0 if layer.window is None else max(0, prefix.length - layer.window + 1)
        seen = slice(first - layer.origin, prefix.length - layer.origin)
        found.append((layer.keys[:, seen], layer.values[:, seen]))
    return found


@settings(max_examples=25)
@given(windows, st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(0, 99))
def test_chunked_encoding_equals_one_pass(window: int, sizes: list[int], seed: int) -> None:
    model = build(window)
    whole = tokens(sum(sizes), seed, model)
    prefix_a, hidden_a = encoded(model, [whole])
    prefix_b, hidden_b = encoded(model, whole.split(sizes))
    torch.testing.assert_close(hidden_a, hidden_b, **CLOSE)
    for (ka, va), (kb, vb) in zip(visible(prefix_a), visible(prefix_b), strict=True):
        torch.testing.assert_close(ka, kb, **CLOSE)
        torch.testing.assert_close(va, vb, **CLOSE)


@settings(max_examples=25)
@given(windows, st.integers(1, 30), st.integers(1, 16), st.integers(0, 99))
def test_a_canvas_leaves_nothing_behind(window: int, length: int, width: int, seed: int) -> None:
    """The same canvas twice, and what is encoded after it, as if it had never been there."""
    model = build(window)
    prompt, canvas, more = tokens(length, seed, model), tokens(width, seed + 1, model), tokens(5, seed + 2, model)
    with torch.inference_mode():
        prefix, _ = encoded(model, [prompt])
        first = model.denoise(canvas, None, prefix)
        second = model.denoise(canvas, None, prefix)
        after = model.encode(more, prefix)
        untouched = model.encode(more, encoded(model, [prompt])[0])
    assert torch.equal(first, second)
    assert torch.equal(after, untouched)


@settings(max_examples=25)
@given(windows, st.lists(st.integers(1, 25), min_size=2, max_size=4), st.integers(1, 16), st.integers(0, 99))
def test_batched_rows_equal_rows_alone(window: int, lengths: list[int], width: int, seed: int) -> None:
    """Requests with different prefixes denoise in one forward, one of them in its first step without a soft input."""
    model = build(window)
    prefixes = [encoded(model, [tokens(n, seed + n, model)])[0] for n in lengths]
    canvases = [tokens(width, seed + i, model) for i in range(len(lengths))]
    softs = [
        0.3 * torch.randn(width, model.config.hidden_size, generator=torch.Generator().manual_seed(i))
        for i in range(len(lengths))
    ]
    softs[0] = torch.zeros_like(softs[0])
    with torch.inference_mode():
        rows = model.rows([Span(prefix, width, Mode.DENOISE) for prefix in prefixes])
        together = model.logits(model(torch.cat(canvases), torch.cat(softs), rows)).split(width)
        for i, (canvas, prefix) in enumerate(zip(canvases, prefixes, strict=True)):
            alone = model.denoise(canvas, None if i == 0 else softs[i], prefix)
            torch.testing.assert_close(together[i], alone, **CLOSE)


@settings(max_examples=25)
@given(windows, st.integers(1, 25), st.integers(1, 16), st.integers(0, 99))
def test_commit_and_first_step_in_one_forward_equal_two(window: int, length: int, width: int, seed: int) -> None:
    model = build(window)
    prompt, block, canvas = tokens(length, seed, model), tokens(width, seed + 1, model), tokens(width, seed + 2, model)
    with torch.inference_mode():
        apart, _ = encoded(model, [prompt, block])
        wanted = model.denoise(canvas, None, apart)
        fused, _ = encoded(model, [prompt])
        rows = model.rows([Span(fused, width, Mode.ENCODE), Span(fused, width, Mode.DENOISE)])
        hidden = model(torch.cat([block, canvas]), None, rows)
        rows.commit()
        fused.check()
        torch.testing.assert_close(model.logits(hidden[width:]), wanted, **CLOSE)
        torch.testing.assert_close(model.denoise(canvas, None, fused), wanted, **CLOSE)
    for (ka, va), (kb, vb) in zip(visible(apart), visible(fused), strict=True):
        torch.testing.assert_close(ka, kb, **CLOSE)
        torch.testing.assert_close(va, vb, **CLOSE)


@settings(max_examples=60)
@given(
    st.one_of(st.none(), st.integers(2, 90)),
    st.lists(st.tuples(st.integers(1, 150), st.booleans()), min_size=1, max_size=12),
    st.integers(0, 300),
)
def test_the_cache_shows_what_a_growing_list_would(
    window: int | None, forwards: list[tuple[int, bool]], room: int
) -> None:
    """Against a cache that keeps everything and cuts the view by definition, over any mix of canvases and commits."""
    layer = LayerConfig(window, 2, 4, RopeConfig(10_000.0))
    cache = LayerPrefix(layer, room, torch.float32, torch.device("cpu"))
    kept, length = torch.zeros(0, 2, 4), 0
    for i, (rows, commits) in enumerate(forwards):
        k = torch.randn(rows, 2, 4, generator=torch.Generator().manual_seed(i))
        keys, values = cache.place(length, k, -k)
        everything = torch.cat([kept, k])
        first = 0 if window is None else max(0, length - window + 1)
        assert torch.equal(keys, everything[first:].transpose(0, 1))
        assert torch.equal(values, -keys)
        if commits:
            kept, length = everything, length + rows
            cache.trim(length)


def test_a_sliding_layer_does_not_grow_with_the_prefix() -> None:
    layer = LayerConfig(16, 1, 4, RopeConfig(10_000.0))
    prefix = Prefix([layer], room=10_000)
    for _ in range(300):
        prefix.layers[0].place(prefix.length, torch.zeros(7, 1, 4), torch.zeros(7, 1, 4))
        prefix.advance(7)
        prefix.check()
    assert prefix.layers[0].keys.shape[1] <= 2 * 16 + 256, "twice the window and a canvas"


def test_a_canvas_wider_than_its_margin_is_given_room_until_the_commit() -> None:
    """A window of 64 and canvases of 256 had let the cache's own check fail between two steps."""
    layer = LayerConfig(16, 1, 4, RopeConfig(10_000.0))
    prefix = Prefix([layer])
    for rows in (7, 700, 7, 256, 700):
        for _ in range(2):
            prefix.layers[0].place(prefix.length, torch.zeros(rows, 1, 4), torch.zeros(rows, 1, 4))
            prefix.check()
        assert prefix.layers[0].keys.shape[1] <= max(2 * 16 + 256, 16 - 1 + rows)
        prefix.advance(7)
        prefix.check()
        assert prefix.layers[0].keys.shape[1] <= 2 * 16 + 256


def test_a_full_layer_copies_its_prefix_a_logarithmic_number_of_times() -> None:
    """No copy of the prefix per step: buffers change only when they double."""
    layer = LayerConfig(None, 1, 4, RopeConfig(1e6, 0.25))
    prefix, buffers = Prefix([layer]), set()
    for _ in range(1000):
        prefix.layers[0].place(prefix.length, torch.zeros(4, 1, 4), torch.zeros(4, 1, 4))
        prefix.advance(4)
        buffers.add(prefix.layers[0].keys.data_ptr())
    assert len(buffers) <= 8
