"""Where a prompt goes: to its beginning's replica, unless that one is much busier."""

from __future__ import annotations

import random
from collections import Counter

from redraft.server.http.places import SLACK, Places

A = [b"a1"]


def test_a_beginning_stays_where_it_was_sent() -> None:
    places, replicas = Places(), list(range(8))
    first = places.choose([*A, b"a2"], replicas, replicas, lambda _: 0)
    assert {places.choose([*A, bytes([i])], replicas, replicas, lambda _: 0) for i in range(50)} == {first}


def test_the_longest_beginning_decides() -> None:
    places = Places()
    places.choose([b"1", b"2"], ["long"], ["long"], lambda _: 0)
    places.choose([b"1"], ["short"], ["short"], lambda _: 0)
    assert places.choose([b"1", b"2", b"3"], ["long", "short"], ["long", "short"], lambda _: 0) == "long"


def test_a_busy_replica_is_left_and_a_lost_one_forgotten() -> None:
    places = Places()
    places.choose(A, ["x"], ["x"], lambda _: 0)
    loads = {"x": SLACK + 1, "y": 0}
    assert places.choose(A, ["x", "y"], ["x", "y"], loads.__getitem__) == "y"
    assert places.choose(A, ["x"], ["x"], lambda _: 0) == "x"
    assert places.choose(A, ["z"], ["z"], lambda _: 0) == "z"


def test_prompts_without_a_beginning_are_spread_by_load() -> None:
    random.seed(0)
    places, load = Places(), Counter[int]()
    for _ in range(1000):
        load[places.choose([], range(10), range(10), load.__getitem__)] += 1
    assert max(load.values()) - min(load.values()) <= 10


def test_memory_is_bounded() -> None:
    places = Places(most=100)
    for i in range(1000):
        places.choose([i.to_bytes(4, "big")], ["x"], ["x"], lambda _: 0)
    assert len(places._known) == 100
