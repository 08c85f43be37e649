"""The vocabulary head as a stream: all readings of a step's distribution in one pass over the embedding table.

The soft embedding is attention: the hidden states are the queries, the embedding table is both keys and values, and
the softmax in between is the distribution that a step reads. So, as in fused attention, the table is read in tiles, and
little is kept for each row: its largest logit, the sum of exponentials, and sums weighted by them.

    tile of the table ─► logits, soft-capped, ÷ temperature ─► largest, second, Σe, Σe·z   ─► argmax, entropy, top
                    └──────────────────────────────────────► Σe·row of the table           ─► soft embedding
                                                             Σe of each STRIPE of tokens   ─► sample

A sample is the inverse transform of the same uniform as in the plain path: the sums give the stripe, whose few logits
are computed once more. So a seed gives the same tokens here, for any tile size. A canvas of 256 rows over 262,144
tokens keeps 4 MB where its logits are 268 MB, and the table is read once instead of twice.

`read_head` runs on any device. Its plain twin is `model.logits` with `diffusion/stats.py::read_logits`; its fast form
on a GPU is `model/gpu/head.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from redraft.model.linear import emulates, multiply
from redraft.model.packed import Packed, plain
from redraft.shapes import Float, Int, Tensor

STRIPE = 64
"""Neighbouring tokens whose probabilities are kept as one sum, to find a sample."""
TILE = 4096  # tokens of the table read at once
WIDEST, MOST_PRODUCTS = 32768, 2**25
"""On a GPU: tokens read at once for few rows, and products in memory at once for many, 64 MiB in bfloat16."""
LONG = 32768
"""Least vocabulary that is read as a stream. Below it, computing all logits at once is faster on a CPU."""
_ROWS_AT_ONCE = 32


@dataclass(frozen=True)
class Reading:
    """The readings of each row's distribution. `entropy` is in nats, `soft` is not yet scaled by √d, `top` are the two
    largest probabilities."""

    argmax: Int[Tensor, "rows"]
    sample: Int[Tensor, "rows"]
    entropy: Float[Tensor, "rows"]
    soft: Float[Tensor, "rows hidden"]
    top: Float[Tensor, "rows 2"]


@dataclass(frozen=True)
class Head:
    """The table, the soft cap, and `feedback`: the dtype that logits are rounded to for the soft embedding."""

    table: Float[Tensor, "vocab hidden"] | Packed
    cap: float
    feedback: torch.dtype = torch.float32

    def part(self, tokens: slice | Tensor, dtype: torch.dtype) -> Float[Tensor, "*tokens hidden"]:
        """Some rows of the table, unpacked."""
        return plain(self.table[tokens], dtype)

    def read(self, hidden: Tensor, part: Tensor, temperature: Tensor) -> Float[Tensor, "rows tile"]:
        """Logits of the tokens whose unpacked rows of the table are `part`, soft-capped and divided by the
        temperature (rows, 1), float32."""
        z = multiply(hidden, part).float()
        return torch.tanh(z / self.cap) * self.cap / temperature


@dataclass(frozen=True)
class Sums:
    """The result of a pass over the table for each row. With z the scaled logits, e is exp(z - largest).

    `largest` and `second` are of z; `total` is Σe, `weighted` Σe·(z - largest), `mass` Σe of each stripe; `soft` is the
    mean of the table's rows, weighted by e and divided by its sum.
    """

    largest: Float[Tensor, "rows"]
    second: Float[Tensor, "rows"]
    argmax: Int[Tensor, "rows"]
    total: Float[Tensor, "rows"]
    weighted: Float[Tensor, "rows"]
    mass: Float[Tensor, "rows stripes"]
    soft: Float[Tensor, "rows hidden"]


Pass = Callable[[Float[Tensor, "rows hidden"], Head, Float[Tensor, "rows 1"]], Sums]
"""One pass over the table, from hidden states, the head and each row's temperature."""


