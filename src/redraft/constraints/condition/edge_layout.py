"""The edges of an automaton in the orders in which messages sum them, and a canvas's log-probabilities by class."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from redraft.constraints.compile.automaton import FAR
from redraft.constraints.compile.lift import TokenAutomaton
from redraft.errors import ConstraintError
from redraft.model.gpu.automata import Edges, Tiles, cut, lay_out
from redraft.shapes import Float, Int, Tensor

Reals = NDArray[np.float64]
Indices = NDArray[np.integer[Any]]

NONE = -1e30
"""Log-weight of what there is not; finite, so that no difference of two of them is undefined."""
BARRED = -1e8
"""A token whose log-probability is below this is not the one that is pinned; the coldest logits stay above it."""
CACHED = 65536
"""Numbers that are worked on at once, so that they stay in the processor's cache."""
MOST_COUNTED, MOST_FEWEST = 2**26, 2**22
"""Edges, and states, times tokens that an answer has at least: a third of a second, and 16 MB."""


@dataclass(frozen=True, eq=False)
class Order:
    """Edges in one order: the sums that they make, the first edge of each sum, and both ends and the class of each."""

    sums: Indices
    starts: Indices
    src: Indices
    cls: Indices
    dst: Indices


def ordered(keys: Indices, src: Indices, cls: Indices, dst: Indices) -> Order:
    """Edges in the order of some keys; edges of one key make one sum."""
    order = np.argsort(keys, kind="stable")
    sums, starts = np.unique(keys[order], return_index=True)
    return Order(sums, starts, *(part[order].astype(np.int64) for part in (src, cls, dst)))


@dataclass(frozen=True, eq=False)
class Orders:
    """Edges, and the orders in which messages sum them."""

    src: Indices
    cls: Indices
    dst: Indices

    @cached_property
    def by_target(self) -> Order:
        """As alpha and the best path sum them."""
        return ordered(self.dst, self.src, self.cls, self.dst)

    @cached_property
    def by_source(self) -> Order:
        """As beta sums them."""
        return ordered(self.src, self.src, self.cls, self.dst)

    @cached_property
    def by_class(self) -> Order:
        """As the bias sums them."""
        return ordered(self.cls, self.src, self.cls, self.dst)


@dataclass(frozen=True, eq=False)
class Merged(Orders):
    """All edges between the same two states as one, whose weight is that of its kind, which is a set of classes.

    Characters that a string may hold are many classes and one way: of 30,840 edges of a schema with ten fields, 4,185
    of 157 kinds are left. Edges have kinds for classes; `members` are classes of kinds, a kind's begin at `firsts`.
    """

    members: Indices
    firsts: Indices

    @cached_property
    def kinds_of(self) -> Order:
        """The kinds of each class, as `src`."""
        kinds = np.repeat(np.arange(len(self.firsts)), np.diff(np.append(self.firsts, len(self.members))))
        return ordered(self.members, kinds, self.members, self.members)

    def of_kinds(self, values: Reals, take: np.ufunc) -> Reals:
        """From values of classes, row by row, those of kinds: sums or maxima."""
        return np.asarray(take.reduceat(np.take(values, self.members, axis=1), self.firsts, axis=1))


@dataclass(frozen=True, eq=False)
class Runs:
    """Consecutive runs of numbers on a device: where each begins, their end, and which run each number is of."""

    offsets: Int[Tensor, "_"]
    labels: Int[Tensor, "numbers"]

    @staticmethod
    def of(starts: Indices, numbers: int, device: torch.device) -> Runs:
        """Runs that begin at `starts`."""
        offsets = np.append(starts, numbers)
        labels = np.repeat(np.arange(len(starts)), np.diff(offsets))
        return Runs(*(torch.from_numpy(one.astype(np.int64)).to(device) for one in (offsets, labels)))

    def largest(self, values: Float[Tensor, "numbers canvas"]) -> Float[Tensor, "runs canvas"]:
        """Of each run."""
        return torch.segment_reduce(values, "max", offsets=self.offsets, unsafe=True)

    def log_sums(self, values: Float[Tensor, "numbers canvas"]) -> Float[Tensor, "runs canvas"]:
        """Logs of the sums of exponentials of each run."""
        peak = self.largest(values)
        shares = (values - peak.index_select(0, self.labels)).exp_()
        return peak + torch.segment_reduce(shares, "sum", offsets=self.offsets, unsafe=True).log()


