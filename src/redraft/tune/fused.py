"""Training a small model on a GPU: what lies between two matrices is one kernel, forward and backward.

Such a model spends its time in operations on rows, and a GPU in waiting to be asked for them: on an H200 a step of 512
samples launched 32,000 kernels, and the card was busy for 0.66 of its 1.15 seconds. So a layer is:

    norm ► qkv ► heads ► q·k ► softmax ► ·v ► out ► after ─┬► gate up ► gated ► down ──────────────────┬► joined ► …
                                                           └► router ► route ► gate up ► gated ► down ──┘

To autograd it is one operation, whose gradient is written out in `tune/fused_layer.py`, from the kernels of
`tune/fused_kernels.py`. Products stay torch's, of matrices rounded once a batch to autocast's format. Every expert runs
on every row, as `model/moe.py::experts_dense` does. The plain twin is `model/gemma.py` in `tune/context.py`'s contexts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from redraft.config import LayerConfig
from redraft.model.gemma import DiffusionGemma, Layer
from redraft.model.kernels import Kernels
from redraft.model.moe import DENSE_RATIO, Experts
from redraft.model.rope import rotation
from redraft.model.rows import by_mode
from redraft.shapes import Tensor
from redraft.tune.compiled import set_method
from redraft.tune.context import CanvasContext, CleanContext
from redraft.tune.fused_layer import (
    MATRICES,
    UNBOUNDED,
    Batched,
    FusedLayer,
    Lines,
    Norm,
    Shape,
    WeightGradients,
    Weights,
    applied,
)
from redraft.tune.layout import Row, Spot, pack
from redraft.tune.objective import corrupt, losses
from redraft.tune.recipe import ObjectiveRecipe

LINES, WIDTH = 48, 32
"""Of the batch of the check: its lines, and the width of its canvases."""
EXACT, ROUNDED = 1e-3, 0.2
"""How far a gradient may be off in float32; and in bfloat16, where rows between two experts change sides."""
LEAST = 1e-3
"""Of all gradients' norm: a smaller gradient may be nothing but rounding."""


def can_fuse(model: DiffusionGemma) -> bool:
    """Whether a model's layers have the form that is fused here."""
    experts, top, layers = model.config.num_experts, model.config.top_k_experts, model.config.layers
    dense = experts <= DENSE_RATIO * top and all(isinstance(layer.experts, Experts) for layer in model.layers)
    return dense and not any(layer.head_dim & (layer.head_dim - 1) for layer in layers)  # a tile is a power of two


def fuse_checked(model: DiffusionGemma, *, bfloat16: bool) -> str | None:
    """Fuse a model on a GPU if loss and gradients of a small batch are those of the plain form; else say why not."""
    if not can_fuse(model):
        return "its layers have many experts, packed ones, or heads whose size is no power of two"
    plain, kernels = model.forward, model.self_conditioning.kernels
    wanted = _tried(model, bfloat16)
    whole = math.hypot(*(float(one.norm()) for one in wanted.values()))
    try:
        fuse(model)
        found = _tried(model, bfloat16)
        off = {
            name: float((found[name] - one).norm()) / max(float(one.norm()), LEAST * whole)
            for name, one in wanted.items()
        }
    except Exception as error:  # of a compiler, or of a driver
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    else:
        worst = max(off, key=lambda name: off[name] if math.isfinite(off[name]) else math.inf)
        if off[worst] <= (ROUNDED if bfloat16 else EXACT):
            return None
        why = f"the gradient of {worst} is off by {off[worst]:.1%}"
    set_method(model, "forward", plain)
    model.self_conditioning.kernels = kernels
    return why


def fuse(model: DiffusionGemma) -> None:
    """Let a model train by fused layers, in place. Names and shapes of weights stay the same."""
    plain, fused = model.forward, FusedForward(model)
    model.self_conditioning.kernels = Kernels(norm=norm_trained)

    def forward(tokens: Tensor, soft: Tensor | None, context: Any) -> Tensor:
        clean = context.clean if isinstance(context, CanvasContext) else context
        if not isinstance(clean, CleanContext) or clean.images:  # what tokens of images see is no range of keys
            return plain(tokens, soft, context)
        return fused.forward(tokens, soft, context)

    set_method(model, "forward", forward)


def norm_trained(x: Tensor, weights: Sequence[Tensor | None], eps: float, onto: Tensor | None = None) -> list[Tensor]:
    """The form of `model/kernels.py::Norm` with a gradient."""
    found: list[Tensor] = [applied(Norm, x, weight, eps, x.dtype) for weight in weights]
    return found if onto is None else [onto + one for one in found]


