"""Messages over a canvas: how much of a language there is on either side of a position, and the best way through.

    alpha    of ways from the left into a state        beta    of ways from a state to the right end
    bias     of each class at each position: the sum over its edges of alpha · beta, as a share of the whole

`log_messages` works with logarithms throughout, edge by edge, and is the plain twin. `scaled_messages` works with
merged edges and with the weights themselves, scaled at every position, which spares an exponential per edge, and it
does not look behind the position by which all but e^-NEGLIGIBLE of the language has ended: what a canvas holds behind
its answer costs nothing. Weights too small for a float64 are lost to it. How large they could have been is known from
the scales; if they could have mattered, it returns None, and the logarithms are summed, of merged edges too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from redraft.constraints.condition.edge_layout import (
    BARRED,
    CACHED,
    NONE,
    EdgeLayout,
    Indices,
    Merged,
    Order,
    Reals,
    Weights,
)
from redraft.errors import ConstraintError, refuse_nan
from redraft.shapes import Tensor

NEGLIGIBLE = 90.0
"""Nats below the whole at which something is nothing; in float32 it is, from 87 on."""
MOST_APART = 600.0
"""Nats that the scales may be over the whole: float64 ends 708 below them, and NEGLIGIBLE must fit between."""
BIAS_OF_NONE = -1e4
STRIDE = 8
"""Positions after each of which it is asked whether what is left could still matter."""

Open = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Gates:
    """States that may be passed: `end` at the end of a canvas, `inside` at each boundary within it, None for all."""

    end: Open
    inside: Callable[[int], Open] | None = None

    def shut(self, values: Reals, boundary: int, nothing: float) -> None:
        """Put `nothing` where a state may not be passed at a boundary within the canvas."""
        if self.inside is not None:
            values[~self.inside(boundary)] = nothing


@dataclass(frozen=True, eq=False)
class Messages:
    """What has been summed: log beta at every boundary, known up to a number of each boundary's own, and the bias at
    every position, both up to `live`; and the log of the whole. Behind `live` the answer is over. All is where it was
    summed."""

    live: int
    beta: Reals | Tensor
    bias: Reals | Tensor
    log_total: float


def scaled_messages(layout: EdgeLayout, weights: Weights, start: int, gates: Gates) -> Messages | None:
    """The messages from the state `start`; None if they need care.

        alpha[i+1, t] = Σ alpha[i, s] · p[i, c]        beta[i, s] = Σ p[i, c] · beta[i+1, t]
        bias[i, c] = log (Σ alpha[i, s] · beta[i+1, t] / whole)

    each over the edges s ─c─► t, of which p[i, c] is the probability of the class of tokens at position i. Every row of
    alpha and beta is divided by its largest entry, whose logarithm its scale takes up (Rabiner 1989, V.A).
    """
    ahead = _forwards(layout, weights, start, gates)
    if ahead is None:
        return None
    live, alpha, scale, shares, peaks, tail = ahead
    beta, back = _backwards(layout, shares, peaks, gates, tail)
    whole = float(alpha[live] @ beta[live])
    if whole <= 0:
        return None
    log_total = math.log(whole) + float(scale[live] + back[live])
    apart = scale[:live] + peaks[:live] + back[1:]
    # Below BARRED the whole may be nothing: a token pinned behind the answer's end.
    if log_total < BARRED or not float(apart.max(initial=NONE)) - log_total < MOST_APART:
        return None
    with np.errstate(divide="ignore"):
        bias = np.log(_ways(layout, alpha, beta)) + (scale[:live] + back[1:] - log_total)[:, None]
        return Messages(live, np.log(beta), np.maximum(bias, BIAS_OF_NONE), log_total)


class _Forwards(NamedTuple):
    """What one pass from the left has found, up to `live`, behind which all but a negligible part has ended."""

    live: int
    alpha: Reals
    """[boundary, states], scaled."""
    scale: Reals
    """[boundary]: the log of what alpha was divided by."""
    shares: Reals
    """[position, kinds of edges]: the weight of each, as a share of the position's largest."""
    peaks: Reals
    """[position]: the log of that."""
    tail: float | None
    """The log-weight of what follows behind `live`; None at the canvas's end."""


