"""How many requests are under way at a server that refuses some."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from redraft.measure import window as module
from redraft.measure.window import CUT, DOUBT, FEW, FIRST_SEC, MOST_SEC, REGAINED, Place, Window


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
    assert window._until <= module.time.monotonic()
    window.refused(place, says_when=True)
    assert window._until <= module.time.monotonic(), "the server says itself when"


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


def test_one_that_is_refused_as_often_as_others_were_before_their_answers_is_a_sign(passes: Any) -> None:
    window = Window()
    often, places = Place(), sent(window, 9)
    for place in places:
        place.refusals = 4
        window.answered(place)
    for _ in range(FEW + 2 * 4):
        passes(1)
        often.sent = module.time.monotonic()
        assert window.refused(often, says_when=True) == 0
        window._answers += 1
        window._strikes = 0
    often.sent = module.time.monotonic()
    assert window.refused(often, says_when=True) > 0
    window._strikes = 1
    window._answers += 1
    assert window.refused(often, says_when=True) == 0, "nobody is answered without a pause"
    window._strikes = 0
    assert window.refused(often, says_when=True) == 0, "no other was answered since"


def test_who_comes_too_late_behind_others_is_told_from_who_takes_long(passes: Any) -> None:
    window = Window()
    places = sent(window, 6)
    passes(20)
    for place in places[:4]:
        window.answered(place)
    assert [window.late(place) for place in places[4:]] == [4, 4]
    assert window.size == 2, "half of what came in time"
    passes(1)
    third, fourth = sent(window, 2)
    assert window.late(fourth) == 0
    assert window.size == 1
    assert window.late(third) is None, "it stood behind nobody"
    for seconds, found in ((1, 1), (5, None)):
        fourth.sent, fourth.answers = module.time.monotonic(), window._answers
        passes(seconds)
        (later,) = sent(Window())
        passes(20)
        window.answered(later)
        assert window.late(fourth) == found, "one that was sent much later was answered before it"


def test_a_server_that_slows_down_by_what_it_has_is_asked_less(passes: Any) -> None:
    """All rows that were sent at once were late at once, none was asked again, and so on to the end."""
    window = Window()
    *_, last = sent(window, 6)
    passes(20)
    assert window.late(last) == 0
    assert window.size == 1


def test_who_breaks_off_leaves_room_for_those_that_it_left(passes: Any) -> None:
    window = Window()
    window.broken(Place(beside=4))
    assert window.size == 4
    window.broken(Place(beside=63))
    assert window.size == 4
    window.broken(Place())
    assert window.size == 1


def test_a_limiter_that_lets_none_through_is_asked_less_though_it_says_when(passes: Any) -> None:
    """Each of 64 came back at the time that it said, and one that counts what it refuses let hardly any through."""
    window, pauses = Window(), []
    for _ in range(14):
        (place,) = sent(window)
        window.refused(place, says_when=True)
        pauses.append(window._until - module.time.monotonic())
        passes(MOST_SEC)
    assert pauses[0] < 0.1
    assert pauses[-1] == MOST_SEC
    window.opened()
    assert window._until < module.time.monotonic()
    assert not window._strikes


def test_the_window_opens_where_those_asked_again_alone_are_late_again(passes: Any) -> None:
    """Rows that take too long themselves went one by one, each for as long as the limit is."""
    window = Window()
    window.size = 1
    window._answers = 1
    for number in range(1, DOUBT + 1):
        assert window.size == 1
        assert window.late(Place(lates=1)) is None
        assert window.late(Place(ahead=1)) == (1 if number < DOUBT else None)
    assert window.size == math.inf
    answered = DOUBT / REGAINED
    for _ in range(int(answered)):
        assert window.late(Place(ahead=1)) is None
        window.answered(Place())
    window.answered(Place(lates=1))
    assert window.late(Place(ahead=1)) == window._answers, "others were answered meanwhile"


def test_those_that_wait_go_in_the_order_of_their_coming_and_off_the_clock() -> None:
    window, order = Window(), list[int]()
    window.size = 1

    async def one(number: int, seconds: float = 0.1) -> None:
        async with asyncio.timeout(0.2) as clock, window.within(Place(), clock):
            await asyncio.sleep(seconds)
            order.append(number)

    async def all_of_them() -> None:
        *_, late = await asyncio.gather(*map(one, range(5)), one(9, 60), return_exceptions=True)
        assert isinstance(late, TimeoutError), "on the clock again, once it is sent"

    asyncio.run(all_of_them())
    assert order == [*range(5)]
    assert window._under_way == 0


@pytest.mark.parametrize("turns", range(4))
def test_one_that_waits_and_is_cancelled_is_not_sent(turns: int) -> None:
    """Python's `wait_for` lost that its task was cancelled, and the end of a run waited for one more answer."""
    window, begun = Window(), []
    window._until = module.time.monotonic() + 0.2

    async def one() -> None:
        async with asyncio.timeout(9) as clock, window.within(Place(), clock):
            begun.append(1)

    async def cancelled() -> None:
        task = asyncio.create_task(one())
        await asyncio.sleep(0.05)
        window._moved.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert not begun
