"""The kernels of a GPU, for every operation that has one."""

from __future__ import annotations

from redraft.model.gpu.automata import ConditionKernels
from redraft.model.gpu.classes import classes_kernel, shift_kernel
from redraft.model.gpu.dense import multiply_kernel
from redraft.model.gpu.experts import experts_kernel
from redraft.model.gpu.head import pass_fused
from redraft.model.gpu.layer import layer_kernel
from redraft.model.gpu.messages import walk_kernel
from redraft.model.gpu.norm import norm_kernel
from redraft.model.kernels import Kernels

CONDITION = ConditionKernels(classes_kernel, walk_kernel, shift_kernel)
GPU = Kernels(
    norm=norm_kernel,
    experts=experts_kernel,
    head=pass_fused,
    layer=layer_kernel,
    product=multiply_kernel,
    condition=CONDITION,
)