def _forwards(layout: EdgeLayout, weights: Weights, start: int, gates: Gates) -> _Forwards | None:
    """Alpha at every boundary and its scales; None where nothing is left, or too little for a float64."""
    width, end, merged, edges = len(weights), layout.automaton.end, layout.merged, layout.merged.by_target
    alpha, scale = np.zeros((width + 1, layout.automaton.states)), np.zeros(width + 1)
    alpha[0, start], shares, peaks = 1.0, np.empty((width, len(merged.firsts))), np.empty(width)
    behind = np.append(weights.behind[::-1].cumsum()[::-1], 0.0)
    scores, sums, rows = np.empty(len(edges.src)), np.empty(len(edges.sums)), _rows(edges, merged)
    for i in range(width):
        if i % rows == 0:
            part = slice(i, i + rows)
            weights.upto(i + rows)
            peaks[part] = weights.mass[part].max(1)
            if peaks[part].min() < NONE / 2:  # a position with nothing for the language
                return None
            shares[part] = merged.of_kinds(np.exp(weights.mass[part] - peaks[part, None]), np.add)
            spread = np.take(shares[part], edges.cls, axis=1)
        np.take(alpha[i], edges.src, out=scores, mode="clip")
        scores *= spread[i % rows]
        np.add.reduceat(scores, edges.starts, out=sums)
        top = float(sums.max())
        if top <= 0:
            return None
        alpha[i + 1, edges.sums] = sums
        alpha[i + 1] /= top
        scale[i + 1] = scale[i] + peaks[i] + math.log(top)
        if i + 1 == width:
            break
        gates.shut(alpha[i + 1], i + 1, 0.0)
        if (i + 1) % STRIDE == 0 and alpha[i + 1, end] > 0 and gates.end[end]:
            inside = float(alpha[i + 1, :end].sum())
            if inside == 0 or math.log(inside) - math.log(alpha[i + 1, end]) - behind[i + 1] < -NEGLIGIBLE:
                return _Forwards(i + 1, alpha, scale, shares[: i + 1], peaks, float(behind[i + 1]))
    return _Forwards(width, alpha, scale, shares, peaks, None)


