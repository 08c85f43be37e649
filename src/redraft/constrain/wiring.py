"""The edges of an automaton in the orders in which messages sum them, and a canvas's log-probabilities by class."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from redraft.constrain.lift import TokenAutomaton
from redraft.shapes import Float, Int, Tensor

Reals = NDArray[np.float64]
Indices = NDArray[np.integer[Any]]

NONE = -1e30
"""Log-weight of what there is not; finite, so that no difference of two of them is undefined."""
BARRED = -1e8
"""A token whose log-probability is below this is not the one that is pinned; the coldest logits stay above it."""
CACHED = 65536
"""Numbers that are worked on at once, so that they stay in the processor's cache."""


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
class Merged:
    """All edges between the same two states as one, whose weight is that of its kind, which is a set of classes.

    Characters that a string may hold are many classes and one way: of 30,840 edges of a schema with ten fields, 4,185
    of 157 kinds are left. `edges` have kinds for classes; `members` are classes of kinds, a kind's begin at `firsts`;
    `by_class` has the same as edges from kind to class.
    """

    edges: Order
    members: Indices
    firsts: Indices

    @cached_property
    def by_target(self) -> Order:
        """As alpha and the best path sum them."""
        return self._by(self.edges.dst)

    @cached_property
    def by_source(self) -> Order:
        """As beta sums them."""
        return self._by(self.edges.src)

    @cached_property
    def by_kind(self) -> Order:
        """As the weights of all ways through a kind are summed."""
        return self._by(self.edges.cls)

    @cached_property
    def by_class(self) -> Order:
        """The kinds of each class, as `src`."""
        kinds = np.repeat(np.arange(len(self.firsts)), np.diff(np.append(self.firsts, len(self.members))))
        return ordered(self.members, kinds, self.members, self.members)

    def _by(self, keys: Indices) -> Order:
        return ordered(keys, self.edges.src, self.edges.cls, self.edges.dst)

    def of_kinds(self, values: Reals, take: np.ufunc) -> Reals:
        """From values of classes, row by row, those of kinds: sums or maxima."""
        return np.asarray(take.reduceat(np.take(values, self.members, axis=1), self.firsts, axis=1))


@dataclass(frozen=True)
class Wiring:
    """An automaton's edges and tokens, sorted once for all canvases."""

    automaton: TokenAutomaton
    placed: dict[torch.device, Tensor] = field(default_factory=dict)

    def _by(self, keys: Indices) -> Order:
        return ordered(keys, self.automaton.src, self.automaton.cls, self.automaton.dst)

    @cached_property
    def merged(self) -> Merged:
        """The edges with those between the same states as one. Sets of classes are told apart by sums of 64 random
        bits a class."""
        a = self.automaton
        edges = self._by(a.src.astype(np.int64) * a.states + a.dst)
        marks = np.random.default_rng(0).integers(0, 2**64, a.classes, dtype=np.uint64)
        sets = np.add.reduceat(marks[edges.cls], edges.starts)
        _, one, kinds = np.unique(sets, return_index=True, return_inverse=True)
        sizes = np.diff(np.append(edges.starts, len(edges.cls)))[one]
        firsts = np.cumsum(sizes) - sizes
        members = edges.cls[np.repeat(edges.starts[one] - firsts, sizes) + np.arange(sizes.sum())]
        src, dst = np.divmod(edges.sums, a.states)
        return Merged(Order(edges.sums, np.arange(len(src)), src, kinds, dst), members, firsts)

    @cached_property
    def by_target(self) -> Order:
        """As alpha and the best path sum them."""
        return self._by(self.automaton.dst)

    @cached_property
    def by_source(self) -> Order:
        """As beta sums them."""
        return self._by(self.automaton.src)

    @cached_property
    def by_class(self) -> Order:
        """As the bias sums them."""
        return self._by(self.automaton.cls)

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
        return list(np.searchsorted(self.by_source.src, np.arange(self.automaton.states + 1)).tolist())

    def class_of(self, device: torch.device) -> Int[Tensor, "vocab"]:
        """The class of each token, where the logits are."""
        if device not in self.placed:
            self.placed[device] = torch.from_numpy(self.automaton.class_of).long().to(device)
        return self.placed[device]


class Weights:
    """The largest and the summed log-probability of each class, position by position as far as they are asked for.

    `best`, `mass` [canvas, classes] hold for the first `known` positions; `behind` is, of every position, the summed
    and `behind_best` the largest log-probability of the tokens that may stand behind the end.
    """

    def __init__(self, wiring: Wiring, log_p: Float[Tensor, "canvas vocab"]) -> None:
        self.wiring, self.log_p, self.known = wiring, log_p, 0
        shape = (len(log_p), wiring.automaton.classes)
        self.best, self.mass = np.full(shape, NONE), np.full(shape, NONE)
        if wiring.behind:
            over = log_p[:, wiring.behind].double()
            self.behind, self.behind_best = torch.stack([over.logsumexp(-1), over.amax(-1)]).cpu().numpy()
        else:
            self.behind = self.behind_best = np.full(len(log_p), NONE)

    def __len__(self) -> int:
        return len(self.mass)

    def upto(self, stop: int) -> None:
        """Know the first `stop` positions; where the logits are on another device, all of them at once."""
        stop = min(stop, len(self)) if self.log_p.device.type == "cpu" else len(self)
        if stop > self.known:
            rows = slice(self.known, stop)
            self.best[rows], self.mass[rows] = by_class(self.wiring, self.log_p[rows])
            self.known = stop


def by_class(wiring: Wiring, log_p: Float[Tensor, "canvas vocab"]) -> tuple[Reals, Reals]:
    """The largest and the summed log-probability of each class at each position, [canvas, classes]."""
    shape = (len(log_p), wiring.automaton.classes)
    best, mass = np.full(shape, NONE), np.full(shape, NONE)
    _order, present, _at = wiring.tokens
    if log_p.device.type == "cpu":
        # As many rows at a time as stay in the processor's cache: at 262,144 tokens one, which is eight times as fast.
        values, rows = log_p.numpy(), max(1, CACHED // log_p.shape[1])
        parts = [_reduced(wiring, values[i : i + rows]) for i in range(0, len(values), rows)]
        peak, total = (np.concatenate(part) for part in zip(*parts, strict=True))
    else:
        class_of = wiring.class_of(log_p.device).expand_as(log_p)
        peaks = torch.full(shape, NONE, device=log_p.device).scatter_reduce(1, class_of, log_p.float(), "amax")
        sums = torch.zeros_like(peaks).scatter_add(1, class_of, (log_p - peaks.gather(1, class_of)).exp())
        peak, total = torch.stack([peaks, sums]).cpu().numpy()[:, :, present]
    barred = peak < BARRED
    best[:, present] = np.where(barred, NONE, peak)
    mass[:, present] = np.where(barred, NONE, peak + np.log(total))
    return best, mass


def _reduced(wiring: Wiring, log_p: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Of each class the largest log-probability, and the sum of probabilities as multiples of that."""
    order, _, at = wiring.tokens
    values = np.take(log_p, order, axis=1)
    peak = np.maximum.reduceat(values, at, axis=1)
    values -= np.take(peak, wiring.label_of, axis=1)
    return peak, np.add.reduceat(np.exp(values, out=values), at, axis=1)
