"""Conditioning a canvas on its text being in a language, exactly.

A step gives every position a distribution of its own. Of all token strings that they make together, only those of the
language count. Two messages per position say how much of that there is: alpha, of ways from the left into a state, and
beta, of ways from a state to the right end. From them come

    bias     nats per (position, class): p · exp(bias) are the exact marginals of the strings that count. Entropy,
             acceptance, samples and the soft embedding are read from these
    draft    the likeliest string that counts, as a whole; the only thing that may be emitted, with
    draw     one string in proportion to its probability

Samples or argmaxes taken position by position are strings of the language only by luck, and are never emitted.

Everything is in the log domain, in float64: one global scale underflows on peaked logits and makes a language look
empty. A loop over positions carries alpha, beta and the best path at once, so a position costs a dozen array
operations over the edges. Classes are reduced where the logits are; messages run on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from redraft.constrain.automaton import FAR
from redraft.constrain.lift import TokenAutomaton
from redraft.errors import ConstraintError
from redraft.shapes import Float, Int, Tensor

Reals = NDArray[np.float64]
Indices = NDArray[np.integer[Any]]

NONE = -1e30
"""Log-weight of what there is not; finite, so that no difference of two of them is undefined."""
BARRED = -1e8
"""A token whose log-probability is below this is not the one that is pinned; the coldest logits stay above it."""
BIAS_OF_NONE = -1e4
FAINTEST = -80.0
CACHED = 65536
"""Numbers that are worked on at once."""


@dataclass(frozen=True, eq=False)
class Wiring:
    """The edges of an automaton three times over, in the order that each message sums them.

    alpha and the best path sum over edges with one target, beta over edges with one source.
    """

    automaton: TokenAutomaton
    placed: dict[torch.device, Tensor] = field(default_factory=dict)

    @cached_property
    def gather(self) -> tuple[Indices, Indices]:
        """For each edge of (alpha, beta, best): the state it reads and the class it weighs, in the stacked vectors."""
        a, back = self.automaton, self.by_source
        states, classes = a.states, a.classes
        reads = np.concatenate([a.src, states + a.dst[back], 2 * states + a.src])
        weighs = np.concatenate([a.cls, classes + a.cls[back], 2 * classes + a.cls])
        return reads.astype(np.int64), weighs.astype(np.int64)

    @cached_property
    def by_source(self) -> Indices:
        """Edges ordered by source."""
        return np.argsort(self.automaton.src, kind="stable")

    @cached_property
    def segments(self) -> tuple[Indices, Indices, Indices]:
        """First edge of each sum, the state it is of, and the sum that each edge of alpha and beta belongs to."""
        a = self.automaton
        into, into_at = np.unique(a.dst, return_index=True)
        out, out_at = np.unique(a.src[self.by_source], return_index=True)
        edges, states = len(a.src), a.states
        starts = np.concatenate([into_at, edges + out_at, 2 * edges + into_at])
        writes = np.concatenate([into, states + out, 2 * states + into])
        sizes = np.diff(np.append(starts, 3 * edges))[: len(into) + len(out)]
        return starts, writes, np.repeat(np.arange(len(sizes)), sizes)

    @cached_property
    def class_order(self) -> tuple[Indices, Indices, Indices]:
        """Edges ordered by class, the classes that have some, and the first edge of each."""
        order = np.argsort(self.automaton.cls, kind="stable")
        present, at = np.unique(self.automaton.cls[order], return_index=True)
        return order, present, at

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
    def incoming(self) -> list[int]:
        """First edge into each state, and the number of edges."""
        return list(np.searchsorted(self.automaton.dst, np.arange(self.automaton.states + 1)).tolist())

    def class_of(self, device: torch.device) -> Int[Tensor, "vocab"]:
        """The class of each token, where the logits are."""
        if device not in self.placed:
            self.placed[device] = torch.from_numpy(self.automaton.class_of).long().to(device)
        return self.placed[device]

    @cached_property
    def outgoing(self) -> Indices:
        """First edge out of each state, in the order by source."""
        return np.searchsorted(self.automaton.src[self.by_source], np.arange(self.automaton.states + 1))


@dataclass(frozen=True)
class Projection:
    """What is left of a constraint for one canvas.

    `state` is the automaton's after all blocks before; `left` and `least` count the tokens that the answer may and must
    still have, the end token not among them.
    """

    wiring: Wiring
    state: int
    left: int
    least: int = 0

    def __call__(self, log_p: Float[Tensor, "canvas vocab"]) -> Projected:
        """Condition log-probabilities on the language. Raises ConstraintError if nothing is left of it."""
        best, mass = by_class(self.wiring, log_p)
        return condition(self, log_p, best, mass)

    @cached_property
    def lengths(self) -> NDArray[np.bool_]:
        """[tokens, states]: whether the answer may end after just so many more tokens."""
        a = self.wiring.automaton
        inner = a.dst != a.end
        src, dst = a.src[inner], a.dst[inner]
        found = np.zeros((self.left + 1, a.states), dtype=np.bool_)
        found[0] = a.accepts
        found[:, a.end] = False
        for k in range(self.left):
            found[k + 1, src[found[k, dst]]] = True
        return found

    def allowed(self, told: int) -> NDArray[np.bool_]:
        """States that may be reached after `told` tokens of the canvas so that the answer can still be completed."""
        a, left, least = self.wiring.automaton, self.left - told, self.least - told
        if self.least:
            found = np.asarray(self.lengths[max(0, least) : max(0, left + 1)].any(0))
        else:
            found = np.asarray(a.to_end <= left)
        found[a.end] = least < 0 or self.least == 0
        return found

    def after(self, tokens: Sequence[int]) -> Projection:
        """What is left when some tokens have been told, the end token not among them."""
        state = self.wiring.automaton.after(self.state, tokens)
        return Projection(self.wiring, state, self.left - len(tokens), max(0, self.least - len(tokens)))

    @property
    def is_over(self) -> bool:
        """Whether the answer is whole and nothing could follow it."""
        return self.wiring.automaton.is_over(self.state)

    def check_pins(self, width: int, pins: Sequence[tuple[int, int]]) -> None:
        """Raise ConstraintError if no answer has these (position, token) in a first canvas of that width."""
        class_of = self.wiring.automaton.class_of
        weights = np.zeros((width, self.wiring.automaton.classes))
        for position, token in pins:
            weights[position] = NONE
            weights[position, class_of[token]] = 0.0 if class_of[token] else NONE
        condition(self, torch.empty(width, 0), weights, weights)

    def check(self) -> None:
        """Raise ConstraintError if no answer of the language has as many tokens as are left."""
        if self.allowed(0)[self.state]:
            return
        fewest = int(self.wiring.automaton.to_end[self.state])
        if fewest > self.left and fewest < FAR:
            raise ConstraintError(
                f"max_tokens leaves {self.left} tokens and the shortest valid answer has {fewest}; raise it"
            )
        raise ConstraintError(
            f"no valid answer has {self.least} to {self.left} tokens; lower min_tokens or raise max_tokens"
        )


@dataclass(frozen=True, eq=False)
class Projected:
    """What came of one canvas. Arrays are over (position, class) or (boundary, state)."""

    projection: Projection
    best: Reals
    mass: Reals
    alpha: Reals
    beta: Reals
    bests: Reals
    log_p: Float[Tensor, "canvas vocab"]

    @property
    def log_total(self) -> float:
        """Log-probability that independent samples of all positions would have been valid."""
        return float(_log_sum(self.alpha[-1] + self.beta[-1]))

    @cached_property
    def bias(self) -> Float[Tensor, "canvas classes"]:
        """Nats to add to the log-probability of each class at each position."""
        wiring = self.projection.wiring
        order, present, at = wiring.class_order
        src, dst = wiring.automaton.src[order], wiring.automaton.dst[order]
        ways = self.alpha[:-1][:, src] + self.beta[1:][:, dst]
        peak = np.maximum.reduceat(ways, at, axis=1)
        ways -= np.repeat(peak, np.diff(np.append(at, len(src))), axis=1)
        summed = peak + np.log(np.add.reduceat(np.exp(ways, out=ways), at, axis=1)) - self.log_total
        found = np.full((len(self.mass), wiring.automaton.classes), BIAS_OF_NONE)
        found[:, present] = np.maximum(summed, BIAS_OF_NONE)
        return torch.from_numpy(found).to(self.log_p)

    def shifted(self) -> Float[Tensor, "canvas vocab"]:
        """The log-probabilities with the bias of each token's class."""
        shifted = self.log_p + self.bias.index_select(1, self.projection.wiring.class_of(self.log_p.device))
        # Below this a float32 probability is subnormal: worth nothing, and many times slower to compute with.
        return shifted.masked_fill_(shifted < FAINTEST, BIAS_OF_NONE)

    @cached_property
    def path(self) -> tuple[list[int], list[int]]:
        """The likeliest valid string: the states at every boundary, and the class at every position."""
        return self._best_path(self.projection.allowed(len(self.mass)))

    @property
    def draft(self) -> Int[Tensor, "canvas"]:
        """The likeliest valid string."""
        return self._spell(self.path[1])

    def finished(self) -> Int[Tensor, "canvas"] | None:
        """The likeliest string that ends the answer within this canvas; None if no valid one does."""
        try:
            return self._spell(self._best_path(self.projection.wiring.automaton.accepts)[1])
        except ConstraintError:
            return None

    def draw(self, random: np.random.Generator) -> Int[Tensor, "canvas"]:
        """One valid string in proportion to its probability: filtered forwards, sampled backwards."""
        wiring, a = self.projection.wiring, self.projection.wiring.automaton
        state = _pick(self.alpha[-1] + self.beta[-1], random)
        order, present, at = wiring.tokens
        ends = np.append(at[1:], len(order))
        tokens = []
        for i in range(len(self.mass) - 1, -1, -1):
            begin, stop = wiring.incoming[state], wiring.incoming[state + 1]
            edge = begin + _pick(self.alpha[i][a.src[begin:stop]] + self.mass[i, a.cls[begin:stop]], random)
            label = int(np.searchsorted(present, a.cls[edge]))
            members = order[at[label] : ends[label]]
            tokens.append(int(members[_pick(self.log_p[i, members].double().cpu().numpy(), random)]))
            state = int(a.src[edge])
        return torch.tensor(tokens[::-1], device=self.log_p.device)

    def log_mass(self) -> list[float]:
        """How much the model wanted what it had to: per position, the log of the probability that it gave to all
        tokens that were still allowed there, behind the draft's own beginning."""
        wiring, a = self.projection.wiring, self.projection.wiring.automaton
        found = []
        for i, state in enumerate(self.path[0][:-1]):
            edges = wiring.by_source[wiring.outgoing[state] : wiring.outgoing[state + 1]]
            edges = edges[self.beta[i + 1][a.dst[edges]] > NONE / 2]
            # Probabilities of a softmax in float32 add up to a little more than 1.
            found.append(min(0.0, _log_sum(self.mass[i, np.unique(a.cls[edges])])))
        return found

    def _best_path(self, ends: NDArray[np.bool_]) -> tuple[list[int], list[int]]:
        wiring, a = self.projection.wiring, self.projection.wiring.automaton
        final = np.where(ends, self.bests[-1], NONE)
        state = int(final.argmax())
        if final[state] < NONE / 2:
            raise ConstraintError("no valid answer is left for this canvas; its pins contradict the constraint")
        states, classes = [state], []
        for i in range(len(self.best) - 1, -1, -1):
            begin, stop = wiring.incoming[state], wiring.incoming[state + 1]
            edge = begin + int((self.bests[i][a.src[begin:stop]] + self.best[i, a.cls[begin:stop]]).argmax())
            state = int(a.src[edge])
            states.append(state)
            classes.append(int(a.cls[edge]))
        return states[::-1], classes[::-1]

    def _spell(self, classes: list[int]) -> Int[Tensor, "canvas"]:
        """The likeliest token of each position's class."""
        wiring = self.projection.wiring
        if self.log_p.device.type == "cpu" and self.log_p.numel() > CACHED:
            order, present, at = wiring.tokens
            ends = np.append(at[1:], len(order))
            log_p, labels = self.log_p.numpy(), np.searchsorted(present, classes)
            kinds = [order[at[label] : ends[label]] for label in labels]
            return torch.tensor([int(kind[log_p[i, kind].argmax()]) for i, kind in enumerate(kinds)])
        class_of = wiring.class_of(self.log_p.device)
        wanted = torch.tensor(classes, device=self.log_p.device)
        return self.log_p.masked_fill(class_of != wanted[:, None], -torch.inf).argmax(-1)


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
        peak, total = peaks[:, present].cpu().numpy(), sums[:, present].cpu().numpy()
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


