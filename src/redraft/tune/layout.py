"""Token sequences with their canvases, and how they form the batches of a step.

Rows with canvases of one width and sequences of about one length share a batch, so that there is little padding. With
packing, several sequences share a line and do not see each other. All batches of a step make one optimizer step; each
has the weight of the positions that it scores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from redraft.tune.images import Shown
from redraft.tune.objective import Batch

WIDTH_STEP = 16
LENGTH_STEP = 64  # sequences that differ by less share a batch


@dataclass(frozen=True)
class Spot:
    """One canvas: its start, its correct tokens, the given positions, and where its fill of end tokens begins."""

    start: int
    target: tuple[int, ...]
    pinned: tuple[bool, ...]
    content: int


@dataclass(frozen=True)
class Row:
    """One clean sequence, its tokens on which the causal mode is scored, its canvases, all of one width, its images."""

    clean: tuple[int, ...]
    scored: tuple[bool, ...]
    spots: tuple[Spot, ...]
    images: tuple[Shown, ...] = ()

    @property
    def cost(self) -> int:
        """Token rows it adds to a forward."""
        return len(self.clean) + sum(len(spot.target) for spot in self.spots)


def blocks(answer: Sequence[int], given: Sequence[bool], start: int, width: int, end: int) -> tuple[Spot, ...]:
    """Canvases of an answer that begins at `start`: block by block, the last one filled with the end token.

    A canvas with no open position is left out.
    """
    fill = -(-(len(answer) + 1) // width) * width - len(answer)
    filled, pinned = (*answer, *[end] * fill), (*given, *[False] * fill)
    cuts = range(0, len(filled), width)
    return tuple(
        Spot(start + at, filled[at : at + width], pinned[at : at + width], min(width, len(answer) + 1 - at))
        for at in cuts
        if not all(pinned[at : at + width])
    )


def pack(
    rows: Sequence[Row],
    *,
    pad: int = 0,
    draws: int = 1,
    most_rows: int = 0,
    pack_tokens: int = 0,
    length_step: int = LENGTH_STEP,
) -> list[Batch]:
    """Batches of rows, in the order of their first rows.

    `draws` repeats every canvas. `most_rows` bounds the token rows of a batch, unless a single row has more. With
    `pack_tokens` sequences share lines of that many tokens. Lengths are rounded up to `length_step` tokens, and
    sequences of one rounded length share a batch.
    """
    groups: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in rows:
        width = len(row.spots[0].target) if row.spots else 0
        groups[width, 0 if pack_tokens else -(-len(row.clean) // length_step)].append(row)
    batches = []
    for group in groups.values():
        for part in _parts(group, draws, most_rows):
            batches.append(_batch(_lines(part, pack_tokens), pad).repeated(draws))
    return batches


def _parts(rows: Sequence[Row], draws: int, most_rows: int) -> Iterator[list[Row]]:
    part: list[Row] = []
    longest = canvases = 0
    for row in rows:
        wide = draws * (row.cost - len(row.clean))
        longest = max(longest, len(row.clean))
        if part and most_rows and longest * (len(part) + 1) + canvases + wide > most_rows:
            yield part
            part, longest, canvases = [], len(row.clean), 0
        part.append(row)
        canvases += wide
    yield part


def _lines(rows: Sequence[Row], pack_tokens: int) -> list[list[Row]]:
    """Rows by line: each alone, or first fit into lines of `pack_tokens`."""
    lines: list[list[Row]] = []
    room: list[int] = []
    for row in rows:
        at = next((i for i, left in enumerate(room) if left >= len(row.clean)), None)
        if at is None or not pack_tokens:
            lines.append([row])
            room.append(max(0, pack_tokens - len(row.clean)))
        else:
            lines[at].append(row)
            room[at] -= len(row.clean)
    return lines


def _batch(lines: Sequence[Sequence[Row]], pad: int) -> Batch:
    longest = max(sum(len(row.clean) for row in line) for line in lines)
    clean, scored, first, placed, images = [], [], [], [], list[Shown]()
    for i, line in enumerate(lines):
        tokens: list[int] = []
        marks: list[bool] = []
        begins: list[int] = []
        for row in line:
            origin = len(tokens)
            placed += [(i, origin, spot) for spot in row.spots]
            images += [replace(one, line=i, start=origin + one.start) for one in row.images]
            tokens += row.clean
            marks += row.scored
            begins += [origin] * len(row.clean)
        fill = longest - len(tokens)
        clean.append(tokens + [pad] * fill)
        scored.append(marks + [False] * fill)
        first.append(begins + list(range(len(tokens), longest)))  # each padding token is a sequence of its own
    width = len(placed[0][2].target) if placed else 0
    return Batch(
        clean=torch.tensor(clean),
        scored=torch.tensor(scored),
        first=torch.tensor(first),
        owner=torch.tensor([i for i, _, _ in placed], dtype=torch.long),
        origin=torch.tensor([origin for _, origin, _ in placed], dtype=torch.long),
        start=torch.tensor([origin + spot.start for _, origin, spot in placed], dtype=torch.long),
        target=torch.tensor([spot.target for _, _, spot in placed], dtype=torch.long).view(len(placed), width),
        pinned=torch.tensor([spot.pinned for _, _, spot in placed], dtype=torch.bool).view(len(placed), width),
        content=torch.tensor([spot.content for _, _, spot in placed], dtype=torch.long),
        images=tuple(images),
    )
