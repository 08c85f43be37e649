"""Data of a constraint's kernels (`classes.py`, `messages.py`): tiles of tokens, edges of automata. Needs no Triton."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from redraft.shapes import Float, Int, Tensor

Indices = NDArray[np.integer[Any]]

WIDE, WIDER = 8, 16
"""Entries of a row: of a row of edges, and of a row of rows, for states with too many edges for one row. Half of all
states have a single edge, and some have hundreds."""
ROWS, FEWER = 256, 64
"""Rows processed at once, of the same two kinds."""


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of an automaton laid out for a walk from the left and one from the right.

    Rows of edges add the edges into a state; if these are several rows, rows of rows add them, and the last row is the
    state. A row has a fixed number of entries for its kind; spare entries read a row that is always zero.

    rows, weights           for each entry its row and the kind of its edge; entries of rows of rows have one more kind
    levels                  first row, number of rows, first entry: for rows of edges, for rows of those, and so on
    firsts, others, kinds   edges from the left, unchanged: first edge of each state, and the end; sources; kinds
    nodes, states           the row of each state; the state of each row, or the number of states
    """

    rows: Int[Tensor, "2 places"]
    weights: Int[Tensor, "2 places"]
    levels: Int[Tensor, "2 levels 3"]
    firsts: Int[Tensor, "_"]
    others: Int[Tensor, "edges"]
    kinds: Int[Tensor, "edges"]
    nodes: Int[Tensor, "2 states"]
    states: Int[Tensor, "2 rows"]


@dataclass(frozen=True, eq=False)
class Paths:
    """For every state at every boundary: logs of the sums of paths `before` and `behind` it, and of the `best` path to
    it. For the best path of all: the `states` at the boundaries and the `kinds` of edges between them."""

    before: Float[Tensor, "boundaries states"]
    behind: Float[Tensor, "boundaries states"]
    best: Float[Tensor, "boundaries states"]
    states: Int[Tensor, "boundaries"]
    kinds: Int[Tensor, "canvas"]


@dataclass(frozen=True, eq=False)
class Tiles:
    """Tokens in the order of their classes, in tiles of at most `wide`, each of one class, from `begins` to `ends`."""

    tokens: Int[Tensor, "usable"]
    begins: Int[Tensor, "tiles"]
    ends: Int[Tensor, "tiles"]
    wide: int


Read = tuple[Float[Tensor, "canvas tiles"], Float[Tensor, "canvas tiles"], Int[Tensor, "canvas tiles"]]
"""For each tile at each position: the largest log-probability, the sum of probabilities relative to it, its token."""

Reduce = Callable[[Tensor, Tiles], Read]
"""From log-probabilities [canvas, vocab]."""

Shift = Callable[[Tensor, Tensor, Tensor, float, float], Tensor]
"""Log-probabilities plus a bias for the class of each token; those below the first number become the second."""

Walk = Callable[[Edges, Tensor, Tensor, int, Tensor, Tensor | None], Paths]
"""From edges, summed and largest log-weights [canvas, kinds], the state at the left, and the states that may be passed
at the right end and at each boundary (None for all)."""


@dataclass(frozen=True)
class ConditionKernels:
    """The kernels of conditioning on a constraint."""

    reduce: Reduce
    walk: Walk
    shift: Shift


Side = tuple[Indices, Indices, Indices]
"""Edges in the order of their targets: sources, kinds, targets."""


def lay_out(left: Side, right: Side, states: int, kinds: int, device: torch.device) -> Edges:
    """Edges of `kinds` kinds between `states` states."""
    sides = [_rows_of(*side, states, kinds) for side in (left, right)]
    rows, weights, levels, nodes, names = (_stack(*parts) for parts in zip(*sides, strict=True))
    firsts = np.searchsorted(left[2], np.arange(states + 1))
    small = (torch.from_numpy(one.astype(np.int32)).to(device) for one in (rows, weights, levels, firsts, *left[:2]))
    return Edges(*small, *(torch.from_numpy(one).to(device) for one in (nodes, names)))


def cut(tokens: Indices, starts: Indices, device: torch.device, wide: int = 2048) -> tuple[Tiles, Indices]:
    """Tiles of tokens whose classes begin at `starts`, and of each class its first tile."""
    sizes = np.diff(np.append(starts, len(tokens)))
    needed = -(-sizes // wide)
    firsts = np.cumsum(needed) - needed
    within = np.arange(needed.sum()) - np.repeat(firsts, needed)
    begins = np.repeat(starts, needed) + within * wide
    ends = np.minimum(begins + wide, np.repeat(starts + sizes, needed))
    one, begin, end = (torch.from_numpy(part.astype(np.int32)).to(device) for part in (tokens, begins, ends))
    return Tiles(one, begin, end, wide), firsts


def _stack(one: Indices, other: Indices) -> Indices:
    """Both directions in one array, the shorter one padded with entries that are never read."""
    most = max(len(one), len(other))
    return np.stack([np.pad(x, [(0, most - len(x))] + [(0, 0)] * (x.ndim - 1)) for x in (one, other)])


def _rows_of(others: Indices, kinds: Indices, targets: Indices, states: int, rest: int) -> tuple[Indices, ...]:
    """One direction: the row that each entry reads, its kind, the levels, the states' rows, the rows' states."""
    left, counts = np.arange(states), np.bincount(targets, minlength=states)  # states to add up, and entries of each
    numbers, first, place = np.arange(len(others)), 0, 0  # edges, then rows, state by state
    read, levels, names = list[Indices](), list[tuple[int, int, int]](), list[Indices]()
    nodes = np.empty(states, np.int64)
    while len(left):
        wide, at_once = (WIDER, FEWER) if levels else (WIDE, ROWS)
        needed = np.maximum(-(-counts // wide), 1)
        begins = np.cumsum(needed) - needed
        size = int(-(-(needed.sum() + 1) // at_once)) * at_once  # the last row is to spare
        rows = np.full((size, wide), -1)
        within = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows[np.repeat(begins, counts) + within // wide, within % wide] = numbers
        done = needed == 1
        nodes[left[done]] = first + begins[done]
        name = np.full(size, states)
        name[begins[done]] = left[done]
        read, levels, names = [*read, rows.ravel()], [*levels, (first, size, place)], [*names, name]
        numbers = first + np.flatnonzero(np.repeat(~done, needed))
        left, counts, first, place = left[~done], needed[~done], first + size, place + rows.size
    nothing, edge = levels[0][1] - 1, read[0]
    weights = [np.where(edge < 0, rest, kinds[edge]), *(np.full(len(one), rest) for one in read[1:])]
    read[0] = np.where(edge < 0, -1, nodes[others[edge]])
    every = np.concatenate(read)
    return np.where(every < 0, nothing, every), np.concatenate(weights), np.array(levels), nodes, np.concatenate(names)