def condition(projection: Projection, log_p: Float[Tensor, "canvas vocab"], best: Reals, mass: Reals) -> Projected:
    """Carry alpha, beta and the best path over the canvas, all three in one loop over its positions."""
    wiring, width, states = projection.wiring, len(mass), projection.wiring.automaton.states
    (reads, weighs), (starts, writes, sum_of) = wiring.gather, wiring.segments
    messages = np.full((width + 1, 3, states), NONE)
    messages[0, [0, 2], projection.state] = 0.0
    messages[0, 1] = np.where(projection.allowed(width), 0.0, NONE)
    flat, closing = messages.reshape(width + 1, -1), _closing(projection, width)
    weights = np.stack([mass, mass[::-1], best], axis=1).reshape(width, -1)
    spread = weights[:, weighs] if width * len(weighs) <= CACHED else None
    scores, peak, summed = np.empty(len(reads)), np.empty(len(starts)), np.empty(sum_of[-1] + 1)
    below, tops, first = scores[: len(sum_of)], np.empty(len(sum_of)), starts[: len(summed)]
    for i in range(width):
        np.take(flat[i], reads, out=scores, mode="clip")
        scores += weights[i][weighs] if spread is None else spread[i]
        np.maximum.reduceat(scores, starts, out=peak)
        np.take(peak, sum_of, out=tops, mode="clip")
        below -= tops
        np.exp(below, out=below)
        np.add.reduceat(below, first, out=summed)
        peak[: len(summed)] += np.log(summed, out=summed)
        flat[i + 1][writes] = peak
        if closing is not None:
            messages[i + 1] += closing[[i + 1, width - i - 1, i + 1]]
    found = Projected(projection, best, mass, messages[:, 0], messages[::-1, 1], messages[:, 2], log_p)
    if found.log_total < NONE / 2:
        raise ConstraintError("no valid answer is left for this canvas; its pins contradict the constraint")
    return found


def _closing(projection: Projection, width: int) -> Reals | None:
    """What is added at each boundary: nothing, or NONE to states that come too late or too early; None if it is
    nothing everywhere inside the canvas."""
    first = projection.left if projection.left < width else width
    if first == width and projection.least == 0:
        return None
    allowed = np.stack([projection.allowed(told) for told in range(width + 1)])
    return np.where(allowed, 0.0, NONE)


def _log_sum(values: Reals) -> float:
    peak = values.max(initial=NONE)
    return float(peak + np.log(np.exp(values - peak).sum())) if peak > NONE / 2 else NONE


def _pick(log_weights: Reals, random: np.random.Generator) -> int:
    """An index in proportion to the exponentials."""
    cumulated = np.exp(log_weights - log_weights.max()).cumsum()
    return int(np.searchsorted(cumulated, random.random() * cumulated[-1], side="right"))
