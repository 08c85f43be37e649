"""Rotary position embedding (model spec 1.4), default and proportional, NeoX halves."""

from __future__ import annotations

import torch

from redraft.config import RopeConfig
from redraft.shapes import Float, Int, Tensor


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Float[Tensor, "half"]:
    """θ^(-2j/head_dim) for the dims that rotate, 0 for the others, in float32.

    The proportional form rotates a fraction of the dims but keeps the whole head_dim in the exponent.
    """
    half = head_dim // 2
    turning = int(rope.rotary_fraction * head_dim // 2)
    exponent = torch.arange(0, 2 * turning, 2, dtype=torch.float32) / head_dim
    inverse = torch.zeros(half, dtype=torch.float32)
    inverse[:turning] = 1.0 / (rope.theta**exponent)
    return inverse / rope.factor


def rotation(
    rope: RopeConfig, head_dim: int, positions: Int[Tensor, "rows"], dtype: torch.dtype
) -> tuple[Float[Tensor, "rows 1 head_dim"], Float[Tensor, "rows 1 head_dim"]]:
    """cos and sin of every row, computed in float32, then cast. The first half of the sine is negated for `rotate`."""
    angles = positions.float()[:, None] * inverse_frequencies(rope, head_dim).to(positions.device, non_blocking=True)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return torch.cat([cos, cos], -1).unsqueeze(1), torch.cat([-sin, sin], -1).unsqueeze(1)


def rotate(
    x: Float[Tensor, "rows heads head_dim"],
    cos: Float[Tensor, "rows _ head_dim"],
    sin: Float[Tensor, "rows _ head_dim"],
) -> Float[Tensor, "rows heads head_dim"]:
    """x·cos + (-x2, x1)·sin. `sin` carries the minus sign, so the halves are swapped by one roll."""
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    if x.dtype == torch.float32:
        return torch.addcmul(x * cos, swapped, sin)
    # addcmul rounds once where the reference rounds twice: in bfloat16 no kernel could then be bit-equal to it.
    return x * cos + swapped * sin
