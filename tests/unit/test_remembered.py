"""What compiling keeps in memory, bounded in bytes."""

from __future__ import annotations

import numpy as np
import pytest

from redraft.constraints.compile import remembered as store
from redraft.constraints.compile.automaton import Dfa
from redraft.constraints.compile.remembered import OVERHEAD, Remembered, remembered, size_of


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Remembered:
    found = Remembered()
    monkeypatch.setattr(store, "REMEMBERED", found)
    monkeypatch.setattr(store, "MOST_BYTES", 100_000)
    return found


def test_values_are_kept_up_to_a_number_of_bytes_the_latest_of_them(kept: Remembered) -> None:
    made: list[tuple[int, int]] = []

    @remembered
    def automaton(states: int, number: int = 0) -> Dfa:
        made.append((states, number))
        return Dfa(np.zeros((states, 10), np.int32), np.zeros(256, np.int32), np.zeros(states, np.bool_))

    first = automaton(100)
    assert automaton(100) is first
    for number in range(1, 100):
        automaton(100, number)
        automaton(100)  # used all the time, so it stays
        assert kept.num_bytes <= 100_000
    assert made.count((100, 0)) == 1
    automaton(100, 1)
    assert made.count((100, 1)) == 2, "the least recently used went"


def test_a_value_that_is_too_large_and_its_arguments_count(kept: Remembered) -> None:
    @remembered
    def length(text: str) -> int:
        return len(text)

    length("€" * 50_000)
    assert kept.num_bytes == 0, "such a text has two bytes a character"
    length("a" * 1000)
    assert 1000 < kept.num_bytes < 1000 + 5 * OVERHEAD
    assert size_of(("", {"a" * 1000: "b" * 2000})) > 3000
