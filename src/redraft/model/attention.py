"""Grouped-query attention with normed queries, keys and values (model spec 1.3).

Order: project, split into heads, norm q and k with weights, rotate both, norm v without weight. The score scale is 1,
because the query norm includes it. A full layer has no value projection; its values are the raw key projection.
The context decides which keys a row sees (`model/rows.py`).
"""

from __future__ import annotations

import torch
from torch import nn

from redraft.config import LayerConfig, ModelConfig
from redraft.model.kernels import Kernels
from redraft.model.linear import Linear, NormScale
from redraft.model.rope import rotate
from redraft.shapes import Float, Tensor


class Attention(nn.Module):
    """One layer's attention. `qkv` stacks the query, key and (on sliding layers) value projections, in that order."""

    def __init__(self, config: ModelConfig, index: int, kernels: Kernels) -> None:
        super().__init__()
        self.layer: LayerConfig = config.layers[index]
        self.index, self.kernels, self.eps = index, kernels, config.norm_eps
        self.heads, self.kv_heads = config.num_heads, self.layer.num_kv_heads
        kinds = 1 if self.layer.is_full else 2
        self.qkv = Linear(config.hidden_size, (self.heads + kinds * self.kv_heads) * self.layer.head_dim)
        self.out = Linear(self.heads * self.layer.head_dim, config.hidden_size)
        self.q_norm = NormScale(self.layer.head_dim)
        self.k_norm = NormScale(self.layer.head_dim)

    def heads_of(self, x: Float[Tensor, "rows hidden"], cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [rows, heads, head_dim] each, normed, the first two rotated by `cos` and `sin`."""
        qkv = self.qkv(x).view(x.shape[0], -1, self.layer.head_dim)
        shared = self.heads + self.kv_heads
        raw_v = qkv[:, self.heads :] if self.layer.is_full else qkv[:, shared:]
        # q and k go through norm and rotation as one tensor: half the operations, same numbers.
        (qk,) = self.kernels.norm(qkv[:, :shared], [self.qk_scale()], self.eps)
        qk = rotate(qk, cos, sin)
        (v,) = self.kernels.norm(raw_v, [None], self.eps)
        return qk[:, : self.heads], qk[:, self.heads :], v

    def qk_scale(self) -> Float[Tensor, "qk_heads head_dim"]:
        """Norm weights of every query and key head, in the order of `qkv`."""
        return torch.cat([self.q_norm.weight.expand(self.heads, -1), self.k_norm.weight.expand(self.kv_heads, -1)])
