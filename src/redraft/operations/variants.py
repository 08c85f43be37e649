"""Variants: several answers to one prompt, equal ones merged, the likeliest first.

Answers are ranked by how many came out equal, then by mean entropy at their last step. Both are the model's own
confidence; docs/numbers.md says what picking by them was worth where it was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from redraft.engine.engine import Core
from redraft.engine.handle import Handle
from redraft.engine.request import Generation, Request, ResolvedRequest
from redraft.errors import RequestError
from redraft.operations.compete import Drop, compete

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


def variants(
    engine: Core,
    request: str | Request | ResolvedRequest,
    count: int,
    *,
    keep: int | None = None,
    on_answer: Callable[[Generation], None] | None = None,
) -> list[Variant]:
    """`count` answers to one prompt, which is encoded once; equal ones merged, the likeliest first.

    Seeds are the request's and the integers after it. `on_answer` is called with each answer as it finishes. With
    `keep` all but that many canvases are given up after two steps, the least certain first. Raises RequestError for a
    count out of range.
    """
    if not 1 <= count <= MOST_VARIANTS:
        raise RequestError(f"the number of variants is {count}; it must be from 1 to {MOST_VARIANTS}")
    first = engine.resolve(request)
    if keep is not None and first.causal:
        raise RequestError("keep and causal were both given; a causal answer has no canvas to judge: leave one out")
    requests = [replace(first, seed=(first.seed + i) % 2**64) for i in range(count)]
    found: list[tuple[Generation, Handle]] = []
    for result in compete(engine, requests, lambda _, entropy: mean(entropy), None if keep is None else Drop(keep)):
        found.append((result.done, result.handle))
        if on_answer is not None:
            on_answer(result.done)
    ranked = rank([done for done, _ in found])
    next(handle for done, handle in found if done is ranked[0].answers[0]).won()
    return ranked


def rank(answers: Sequence[Generation]) -> list[Variant]:
    """Equal answers merged; sorted by agreement, mean entropy and seed. The order of `answers` does not matter."""
    alike: dict[str, list[Generation]] = {}
    for done in sorted(answers, key=lambda done: (mean(done.entropy), done.seed)):
        alike.setdefault(done.text, []).append(done)
    found = [
        Variant(text, tuple(group), len(group) / len(answers), mean(group[0].entropy)) for text, group in alike.items()
    ]
    return sorted(found, key=lambda variant: -variant.agreement)  # stable: among equals the most certain stays first


def mean(entropy: Sequence[float]) -> float:
    """Mean nats per position; 0 of none."""
    return sum(entropy) / max(1, len(entropy))
