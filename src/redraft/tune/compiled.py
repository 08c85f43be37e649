"""Layers compiled for training: the operations between the matrices become a few loops.

A small model spends most of a step there. Attention stays outside, because its contexts differ. The compiled functions
are written for any number of rows, once for each kind of layer and mode; that takes a minute or two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import REFERENCE, Kernels
from redraft.model.moe import experts_fast
from redraft.shapes import Tensor
from redraft.tune.context import matrix_format

Before = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]

# The exact norm is one expression; the fast one saves launches, which a compiler does itself.
_FORMS = Kernels(norm=REFERENCE.norm, experts=experts_fast)


def compile_parts(model: DiffusionGemma) -> None:
    """Compile what every layer does before and after attention, the input of canvases and the logits, in place.

    Names and shapes of weights stay the same.
    """
    for layer in model.layers:
        layer.kernels = layer.attention.kernels = _FORMS
        layer.before = torch.compile(partial(_before, layer.before), dynamic=True)
        layer.after = torch.compile(layer.after, dynamic=True)
    model.self_conditioning.kernels = _FORMS
    for part, name in ((model.self_conditioning, "forward"), (model, "logits")):
        setattr(part, name, torch.compile(getattr(part, name), dynamic=True))


def _before(before: Before, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    return matrix_format(*before(x, cos, sin))
