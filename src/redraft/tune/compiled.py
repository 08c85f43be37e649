"""Layers compiled for training: the operations between the matrices become a few loops.

A small model spends most of a step there. Attention stays outside, because its contexts differ. What is compiled takes
any number of rows; compiling takes a minute.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import Module

from redraft.errors import RecipeError
from redraft.model.gemma import DiffusionGemma, Layer
from redraft.model.kernels import REFERENCE, Kernels
from redraft.model.moe import experts_fast
from redraft.shapes import Tensor
from redraft.tune.context import matrix_format

Before = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]

# The exact norm is one expression; the fast one saves launches, which a compiler does itself.
_FORMS = Kernels(norm=REFERENCE.norm, experts=experts_fast)
# Each part apart, because together eight layers come to torch's bound on the compiled forms of one function.
_OPTIONS: dict[str, Any] = {"dynamic": True, "isolate_recompiles": True}


def compile_parts(model: DiffusionGemma) -> None:
    """Compile what every layer does before and after attention, the input of canvases and the logits, in place.

    Names and shapes of weights stay the same. Raises RecipeError if there is no compiler.
    """
    if model.device.type == "cpu" and shutil.which(os.environ.get("CXX", "g++")) is None:
        raise RecipeError("[train] compile needs a C++ compiler, and g++ is not there; install it or leave compile out")
    parts: list[tuple[Module, str]] = [(model.self_conditioning, "forward"), (model, "logits")]
    model.self_conditioning.kernels = _FORMS
    for layer in model.layers:
        assert isinstance(layer, Layer)
        layer.kernels = layer.attention.kernels = _FORMS
        setattr(layer, "before", partial(_before, layer.before))  # noqa: B010 - types forbid assigning to a method
        parts += [(layer, "before"), (layer, "after")]
    for part, name in parts:
        setattr(part, name, torch.compile(getattr(part, name), **_OPTIONS))


def _before(before: Before, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    return matrix_format(*before(x, cos, sin))