def _backwards(
    layout: EdgeLayout, shares: Reals, peaks: Reals, gates: Gates, behind: float | None
) -> tuple[Reals, Reals]:
    """Beta at every boundary and its scales. `behind` is the log-weight of a tail that follows, None at the canvas's
    end."""
    live, edges = len(shares), layout.merged.by_source
    beta, scale = np.zeros((live + 1, layout.automaton.states)), np.zeros(live + 1)
    if behind is None:
        beta[live] = gates.end
    else:
        beta[live, layout.automaton.end], scale[live] = 1.0, behind
    scores, sums, rows = np.empty(len(edges.src)), np.empty(len(edges.sums)), _rows(edges, layout.merged)
    for i in range(live - 1, -1, -1):
        if i % rows == rows - 1 or i == live - 1:
            spread = np.take(shares[i // rows * rows : i + 1], edges.cls, axis=1)
        np.take(beta[i + 1], edges.dst, out=scores, mode="clip")
        scores *= spread[i % rows]
        np.add.reduceat(scores, edges.starts, out=sums)
        top = float(sums.max()) or 1.0
        beta[i, edges.sums] = sums
        beta[i] /= top
        scale[i] = scale[i + 1] + peaks[i] + math.log(top)
        gates.shut(beta[i], i, 0.0)
    return beta, scale


def _ways(layout: EdgeLayout, alpha: Reals, beta: Reals) -> Reals:
    """Of every class at every position the sum over its edges of alpha and beta."""
    edges, classes, live = layout.merged.by_class, layout.merged.kinds_of, len(beta) - 1
    found, rows = np.zeros((live, layout.automaton.classes)), _rows(edges, layout.merged)
    for i in range(0, live, rows):
        part = slice(i, min(i + rows, live))
        ways = np.take(alpha[part], edges.src, axis=1)
        ways *= np.take(beta[1:][part], edges.dst, axis=1)
        kinds = np.add.reduceat(ways, edges.starts, axis=1)
        found[part, classes.sums] = np.add.reduceat(np.take(kinds, classes.src, axis=1), classes.starts, axis=1)
    return found


def log_messages(
    layout: EdgeLayout, weights: Weights, start: int, gates: Gates, merged: Merged | None = None
) -> Messages:
    """The messages, in logarithms and over the whole canvas; of `merged` edges, if they are given. Raises
    ConstraintError if nothing is left, RunError for NaN."""
    width, states, edges = len(weights), layout.automaton.states, merged or layout.edges
    weights.upto(width)
    mass = weights.mass
    if merged is not None:  # that of each kind, from that of each class
        mass = np.stack([_log_sums(row[merged.members], merged.firsts) for row in mass])
    alpha, beta = np.full((2, width + 1, states), NONE)
    alpha[0, start], beta[width] = 0.0, np.where(gates.end, 0.0, NONE)
    into, out = edges.by_target, edges.by_source
    for i in range(width):
        alpha[i + 1, into.sums] = _log_sums(alpha[i][into.src] + mass[i, into.cls], into.starts)
        gates.shut(alpha[i + 1], i + 1, NONE)
    for i in range(width - 1, -1, -1):
        beta[i, out.sums] = _log_sums(beta[i + 1][out.dst] + mass[i, out.cls], out.starts)
        gates.shut(beta[i], i, NONE)
    log_total = float(_log_sums(alpha[-1] + beta[-1], np.zeros(1, np.int64))[0])
    refuse_nan([log_total])
    if log_total < NONE / 2:
        raise ConstraintError("no valid answer is left for this canvas; its pins contradict the constraint")
    through, bias = edges.by_class, np.full(weights.mass.shape, BIAS_OF_NONE)
    for i in range(width):
        summed, classes = _log_sums(alpha[i][through.src] + beta[i + 1][through.dst], through.starts), through.sums
        if merged is not None:
            of = merged.kinds_of
            summed, classes = _log_sums(summed[of.src], of.starts), of.sums
        bias[i, classes] = np.maximum(summed - log_total, BIAS_OF_NONE)
    return Messages(width, beta, bias, log_total)


def best_paths(layout: EdgeLayout, weights: Weights, start: int, gates: Gates, stride: int = STRIDE) -> Reals:
    """Log-weight of the best way into each state at every boundary; up to the one from which on nothing that has not
    ended can be better than what has, looked for every `stride` positions."""
    width, end, merged, edges = len(weights), layout.automaton.end, layout.merged, layout.merged.by_target
    found = np.full((width + 1, layout.automaton.states), NONE)
    found[0, start] = 0.0
    behind = np.append(weights.behind_best[::-1].cumsum()[::-1], 0.0)
    scores, peak, rows = np.empty(len(edges.src)), np.empty(len(edges.sums)), _rows(edges, merged)
    for i in range(width):
        if i % rows == 0:
            weights.upto(i + rows)
            spread = np.take(merged.of_kinds(weights.best[i : i + rows], np.maximum), edges.cls, axis=1)
        np.take(found[i], edges.src, out=scores, mode="clip")
        scores += spread[i % rows]
        np.maximum.reduceat(scores, edges.starts, out=peak)
        found[i + 1, edges.sums] = peak
        gates.shut(found[i + 1], i + 1, NONE)
        # No log-probability is above 0, so what has not ended cannot gain; 1 for what rounding may have added.
        ended = found[i + 1, end] + behind[i + 1] if (i + 1) % stride == 0 and gates.end[end] else NONE
        if ended > found[i + 1, :end].max(initial=NONE) + 1:
            return found[: i + 2]
    return found


def _rows(edges: Order, merged: Merged) -> int:
    """Positions whose edges are spread out at once."""
    return max(1, min(4 * STRIDE, CACHED // max(len(edges.src), len(merged.members))))


def _log_sums(values: Reals, starts: Indices) -> Reals:
    """Logs of the sums of exponentials of consecutive runs."""
    peak = np.maximum.reduceat(values, starts)
    sizes = np.diff(np.append(starts, len(values)))
    return np.asarray(peak + np.log(np.add.reduceat(np.exp(values - np.repeat(peak, sizes)), starts)))
