"""A layer as one operation for autograd, its gradient written out: matmuls of torch and kernels of `fused_kernels.py`.

`to_x` is the loss's gradient with respect to x, in x's format. A weight's is added up over a batch, for its sequences
and for their canvases, in one place (`Batched`), and autograd gets it once: a GPU waits for each operation to be asked
for, and hundreds of small sums would take as long as the products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.autograd import Function

from redraft.shapes import Float, Int, Tensor
from redraft.tune import fused_attention, fused_kernels

PROGRAMS = 660
"""Most programs of a backward kernel: five for each of an H200's multiprocessors, as their registers allow."""
UNBOUNDED = 2**30
"""A window that shows everything."""
NUMBERS = 1024
"""Numbers of each tensor that a program holds at a time, for four warps; half as many in backward kernels."""
MATRICES = 7


class Weights(NamedTuple):
    """Of a layer, with the norm behind it; the first MATRICES are multiplied with rows."""

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    router: Tensor
    experts_up: Tensor
    experts_down: Tensor
    q_norm: Tensor
    k_norm: Tensor
    post_attention: Tensor
    pre_mlp: Tensor
    pre_experts: Tensor
    router_scale: Tensor
    per_expert: Tensor
    post_mlp: Tensor
    post_experts: Tensor
    post_ffw: Tensor
    norm: Tensor


class _Kept(NamedTuple):
    """What a layer's forward keeps for its gradient."""

    h: Tensor
    qkv: Tensor
    q: Tensor
    keys: Tensor
    values: Tensor
    attention_weights: Tensor
    mixed: Tensor
    attended: Tensor
    a: Tensor
    for_mlp: Tensor
    for_experts: Tensor
    for_router: Tensor
    up: Tensor
    inner: Tensor
    dense: Tensor
    scores: Tensor
    share: Tensor
    experts_up: Tensor
    experts_inner: Tensor
    routed: Tensor
    out: Tensor


@dataclass(frozen=True)
class Shape:
    """A layer's sizes. `window` is UNBOUNDED for a full layer, whose keys are its values."""

    heads: int
    kv_heads: int
    window: int
    top: int
    eps: float

    @property
    def full(self) -> bool:
        return self.window == UNBOUNDED


@dataclass
class Batched:
    """A layer in one batch: its weights, its matrices as they are multiplied, those of all experts side by side, and
    the gradients so far.

    cos, sin      of the layer's rotation
    to_after      of the norm behind attention, and of those that MLP, experts and router read
    to_joined     of the norms behind MLP, experts and both, and of the next layer's first
    to_heads      of the norms of queries and keys
    to_experts    of the experts' own scales
    """

    shape: Shape
    weights: Weights
    matrices: tuple[Tensor, ...]
    cos: Float[Tensor, "positions head_dim"]
    sin: Float[Tensor, "positions head_dim"]
    to_after: Float[Tensor, "4 hidden"]
    to_joined: Float[Tensor, "4 hidden"]
    to_heads: Float[Tensor, "2 head_dim"]
    to_experts: Float[Tensor, "experts"]
    to_matrices: list[Tensor | None] = field(default_factory=lambda: [None] * MATRICES)

    def add(self, i: int, to_rows: Tensor, rows: Tensor) -> None:
        """A product's part of the gradient of its matrix."""
        found = self.to_matrices[i]
        if found is None:
            self.to_matrices[i] = torch.mm(to_rows.T, rows)
        else:
            found.addmm_(to_rows.T, rows)

    def gradients(self) -> tuple[Tensor | None, ...]:
        """Of the weights, in their order."""
        *plain, up, down = self.to_matrices
        if up is not None and down is not None:
            experts, hidden, ffn = self.weights.experts_down.shape
            up, down = up.view(experts, -1, hidden), down.view(hidden, experts, ffn).transpose(0, 1)
        return *plain, up, down, *self.to_heads, *self.to_after, self.to_experts, *self.to_joined


@dataclass(frozen=True)
class Lines:
    """Where the rows of a forward stand. Rows of canvases have `start`, and what stands below.

    tokens    rows of a line, or of a canvas          reach   keys of a line that any canvas sees
    first     of a token, where its sequence begins; of a canvas, where its sequence does
    start     where a canvas begins                   live    its positions that are there, if not all are
    owner     the line of each canvas                 bounds  the first canvas of each line, and their number
    """

    tokens: int
    reach: int
    first: Int[Tensor, "..."]
    start: Int[Tensor, "canvases"] | None = None
    live: Int[Tensor, "canvases"] | None = None
    owner: Int[Tensor, "canvases"] | None = None
    bounds: Int[Tensor, "lines_and_one"] | None = None


def applied(function: type[Function], *given: Any) -> Any:
    """What a function makes of something: torch's types do not say."""
    return function.apply(*given)


