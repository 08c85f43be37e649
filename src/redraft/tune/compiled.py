"""Layers compiled for training: the operations between the matrices become a few loops.

A small model spends most of a step there. Attention stays outside, because its contexts differ. What is compiled takes
any number of rows, and layers of one kind share it; compiling takes a minute or two.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import _dynamo as dynamo
from torch.nn import Module

from redraft.errors import RecipeError
from redraft.model.gemma import DiffusionGemma, Layer
from redraft.model.kernels import REFERENCE, Kernels
from redraft.model.moe import experts_fast
from redraft.shapes import Tensor
from redraft.tune.context import matrix_format

# The exact norm is one expression; the fast one saves launches, which a compiler does itself.
_FORMS = Kernels(norm=REFERENCE.norm, experts=experts_fast)
_OPTIONS: dict[str, Any] = {"dynamic": True}
_FORMS_OF_ONE = 64
"""Most compiled forms of one function: layers of two kinds, with and without gradients, and one row or none."""


def compile_parts(model: DiffusionGemma) -> None:
    """Compile what every layer does before and after attention, the input of canvases and the logits, in place.

    Layers of one kind share what is compiled. Names and shapes of weights stay the same. Raises RecipeError if there is
    no compiler.
    """
    if model.device.type == "cpu" and shutil.which(os.environ.get("CXX", "g++")) is None:
        raise RecipeError("[train] compile needs a C++ compiler, and g++ is not there; install it or leave compile out")
    dynamo.config.recompile_limit = max(dynamo.config.recompile_limit, _FORMS_OF_ONE)
    before, after = (torch.compile(part, **_OPTIONS) for part in (_before, Layer.after))
    model.self_conditioning.kernels = _FORMS
    for layer in model.layers:
        assert isinstance(layer, Layer)
        layer.kernels = layer.attention.kernels = _FORMS
        set_method(layer, "before", partial(before, layer))
        set_method(layer, "after", partial(after, layer))
    set_method(model.self_conditioning, "forward", torch.compile(model.self_conditioning.forward, **_OPTIONS))
    set_method(model, "logits", torch.compile(model.logits, **_OPTIONS))


def set_method(module: Module, method: str, form: Callable[..., Any]) -> None:
    """Give one module another form of a method."""
    setattr(module, method, form)  # types forbid assigning to a method


def _before(layer: Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    return matrix_format(*Layer.before(layer, x, cos, sin))
