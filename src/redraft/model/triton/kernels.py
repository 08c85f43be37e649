"""What runs on a GPU: every operation that has a kernel of its own."""

from __future__ import annotations

from redraft.model.kernels import Kernels
from redraft.model.triton.classes import classes_kernel, shift_kernel
from redraft.model.triton.dense import multiply_kernel
from redraft.model.triton.experts import experts_kernel
from redraft.model.triton.head import pass_fused
from redraft.model.triton.layer import layer_kernel
from redraft.model.triton.norm import norm_kernel
from redraft.model.triton.walk import walk_kernel
from redraft.model.triton.ways import Holding

HOLDING = Holding(classes_kernel, walk_kernel, shift_kernel)
GPU = Kernels(
    norm=norm_kernel,
    experts=experts_kernel,
    head=pass_fused,
    layer=layer_kernel,
    product=multiply_kernel,
    holding=HOLDING,
)
