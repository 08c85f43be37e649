"""Layers rewritten for inference: the same numbers from about two thirds of the operations.

On a CPU a layer of a small model spends more time between its operations than in them. So everything that depends only
on the weights is computed once:

    the weight of a norm before a matrix       goes into the matrix          (input, both feed-forward norms, router)
    matrices that read the same rows           become one matmul             (dense MLP, every expert, router)
    query and key norm weights                 go into cos and sin           (x·w rotated = x rotated by w·cos, w·sin)
    a branch norm's weight and its residual    become one multiply-add

This is faster where every expert is computed for every row anyway (`experts_dense`); layers with many experts stay as
they are. The folded matrices can be packed (`model/packed.py`). Fused layers have no gradients. The plain twin is
`model/gemma.py::Layer`; tests compare the two in float32.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from redraft.config import ModelConfig
from redraft.model.gemma import DiffusionGemma, Layer
from redraft.model.kernels import Attend, Kernels, unit
from redraft.model.linear import PackedMatrix, multiply
from redraft.model.moe import DENSE_RATIO, Experts
from redraft.model.packed import Format, Packed, pack
from redraft.model.rope import rotate
from redraft.model.rows import Rows, by_mode
from redraft.shapes import Float, Tensor


def pays(config: ModelConfig, dtype: torch.dtype, kernels: Kernels) -> bool:
    """Whether layers of this shape are faster fused. Kernels that run a whole layer need it plain."""
    is_small = config.num_experts <= DENSE_RATIO * config.top_k_experts
    return is_small and dtype == torch.float32 and kernels.layer is None


def fuse_layers(model: DiffusionGemma, form: Format | None = None) -> DiffusionGemma:
    """Replace plain layers by fused ones, in place, if that is faster. Returns the model.

    `form` packs the matrices after folding. Packed layers stay as they are.
    """
    if pays(model.config, model.dtype, model.kernels):
        for i, layer in enumerate(model.layers):
            if isinstance(layer, Layer) and not any(isinstance(part, PackedMatrix) for part in layer.modules()):
                model.layers[i] = FusedLayer(layer, form)
    return model


class FusedLayer(nn.Module):
    """One layer. `inner`, [2·(ffn + experts·expert_ffn) + experts, hidden], stacks all gates, then all ups, each dense
    first and then expert by expert, then the router."""

    qkv: Tensor | Packed
    qk_scale: Tensor
    out: Tensor | Packed
    inner: Tensor | Packed
    mlp_down: Tensor | Packed
    experts_down: Tensor | Packed
    expert_scale: Tensor
    post_attention_norm: Tensor
    post_mlp_norm: Tensor
    post_experts_norm: Tensor
    post_ffw_norm: Tensor
    encode_scalar: Tensor
    denoise_scalar: Tensor

    @torch.no_grad()
    def __init__(self, layer: Layer, form: Format | None = None) -> None:
        super().__init__()
        attention, router, experts = layer.attention, layer.router, layer.experts
        assert isinstance(experts, Experts), "packed layers are not fused"
        self.index, self.eps, self.geometry = attention.index, layer.eps, attention.layer
        self.heads, self.kv_heads = attention.heads, attention.kv_heads
        self.attend: Attend = layer.kernels.attend
        self.top_k, self.num_experts = router.top_k, experts.down.shape[0]
        self.keep_matrix(form, "qkv", attention.qkv.weight * layer.input_norm.weight)
        self.keep("qk_scale", attention.qk_scale())
        self.keep_matrix(form, "out", attention.out.weight)
        gate, up = (layer.mlp.gate_up.weight * layer.pre_mlp_norm.weight).chunk(2)
        gates, ups = (experts.gate_up * layer.pre_experts_norm.weight).chunk(2, dim=1)
        score = router.proj.weight * router.scale * router.scale.shape[0] ** -0.5
        self.keep_matrix(form, "inner", torch.cat([gate, gates.flatten(0, 1), up, ups.flatten(0, 1), score]))
        self.keep_matrix(form, "mlp_down", layer.mlp.down.weight)
        self.keep_matrix(form, "experts_down", experts.down.transpose(0, 1).flatten(1))
        self.keep("expert_scale", router.per_expert_scale)
        for name in ("post_attention_norm", "post_mlp_norm", "post_experts_norm", "post_ffw_norm"):
            self.keep(name, getattr(layer, name).weight)
        self.keep("encode_scalar", layer.encode_scalar)
        self.keep("denoise_scalar", layer.denoise_scalar)

    def keep_matrix(self, form: Format | None, name: str, tensor: Tensor) -> None:
        """Register a derived matrix, packed if there is a format."""
        if form is None:
            self.keep(name, tensor)
        else:
            setattr(self, name, pack(tensor, form, name))

    def keep(self, name: str, tensor: Tensor) -> None:
        """Register a derived tensor."""
        self.register_buffer(name, tensor.detach().clone().contiguous(), persistent=False)

    def forward(self, x: Float[Tensor, "rows hidden"], context: Rows) -> Float[Tensor, "rows hidden"]:
        a = torch.addcmul(x, self._unit(self._attention(x, context)), self.post_attention_norm)
        dense, routed = self._feed_forward(self._unit(a))
        both = torch.addcmul(self._unit(dense) * self.post_mlp_norm, self._unit(routed), self.post_experts_norm)
        return torch.addcmul(a, self._unit(both), self.post_ffw_norm) * by_mode(
            context, self.encode_scalar, self.denoise_scalar
        )

    def _attention(self, x: Tensor, context: Rows) -> Tensor:
        rows, shared = x.shape[0], self.heads + self.kv_heads
        qkv = multiply(self._unit(x), self.qkv).view(rows, -1, self.geometry.head_dim)
        # Values are normed without weight, and so are queries and keys here: one norm serves all three.
        heads = self._unit(qkv)
        qk = rotate(heads[:, :shared], *context.scaled_rotation(self.index, self.geometry, self.qk_scale))
        v = heads[:, self.heads : shared] if self.geometry.is_full else heads[:, shared:]
        mixed = context.attend(self.index, qk[:, : self.heads], qk[:, self.heads :], v, self.attend)
        return multiply(mixed.reshape(rows, -1), self.out)

    def _feed_forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        dense, width = self.mlp_down.shape[1], self.mlp_down.shape[1] + self.experts_down.shape[1]
        gate, up, scores = multiply(u, self.inner).split([width, width, self.num_experts], dim=-1)
        inner = F.gelu(gate, approximate="tanh") * up
        by_expert = inner[:, dense:].view(u.shape[0], self.num_experts, -1) * self._shares(scores).unsqueeze(-1)
        return multiply(inner[:, :dense], self.mlp_down), multiply(by_expert.flatten(1), self.experts_down)

    def _shares(self, scores: Float[Tensor, "rows experts"]) -> Float[Tensor, "rows experts"]:
        """Weight of every expert, zero if not chosen. A softmax over the chosen equals one over all, renormalised."""
        best, chosen = scores.topk(self.top_k, dim=-1)
        weights = torch.softmax(best, dim=-1) * self.expert_scale[chosen]
        return torch.zeros_like(scores).scatter(1, chosen, weights)

    def _unit(self, x: Tensor) -> Tensor:
        return unit(x, self.eps)
