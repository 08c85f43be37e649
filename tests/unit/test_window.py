"""How many requests are under way at a server that refuses some."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from redraft.measure import window as module
from redraft.measure.window import CUT, FEW, FIRST_SEC, MOST_SEC, Place, Window


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that goes when it is said, and pauses as long as they are on average."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.random, "uniform", lambda low, high: (low + high) / 2)

    def later(seconds: float) -> None:
        now[0] += seconds

    return later


def sent(window: Window, number: int = 1) -> list[Place]:
    """So many that are sent at once, and are under way until they have `ended`."""
    window._under_way += number
    now = module.time.monotonic()
    return [Place(now, window._answers, ahead=ahead) for ahead in range(number)]


def ended(window: Window, number: int) -> None:
    window._under_way -= number


def test_a_round_of_refusals_cuts_once_and_answers_widen(passes: Any) -> None:
    window = Window()
    places = sent(window, 64)
    assert window.size == math.inf
    passes(1)
    for place in places:
        assert window.refused(place, says_when=False) == 0
    assert window.size == CUT * 64
    ended(window, 64)
    passes(1)
    places = sent(window, 40)
    for place in places[:10]:
        window.answered(place)
    assert CUT * 64 < window.size < CUT * 64 + 1, "by one in a round"


def test_the_pause_grows_where_no_window_is_left(passes: Any) -> None:
    window, pauses = Window(), []
    for _ in range(12):
        (place,) = sent(window)
        passes(0.1)
        window.refused(place, says_when=False)
        ended(window, 1)
        pauses.append(window._until - module.time.monotonic())
        passes(MOST_SEC)
    assert pauses[:4] == pytest.approx([FIRST_SEC * 2, FIRST_SEC * 4, FIRST_SEC * 8, FIRST_SEC * 16])
    assert pauses[-1] == MOST_SEC
    assert window.size == 1
    (place,) = sent(window)
    window.answered(place)
    assert window.size == 2
    passes(0.1)
    window.refused(place, says_when=True)
    assert window._until < module.time.monotonic(), "the server says itself when"


def test_a_request_that_is_always_refused_is_no_sign_for_the_others(passes: Any) -> None:
    """One too large for a limit of tokens a minute had all others go one by one."""
    window, bad, pauses = Window(), Place(), []
    for _ in range(9):
        good = sent(window, 20)
        bad.sent = good[0].sent
        passes(0.1)
        pauses.append(window.refused(bad, says_when=False))
        passes(3)
        for place in good:
            window.answered(place)
        ended(window, 20)
    assert window.size > 19
    assert pauses[:FEW] == [0] * FEW
    assert pauses[-3:] == sorted(pauses[-3:])
    assert pauses[-1] > 1


def test_who_comes_too_late_behind_others_is_told_from_who_takes_long(passes: Any) -> None:
    window = Window()
    first, _, third = sent(window, 3)
    passes(20)
    assert window.was_behind(third) is None, "none was ever answered, so nothing is known"
    window.answered(first)
    assert window.was_behind(third) == 1
    assert window.size == 1
    ended(window, 3)
    (alone,) = sent(window)
    assert window.was_behind(alone) is None, "it stood behind nobody"
    alone.ahead = 1
    for seconds, found in ((1, 1), (5, None)):
        passes(seconds)
        (later,) = sent(Window())
        passes(20)
        window.answered(later)
        assert window.was_behind(alone) == found, "one that was sent much later was answered before it"


def test_those_that_wait_go_in_the_order_of_their_coming_and_off_the_clock() -> None:
    window, order = Window(), []
    window.size = 1

    async def one(number: int) -> None:
        async with asyncio.timeout(0.2) as clock, window.within(Place(), clock):
            await asyncio.sleep(0.1)
            order.append(number)

    async def all_of_them() -> None:
        await asyncio.gather(*map(one, range(5)))

    asyncio.run(all_of_them())
    assert order == [*range(5)]