@dataclass(frozen=True, eq=False)
class DeviceLayout:
    """A layout on a device: edges for a walk, and what sums are made of before and behind it.

    tiles, by_tile     tokens, class by class          present           those classes
    members, by_kind   classes, kind by kind           kinds, by_class   kinds, class by class; `classes` are those
    sources, targets, by_pair   both ends of merged edges, kind by kind
    """

    edges: Edges
    tiles: Tiles
    by_tile: Runs
    present: Int[Tensor, "_"]
    members: Int[Tensor, "members"]
    by_kind: Runs
    kinds: Int[Tensor, "members"]
    by_class: Runs
    classes: Int[Tensor, "_"]
    sources: Int[Tensor, "edges"]
    targets: Int[Tensor, "edges"]
    by_pair: Runs

    @staticmethod
    def of(layout: EdgeLayout, device: torch.device) -> DeviceLayout:
        """Made once for a language and a device."""
        merged, a = layout.merged, layout.automaton
        left, right, pairs, back = merged.by_target, merged.by_source, merged.by_class, merged.kinds_of
        ahead, back_again = (left.src, left.cls, left.dst), (right.dst, right.cls, right.src)
        edges = lay_out(ahead, back_again, a.states, len(merged.firsts), device)
        order, classed, at = layout.tokens
        tiles, firsts = cut(order, at, device)
        present, members, kinds, classes, sources, targets = (
            torch.from_numpy(one.astype(np.int64)).to(device)
            for one in (classed, merged.members, back.src, back.sums, pairs.src, pairs.dst)
        )
        by_tile = Runs.of(firsts, len(tiles.begins), device)
        by_kind, by_class = (Runs.of(one, len(members), device) for one in (merged.firsts, back.starts))
        by_pair = Runs.of(pairs.starts, len(sources), device)
        return DeviceLayout(
            edges, tiles, by_tile, present, members, by_kind, kinds, by_class, classes, sources, targets, by_pair
        )


