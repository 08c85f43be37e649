"""Denoising steps as one CUDA graph: fixed memory addresses, and no decision by the host.

    once a block     positions of the canvases ─► tables, cos and sin    (a few small copies to the device)
    every step       tokens, temperatures, uniforms ─► `given`   (one small copy) ─┐
                     soft embeddings ─► `soft` ────────────────────────────────────┴► replay ─► hidden, reading

A graph repeats launches with their addresses and sizes. So everything that changes from block to block is a number in
memory: the part of a layer's buffers that a canvas sees, and the place of its own rows. A graph has a fixed number of
places for canvases, each as wide as the model's canvas. Rows without a canvas are dead: they are computed, but no row
reads their keys and their results are not used. So one graph serves any of the canvases at its places, narrower ones
included. A place whose request has ended has an empty prefix.

On a CPU the same step runs launch by launch; tests compare it with `model/rows.py::Rows`. Not covered: forwards that
encode, and readings from logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch

from redraft.cache import Prefix
from redraft.model.gemma import DiffusionGemma
from redraft.model.head import Head, Reading, read_head
from redraft.model.kernels import Attend
from redraft.model.rows import Mode, Rows, Span, SpanTables, span_tables
from redraft.shapes import Float, Int, Tensor

_WARM_UPS = 2
PLACES = 8
"""Most requests with fixed prefixes. With more canvases every operation takes longer than its launch, so that a graph
would save nothing."""
PATIENCE = 8
"""Steps by a graph of twice the places that they need, or more, before another is made: that takes as long as some."""


@dataclass(frozen=True)
class Placed:
    """A canvas of a step: its place and its input; `draws` are the temperatures and uniforms of its reading."""

    place: int
    tokens: Int[Tensor, "canvas"]
    soft: Float[Tensor, "canvas hidden"] | None
    draws: Float[Tensor, "2 canvas"] | None = None

    @property
    def width(self) -> int:
        """Live rows."""
        return self.tokens.shape[0]


class FixedRows(Rows):
    """The rows of canvases after their prefixes, `width` each, in buffers with fixed addresses."""

    def __init__(self, model: DiffusionGemma, prefixes: Sequence[Prefix], width: int) -> None:
        spans = [Span(prefix, width, Mode.DENOISE) for prefix in prefixes]
        super().__init__(model.config, spans, model.device, model.dtype)
        self.prefixes, self.width = tuple(prefixes), width
        self.lives: Sequence[int] = ()
        self._fixed: SpanTables | None = None

    def place(self, lives: Sequence[int]) -> None:
        """Move to the present ends of the prefixes. Only the first `lives` rows of each canvas are seen."""
        self.lives = lives
        starts = torch.tensor([one.length for one in self.prefixes])
        self.positions.copy_((starts[:, None] + torch.arange(self.width)).flatten(), non_blocking=True)
        kept, self._rotations = self._rotations, {}
        for layer in self.config.layers:
            self.rotation(layer)
        for kind, places in kept.items():
            for place, value in zip(places, self._rotations[kind], strict=True):
                place.copy_(value)
        self._rotations |= kept
        self.starts = starts.tolist()
        found_tables = span_tables(self, lives)
        if self._fixed is None:
            self._fixed = found_tables
        for place, value in zip(self._fixed.tensors, found_tables.tensors, strict=True):
            place.copy_(value)
        self.forget()

    def tables(self, index: int) -> SpanTables:
        """The tables of the last `place`, in memory with fixed addresses."""
        assert self._fixed is not None, "place was not called"
        return self._fixed

    def forget(self) -> None:
        """Drop the scaled rotations, so that the next forward computes them again."""
        self._scaled.clear()

    def _attend_span(self, i: int, index: int, q: Tensor, k: Tensor, v: Tensor, kernel: Attend) -> Tensor:
        """On a processor: the canvas over the keys that it sees, its dead rows' not among them."""
        assert not q.is_cuda, "a graph needs the kernel of a layer: the host tells this one what to see"
        keys, values = self.prefixes[i].layers[index].place(self.starts[i], k, v)
        seen = keys.shape[1] - self.width + self.lives[i]
        return kernel(q, keys[:, :seen], values[:, :seen], None)


