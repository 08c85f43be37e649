"""The routed half of the feed-forward: a router that picks `top` experts per row, and the experts.

Model spec 1.7. Softmax over all experts comes before the choice; the chosen weights are renormalised, scaled per expert
and kept in float32. Four forms compute the same sum:

    experts_loop      one expert after another, each weighted output rounded and added in the activation dtype
                      (the rule of the reference's modeling file): the plain twin
    experts_grouped   rows sorted by expert, one pair of matmuls per touched expert, one float32 sum per row
                      (the rule of the reference's default): many experts
    experts_library   the same with torch's grouped matmuls, which ask the host for nothing: plain matrices in bfloat16
    experts_dense     every expert on every row as one wide gated MLP, unchosen ones weighted zero: few experts,
                      where saving arithmetic costs more than doing it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import nn
from torch.nn import functional as F

from redraft.model.linear import Linear, PackedMatrix, multiply
from redraft.model.packed import Packed
from redraft.shapes import Float, Int, Tensor

# Dense has experts/top times the arithmetic. Measured on two AVX2 cores, it is faster up to this ratio.
DENSE_RATIO = 2

Matrices = tuple[Tensor | Packed, Tensor | Packed]
"""One expert's gate and up, and its down."""


class Router(nn.Module):
    """Scores the experts for each row. It reads the residual stream, not a copy normed with weights."""

    def __init__(self, hidden: int, num_experts: int, top_k: int) -> None:
        super().__init__()
        self.proj = Linear(hidden, num_experts)
        self.scale = nn.Parameter(torch.empty(hidden))
        self.per_expert_scale = nn.Parameter(torch.empty(num_experts))
        self.top_k = top_k

    def forward(
        self, normed: Float[Tensor, "rows hidden"]
    ) -> tuple[Float[Tensor, "rows top"], Int[Tensor, "rows top"]]:
        """Weights (float32) and expert ids of each row. `normed` is the residual stream after a weightless norm."""
        r = normed * self.scale * normed.shape[-1] ** -0.5
        p = torch.softmax(self.proj(r), dim=-1, dtype=torch.float32)
        weights, chosen = torch.topk(p, self.top_k, dim=-1)
        return weights / weights.sum(-1, keepdim=True) * self.per_expert_scale[chosen], chosen


class Experts(nn.Module):
    """The experts' matrices, stored as the checkpoint stores them: gate rows first, then up rows."""

    def __init__(self, hidden: int, ffn: int, num_experts: int) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(num_experts, 2 * ffn, hidden))
        self.down = nn.Parameter(torch.empty(num_experts, hidden, ffn))

    def fetch(self, wanted: Sequence[int]) -> Iterator[Matrices]:
        return ((self.gate_up[e], self.down[e]) for e in wanted)


class PackedExperts(nn.Module):
    """The experts' matrices in fewer bits."""

    def __init__(self, gate_up: PackedMatrix, down: PackedMatrix) -> None:
        super().__init__()
        self.matrices = nn.ModuleDict({"gate_up": gate_up, "down": down})

    @property
    def gate_up(self) -> Packed:
        return self._packed("gate_up")

    @property
    def down(self) -> Packed:
        return self._packed("down")

    def fetch(self, wanted: Sequence[int]) -> Iterator[Matrices]:
        gate_up, down = self.gate_up, self.down
        return ((gate_up[e], down[e]) for e in wanted)

    def _packed(self, name: str) -> Packed:
        matrix = self.matrices[name]
        assert isinstance(matrix, PackedMatrix)
        return matrix.packed


@runtime_checkable
class AnyExperts(Protocol):
    """A layer's experts, in any format and on any device."""

    @property
    def gate_up(self) -> Tensor | Packed:
        """[experts, 2·ffn, hidden]."""

    @property
    def down(self) -> Tensor | Packed:
        """[experts, hidden, ffn]."""

    def fetch(self, wanted: Sequence[int]) -> Iterator[Matrices]:
        """The matrices of some experts, in order, on the device; each pair is valid until the next one is requested."""