class FusedForward:
    """A model's forward by fused layers. A batch begins with its clean sequences; its canvases follow."""

    def __init__(self, model: DiffusionGemma) -> None:
        self.model, self.eps = model, model.config.norm_eps
        self.layers = [layer for layer in model.layers if isinstance(layer, Layer)]
        self._turns: dict[LayerConfig, tuple[Tensor, Tensor]] = {}

    def forward(self, tokens: Tensor, soft: Tensor | None, context: Any) -> Tensor:
        """The form of `DiffusionGemma.forward`, in a CleanContext or a CanvasContext."""
        x = self.model._input(tokens, soft, context)
        device = x.device.type
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        with torch.autocast(device, enabled=False):
            if isinstance(context, CleanContext):
                clean = context
                clean.layers = self._begin(kind)
                x = applied(WeightGradients, x, clean.layers, *(one for layer in clean.layers for one in layer.weights))
                lines = Lines(context.tokens, context.tokens, context.first)
            else:
                clean, bounds = context.clean, context.bounds if torch.is_grad_enabled() else None
                lines = Lines(
                    *(context.width, context.reach, context.origin, context.start, context.live, context.owner, bounds)
                )
            h: Tensor = applied(Norm, x, self.layers[0].input_norm.weight, self.eps, kind)
            for i, layer in enumerate(self.layers):
                old = _NONE if clean is context else (clean.keys[i], clean.values[i])
                scalar = by_mode(context, layer.encode_scalar, layer.denoise_scalar)
                x, h, k, v = applied(FusedLayer, clean.layers[i], lines, scalar, x, h, *old)
                if clean is context:
                    clean.keys[i], clean.values[i] = k, v
        return h

    def _begin(self, kind: torch.dtype) -> list[Batched]:
        """The layers of a batch, whose matrices are rounded once."""
        size, norms = self.model.config.hidden_size, [layer.input_norm.weight for layer in self.layers[1:]]
        zeros = torch.zeros(len(self.layers), 8, size, device=self.model.device).unbind()
        found = []
        for layer, norm, room in zip(self.layers, (*norms, self.model.norm.weight), zeros, strict=True):
            attention, weights = layer.attention, weights_of(layer, norm)
            window = UNBOUNDED if attention.layer.window is None else attention.layer.window
            shape = Shape(attention.heads, attention.kv_heads, window, layer.router.top_k, layer.eps)
            heads, experts = room.new_zeros(2, attention.layer.head_dim), room.new_zeros(len(weights.per_expert))
            turns = self._turn(attention.layer)
            rounded = _rounded(weights, kind)
            found.append(Batched(shape, weights, rounded, *turns, room[:4], room[4:], heads, experts))
        return found

    def _turn(self, layer: LayerConfig) -> tuple[Tensor, Tensor]:
        """cos and sin of every position that a row may have."""
        if layer not in self._turns:
            config = self.model.config
            places = torch.arange(config.max_positions + config.canvas_length, device=self.model.device)
            cos, sin = rotation(layer.rope, layer.head_dim, places, torch.float32)
            self._turns[layer] = cos.squeeze(1).contiguous(), sin.squeeze(1).contiguous()
        return self._turns[layer]


_NONE = (None, None)


def weights_of(layer: Layer, norm: Tensor) -> Weights:
    """A layer's weights, and the weight of the norm behind it."""
    attention, router, experts = layer.attention, layer.router, layer.experts
    assert isinstance(experts, Experts), "can_fuse has asked"
    return Weights(
        *(attention.qkv.weight, attention.out.weight, layer.mlp.gate_up.weight, layer.mlp.down.weight),
        *(router.proj.weight, experts.gate_up, experts.down, attention.q_norm.weight, attention.k_norm.weight),
        *(layer.post_attention_norm.weight, layer.pre_mlp_norm.weight, layer.pre_experts_norm.weight),
        *(router.scale, router.per_expert_scale, layer.post_mlp_norm.weight, layer.post_experts_norm.weight),
        *(layer.post_ffw_norm.weight, norm),
    )


@torch.no_grad()
def _rounded(weights: Weights, kind: torch.dtype) -> tuple[Tensor, ...]:
    """A layer's matrices in the format of its rows, those of all experts side by side."""
    *plain, up, down = weights[:MATRICES]
    return tuple(one.to(kind) for one in (*plain, up.flatten(0, 1), down.transpose(0, 1).flatten(1)))


def _tried(model: DiffusionGemma, bfloat16: bool) -> dict[str, Tensor]:
    """The gradients of a batch of random tokens by name, and the loss; the model is left without any."""
    device, vocab, rows = model.device, model.config.vocab_size, []
    generator = torch.Generator().manual_seed(0)
    room = min(WIDTH, model.config.canvas_length, model.config.max_positions // 5)
    for i in range(LINES):
        width, length = room // (1 + i % 2), (3 + i % 3) * room  # some canvases are padded, some lines
        clean = tuple(torch.randint(vocab, (length,), generator=generator).tolist())
        spots = [Spot(at, clean[at : at + width], (False,) * width, width) for at in (length - room, length - width)]
        rows.append(Row(clean, (False, *[True] * (length - 1)), tuple(spots)))
    (batch,), objective = pack(rows, draws=2, merge_rows=2**20), ObjectiveRecipe()
    drawn = corrupt(batch, vocab, generator, objective)
    with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
        loss = losses(model, batch.to(device), drawn.to(device), objective).total
    loss.backward()
    found = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad(set_to_none=True)
    return found | {"the loss": loss.detach()}
