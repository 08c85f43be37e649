"""Layers compiled for training: the operations between the matrices become a few loops.

A small model spends most of a step there. Attention stays outside, because its contexts differ. The compiled functions
are written for any number of rows, once for each kind of layer and mode; that takes a minute or two.
"""

from __future__ import annotations

import torch

from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import REFERENCE, Kernels
from redraft.model.moe import experts_fast

# The exact norm is one expression; the fast one saves launches, which a compiler does itself.
_FORMS = Kernels(norm=REFERENCE.norm, experts=experts_fast)


def compile_layers(model: DiffusionGemma) -> None:
    """Compile what every layer does before and after attention. Names and shapes of weights stay the same."""
    for layer in model.layers:
        layer.kernels = layer.attention.kernels = _FORMS
        layer.before = torch.compile(layer.before, dynamic=True)
        layer.after = torch.compile(layer.after, dynamic=True)
