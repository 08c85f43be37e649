"""Messages passed on the device, next to the logits: only the likeliest text of a canvas comes to the host.

    log p ──► classes ──► kinds ──► walk ──► sums on either side ──► kinds ──► classes: the bias
                                      └────► the best path ──► draft, and one small copy

The sums are those of `condition/forward_backward.py::log_messages`, logarithms over the whole canvas; tests hold the
two equal. All positions are worked on at once but in the walk (`model/gpu/automata.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from redraft.constraints.condition.edge_layout import BARRED, NONE, DeviceLayout, Reals, Weights
from redraft.constraints.condition.forward_backward import BIAS_OF_NONE, Gates, Messages
from redraft.errors import ConstraintError, refuse_nan
from redraft.model.gpu.automata import ConditionKernels, Paths, Reduce
from redraft.shapes import Bool, Float, Int, Tensor

MOST_AT_ONCE = 2**24
"""Numbers that are worked on at once; in float64 they are 128 MB."""


@dataclass(frozen=True, eq=False)
class BestPath:
    """The likeliest valid string of a canvas: its tokens on the device; on the host the states at its boundaries, the
    classes between them and their largest log-probabilities. `best` has the log-weights of all best paths, there."""

    draft: Int[Tensor, "canvas"]
    states: list[int]
    classes: list[int]
    scores: Reals
    best: Float[Tensor, "boundaries states"]


def device_messages(kernels: ConditionKernels, weights: Weights, start: int, gates: Gates) -> tuple[Messages, BestPath]:
    """The messages from the state `start`, and the likeliest string. Raises ConstraintError if nothing is left."""
    device, width = weights.log_p.device, len(weights)
    placed, ends = weights.layout.on(device), torch.from_numpy(gates.end).to(device, non_blocking=True)
    peaks, tokens = _classes(kernels.reduce, placed, weights)
    best, mass = weights.there
    tops = torch.cat([placed.by_kind.largest(part) for part in _spread(best, placed.members)], 1).T
    sums = torch.cat([placed.by_kind.log_sums(part) for part in _spread(mass, placed.members)], 1).T
    paths = kernels.walk(placed.edges, sums, tops, start, ends, _inside(gates, width, device))
    total = paths.before[-1].masked_fill(~ends, NONE).logsumexp(0, keepdim=True)
    bias = torch.full_like(mass, BIAS_OF_NONE)
    bias.index_copy_(1, placed.classes, (_through(placed, paths) - total).clamp_(min=BIAS_OF_NONE))
    classes, scores = _likeliest(placed, paths, best)
    others = placed.present.index_select(0, placed.by_tile.labels)[:, None] != classes
    draft = tokens.T.gather(0, peaks.masked_fill(others, 2 * NONE).argmax(0, keepdim=True))[0].long()
    told = torch.cat([total, paths.states, classes, scores, weights.behind_there[0]]).cpu().numpy()
    refuse_nan(told[:1])
    if told[0] < NONE / 2:
        raise ConstraintError("no valid answer is left for this canvas; its pins contradict the constraint")
    states, numbers, scored, weights.behind = np.split(told[1:], np.cumsum([width + 1, width, width]))
    way = BestPath(draft, states.astype(int).tolist(), numbers.astype(int).tolist(), scored, paths.best)
    return Messages(width, paths.behind, bias, float(told[0])), way


def _classes(
    reduce: Reduce, placed: DeviceLayout, weights: Weights
) -> tuple[Float[Tensor, "tiles canvas"], Int[Tensor, "canvas tiles"]]:
    """Of each tile of tokens the largest log-probability and its token; `weights` knows those of classes behind it."""
    peak, total, tokens = reduce(weights.log_p, placed.tiles)
    best, barred = peak.double(), peak < BARRED
    both = [one.masked_fill(barred, NONE).T.contiguous() for one in (best, best + total.double().log())]
    found = torch.full(
        (2, len(weights), weights.layout.automaton.classes), NONE, dtype=torch.float64, device=peak.device
    )
    for there, one in zip(found, (placed.by_tile.largest(both[0]), placed.by_tile.log_sums(both[1])), strict=True):
        there.index_copy_(1, placed.present, one.T)
    weights.there = found[0], found[1]
    return both[0], tokens


def _spread(
    values: Float[Tensor, "canvas some"], index: Int[Tensor, "numbers"]
) -> Iterator[Float[Tensor, "numbers part"]]:
    """The values of every number at every position, a part of the canvas after the other."""
    for part in values.split(max(1, MOST_AT_ONCE // len(index))):
        yield part.T.contiguous().index_select(0, index)


def _inside(gates: Gates, width: int, device: torch.device) -> Bool[Tensor, "boundaries states"] | None:
    """States that may be passed at each boundary before the canvas's end; what `ends` says of that is not repeated."""
    if gates.inside is None:
        return None
    opened = [*(gates.inside(i) for i in range(width)), np.ones_like(gates.end)]
    return torch.from_numpy(np.stack(opened)).to(device, non_blocking=True)


def _through(placed: DeviceLayout, paths: Paths) -> Float[Tensor, "canvas classes"]:
    """Of each class that has edges, at each position, the log of the sum of all paths through it."""
    before, behind = _spread(paths.before[:-1], placed.sources), _spread(paths.behind[1:], placed.targets)
    kinds = torch.cat([placed.by_pair.log_sums(one + other) for one, other in zip(before, behind, strict=True)], 1)
    return torch.cat([placed.by_class.log_sums(part) for part in _spread(kinds.T, placed.kinds)], 1).T


def _likeliest(
    placed: DeviceLayout, paths: Paths, best: Float[Tensor, "canvas classes"]
) -> tuple[Int[Tensor, "canvas"], Float[Tensor, "canvas"]]:
    """Of the kinds on the best way the class with the likeliest token, and the log-probability of that."""
    rows = max(1, MOST_AT_ONCE // len(placed.members))
    found = []
    for values, kinds in zip(_spread(best, placed.members), paths.kinds.split(rows), strict=True):
        others = placed.by_kind.labels[:, None] != kinds
        found.append(values.masked_fill(others, 2 * NONE).max(0))
    return placed.members[torch.cat([one.indices for one in found])], torch.cat([one.values for one in found])