def wide_tile(rows: int, table: Tensor | Packed) -> int:
    """Tokens that a GPU reads at once: enough that the product of one canvas fills it. A packed table is read by TILE,
    because it is unpacked first."""
    if isinstance(table, Packed):
        return TILE
    return min(WIDEST, max(TILE, MOST_PRODUCTS // max(1, rows) // TILE * TILE))


def read_head(
    hidden: Float[Tensor, "rows hidden"],
    head: Head,
    temperature: Float[Tensor, "rows 1"],
    uniform: Float[Tensor, "rows"],
    one_pass: Pass | None = None,
) -> Reading:
    """Read every row's distribution. `uniform` in [0, 1) picks the sample; `one_pass` is the form to run."""
    sums = (one_pass or pass_tiles)(hidden, head, temperature)
    return Reading(
        argmax=sums.argmax,
        sample=_draw(hidden, head, temperature, uniform, sums),
        entropy=sums.total.log() - sums.weighted / sums.total,
        soft=sums.soft,
        top=torch.stack([torch.ones_like(sums.total), (sums.second - sums.largest).exp()], -1) / sums.total[:, None],
    )


def pass_tiles(
    hidden: Float[Tensor, "rows hidden"], head: Head, temperature: Float[Tensor, "rows 1"], tile: int = TILE
) -> Sums:
    """The pass in plain torch, `tile` tokens at a time (a multiple of STRIPE)."""
    rows, vocab = hidden.shape[0], head.table.shape[0]
    largest = hidden.new_full((rows,), -torch.inf, dtype=torch.float32)
    second, total, weighted = largest.clone(), torch.zeros_like(largest), torch.zeros_like(largest)
    argmax = torch.zeros(rows, dtype=torch.int64, device=hidden.device)
    fed_total, soft = torch.zeros_like(largest), hidden.new_zeros(hidden.shape, dtype=torch.float32)
    masses, bases = [], []
    for start in range(0, vocab, tile):
        tokens = slice(start, min(start + tile, vocab))
        part = head.part(tokens, hidden.dtype)
        z = head.read(hidden, part, temperature)
        best, where = z.max(-1)
        next_best = z.scatter(-1, where[:, None], -torch.inf).amax(-1)
        second = torch.maximum(torch.minimum(largest, best), torch.maximum(second, next_best))
        argmax = torch.where(best > largest, where + start, argmax)
        new = torch.maximum(largest, best)
        shrink = (largest - new).exp()
        e = (z - new[:, None]).exp()
        # Σe·(z - m) when m moves: every old term moves by the same difference, weighted by its share of Σe.
        moved = torch.where(total > 0, weighted + total * (largest - new), 0.0)
        weighted = shrink * moved + (e * (z - new[:, None])).sum(-1)
        total = shrink * total + e.sum(-1)
        masses.append(F.pad(e, (0, -e.shape[1] % STRIPE)).unflatten(-1, (-1, STRIPE)).sum(-1))
        bases.append(new)
        fed = e if head.feedback == torch.float32 else (z.to(head.feedback).float() - new[:, None]).exp()
        fed_total = shrink * fed_total + fed.sum(-1)
        soft = shrink[:, None] * soft + multiply(fed.to(hidden.dtype), part.T).float()
        largest = new
    mass = torch.cat([part * (base - largest).exp()[:, None] for part, base in zip(masses, bases, strict=True)], dim=-1)
    return Sums(largest, second, argmax, total, weighted, mass, (soft / fed_total[:, None]).to(hidden.dtype))


def _draw(hidden: Tensor, head: Head, temperature: Tensor, uniform: Tensor, sums: Sums) -> Tensor:
    """The first token whose cumulated probability exceeds the row's uniform: its stripe, then its place in it."""
    cumulated = sums.mass.cumsum(-1)
    wanted = uniform * cumulated[:, -1]
    stripe = torch.searchsorted(cumulated, wanted[:, None], right=True).squeeze(-1).clamp_(max=sums.mass.shape[1] - 1)
    left = wanted - (cumulated - sums.mass).gather(-1, stripe[:, None]).squeeze(-1)
    vocab = head.table.shape[0]
    drawn = []
    # Fewer launches on a GPU. A packed table takes several times the memory of its rows to unpack: no more than a tile.
    many = TILE // STRIPE if isinstance(head.table, Packed) else 256
    at_once = _ROWS_AT_ONCE if hidden.device.type == "cpu" else many
    for part in torch.arange(hidden.shape[0], device=hidden.device).split(at_once):
        ids = stripe[part, None] * STRIPE + torch.arange(STRIPE, device=hidden.device)
        keys = head.part(ids.clamp(max=vocab - 1), hidden.dtype)
        asked = hidden[part]
        if emulates(asked):
            asked, keys = asked.float(), keys.float()
        z = torch.einsum("rh,rsh->rs", asked, keys).to(hidden.dtype).float()
        z = torch.tanh(z / head.cap) * head.cap / temperature[part]
        e = (z - sums.largest[part, None]).exp().masked_fill(ids >= vocab, 0.0).cumsum(-1)
        within = torch.searchsorted(e, left[part, None].clamp(min=0), right=True).squeeze(-1)
        last = (vocab - 1 - ids[:, 0]).clamp(max=STRIPE - 1)
        drawn.append(ids[:, 0] + torch.minimum(within, last))
    return torch.cat(drawn)
