"""Variants: several answers to one prompt, equal ones merged, the likeliest first.

Answers are ranked by how many came out equal, then by mean entropy at their last step. Both are the model's own
confidence; docs/numbers.md says what picking by them was worth where it was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from redraft.operations.compete import Drop, race
from redraft.engine.request import Generation, ResolvedRequest
from redraft.errors import RequestError

if TYPE_CHECKING:
    from redraft.engine.engine import Engine

MOST_VARIANTS = 4096


@dataclass(frozen=True)
class Variant:
    """One text and every answer that gave it, the most certain first.

    `agreement` is the share of all finished answers that read so, `entropy` the mean nats per token of the first.
    """

    text: str
    answers: tuple[Generation, ...]
    agreement: float
    entropy: float


def ranked(
    engine: Engine,
    request: ResolvedRequest,
    count: int,
    *,
    drop: Drop | None = None,
    told: Callable[[Generation], None] | None = None,
) -> list[Variant]:
    """`count` answers to one prompt, which is encoded once, merged and ranked.

    Seeds are the request's and the integers after it. `told` is called with each answer as it finishes. With `drop`
    the least certain canvases are given up early. Raises RequestError for a count out of range.
    """
    if not 1 <= count <= MOST_VARIANTS:
        raise RequestError(f"the number of variants is {count}; it must be from 1 to {MOST_VARIANTS}")
    if drop is not None and request.causal:
        raise RequestError("keep and causal were both given; a causal answer has no canvas to judge: leave one out")
    requests = [replace(request, seed=(request.seed + i) % 2**64) for i in range(count)]
    found = dict[int, Generation]()
    for result in race(engine, requests, lambda _, entropy: mean(entropy), drop):
        found[result.number] = result.done
        if told is not None:
            told(result.done)
    variants = rank(list(found.values()))
    engine.loop.won(next(number for number, done in found.items() if done is variants[0].answers[0]))
    return variants


def rank(answers: Sequence[Generation]) -> list[Variant]:
    """Equal answers merged; sorted by agreement, mean entropy and seed. The order of `answers` does not matter."""
    alike: dict[str, list[Generation]] = {}
    for done in sorted(answers, key=lambda done: (mean(done.entropy), done.seed)):
        alike.setdefault(done.text, []).append(done)
    variants = [
        Variant(text, tuple(group), len(group) / len(answers), mean(group[0].entropy)) for text, group in alike.items()
    ]
    return sorted(variants, key=lambda variant: -variant.agreement)  # stable: among equals the most certain stays first


def mean(entropy: Sequence[float]) -> float:
    """Mean nats per position; 0 of none."""
    return sum(entropy) / max(1, len(entropy))
