"""Whether a language has some text of a JSON value: the keys of an object have no order, and a text has one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Step = Callable[[int, bytes], int]
MOST_STEPS = 5_000
"""Keys and values that are tried before it is given up."""


def has_text(step: Step, value: Any, accepts: Callable[[int], bool]) -> bool:
    """Whether an automaton takes the value as Python writes it, its keys in any order. `step(state, text)` is the state
    behind a text, negative if there is none; 0 is the first."""
    return any(accepts(end) for end in _Walk(step).behind(0, value))


@dataclass
class _Walk:
    step: Step
    left: int = MOST_STEPS
    failed: set[tuple[int, str]] = field(default_factory=set)

    def behind(self, state: int, value: Any) -> Iterator[int]:
        """The states behind a value."""
        if isinstance(value, dict) and value:
            yield from self.pairs(self.read(state, "{"), value, "")
        elif isinstance(value, list) and value:
            yield from self.items(self.read(state, "["), value, 0)
        elif (found := self.read(state, json.dumps(value, ensure_ascii=False))) >= 0:
            yield found

    def read(self, state: int, text: str) -> int:
        self.left -= 1
        return self.step(state, text.encode(errors="surrogatepass")) if state >= 0 and self.left > 0 else -1

    def items(self, state: int, value: list[Any], at: int) -> Iterator[int]:
        if at == len(value):
            found = self.read(state, "]")
            yield from [found] * (found >= 0)
            return
        for behind in self.behind(self.read(state, ", " if at else ""), value[at]):
            yield from self.items(behind, value, at + 1)

    def pairs(self, state: int, rest: dict[str, Any], comma: str) -> Iterator[int]:
        """The states behind the pairs that are left: first the one behind which most of the others may stand."""
        here = state, json.dumps(rest)
        if state < 0 or here in self.failed:
            return
        if not rest:
            found = self.read(state, "}")
            yield from [found] * (found >= 0)
            return
        keys = {key: self.read(state, f"{comma}{json.dumps(key, ensure_ascii=False)}: ") for key in rest}
        ways = []
        for key, begun in keys.items():
            others = [f", {json.dumps(other, ensure_ascii=False)}: " for other in rest if other != key]
            for behind in self.behind(begun, rest[key]) if begun >= 0 else ():
                ways.append((sum(self.read(behind, other) >= 0 for other in others), key, behind))
        some = False
        for _, key, behind in sorted(ways, key=lambda way: -way[0]):
            for end in self.pairs(behind, {other: rest[other] for other in rest if other != key}, ", "):
                some = True
                yield end
        if not some:
            self.failed.add(here)
