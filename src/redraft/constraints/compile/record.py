"""The order in which the pairs of a JSON object may be written: that of the schema, with optional ones left out.

    first ─► at 0 ─► at 1 ─► … ─► at n        before the first pair; an arrow for each pair that may be left out
               │       │                      from `at i` into pair i, which leads to `behind i + 1`
    behind i ─► end, or , ─► next i ─► …      behind a pair: next i leads into pair i, and past it, as `at i` does

A pair stands there once, however many ways lead into it. Where pairs are counted, there is a level for each number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from redraft.constraints.compile.builder import Builder, Part


@dataclass
class _Level:
    """Of the states after some number of pairs: ways into each pair and past the last, and what is behind each."""

    into: list[int]
    behind: list[int] = field(default_factory=list)


class ObjectPairs:
    """The pairs of an object under construction. `required` says of each declared one whether it must be there; `top`
    is how many are counted, and `bounded` whether there may not be more."""

    def __init__(self, build: Builder, required: Sequence[bool], top: int, *, bounded: bool) -> None:
        self.build, self.required, self.bounded, self.top = build, required, bounded, top
        count = len(required) + 1
        self.levels = [_Level([build.state() for _ in range(count)]) for _ in range(top + 1)]
        for level in self.levels:
            level.behind = [build.state() for _ in range(count)]
            for i, needed in enumerate(required):
                if not needed:
                    build.link(level.into[i], level.into[i + 1])

    def add(self, place: int, level: int, pair: Part) -> None:
        """A pair in its place among the declared ones, or behind all of them; it is the level-th that is written."""
        if pair is None:
            return
        last = min(place + 1, len(self.required))
        self.build.link(self.levels[level - 1].into[place], pair[0])
        if level == self.top and not self.bounded:
            self.build.link(self.levels[level].into[place], pair[0])
        self.build.link(pair[1], self.levels[level].behind[last])

    def finish(self, low: int, comma: Callable[[], tuple[int, int]]) -> Part:
        """All of it, with at least `low` pairs."""
        build, end, count = self.build, self.build.state(), len(self.required)
        # From `enough` on no declared pair has to follow.
        enough = max((i + 1 for i, needed in enumerate(self.required) if needed), default=0)
        if low == enough == 0:
            build.link(self.levels[0].into[0], end)
        for number, level in enumerate(self.levels[1:], 1):
            for i in range(count + 1):
                if i >= enough and number >= low:
                    build.link(level.behind[i], end)
                mark = comma()
                build.link(level.behind[i], mark[0])
                build.link(mark[1], level.into[i])
        return self.levels[0].into[0], end