@dataclass(frozen=True)
class EdgeLayout:
    """An automaton's edges and tokens, sorted once for all canvases."""

    automaton: TokenAutomaton
    placed: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict)
    walks: dict[torch.device, DeviceLayout] = field(default_factory=dict)
    counted: list[NDArray[np.int32]] = field(default_factory=list)

    def fewest(self, least: int) -> NDArray[np.int32]:
        """[states]: tokens of the shortest answer from there that has at least so many, FAR if there is none.

        Kept with those of all smaller numbers, since every canvas of an answer needs them. Raises ConstraintError for
        too many.
        """
        with suppress(IndexError):
            return self.counted[least]
        a, edges = self.automaton, self.merged.by_source
        if least * len(edges.src) > MOST_COUNTED or least * a.states > MOST_FEWEST:
            raise ConstraintError(
                f"the constraint has {a.states} states with {len(edges.src)} ways between them, too many to look for"
                f" answers of at least {least} tokens; narrow it, or ask for fewer"
            )
        rows = [*self.counted] or [a.to_end.astype(np.int32)]
        rows[0][a.end] = FAR  # no token of an answer leads into the end
        while len(rows) <= least:
            rows.append(np.full(a.states, FAR, np.int32))
            rows[-1][edges.sums] = np.minimum(np.minimum.reduceat(rows[-2][edges.dst], edges.starts) + 1, FAR)
            rows[-1][a.end] = FAR
        self.counted[:] = rows  # another thread may put fewer there, and then needs them made again
        return rows[least]

    @cached_property
    def edges(self) -> Orders:
        """The automaton's edges."""
        return Orders(self.automaton.src, self.automaton.cls, self.automaton.dst)

    @cached_property
    def merged(self) -> Merged:
        """The edges with those between the same states as one. Sets of classes are told apart by sums of 64 random
        bits a class."""
        a = self.automaton
        edges = ordered(a.src.astype(np.int64) * a.states + a.dst, a.src, a.cls, a.dst)
        marks = np.random.default_rng(0).integers(0, 2**64, a.classes, dtype=np.uint64)
        sets = np.add.reduceat(marks[edges.cls], edges.starts)
        _, one, kinds = np.unique(sets, return_index=True, return_inverse=True)
        sizes = np.diff(np.append(edges.starts, len(edges.cls)))[one]
        firsts = np.cumsum(sizes) - sizes
        members = edges.cls[np.repeat(edges.starts[one] - firsts, sizes) + np.arange(sizes.sum())]
        src, dst = np.divmod(edges.sums, a.states)
        return Merged(src, kinds, dst, members, firsts)

    @cached_property
    def tokens(self) -> tuple[Indices, Indices, Indices]:
        """Usable tokens ordered by class, the classes that have some, and the first token of each."""
        order = np.argsort(self.automaton.class_of, kind="stable")
        order = order[int((self.automaton.class_of == 0).sum()) :]
        present, at = np.unique(self.automaton.class_of[order], return_index=True)
        return order, present, at

    @cached_property
    def label_of(self) -> Indices:
        """For each token in that order, which of those classes it is of."""
        order, present, at = self.tokens
        return np.repeat(np.arange(len(present)), np.diff(np.append(at, len(order))))

    @cached_property
    def behind(self) -> list[int]:
        """Tokens that may stand behind the end, ordered by class."""
        a, (order, _, _) = self.automaton, self.tokens
        return list(order[np.isin(a.class_of[order], a.cls[a.src == a.end])].tolist())

    @cached_property
    def incoming(self) -> list[int]:
        """First edge into each state, and the number of edges."""
        return list(np.searchsorted(self.automaton.dst, np.arange(self.automaton.states + 1)).tolist())

    @cached_property
    def outgoing(self) -> list[int]:
        """First edge out of each state in the order by source, and the number of edges."""
        return list(np.searchsorted(self.edges.by_source.src, np.arange(self.automaton.states + 1)).tolist())

    def class_of(self, device: torch.device) -> Int[Tensor, "vocab"]:
        """The class of each token, where the logits are."""
        return self.tokens_on(device)[0]

    def tokens_on(self, device: torch.device) -> tuple[Int[Tensor, "vocab"], Int[Tensor, "behind"]]:
        """The class of each token, and the tokens that may stand behind the end, where the logits are."""
        if device not in self.placed:
            both = np.concatenate([self.automaton.class_of, self.behind]).astype(np.int64)
            there = torch.from_numpy(both).to(device)
            self.placed[device] = there[: len(both) - len(self.behind)], there[len(both) - len(self.behind) :]
        return self.placed[device]

    def on(self, device: torch.device) -> DeviceLayout:
        """What messages need of it to be passed there."""
        if device not in self.walks:
            self.walks[device] = DeviceLayout.of(self, device)
        return self.walks[device]


