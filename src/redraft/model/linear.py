"""Matrices and norms: the parts every block is made of. No biases anywhere (model spec 1.1, 1.2)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from redraft.shapes import Float, Tensor

ROW_GROUP = 4
"""Rows that a float32 matmul takes at a time; those left over go through another kernel (measured)."""


def multiply(x: Float[Tensor, "rows inner"], weight: Float[Tensor, "outer inner"]) -> Float[Tensor, "rows outer"]:
    """x Wᵀ, each row's sums in the same order whatever rows stand beside it.

    A float32 matmul deals its rows out to the threads in groups of four. Rows that are left over run another kernel,
    which adds in another order: the last of 17 rows, from ten threads on. How many rows a forward or an expert gets
    depends on who else is in the batch, and an answer must not; so the last group is filled up with zeros.
    """
    rows = x.shape[0]
    if rows % ROW_GROUP == 0 or x.dtype != torch.float32:
        return F.linear(x, weight)
    return F.linear(F.pad(x, (0, 0, 0, -rows % ROW_GROUP)), weight)[:rows]


class Linear(nn.Module):
    """y = x Wᵀ. The one place where a matrix meets rows, so that other number formats have one door."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))

    def forward(self, x: Float[Tensor, "rows inner"]) -> Float[Tensor, "rows outer"]:
        return multiply(x, self.weight)


class NormScale(nn.Module):
    """Holds the weight of an RMSNorm. Its arithmetic is a kernel (`model/kernels.py`); some norms have no weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))


class GatedMLP(nn.Module):
    """down(gelu_tanh(gate x) * up x). Gate rows come first in `gate_up`, so one matmul serves both."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate_up = Linear(hidden, 2 * ffn)
        self.down = Linear(ffn, hidden)

    def forward(self, x: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows hidden"]:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        y: Tensor = self.down(F.gelu(gate, approximate="tanh") * up)
        return y
