"""Where images stand in a prompt: one placeholder becomes a run of them, a run is never cut, and its pixels name it.

    … <|image> <|image|> <|image|> … <image|> …        begin, one placeholder per soft token, end

A run's tokens see each other in both directions, so a forward over a part of it would be wrong. Everything here works
on token ids and is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from redraft.errors import RequestError
from redraft.images.config import ImageConfig


@dataclass(frozen=True)
class Run:
    """The placeholders of one image in a prompt: tokens `start` to `stop`, the latter excluded."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        """Soft tokens."""
        return self.stop - self.start


def place_images(
    tokens: Sequence[int], lengths: Sequence[int], config: ImageConfig
) -> tuple[list[int], tuple[Run, ...]]:
    """A rendered prompt with every placeholder put in full, and where the runs are. `lengths` are in soft tokens.

    The template prints one placeholder an image, in the order of the images. Raises RequestError if there are not as
    many of one as of the other.
    """
    if (count := sum(token == config.placeholder for token in tokens)) != len(lengths):
        raise RequestError(
            f"the prompt has {count} places for images and {len(lengths)} images were given; the chat template decides"
            " where images may stand, and a text must not spell its image token"
        )
    placed: list[int] = []
    runs: list[Run] = []
    left = iter(lengths)
    for token in tokens:
        if token != config.placeholder:
            placed.append(token)
            continue
        start = len(placed) + 1
        runs.append(Run(start, start + next(left)))
        placed += [config.begin, *[config.placeholder] * runs[-1].length, config.end]
    return placed, tuple(runs)


def next_cut(start: int, wanted: int, runs: Iterable[Run]) -> int:
    """Where a prompt chunk from `start` ends that should end at `wanted`: there, or else at a border of an image.

    It is the border before, so that a chunk is no longer than wanted, unless the chunk starts with that image. A prompt
    that begins like another is cut like it, up to where they differ.
    """
    assert start < wanted
    for run in runs:
        if run.start < wanted < run.stop:
            return run.start if run.start > start else run.stop
    return wanted


def cached_names(tokens: Sequence[int], runs: Sequence[Run], digests: Sequence[bytes]) -> list[int | str]:
    """A prompt as a prefix cache should name it: every placeholder carries its image's digest and its place there.

    Two prompts have the same names exactly as far as their tokens and pixels are the same.
    """
    names: list[int | str] = list(tokens)
    for run, digest in zip(runs, digests, strict=True):
        names[run.start : run.stop] = [f"{digest.hex()}.{i}" for i in range(run.length)]
    return names
