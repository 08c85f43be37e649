"""The store of prefixes: what a chunk takes, what is not kept, and what its names cost."""

import pytest
import torch
from tests.helpers import tiny_config

from redraft.cache import Prefix
from redraft.engine.prefixes import Chain, Prefixes

pytestmark = pytest.mark.typed

"""The released 26B model's layers (its config.json)."""


def stand(prefix: Prefix, end: int) -> Prefix:
    """A prefix that holds `end` tokens of random keys and values."""
    for layer in prefix.layers:
        k = torch.randn(end, layer.keys.shape[0], layer.keys.shape[2])
        layer.place(0, k, k)
    prefix.length = end
    return prefix


def test_a_chunk_that_is_too_large_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was copied, kept, and the store was emptied to make room for it."""
    layers = tiny_config(sliding_window=400).layers
    small = Prefixes(layers, 4).chunk_bytes(256)
    store = Prefixes(layers, 4, small)
    prompt = list(range(600))
    store.keep(Chain(prompt), stand(Prefix(layers, room=600), 256))
    assert store.chunk_bytes(512) > small == store.num_bytes
    monkeypatch.setattr("redraft.cache.LayerPrefix.snapshot", lambda *_: pytest.fail("copied for nothing"))
    store.keep(Chain(prompt), stand(Prefix(layers, room=600), 512))
    store.check()
    assert store.load(Chain(prompt), Prefix(layers, room=600)) == 256


@pytest.mark.parametrize("window", [20, 300, 5000])
def test_bytes_are_counted_before_they_are_taken(window: int) -> None:
    layers = tiny_config(sliding_window=window).layers
    store, chain = Prefixes(layers, 4, 10**9), Chain(list(range(600)))
    for end in (256, 512):
        store.keep(chain, stand(Prefix(layers, room=600), end))
        store.check()  # compares with what the tensors hold
    assert store.num_bytes == store.chunk_bytes(256) + store.chunk_bytes(512)


def test_a_name_stands_for_everything_before_it() -> None:
    one, other = list(range(1024)), list(range(1024))
    other[300] += 1
    names = [[Chain(prompt).name(chunk) for chunk in range(5)] for prompt in (one, other)]
    assert [a == b for a, b in zip(*names, strict=True)] == [True, True, False, False, False]
    whole = Chain(one)
    assert [whole.name(4), whole.name(2)] == [names[0][4], names[0][2]]
    assert Chain(one[:512]).name(2) == whole.name(2)
