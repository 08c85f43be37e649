"""Images in a prompt: one placeholder becomes a run of them, a run is never cut, and its pixels identify it.

    … <|image> <|image|> <|image|> … <image|> …        begin, one placeholder per soft token, end

A run's tokens see each other in both directions, so a forward over a part of it would be wrong. All functions are pure
and work on token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from redraft.errors import RequestError
from redraft.images.config import ImageConfig
from redraft.images.pixels import Picture
from redraft.shapes import Float, Tensor


@dataclass(frozen=True)
class Run:
    """The placeholders of one image in a prompt: tokens from `start` up to, not including, `stop`."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        """Soft tokens."""
        return self.stop - self.start


@dataclass(frozen=True)
class PlacedImage:
    """An image in a prompt: its run, its pixels, and what encodes them. Equal where run and pixels are."""

    run: Run
    picture: Picture
    encode: Callable[[Picture], Float[Tensor, "tokens hidden"]] = field(compare=False, repr=False)

    def soft(self) -> Float[Tensor, "tokens hidden"]:
        """Its soft tokens."""
        return self.encode(self.picture)


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt: token ids, and the images among them, in their order."""

    tokens: tuple[int, ...]
    images: tuple[PlacedImage, ...] = ()


def place_images(
    tokens: Sequence[int], lengths: Sequence[int], config: ImageConfig
) -> tuple[list[int], tuple[Run, ...]]:
    """A rendered prompt with a full run for every placeholder, and the runs. `lengths` are in soft tokens.

    The template prints one placeholder for each image, in the order of the images. Raises RequestError if their numbers
    differ.
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
    """The end of a prompt chunk from `start`: `wanted`, or a border of the image there.

    It is the border before, so that a chunk is not longer than wanted, unless the chunk starts with that image. Two
    prompts with the same beginning have the same cuts there.
    """
    assert start < wanted
    for run in runs:
        if run.start < wanted < run.stop:
            return run.start if run.start > start else run.stop
    return wanted


def chunk_ends(length: int, size: int, runs: Sequence[Run]) -> tuple[int, ...]:
    """Where a prompt of that length is cut, whatever follows: at multiples of `size`, or a border of the image there.

    What stands behind the last of these ends is the prompt's last chunk, which a longer prompt would cut elsewhere.
    """
    ends = [0]
    while (end := next_cut(ends[-1], (ends[-1] // size + 1) * size, runs)) <= length:
        ends.append(end)
    return tuple(ends[1:])


def cached_names(tokens: Sequence[int], runs: Sequence[Run], digests: Sequence[bytes]) -> list[int | str]:
    """A prompt's keys in a prefix cache: the key of a placeholder is its image's digest and its place in the run.

    The keys of two prompts are equal exactly as far as their tokens and pixels are.
    """
    names: list[int | str] = list(tokens)
    for run, digest in zip(runs, digests, strict=True):
        names[run.start : run.stop] = [f"{digest.hex()}.{i}" for i in range(run.length)]
    return names


def shortened(tokens: Sequence[int], images: Sequence[PlacedImage]) -> list[int]:
    """A prompt for people: one placeholder for each image."""
    inside = {i for image in images for i in range(image.run.start + 1, image.run.stop)}
    return [token for i, token in enumerate(tokens) if i not in inside]
