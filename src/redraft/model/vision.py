"""The vision tower: from the patches of one image to soft tokens, which take the place of token embeddings.

    patches ► linear + positions ► layers (bidirectional, rotated by column and row) ► mean of each square of patches
            ► times √width ► standardize ► norm ► linear to the text model's width

It is Gemma 4's tower, with the text layers' pattern of four norms. It encodes one image at a time without padding, so
soft tokens do not depend on other images; the reference pads, masks, and gets the same. On a GPU it also runs on the
plain kernels: heads of 72 fit no tile of ours, and an image is encoded only once.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from redraft.config import RopeConfig
from redraft.images.config import VisionConfig
from redraft.model.kernels import FAST, Kernels
from redraft.model.linear import Linear, NormScale
from redraft.model.rope import rotate, rotation
from redraft.shapes import Float, Int, Tensor

Turns = tuple[Tensor, Tensor]  # cos and sin, [patches, 1, head_dim / 2]


class VisionTower(nn.Module):
    """The tower and its projection. `text_size` is the width of the text model's embeddings.

    `weights/vision.py` loads one from a checkpoint and makes one of random numbers.
    """

    std_bias: Tensor
    std_scale: Tensor

    def __init__(self, config: VisionConfig, text_size: int, kernels: Kernels = FAST) -> None:
        super().__init__()
        self.config, self.kernels = config, kernels
        self.patches = Linear(config.patch_values, config.hidden_size)
        self.positions = nn.Parameter(torch.empty(2, config.positions, config.hidden_size))
        self.layers = nn.ModuleList(VisionLayer(config, kernels) for _ in range(config.layers))
        if config.standardize:
            self.register_buffer("std_bias", torch.empty(config.hidden_size))
            self.register_buffer("std_scale", torch.empty(config.hidden_size))
        self.projection = Linear(config.hidden_size, text_size)

    @property
    def device(self) -> torch.device:
        return self.positions.device

    @property
    def dtype(self) -> torch.dtype:
        return self.positions.dtype

    def forward(self, patches: Float[Tensor, "patches values"], columns: int) -> Float[Tensor, "tokens hidden"]:
        """Soft tokens of one image, row by row, in the tower's number format.

        `patches` are float32 from 0 to 1, row by row, `columns` in a row (`images/pixels.py`). Both sides of the image
        are whole squares of `pooling` patches.
        """
        index = torch.arange(patches.shape[0], device=self.device)
        x, y = index % columns, index // columns
        hidden = self.patches((2 * (patches.to(self.device) - 0.5)).to(self.dtype))
        hidden = hidden + (self.positions[0][x] + self.positions[1][y])
        turns = self._turns(x), self._turns(y)
        for layer in self.layers:
            hidden = layer(hidden, *turns)
        (normed,) = self.kernels.norm(self._pool(hidden, columns), [None], self.config.norm_eps)
        soft: Tensor = self.projection(normed)
        return soft

    def _turns(self, places: Int[Tensor, "patches"]) -> Turns:
        return rotation(RopeConfig(self.config.theta), self.config.head_dim // 2, places, self.dtype)

    def _pool(self, hidden: Float[Tensor, "patches width"], columns: int) -> Float[Tensor, "tokens width"]:
        """The mean of each square of patches, scaled and standardized in float32: √width leaves float16's range."""
        side = self.config.pooling
        squares = hidden.float().view(-1, side, columns // side, side, hidden.shape[1])
        pooled: Tensor = squares.mean((1, 3)).flatten(0, 1).to(hidden.dtype).float() * self.config.hidden_size**0.5
        if self.config.standardize:
            pooled = (pooled - self.std_bias.float()) * self.std_scale.float()
        return pooled.to(hidden.dtype)


class VisionLayer(nn.Module):
    """Attention among all patches, then a gated MLP, each with a norm before and after it."""

    def __init__(self, config: VisionConfig, kernels: Kernels) -> None:
        super().__init__()
        self.kernels, self.eps = kernels, config.norm_eps
        self.input_norm = NormScale(config.hidden_size)
        self.attention = VisionAttention(config, kernels)
        self.post_attention_norm = NormScale(config.hidden_size)
        self.pre_mlp_norm = NormScale(config.hidden_size)
        self.mlp = VisionMLP(config)
        self.post_mlp_norm = NormScale(config.hidden_size)

    def forward(
        self, hidden: Float[Tensor, "patches width"], across: Turns, down: Turns
    ) -> Float[Tensor, "patches width"]:
        attended = self.attention(self._norm(hidden, self.input_norm), across, down)
        hidden = self._norm(attended, self.post_attention_norm, hidden)
        return self._norm(self.mlp(self._norm(hidden, self.pre_mlp_norm)), self.post_mlp_norm, hidden)

    def _norm(self, x: Tensor, scale: NormScale, onto: Tensor | None = None) -> Tensor:
        return self.kernels.norm(x, [scale.weight], self.eps, onto)[0]


class VisionAttention(nn.Module):
    """As in the text layers: queries, keys and values are normed, values without a weight, and the score scale is 1.

    The first half of every head turns by the patch's column, the second by its row.
    """

    def __init__(self, config: VisionConfig, kernels: Kernels) -> None:
        super().__init__()
        self.config, self.kernels = config, kernels
        linear, width = _linear(config), config.hidden_size
        self.q = linear(width, config.heads * config.head_dim)
        self.k = linear(width, config.kv_heads * config.head_dim)
        self.v = linear(width, config.kv_heads * config.head_dim)
        self.out = linear(config.heads * config.head_dim, width)
        self.q_norm = NormScale(config.head_dim)
        self.k_norm = NormScale(config.head_dim)

    def forward(self, x: Float[Tensor, "patches width"], across: Turns, down: Turns) -> Float[Tensor, "patches width"]:
        q, k, v = (
            self.kernels.norm(part(x).view(x.shape[0], -1, self.config.head_dim), [weight], self.config.norm_eps)[0]
            for part, weight in ((self.q, self.q_norm.weight), (self.k, self.k_norm.weight), (self.v, None))
        )
        k = _turn(k, across, down)
        mixed = self.kernels.attend(_turn(q, across, down), k.transpose(0, 1), v.transpose(0, 1), None)
        y: Tensor = self.out(mixed.reshape(x.shape[0], -1))
        return y


class VisionMLP(nn.Module):
    """down(gelu_tanh(gate x) * up x). Gate and up are separate, unlike in the text layers: each has its own bounds."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        linear = _linear(config)
        self.gate = linear(config.hidden_size, config.intermediate_size)
        self.up = linear(config.hidden_size, config.intermediate_size)
        self.down = linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Float[Tensor, "patches width"]) -> Float[Tensor, "patches width"]:
        y: Tensor = self.down(F.gelu(self.gate(x), approximate="tanh") * self.up(x))
        return y


class ClippedLinear(Linear):
    """y = x Wᵀ, with x and y clamped to stored bounds, which may be infinite."""

    input_min: Tensor
    input_max: Tensor
    output_min: Tensor
    output_max: Tensor

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        for name in BOUNDS:
            self.register_buffer(name, torch.empty(()))

    def forward(self, x: Float[Tensor, "rows inner"]) -> Float[Tensor, "rows outer"]:
        y = super().forward(torch.clamp(x, self.input_min, self.input_max))
        return torch.clamp(y, self.output_min, self.output_max)


BOUNDS = ("input_min", "input_max", "output_min", "output_max")


def _linear(config: VisionConfig) -> type[Linear]:
    return ClippedLinear if config.clipped else Linear


def _turn(x: Float[Tensor, "patches heads head_dim"], across: Turns, down: Turns) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([rotate(first, *across), rotate(second, *down)], dim=-1)
