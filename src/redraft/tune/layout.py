"""Token sequences with their canvases, and how they form the batches of a step.

Rows with canvases of one width and sequences of about one length share a batch, so that there is little padding. With
packing, several sequences share a line and do not see each other. Where a batch has a cost of its own, as the launches
of a GPU, groups of several widths and lengths share one, as long as that adds little padding. All batches of a step
make one optimizer step; each has the weight of the positions that it scores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from redraft.tune.images import Shown
from redraft.tune.objective import ALIGNED, Batch

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
    merge_rows: int = 0,
) -> list[Batch]:
    """Batches of rows, in the order of their first rows.

    `draws` repeats every canvas. `most_rows` bounds the token rows of a batch, unless a single row has more. With
    `pack_tokens` sequences share lines of that many tokens. Lengths are rounded up to `length_step` tokens, and
    sequences of one rounded length share a batch. So do groups that differ, two by two, while each time at most
    `merge_rows` token rows of padding come of it; lines are then filled up to ALIGNED tokens, beyond the bounds above,
    for a GPU's products.
    """
    groups: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in rows:
        width = len(row.spots[0].target) if row.spots else 0
        groups[width, 0 if pack_tokens else -(-len(row.clean) // length_step)].append(row)
    batches = []
    for group in _merged(list(groups.values()), draws, merge_rows):
        for part in _parts(group, draws, most_rows):
            batches.append(_batch(_lines(part, pack_tokens), pad, ALIGNED if merge_rows else 1).repeated(draws))
    return batches


def _merged(groups: list[list[Row]], draws: int, most: int) -> list[list[Row]]:
    """Groups joined two by two, the pair with the least padding first, while that is at most `most` token rows."""
    sizes = [_size(group) for group in groups]
    while most and len(groups) > 1:
        pairs = ((i, j) for j in range(len(groups)) for i in range(j))
        added, i, j = min((_padding(sizes[i], sizes[j], draws), i, j) for i, j in pairs)
        if added > most:
            break
        groups[i] = groups[i] + groups.pop(j)
        sizes.pop(j)
        sizes[i] = _size(groups[i])
    return groups


def _size(rows: Sequence[Row]) -> tuple[int, int, int, int]:
    """Sequences, tokens of the longest, canvases, and positions of the widest."""
    spots = [spot for row in rows for spot in row.spots]
    widest = max((len(spot.target) for spot in spots), default=0)
    return len(rows), max(len(row.clean) for row in rows), len(spots), widest


def _padding(a: tuple[int, int, int, int], b: tuple[int, int, int, int], draws: int) -> int:
    """Token rows that two groups have more of as one."""
    tokens = (a[0] + b[0]) * max(a[1], b[1]) - a[0] * a[1] - b[0] * b[1]
    return tokens + draws * ((a[2] + b[2]) * max(a[3], b[3]) - a[2] * a[3] - b[2] * b[3])


def _parts(rows: Sequence[Row], draws: int, most_rows: int) -> Iterator[list[Row]]:
    part: list[Row] = []
    longest = widest = canvases = 0
    for row in rows:
        count, wide = draws * len(row.spots), max((len(spot.target) for spot in row.spots), default=0)
        longest, widest = max(longest, len(row.clean)), max(widest, wide)
        if part and most_rows and longest * (len(part) + 1) + widest * (canvases + count) > most_rows:
            yield part
            part, longest, widest, canvases = [], len(row.clean), wide, 0
        part.append(row)
        canvases += count
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


def _batch(lines: Sequence[Sequence[Row]], pad: int, step: int) -> Batch:
    """One batch, whose lines have a multiple of `step` tokens."""
    longest = -(-max(sum(len(row.clean) for row in line) for line in lines) // step) * step
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
    spots = [spot for _, _, spot in placed]
    widths = [len(spot.target) for spot in spots]
    width = max(widths, default=0)
    targets = [(*spot.target, *[pad] * (width - len(spot.target))) for spot in spots]
    pins = [(*spot.pinned, *[True] * (width - len(spot.pinned))) for spot in spots]
    return Batch(
        clean=torch.tensor(clean),
        scored=torch.tensor(scored),
        first=torch.tensor(first),
        owner=torch.tensor([i for i, _, _ in placed], dtype=torch.long),
        origin=torch.tensor([origin for _, origin, _ in placed], dtype=torch.long),
        start=torch.tensor([origin + spot.start for _, origin, spot in placed], dtype=torch.long),
        target=torch.tensor(targets, dtype=torch.long).view(len(placed), width),
        pinned=torch.tensor(pins, dtype=torch.bool).view(len(placed), width),
        content=torch.tensor([spot.content for spot in spots], dtype=torch.long),
        live=torch.tensor(widths) if len(set(widths)) > 1 else None,
        images=tuple(images),
    )