@runtime_checkable
class ExpertsForm(Protocol):
    def __call__(
        self,
        experts: AnyExperts,
        x: Float[Tensor, "rows hidden"],
        weights: Float[Tensor, "rows top"],
        chosen: Int[Tensor, "rows top"],
    ) -> Float[Tensor, "rows hidden"]:
        """Sum of each row's chosen experts, weighted."""


def experts_loop(experts: AnyExperts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """The plain twin: expert by expert in ascending order, rounding after every addition."""
    out = torch.zeros_like(x)
    for e in range(experts.gate_up.shape[0]):
        rows, place = torch.where(chosen == e)
        if rows.numel():
            y = _gated(x[rows], experts.gate_up[e], experts.down[e])
            out.index_add_(0, rows, (y * weights[rows, place, None]).to(out.dtype))
    return out


def experts_grouped(experts: AnyExperts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Rows sorted by expert once; each touched expert sees one contiguous run of them.

    The host reads once which experts are touched, and by how many rows; on a GPU it waits for nothing else.
    """
    top, flat = chosen.shape[1], chosen.flatten()
    order = torch.argsort(flat, stable=True)
    gathered, counts = x[order // top], _counts(experts, flat).tolist()
    sizes = [count for count in counts if count]
    touched = experts.fetch([e for e, count in enumerate(counts) if count])
    parts = [_gated(run, *matrices) for run, matrices in zip(gathered.split(sizes), touched, strict=True)]
    found = torch.empty_like(gathered)
    found[order] = torch.cat(parts)
    return (found.view(x.shape[0], top, -1) * weights.unsqueeze(-1)).sum(1).to(x.dtype)


def experts_library(experts: AnyExperts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Rows sorted by expert; one grouped matmul for all gates and ups, and one for all downs. For plain
    matrices in bfloat16."""
    assert isinstance(experts, Experts), "torch has grouped matmuls of plain matrices"
    top, flat = chosen.shape[1], chosen.flatten()
    order, ends = torch.argsort(flat, stable=True), _counts(experts, flat).cumsum(0, dtype=torch.int32)
    gate, up = F.grouped_mm(x[order // top], experts.gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    found = torch.empty_like(x).repeat_interleave(top, 0)
    found[order] = F.grouped_mm(F.gelu(gate, approximate="tanh") * up, experts.down.transpose(1, 2), offs=ends)
    return (found.view(x.shape[0], top, -1) * weights.unsqueeze(-1)).sum(1).to(x.dtype)


def experts_dense(experts: Experts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Every expert on every row, in two matmuls; experts that are not chosen have weight 0."""
    count, double, hidden = experts.gate_up.shape
    gate, up = multiply(x, experts.gate_up.reshape(-1, hidden)).view(-1, count, double).chunk(2, dim=-1)
    share = torch.zeros(x.shape[0], count, dtype=weights.dtype, device=x.device).scatter(1, chosen, weights)
    inner = F.gelu(gate, approximate="tanh") * up * share.unsqueeze(-1).to(x.dtype)
    return multiply(inner.flatten(1), experts.down.transpose(0, 1).reshape(hidden, -1))


def experts_fast(experts: AnyExperts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Dense for few experts, grouped for many and for packed ones."""
    if isinstance(experts, Experts) and experts.gate_up.shape[0] <= DENSE_RATIO * chosen.shape[1]:
        return experts_dense(experts, x, weights, chosen)
    return experts_grouped(experts, x, weights, chosen)


def _counts(experts: AnyExperts, flat: Int[Tensor, "choices"]) -> Int[Tensor, "experts"]:
    """How many choices fell on each expert. The host does not wait, as it would for a bincount."""
    counts = torch.zeros(experts.gate_up.shape[0], dtype=torch.int32, device=flat.device)
    return counts.index_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))


def _gated(x: Tensor, gate_up: Tensor | Packed, down: Tensor | Packed) -> Tensor:
    gate, up = multiply(x, gate_up).chunk(2, dim=-1)
    return multiply(F.gelu(gate, approximate="tanh") * up, down)