class Norm(Function):
    """RMSNorm of rows, with a weight or without, in a format."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float, kind: torch.dtype) -> Tensor:
        x, out = x.contiguous(), torch.empty(x.shape, dtype=kind, device=x.device)
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        _launch("norm", x, (x, x if weight is None else weight, out), (eps,), WEIGHT=weight is not None)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        to_x, to_weight = torch.empty_like(x), None if weight is None else torch.zeros_like(weight)
        weights = (x, to_x, x) if weight is None else (weight, to_x, to_weight)
        _launch("norm_back", x, (g.contiguous(), x, *weights), (ctx.eps,), WEIGHT=weight is not None)
        return to_x, to_weight, None, None


class WeightGradients(Function):
    """Rows as they are. Their gradient is the last of a batch: those of all `layers` are handed over with it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: list[Batched], *_weights: Tensor) -> Tensor:
        ctx.layers = layers
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        layers, ctx.layers = ctx.layers, None  # they are added up once
        found = tuple(one for layer in layers for one in layer.gradients())
        for layer in layers:
            layer.to_matrices.clear()  # so that autograd keeps them without a copy
        return g, None, *found


class FusedLayer(Function):
    """A layer and the norm behind it: the residual stream, its norm, and the rows' keys and values.

    `old_k` and `old_v` are the lines' keys and values, for canvases. `scalar` is the layer's, of the rows' mode.
    """

    @staticmethod
    def forward(
        ctx: Any, layer: Batched, lines: Lines, scalar: Tensor, x: Tensor, h: Tensor, old_k: Tensor, old_v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        shape, w = layer.shape, layer.weights
        by_qkv, by_out, by_up, by_down, by_router, by_experts_up, by_experts_down = layer.matrices
        qkv = h @ by_qkv.T
        q, keys, values = _heads(layer, lines, qkv, old_k, old_v)
        mixed, attention_weights = _attention(shape, lines, q, keys, values)
        attended = mixed @ by_out.T
        a, for_mlp, for_experts, for_router = torch.empty_like(x), *(torch.empty_like(h) for _ in range(3))
        before = (w.post_attention, w.pre_mlp, w.pre_experts, w.router_scale)
        rest = (shape.eps, x.shape[1] ** -0.5)
        _launch("after", x, (attended, x, *before, a, for_mlp, for_experts, for_router), rest)
        up = for_mlp @ by_up.T
        inner = _gated(up, None)
        dense, scores = inner @ by_down.T, for_router @ by_router.T
        share = torch.empty(scores.shape, device=x.device)
        _launch("route", scores, (scores, w.per_expert, share), (), TOP=shape.top)
        experts_up = for_experts @ by_experts_up.T
        experts_inner = _gated(experts_up, share)
        routed, out, normed = experts_inner @ by_experts_down.T, torch.empty_like(x), torch.empty_like(h)
        behind = (w.post_mlp, w.post_experts, w.post_ffw, scalar, w.norm)
        _launch("joined", a, (a, dense, routed, *behind, out, normed), (shape.eps,))
        ctx.save_for_backward(
            *(h, qkv, q, keys, values, attention_weights, mixed, attended, a, for_mlp, for_experts, for_router),
            *(up, inner, dense, scores, share, experts_up, experts_inner, routed, out),
        )
        ctx.layer, ctx.lines, ctx.scalar, ctx.old = layer, lines, scalar, None if old_k is None else old_k.shape
        ctx.set_materialize_grads(False)  # nobody goes on with the last layer's stream, and maybe with a line's keys
        return out, normed, keys, values

    @staticmethod
    def backward(
        ctx: Any, to_out: Tensor | None, to_normed: Tensor, more_k: Tensor | None, more_v: Tensor | None
    ) -> Any:
        layer, lines, s = ctx.layer, ctx.lines, _Kept(*ctx.saved_tensors)
        shape, w, rest = layer.shape, layer.weights, (layer.shape.eps, s.out.shape[1] ** -0.5)
        by_qkv, by_out, by_up, by_down, by_router, by_experts_up, by_experts_down = layer.matrices
        to_out = torch.zeros_like(s.out) if to_out is None else to_out.contiguous()
        to_normed = torch.zeros_like(s.h) if to_normed is None else to_normed.contiguous()
        to_a, to_dense, to_routed = torch.empty_like(s.a), torch.empty_like(s.dense), torch.empty_like(s.routed)
        behind = (w.post_mlp, w.post_experts, w.post_ffw, ctx.scalar, w.norm)
        found = (to_a, to_dense, to_routed, layer.to_joined)
        joined = (to_out, to_normed, s.dense, s.routed, *behind, s.out, *found)
        _launch("joined_back", s.out, joined, rest[:1])
        to_experts_up, to_share = _gated_back(to_routed @ by_experts_down, s.experts_up, s.share)
        to_scores = torch.empty_like(s.scores)
        routing = (to_share, s.scores, w.per_expert, to_scores, layer.to_experts)
        _launch("route_back", s.scores, routing, (), TOP=shape.top)
        to_up, _ = _gated_back(to_dense @ by_down, s.up, None)
        branches = (to_up @ by_up, to_experts_up @ by_experts_up, to_scores @ by_router)
        to_attended, to_x = torch.empty_like(s.attended), torch.empty_like(s.a)
        before = (w.post_attention, w.pre_mlp, w.pre_experts, w.router_scale)
        ends = (to_attended, to_x, layer.to_after)
        _launch("after_back", s.a, (to_a, *branches, s.attended, s.a, *before, *ends), rest)
        to_q, to_k, to_v = _attention_back(to_attended @ by_out, s.q, s.keys, s.values, s.attention_weights)
        to_k, to_v = to_k if more_k is None else to_k.add_(more_k), to_v if more_v is None else to_v.add_(more_v)
        to_old = (None, None) if ctx.old is None else _to_lines(lines, to_k, to_v, ctx.old)
        to_qkv = _heads_back(layer, lines, (to_q, to_k, to_v), s.qkv)
        pairs = (
            *((to_qkv, s.h), (to_attended, s.mixed), (to_up, s.for_mlp), (to_dense, s.inner)),
            *((to_scores, s.for_router), (to_experts_up, s.for_experts), (to_routed, s.experts_inner)),
        )
        for i, (to_rows, rows) in enumerate(pairs):
            layer.add(i, to_rows, rows)
        return None, None, None, to_x, to_qkv @ by_qkv, *to_old


def _heads(
    layer: Batched, lines: Lines, qkv: Tensor, old_k: Tensor | None, old_v: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, and all keys and values that rows may see, [lines, heads, tokens or keys, head_dim] each."""
    shape, dim, many = layer.shape, layer.cos.shape[1], len(qkv) // lines.tokens
    offset = 0 if old_k is None else lines.reach
    keys = offset + lines.tokens
    q = qkv.new_empty(many, shape.heads, lines.tokens, dim)
    k, v = (qkv.new_empty(many, shape.kv_heads, keys, dim) for _ in range(2))
    if old_k is not None:
        numbers, (grid, form) = offset * dim, _flat(many * shape.kv_heads, offset * dim)
        fused_attention.gather[grid](
            old_k, old_v, lines.owner, k, v, numbers, old_k[0, 0].numel(), keys * dim, shape.kv_heads, **form
        )
    grid, sizes, forms = _heads_sizes(layer, lines, qkv, keys, offset)
    given = (qkv, *layer.weights[MATRICES : MATRICES + 2], layer.cos, layer.sin, *_begins(lines), q, k, v)
    fused_attention.heads[grid](*given, *sizes, **forms)
    return q, k, v


def _heads_back(layer: Batched, lines: Lines, to: tuple[Tensor, Tensor, Tensor], qkv: Tensor) -> Tensor:
    """To the product."""
    keys, to_qkv = to[1].shape[2], torch.empty_like(qkv)
    grid, sizes, forms = _heads_sizes(layer, lines, qkv, keys, keys - lines.tokens)
    scales = layer.weights[MATRICES : MATRICES + 2]
    given = (*to, qkv, *scales, layer.cos, layer.sin, *_begins(lines), to_qkv, layer.to_heads)
    fused_attention.heads_back[min(PROGRAMS // 2, grid[0]), grid[1]](*given, *sizes, **forms)
    return to_qkv


def _begins(lines: Lines) -> tuple[Tensor, Tensor]:
    return lines.first, lines.first if lines.start is None else lines.start


def _heads_sizes(
    layer: Batched, lines: Lines, qkv: Tensor, keys: int, offset: int
) -> tuple[tuple[int, int], tuple[Any, ...], dict[str, Any]]:
    """Grid, sizes and forms of the kernels of heads."""
    shape, dim = layer.shape, layer.cos.shape[1]
    forms = {"HEADS": shape.heads, "KV": shape.kv_heads, "FULL": shape.full, "DIM": dim, "ROWS": max(1, NUMBERS // dim)}
    sizes = (len(qkv), lines.tokens, keys, offset, qkv.shape[1], len(layer.cos), shape.eps)
    grid = (-(-len(qkv) // forms["ROWS"]), qkv.shape[1] // dim)
    return grid, sizes, forms | {"CANVAS": lines.start is not None}


def _to_lines(lines: Lines, to_k: Tensor, to_v: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """To the lines' keys and values, [lines, kv_heads, tokens, head_dim]: the sums of their canvases'."""
    found, step = (to_k.new_empty(shape), to_v.new_empty(shape)), shape[2] * shape[3]
    grid, form = _flat(shape[0] * shape[1], step)
    sizes = (lines.reach * shape[3], step, to_k[0, 0].numel(), shape[1])
    fused_attention.gather_back[grid](to_k, to_v, lines.bounds, *found, *sizes, **form)
    return found


def _attention(
    shape: Shape, lines: Lines, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Float[Tensor, "rows columns"], Float[Tensor, "batch folded keys"]]:
    """Mixed values, and the softmax's. The query heads that share a key head are rows of one product."""
    batch, heads, tokens, dim = q.shape
    folded, k, v = q.view(batch * k.shape[1], -1, dim), k.flatten(0, 1), v.flatten(0, 1)
    attention_weights = torch.bmm(folded, k.transpose(1, 2))
    rows, keys = batch * heads * tokens, k.shape[1]
    grid, sizes = _rows_of(rows, keys)
    first, start = _begins(lines)
    forms = {"CANVAS": lines.start is not None, "LIVE": lines.live is not None}
    given = (attention_weights, first, start, first if lines.live is None else lines.live)
    reach = lines.reach if lines.start is not None else keys
    fused_attention.softmax[grid](*given, rows, keys, tokens, heads * tokens, reach, shape.window, **forms, **sizes)
    mixed = torch.bmm(attention_weights, v).view(batch, heads, tokens, dim)
    return mixed.transpose(1, 2).reshape(batch * tokens, -1), attention_weights


def _attention_back(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, attention_weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, tokens, dim = q.shape
    g = g.view(batch, tokens, heads, dim).transpose(1, 2).reshape(len(attention_weights), -1, dim)
    to_v, to_scores = torch.bmm(attention_weights.transpose(1, 2), g), torch.bmm(g, v.flatten(0, 1).transpose(1, 2))
    rows, keys = batch * heads * tokens, k.shape[2]
    grid, sizes = _rows_of(rows, keys)
    fused_attention.softmax_back[grid](to_scores, attention_weights, rows, keys, **sizes)
    to_q, to_k = torch.bmm(to_scores, k.flatten(0, 1)), torch.bmm(to_scores.transpose(1, 2), q.view(g.shape))
    return to_q.view(q.shape), to_k.view(k.shape), to_v.view(v.shape)


def _gated(gate_up: Float[Tensor, "rows columns"], share: Float[Tensor, "rows experts"] | None) -> Tensor:
    """gelu(gate) * up; of several experts each has its gates and ups in turn, and its share of the row."""
    experts = 1 if share is None else share.shape[1]
    size = gate_up.shape[1] // experts // 2
    out, rows = gate_up.new_empty(len(gate_up), experts * size), len(gate_up) * experts
    grid, sizes = _rows_of(rows, size)
    shared = gate_up if share is None else share
    fused_kernels.gated[grid](gate_up, shared, out, rows, size, SHARED=share is not None, **sizes)
    return out


def _gated_back(g: Tensor, gate_up: Tensor, share: Tensor | None) -> tuple[Tensor, Tensor]:
    experts = 1 if share is None else share.shape[1]
    rows, size = len(gate_up) * experts, gate_up.shape[1] // experts // 2
    to_gate_up, to_share = torch.empty_like(gate_up), gate_up if share is None else torch.empty_like(share)
    grid, sizes = _rows_of(rows, size)
    given = (g, gate_up, gate_up if share is None else share, to_gate_up, to_share)
    fused_kernels.gated_back[grid](*given, rows, size, SHARED=share is not None, **sizes)
    return to_gate_up, to_share


def _launch(
    name: str, x: Float[Tensor, "rows size"], tensors: Sequence[Tensor], rest: Sequence[float], **forms: Any
) -> None:
    """Run a kernel over all rows of such a tensor; a backward one by at most PROGRAMS programs."""
    rows, size = x.shape
    back = name.endswith("back")
    grid, sizes = _rows_of(rows, size, NUMBERS // 2 if back else NUMBERS)
    grid = (min(grid[0], PROGRAMS),) if back else grid
    getattr(fused_kernels, name)[grid](*tensors, rows, size, *rest, **forms, **sizes)


def _rows_of(rows: int, size: int, numbers: int = NUMBERS) -> tuple[tuple[int], dict[str, int]]:
    """A grid over all rows, and the tile of each program."""
    block = 1 << (size - 1).bit_length()
    many = max(1, numbers // block)
    return (-(-rows // many),), {"ROWS": many, "BLOCK": block}


def _flat(heads: int, numbers: int) -> tuple[tuple[int, int], dict[str, int]]:
    """A grid over the numbers of many heads."""
    return (heads, -(-numbers // NUMBERS)), {"BLOCK": NUMBERS}
