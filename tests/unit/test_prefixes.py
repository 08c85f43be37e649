"""The store of prefixes: what a chunk takes, what is not kept, and what its names cost."""

import mmap
from pathlib import Path

import pytest
import torch
from tests.helpers import tiny_config

from redraft.cache import Prefix
from redraft.engine.prefixes import LEAST_APART, Chain, Prefixes, _apart

pytestmark = pytest.mark.typed


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
    chunk = Prefixes(layers, 4).chunk_bytes(256)
    store = Prefixes(layers, 4, chunk)
    prompt = list(range(600))
    store.keep(Chain(prompt), stand(Prefix(layers, room=600), 256))
    assert store.num_bytes == chunk
    store.max_bytes = chunk - 1
    monkeypatch.setattr("redraft.cache.LayerPrefix.snapshot", lambda *_: pytest.fail("copied for nothing"))
    store.keep(Chain(prompt), stand(Prefix(layers, room=600), 512))
    store.max_bytes = chunk
    store.check()
    assert store.load(Chain(prompt), Prefix(layers, room=600)) == 256


@pytest.mark.parametrize("window", [20, 300, 5000])
def test_bytes_are_counted_before_they_are_taken(window: int) -> None:
    layers = tiny_config(sliding_window=window).layers
    store, chain = Prefixes(layers, 4, 10**9), Chain(list(range(600)))
    for end in (256, 512):
        store.keep(chain, stand(Prefix(layers, room=600), end))
        store.check()  # compares with what the tensors hold
    assert store.num_bytes == 2 * store.chunk_bytes(256)


@pytest.mark.parametrize("window", [20, 255, 256, 257, 300, 700, 5000])
@pytest.mark.parametrize("length", [257, 600, 1300])
def test_what_is_loaded_is_what_was_kept(window: int, length: int) -> None:
    """A chunk holds its own tokens alone, of which a sliding layer gets those that the next one sees. Each held the
    last W-1, and every one of a chain was copied."""
    layers = tiny_config(sliding_window=window).layers
    keys, store = {}, Prefixes(layers, 4, 10**9)
    prompt, one = list(range(length)), Prefix(layers, room=length)
    for end in (*range(256, length, 256), length):
        for i, layer in enumerate(one.layers):
            shape = end - one.length, layer.keys.shape[0], layer.keys.shape[2]
            keys[i, end] = torch.randn(shape)
            layer.place(one.length, keys[i, end], -keys[i, end])
        one.advance(end - one.length)
        store.keep(Chain(prompt), one)
    store.check()
    found = Prefix(layers, room=length)
    assert store.load(Chain(prompt), found) == found.length == (length - 1) // 256 * 256
    found.check()
    for i, layer in enumerate(found.layers):
        whole = torch.cat([part for (at, end), part in keys.items() if at == i and end <= found.length])
        first = 0 if layer.window is None else max(0, found.length - layer.window + 1)
        held = layer.keys[:, first - layer.origin : found.length - layer.origin].transpose(0, 1)
        assert torch.equal(held, whole[first:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_chunk_has_pages_of_its_own(dtype: torch.dtype) -> None:
    """Between what requests need for a moment, kept ones left a server a tenth more memory than they have bytes."""
    like, maps = torch.zeros(1, dtype=dtype), Path("/proc/self/maps")
    large, small = _apart(like, LEAST_APART), _apart(like, LEAST_APART - 4)
    assert [one.nbytes for one in (large, small)] == [LEAST_APART, LEAST_APART - 4]
    assert large.dtype == small.dtype == dtype
    assert large.data_ptr() % mmap.PAGESIZE == 0
    large.fill_(1.0)
    assert large.float().mean() == 1
    with pytest.raises(MemoryError, match="out of memory"):
        _apart(like, 2**60)
    if maps.exists():
        inside = [line for line in maps.read_text().splitlines() if "[heap]" in line]
        ends = [[int(end, 16) for end in line.split()[0].split("-")] for line in inside]
        assert not any(low <= large.data_ptr() < high for low, high in ends)


def test_a_name_stands_for_everything_before_it() -> None:
    one, other = list(range(1024)), list(range(1024))
    other[300] += 1
    names = [[Chain(prompt).name(chunk) for chunk in range(5)] for prompt in (one, other)]
    assert [a == b for a, b in zip(*names, strict=True)] == [True, True, False, False, False]
    whole = Chain(one)
    assert [whole.name(4), whole.name(2)] == [names[0][4], names[0][2]]
    assert Chain(one[:512]).name(2) == whole.name(2)
