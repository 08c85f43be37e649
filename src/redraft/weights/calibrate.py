"""Rounding by what comes out: a matrix's codes are chosen for the rows that it reads, not for its own numbers.

    chats ─► rows ─► layer 0 ─► layer 1 ─► …          plain layers, one in memory, its experts one by one
                       └─► what each matrix reads ─► X ─► XᵀX ─► codes, one column after the other

`pack_for` is GPTQ (arXiv 2210.17323): columns are rounded in stored order, and what one loses is made good, as far as
the rows allow, by those that are still to come. A chat's prompt is read causally; its answer is a canvas, some of whose
tokens are noise, and every other canvas brings the soft embedding of a model that knows the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from redraft.cache import Prefix
from redraft.config import CheckpointConfig
from redraft.errors import WeightsError
from redraft.model.gemma import Layer, SelfConditioning
from redraft.model.kernels import FAST, Kernels
from redraft.model.linear import multiply
from redraft.model.moe import AnyExperts, Experts
from redraft.model.packed import (
    Format,
    Packed,
    decode,
    encode,
    fit_scale,
    pack,
    scale_step,
    spread,
    top_of,
    two_a_byte,
    unpack,
)
from redraft.model.rows import Mode, Rows, Span
from redraft.shapes import Float, Int, Tensor
from redraft.weights.fill import Filler
from redraft.weights.layouts import Matrix
from redraft.weights.names import slots
from redraft.weights.source import Source

ROWS = 4096
"""Rows that are read at most: they bound the memory, and a matrix of the released width has 2816 columns."""
_END_ROWS = 16
_DAMPING = 0.01
_CHUNK_ROWS = 8192


@dataclass(frozen=True)
class Chat:
    """Tokens of a prompt, chat template included, and of the answer to it."""

    prompt: Sequence[int]
    answer: Sequence[int]


class Calibration:
    """What the matrices of a plain checkpoint read while it goes over some chats, in the order of its layers."""

    def __init__(self, source: Source, config: CheckpointConfig, chats: Sequence[Chat]) -> None:
        """Raises WeightsError if there is no chat that the model can read."""
        self.source, self.config = source, config.model
        self.stored = {slot.target: slot.stored for slot in slots(config.model)}
        self.rounds = [(chat, *_canvas(chat, config, number)) for number, chat in enumerate(chats)]
        kept, total = [], 0
        for one in self.rounds:
            total += len(one[0].prompt) + len(one[1])
            if total <= ROWS:
                kept.append(one)
        if not kept or not all(chat.prompt for chat, *_ in kept):
            raise WeightsError(f"no chat to calibrate with has a prompt and fits {ROWS} rows; give shorter ones")
        self.rounds = kept
        self._layer, self._x = -1, self._first()
        self._read: dict[tuple[str, int | None], Tensor] = {}
        self._shared: tuple[Tensor, Sharing | None] | None = None

    def inputs(self, matrix: Matrix) -> Float[Tensor, "rows inner"] | None:
        """The rows that a matrix of a layer reads, None for an expert that none is sent to."""
        index = int(matrix.slot.target.split(".")[1])
        while self._layer < index:
            self._advance()
        assert self._layer == index, "matrices come in the order of the layers"
        return self._read.get((matrix.slot.target, matrix.expert))

    def sharing(self, rows: Float[Tensor, "rows inner"]) -> Sharing | None:
        """What follows from these rows; of the last ones it is kept, for two matrices may read the same."""
        if self._shared is None or self._shared[0] is not rows:
            self._shared = rows, sharing(rows)
        return self._shared[1]

    @torch.no_grad()
    def _advance(self) -> None:
        """Run the next layer over all rows and keep what its matrices read."""
        self._layer += 1
        self._read, index = {}, self._layer
        prefix = f"layers.{index}."
        with torch.device("meta"):
            layer = Layer(self.config, index, Kernels(FAST.norm, FAST.attend, partial(self._experts, prefix)))
        layer.experts = Experts(self.config.hidden_size, self.config.moe_intermediate_size, 0)  # read when they run
        self._load(layer.to_empty(device="cpu"), prefix)
        for owner, part in ((layer.attention, "attention"), (layer.mlp, "mlp")):
            for name in ("qkv", "out", "gate_up", "down"):
                if hasattr(owner, name):
                    getattr(owner, name).register_forward_pre_hook(self._keep(f"{prefix}{part}.{name}.weight"))
        self._x = layer(self._x, self._rows())

    def _rows(self) -> Rows:
        """The context of one layer: its keys and values go with it."""
        spans = []
        for chat, canvas, _ in self.rounds:
            held = Prefix(self.config.layers)
            spans += [Span(held, len(chat.prompt), Mode.ENCODE), Span(held, len(canvas), Mode.DENOISE)]
        return Rows(self.config, spans, torch.device("cpu"), torch.float32)

    def _load(self, module: nn.Module, prefix: str) -> None:
        filler = Filler({prefix + name: tensor for name, tensor in module.state_dict().items()}, {})
        for slot in slots(self.config):
            if slot.target in filler.plain and ".experts." not in slot.target:
                filler.place_slot(slot, self.source.read(slot.stored))

    def _keep(self, target: str) -> Callable[[nn.Module, tuple[Tensor]], None]:
        def keep(_: nn.Module, read: tuple[Tensor]) -> None:
            self._read[target, None] = read[0]

        return keep

    def _experts(self, prefix: str, _: AnyExperts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The plain form, expert by expert (`model/moe.py::experts_loop`), keeping what each of them reads."""
        out = torch.zeros_like(x)
        for e in range(self.config.num_experts):
            rows, place = torch.where(chosen == e)
            if rows.numel():
                gate, up = multiply(x[rows], self._expert(f"{prefix}experts.gate_up", e)).chunk(2, dim=-1)
                inner = F.gelu(gate, approximate="tanh") * up
                self._read[f"{prefix}experts.gate_up", e] = x[rows]
                self._read[f"{prefix}experts.down", e] = inner
                out.index_add_(
                    0, rows, multiply(inner, self._expert(f"{prefix}experts.down", e)) * weights[rows, place, None]
                )
        return out

    def _expert(self, target: str, expert: int) -> Float[Tensor, "outer inner"]:
        """One expert's matrix, which is all of them that is in memory."""
        return self.source.read_rows(self.stored[target], slice(expert, expert + 1))[0].float()

    @torch.no_grad()
    def _first(self) -> Float[Tensor, "rows hidden"]:
        """What the first layer reads: prompts as they are, canvases conditioned and normed (spec 2.1)."""
        tokens = torch.cat([torch.tensor([*chat.prompt, *canvas]) for chat, canvas, _ in self.rounds])
        known = torch.cat([torch.tensor([*chat.prompt, *answer]) for chat, _, answer in self.rounds])
        scale = self.config.hidden_size**0.5
        x, soft = self._embedded(tokens) * scale, self._embedded(known) * scale
        block = SelfConditioning(self.config, FAST)
        self._load(block, "self_conditioning.")
        parts, start = [], 0
        for number, (chat, canvas, _) in enumerate(self.rounds):
            behind = start + len(chat.prompt)
            end = behind + len(canvas)
            parts += [x[start:behind], block(x[behind:end], soft[behind:end] if number % 2 else None)]
            start = end
        return torch.cat(parts)

    def _embedded(self, tokens: Int[Tensor, "rows"]) -> Float[Tensor, "rows hidden"]:
        """Rows of the embedding table, of which only a part is in memory."""
        found = torch.empty(len(tokens), self.config.hidden_size)
        for start in range(0, self.config.vocab_size, _CHUNK_ROWS):
            here = (tokens >= start) & (tokens < start + _CHUNK_ROWS)
            if here.any():
                part = self.source.read_rows(self.stored["embed.weight"], slice(start, start + _CHUNK_ROWS))
                found[here] = part[tokens[here] - start].float()
        return found