class GraphedStep:
    """The step of canvases at places of one width. On a GPU it is captured and replayed.

    `prefixes` belong to the first `places`. With `reads` the head is read as a stream in the same graph. `pool` is the
    memory that graphs have in common: their steps never overlap, and what one leaves is read before the next.
    """

    def __init__(
        self,
        model: DiffusionGemma,
        prefixes: Sequence[Prefix],
        width: int,
        places: int = 1,
        *,
        reads: bool = False,
        pool: Any = None,
    ) -> None:
        self.model, self.prefixes, self.width, self.reads, self.pool = model, tuple(prefixes), width, reads, pool
        empty = Prefix(model.config.layers, dtype=model.dtype, device=model.device)
        self.rows = FixedRows(model, [*prefixes, *[empty] * (places - len(prefixes))], width)
        count, device = places * width, model.device
        # Tokens, temperatures and uniforms: float32 holds every token id exactly.
        self.given: Float[Tensor, "3 rows"] = torch.ones(3, count, device=device)
        self.soft = torch.zeros(count, model.config.hidden_size, dtype=model.dtype, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._found: tuple[Tensor, Reading | None] | None = None
        self._stands_at: list[int] = []
        self._keys = self._buffers()

    def serves(self, prefixes: Sequence[Prefix]) -> bool:
        """Whether it was made for these prefixes, and their buffers have not moved."""
        return len(prefixes) == len(self.prefixes) and all(map(is_, self.prefixes, prefixes)) and self._unmoved()

    def __call__(self, canvases: Sequence[Placed]) -> tuple[Float[Tensor, "rows hidden"], Reading | None]:
        """Normed hidden states of all places and their readings, valid until the next call.

        A soft embedding of None is an exact zero, which changes nothing.
        """
        self._move_to({one.place: one.width for one in canvases})
        self._give(canvases)
        if self.model.device.type != "cuda":
            return self._step()
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        self._graph.replay()
        assert self._found is not None
        return self._found

    def of(self, canvas: Placed) -> slice:
        """The rows of a canvas among all rows."""
        return slice(canvas.place * self.width, canvas.place * self.width + canvas.width)

    def _move_to(self, widths: dict[int, int]) -> None:
        lives = [widths.get(place, self.width) for place in range(len(self.rows.prefixes))]
        if self._stands_at == lives + self._origins():
            return
        self.rows.place(lives)
        self._stands_at = lives + self._origins()
        if not self._unmoved():
            self._keys, self._graph = self._buffers(), None

    def _give(self, canvases: Sequence[Placed]) -> None:
        given = torch.ones(self.given.shape)
        for one in canvases:
            rows = self.of(one)
            given[0, rows] = one.tokens.float()
            if one.draws is not None:
                given[1:, rows] = one.draws
            if one.soft is None:
                self.soft[rows].zero_()
            else:
                self.soft[rows].copy_(one.soft)
        self.given.copy_(given, non_blocking=True)

    def _step(self) -> tuple[Tensor, Reading | None]:
        model = self.model
        tokens, temperature, uniform = self.given.unbind()
        hidden: Tensor = model(tokens.long(), self.soft, self.rows)
        if not self.reads:
            return hidden, None
        head = Head(model.table, model.config.logit_cap, model.dtype)
        return hidden, read_head(hidden, head, temperature[:, None], uniform, model.kernels.head)

    def _capture(self) -> None:
        """Record the launches, after a few steps without recording that compile kernels and make tables."""
        side = torch.cuda.Stream(self.model.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.rows.forget()
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile: their operations are not part of the graph, and not an error.
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            self._found = self._step()
        self._graph = graph  # only now: a failure may leave a graph half recorded

    def _origins(self) -> list[int]:
        return [at for one in self.prefixes for at in (one.length, *(layer.origin for layer in one.layers))]

    def _unmoved(self) -> bool:
        """Whether no buffer has been replaced. Addresses do not show that: a new buffer may have the old address."""
        return all(map(is_, self._keys, self._buffers()))

    def _buffers(self) -> list[Tensor]:
        """The keys of every layer; values are replaced with them."""
        return [layer.keys for one in self.prefixes for layer in one.layers]


class GraphPlaces:
    """The prefixes with fixed addresses, and the graphs recorded with them: one for 1, 2, 4 and 8 places."""

    def __init__(self, model: DiffusionGemma) -> None:
        self.model, self.width = model, model.config.canvas_length
        self.prefixes: list[Prefix] = []
        self._steps: dict[tuple[int, bool], GraphedStep] = {}
        self._pool: Any = None
        self._wide = 0  # steps in a row whose graph had twice the places that they need

    @staticmethod
    def room_of(model: DiffusionGemma, room: int) -> int:
        """Tokens that a prefix for a request of that room has room for: rounded up, so that others can use it."""
        return 1 << (room + 2 * model.config.canvas_length - 1).bit_length()

    def idle(self, used: Sequence[Prefix]) -> int:
        """Bytes of the prefixes that are not among `used`."""
        return sum(one.num_bytes for one in self.prefixes if not any(one is other for other in used))

    def drop_idle(self, used: Sequence[Prefix]) -> None:
        """Drop the prefixes that are not among `used`, and the graphs recorded with them."""
        kept = [one for one in self.prefixes if any(one is other for other in used)]
        if len(kept) < len(self.prefixes):
            self.prefixes = kept
            self.drop_graphs()

    def drop_graphs(self) -> None:
        """Drop every graph; the next step of each size is recorded again."""
        self._steps.clear()
        self._pool = None

    def prefix(self, room: int, used: Sequence[Prefix]) -> Prefix | None:
        """An empty prefix with that room and room for canvases, not one of `used`; None if all are in use.

        Room is rounded up, so that other requests can use the prefix and the graphs recorded with it.
        """
        least = room + 2 * self.width
        free = [place for place, one in enumerate(self.prefixes) if not any(one is other for other in used)]
        for place in sorted(free, key=lambda place: self.prefixes[place].num_bytes):
            if self.prefixes[place].restart(least):
                return self.prefixes[place]
        if not free and len(self.prefixes) == PLACES:
            return None
        if len(self.prefixes) == PLACES:
            self.prefixes.pop(free[0])
            self.drop_graphs()  # otherwise the old prefix would stay in memory
        rounded = self.room_of(self.model, room)
        made = Prefix(self.model.config.layers, room=rounded, dtype=self.model.dtype, device=self.model.device)
        self.prefixes.append(made)
        return made

    def of(self, prefixes: Sequence[Prefix]) -> list[int] | None:
        """The places of prefixes that step together; None if one of them has none. Where a smaller graph would have
        done for a while, they move to the first places."""
        places = {id(one): place for place, one in enumerate(self.prefixes)}
        if not all(id(one) in places for one in prefixes):
            return None
        at = [places[id(one)] for one in prefixes]
        is_wide = max(at).bit_length() > (len(at) - 1).bit_length()
        self._wide = self._wide + 1 if is_wide else 0
        if self._wide <= PATIENCE:
            return at
        self._wide = 0
        first = {id(one) for one in prefixes}
        self.prefixes.sort(key=lambda one: id(one) not in first)  # graphs of which a place has changed are made anew
        return [next(place for place, kept in enumerate(self.prefixes) if kept is one) for one in prefixes]

    def step(self, canvases: Sequence[Placed], *, reads: bool) -> GraphedStep:
        """The graph with enough places for these canvases, rounded up to a power of two."""
        count = 1 << max(one.place for one in canvases).bit_length()
        prefixes = self.prefixes[:count]
        known = self._steps.get((count, reads))
        if known is None or not known.serves(prefixes):
            if self._pool is None and self.model.device.type == "cuda":
                self._pool = torch.cuda.graph_pool_handle()
            known = GraphedStep(self.model, prefixes, self.width, count, reads=reads, pool=self._pool)
            self._steps[count, reads] = known
        return known