class Weights:
    """The largest and the summed log-probability of each class, position by position as far as they are asked for.

    `best`, `mass` [canvas, classes] hold for the first `known` positions; `behind` is, of every position, the summed
    and `behind_best` the largest log-probability of the tokens that may stand behind the end.
    """

    def __init__(self, layout: EdgeLayout, log_p: Float[Tensor, "canvas vocab"]) -> None:
        self.layout, self.log_p, self.known = layout, log_p, 0
        shape = (len(log_p), layout.automaton.classes)
        self.best, self.mass = np.full(shape, NONE), np.full(shape, NONE)

    @cached_property
    def there(self) -> tuple[Float[Tensor, "canvas classes"], Float[Tensor, "canvas classes"]]:
        """Largest and sum of every class at every position where the logits are."""
        return classes_there(self.layout, self.log_p)

    @cached_property
    def behind_there(self) -> Float[Tensor, "2 canvas"]:
        """Sum and largest of what may stand behind the end, where the logits are."""
        if not self.layout.behind:
            return torch.full((2, len(self)), NONE, dtype=torch.float64, device=self.log_p.device)
        over = self.log_p.index_select(1, self.layout.tokens_on(self.log_p.device)[1]).double()
        return torch.stack([over.logsumexp(-1), over.amax(-1)])

    @cached_property
    def behind(self) -> Reals:
        """The sums, on the host."""
        return np.asarray(self.behind_there[0].cpu())

    @cached_property
    def behind_best(self) -> Reals:
        """The largest, on the host."""
        return np.asarray(self.behind_there[1].cpu())

    def __len__(self) -> int:
        return len(self.mass)

    def upto(self, stop: int) -> None:
        """Know the first `stop` positions; where the logits are on another device, all of them at once."""
        here = self.log_p.device.type == "cpu"
        stop = min(stop, len(self)) if here else len(self)
        if stop > self.known:
            rows = slice(self.known, stop)
            if here:
                self.best[rows], self.mass[rows] = by_class(self.layout, self.log_p[rows])
            else:
                self.best, self.mass = torch.stack(self.there).cpu().numpy()
            self.known = stop


def by_class(layout: EdgeLayout, log_p: Float[Tensor, "canvas vocab"]) -> tuple[Reals, Reals]:
    """The largest and the summed log-probability of each class at each position, [canvas, classes], on the host."""
    shape = (len(log_p), layout.automaton.classes)
    best, mass = np.full(shape, NONE), np.full(shape, NONE)
    _order, present, _at = layout.tokens
    # As many rows at a time as stay in the processor's cache: at 262,144 tokens one, which is eight times as fast.
    values, rows = log_p.numpy(), max(1, CACHED // log_p.shape[1])
    parts = [_reduced(layout, values[i : i + rows]) for i in range(0, len(values), rows)]
    peak, total = (np.concatenate(part) for part in zip(*parts, strict=True))
    barred = peak < BARRED
    best[:, present] = np.where(barred, NONE, peak)
    mass[:, present] = np.where(barred, NONE, peak + np.log(total))
    return best, mass


def classes_there(
    layout: EdgeLayout, log_p: Float[Tensor, "canvas vocab"]
) -> tuple[Float[Tensor, "canvas classes"], Float[Tensor, "canvas classes"]]:
    """The same on a device, where it stays; its twin is `by_class`."""
    class_of = layout.class_of(log_p.device).expand_as(log_p)
    shape = (len(log_p), layout.automaton.classes)
    log_p = log_p.to(torch.promote_types(log_p.dtype, torch.float32))
    peak = torch.full(shape, NONE, dtype=log_p.dtype, device=log_p.device).scatter_reduce(1, class_of, log_p, "amax")
    total = torch.zeros_like(peak).scatter_add(1, class_of, (log_p - peak.gather(1, class_of)).exp())
    best, mass = peak.double(), peak.double() + total.double().log()
    barred = (peak < BARRED) | (torch.arange(shape[1], device=peak.device) == 0)  # class 0 is of no language
    return best.masked_fill(barred, NONE), mass.masked_fill(barred, NONE)


def _reduced(layout: EdgeLayout, log_p: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Of each class the largest log-probability, and the sum of probabilities as multiples of that."""
    order, _, at = layout.tokens
    values = np.take(log_p, order, axis=1)
    peak = np.maximum.reduceat(values, at, axis=1)
    values -= np.take(peak, layout.label_of, axis=1)
    return peak, np.add.reduceat(np.exp(values, out=values), at, axis=1)