@dataclass(frozen=True)
class Sharing:
    """What follows from the rows alone. `weigh`: how much a column's error counts; `share`: row j says how what column
    j loses is best shared among the columns behind it."""

    weigh: Float[Tensor, "inner"]
    share: Float[Tensor, "inner inner"]


def sharing(rows: Float[Tensor, "rows inner"]) -> Sharing | None:
    """Of the rows that a matrix reads; None if they are all zero."""
    gram = rows.T @ rows / len(rows)
    mean = gram.diagonal().mean()
    if not mean > 0:
        return None
    gram.diagonal().add_(_DAMPING * mean)
    upper = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(gram)), upper=True)
    return Sharing(gram.diagonal(), upper)


@torch.no_grad()
def pack_for(found: Sharing | None, weight: Float[Tensor, "outer inner"], form: Format, what: str) -> Packed:
    """Round a matrix to a 4-bit format so that its products with the rows change least, column by column.

    Raises WeightsError as `pack` does.
    """
    form.check(what, weight.shape[1])
    if found is None:
        return pack(weight, form, what)
    share = found.share
    left, codes, scales = weight.float().clone(), [], []
    top = top_of(weight) if form.is_float else None
    for start in range(0, weight.shape[1], form.group):
        end = start + form.group
        block = left[:, start:end]
        scale = fit_scale(block.unsqueeze(1), form, top, found.weigh[start:end])
        step = scale_step(scale, top)[:, 0]
        lost = torch.empty_like(block)
        for j in range(form.group):
            code = encode(block[:, j, None], step, form)
            lost[:, j] = (block[:, j] - (decode(code, form) * step)[:, 0]) / share[start + j, start + j]
            block[:, j:] -= lost[:, j, None] * share[start + j, start + j : end]
            codes.append(code)
        left[:, end:] -= lost @ share[start:end, end:]
        scales.append(scale)
    spread_top = None if top is None else spread(top, len(weight))
    return Packed(form, two_a_byte(torch.cat(codes, dim=1)), torch.cat(scales, dim=1), spread_top)


def output_error(
    rows: Float[Tensor, "rows inner"], weight: Float[Tensor, "outer inner"], packed: Packed
) -> tuple[float, float]:
    """Summed squares of what rounding changes in the products with these rows, and of the products themselves."""
    exact = rows @ weight.float().T
    return float((rows @ unpack(packed).T - exact).square().sum()), float(exact.square().sum())


def _canvas(chat: Chat, config: CheckpointConfig, number: int) -> tuple[list[int], list[int]]:
    """A narrow canvas of the answer with some of its tokens replaced by noise, and the answer on it."""
    end = config.generation.eos_token_ids[0]
    width = min(config.model.canvas_length, -(-(len(chat.answer) + 1) // _END_ROWS) * _END_ROWS)
    answer = torch.tensor([*chat.answer, *[end] * width][:width])
    draw = torch.Generator().manual_seed(number)
    noisy = torch.rand(width, generator=draw) < torch.rand((), generator=draw)
    random = torch.randint(config.model.vocab_size, (width,), generator=draw)
    return torch.where(noisy, random, answer).tolist(), answer.tolist()
