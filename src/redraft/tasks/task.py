"""What a synthetic task is: an endless stream of examples, and a scorer that any string can be given to.

A task knows no tokenizer and no model. Its examples are text; training and evaluation turn them into tokens.

The two splits cannot overlap, whatever the seeds: the hash of an example's key (a puzzle, a name) decides which split
the key belongs to, and a stream skips keys of the other one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, Protocol, get_args, runtime_checkable

from redraft.errors import RecipeError

Split = Literal["train", "held_out"]

_HELD_OUT_ONE_IN = 10


@dataclass(frozen=True)
class Example:
    """One prompt and its only right answer, both without a chat template around them.

    `given` are the parts of the answer that a caller may know beforehand, as pairs of character positions: training
    pins them in some examples. With a `suffix` it is no chat: `prompt` is raw text, `answer` fills the gap behind it,
    and `suffix` is the text behind the gap.
    """

    prompt: str
    answer: str
    given: tuple[tuple[int, int], ...] = ()
    suffix: str | None = None


@dataclass(frozen=True)
class Score:
    """How good one answer is: equal to the right one, and shares from 0 to 1 by the task's own part names."""

    exact: bool
    parts: Mapping[str, float]


@runtime_checkable
class Task(Protocol):
    """A source of examples that can also judge answers to them."""

    @property
    def name(self) -> str:
        """What recipes and the command line call it."""
        ...

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        """An endless stream, the same for the same arguments. Raises RecipeError for an unknown split."""
        ...

    def score(self, example: Example, answer: str) -> Score:
        """Judge any string at all; never raises."""
        ...


def share(right: Sequence[bool]) -> float:
    """The share that is right; 1.0 of none."""
    return sum(right) / len(right) if right else 1.0


def split_of(key: str) -> Split:
    """The split that a key belongs to, for ever: one key in ten is held out."""
    digest = blake2b(key.encode("utf-8"), digest_size=8).digest()
    return "held_out" if int.from_bytes(digest, "big") % _HELD_OUT_ONE_IN == 0 else "train"


def stream_seed(name: str, split: str, seed: int) -> int:
    """The seed of one stream's random numbers, so that seed 0 of two tasks or splits does not draw alike.

    Raises RecipeError for an unknown split: no key would ever belong to it, and the stream would search for ever.
    """
    if split not in get_args(Split):
        raise RecipeError(f"split is {split!r}; known: {', '.join(get_args(Split))}")
    return int.from_bytes(blake2b(f"{name} {split} {seed}".encode(), digest_size=8).digest(), "big")
