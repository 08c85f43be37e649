"""One forward for many requests: the rows that the scheduler chose, then one step for every canvas among them.

    PREFILL   a prompt chunk is encoded                             → prefix
    DENOISE   a canvas takes one step behind its prefix             → the next canvas, or a block
    COMMIT    a settled block is encoded, if another canvas follows → prefix

The last prompt chunk and every commit share the forward of the next canvas's first step, so they cost no forward of
their own. That is exact, because in each layer a canvas row needs only the keys that the encoded rows have placed in
the same layer just before. A block is told the moment it has settled; the last one is never committed.

`run_alone` is the plain twin: one request, the loop of `diffusion/denoise.py`, every encoding a forward of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from redraft.diffusion.denoise import settle
from redraft.diffusion.noise import Noise
from redraft.diffusion.stats import Stats
from redraft.engine.causal import CausalLane, open_causal
from redraft.engine.events import Event, Finished
from redraft.engine.lane import Lane, open_lane, room_of
from redraft.engine.pace import Timing
from redraft.engine.prefixes import Chain, Prefixes
from redraft.engine.request import Request
from redraft.engine.scheduler import PREFILL_CHUNK, Batch, Piece
from redraft.engine.stream import draws, parted, read_together, shares_reading, streams
from redraft.model.gemma import DiffusionGemma
from redraft.model.rows import Mode, Rows, Span
from redraft.model.triton.graph import Placed, Places
from redraft.shapes import Float, Int, Tensor


class Runner:
    """Lanes by request number, and the forward that moves some of them on.

    With `graphs` the first few requests get prefixes in fixed buffers, which later requests use again. Canvases behind
    them step as one CUDA graph (`model/triton/graph.py`), unless something is encoded in the same forward.
    """

    def __init__(self, model: DiffusionGemma, prefixes: Prefixes, *, graphs: bool = False) -> None:
        self.model, self.prefixes, self.places = model, prefixes, Places(model) if graphs else None
        self.lanes: dict[int, Lane | CausalLane] = {}
        self._chains: dict[int, Chain] = {}
        self._rows: tuple[Batch, Rows] | None = None

    def open(self, number: int, request: Request, noise: Noise, *, drafts: bool) -> int:
        """Open a lane for a request; returns how many tokens of its prompt the prefix cache has spared it."""
        if request.causal:
            lane: Lane | CausalLane = open_causal(self.model, request, noise)
        else:
            used = [lane.prefix for lane in self.lanes.values()]
            prefix = None if self.places is None else self.places.prefix(room_of(request), used)
            lane = open_lane(self.model, request, noise, drafts=drafts, prefix=prefix)
        self.lanes[number] = lane
        self._chains[number] = Chain(request.prompt)
        # Who reads its prompt needs the logits of all of it, which no kept prefix has.
        lane.read = 0 if request.read_prompt else self.prefixes.load(self._chains[number], lane.prefix)
        return lane.read

    def time(self, number: int, began: float, clock: Callable[[], float]) -> None:
        """Let a request that has a time to keep choose its rules by the clock; `began` is when it was submitted."""
        lane = self.lanes[number]
        if isinstance(lane, Lane) and lane.request.pace is not None:
            lane.timing = Timing(lane.request.pace, clock, began, lane.request.pace.first(clock() - began))

    def share(self, source: int, target: int) -> None:
        """Give one request another's prefix, which must hold exactly the prompt that they have in common."""
        giver, taker = self.lanes[source], self.lanes[target]
        assert giver.prefix.length == len(taker.prompt), "a prompt is shared when it has just been encoded"
        taker.prefix.take(giver.prefix)
        taker.read = giver.read

    def close(self, number: int) -> None:
        """Give a request's memory back."""
        self.lanes.pop(number, None)
        self._chains.pop(number, None)
        self._rows = None

    def run(self, batch: Batch, begun: Callable[[], None]) -> dict[int, list[Event]]:
        """One forward over the pieces of a batch; returns the events of each request, by number. `begun` is called when
        it has been put together and the model is all that is left."""
        with self._on_device():
            return self._run(batch, begun)

    def cut_short(self, number: int) -> list[Event]:
        """What is left to tell of a request at its deadline: its draft as the last block, if it has one."""
        with self._on_device():
            return self._told(number, self.lanes[number].cut_short) if number in self.lanes else []

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        device = self.model.device
        # Kernels of ours and graphs start on the GPU that the thread is at, wherever their tensors are.
        with torch.inference_mode(), torch.cuda.device(device if device.type == "cuda" else -1):
            yield

    def _run(self, batch: Batch, begun: Callable[[], None]) -> dict[int, list[Event]]:
        if self.places is not None and (placed := self._placed(self.places, batch)):
            begun()
            step = self.places.step(placed, reads=placed[0].draws is not None)
            hidden, reading = step(placed)
            places = [step.of(one) for one in placed]
            if reading is not None:
                shared = self._sharing(piece.number for piece in batch)
                return self._advance(shared, parted(self.model, reading, places))
            parts: Sequence[Tensor] = [hidden[rows] for rows in places]
        else:
            parts = self._forward(batch, begun)
        for piece in batch:
            if piece.encode:
                self._encoded(piece)
        read = {piece.number: part for piece, part in zip(batch, self._to_read(batch, parts), strict=True) if len(part)}
        shared = self._sharing(read)
        stats = read_together(self.model, list(shared.values()), [read.pop(number) for number in shared])
        told = self._advance(shared, stats)
        if read:
            logits = self.model.logits(torch.cat(list(read.values()))).split(list(map(len, read.values())))
            for number, own in zip(read, logits, strict=True):
                told[number] = self._told(number, partial(self.lanes[number].advance, self.model, own))
        return told

    def _sharing(self, numbers: Iterable[int]) -> dict[int, Lane]:
        """Those whose canvases are read together."""
        return {number: lane for number in numbers if shares_reading(lane := self.lanes[number])}

    def _advance(self, lanes: dict[int, Lane], stats: Sequence[Stats]) -> dict[int, list[Event]]:
        """One step of lanes whose canvases were read together."""
        steps = zip(lanes.items(), stats, strict=True)
        return {number: self._told(number, partial(lane.advance_from, own)) for (number, lane), own in steps}

    def _told(self, number: int, advance: Callable[[], list[Event]]) -> list[Event]:
        """What a lane tells when it goes on. A failure there is its own request's; the forward was everybody's."""
        try:
            return advance()
        except Exception as error:  # a caller's rules and languages may fail in any way
            return [Finished("error", self.lanes[number].blocks, error)]

    def _forward(self, batch: Batch, begun: Callable[[], None]) -> Sequence[Float[Tensor, "piece hidden"]]:
        """Hidden states of each piece's rows; what was encoded has become prefix."""
        rows, tokens, soft = self._context(batch), self._tokens(batch), self._soft(batch)
        begun()
        hidden: Tensor = self.model(tokens, soft, rows)
        rows.commit()
        return list(hidden.split([piece.rows for piece in batch]))

    def _placed(self, places: Places, batch: Batch) -> list[Placed]:
        """The canvases at their places in the graph, if all have one and nothing is encoded; else none."""
        lanes = [lane for piece in batch if isinstance(lane := self.lanes[piece.number], Lane) and not piece.encode]
        at = [place for lane in lanes if (place := places.of(lane.prefix, lane.width)) is not None]
        if len(at) < len(batch):
            return []
        reads = streams(self.model) and all(map(shares_reading, lanes))
        return [
            Placed(place, lane.canvas.tokens, lane.canvas.soft, draws(lane) if reads else None)
            for lane, place in zip(lanes, at, strict=True)
        ]

    def _to_read(self, batch: Batch, parts: Sequence[Tensor]) -> Iterator[Float[Tensor, "some hidden"]]:
        """Per piece, the hidden states whose logits are needed: a canvas, a causal request's last row, a prompt that is
        read, or none."""
        for piece, part in zip(batch, parts, strict=True):
            yield part[piece.rows - (piece.canvas or self.lanes[piece.number].wants_logits) :]

    def _encoded(self, piece: Piece) -> None:
        lane = self.lanes[piece.number]
        prompt = lane.commit is None
        lane.encoded(piece.encode)
        if prompt:
            self.prefixes.keep(self._chains[piece.number], lane.prefix)

    @property
    def num_bytes(self) -> int:
        """Cache bytes of all lanes."""
        return sum(lane.prefix.num_bytes for lane in self.lanes.values())

    def check(self) -> None:
        """Raise AssertionError if a lane contradicts itself."""
        self.prefixes.check()
        for lane in self.lanes.values():
            lane.check()

    def _context(self, batch: Batch) -> Rows:
        """The forward's context; that of the last one if the same canvases step once more behind the same prefixes."""
        still = not any(piece.encode for piece in batch)
        if still and self._rows is not None and self._rows[0] == batch:
            return self._rows[1]
        spans = []
        for piece in batch:
            lane = self.lanes[piece.number]
            prefix = lane.prefix
            spans += [Span(prefix, piece.encode, Mode.ENCODE)] if piece.encode else []
            spans += [Span(prefix, piece.canvas, Mode.DENOISE)] if piece.canvas else []
        rows = self.model.rows(spans)
        self._rows = (batch, rows) if still else None
        return rows

    def _tokens(self, batch: Batch) -> Int[Tensor, "rows"]:
        parts = []
        for piece in batch:
            lane = self.lanes[piece.number]
            parts += [lane.to_encode(piece.encode)] if piece.encode else []
            parts += [lane.canvas.tokens] if isinstance(lane, Lane) and piece.canvas else []
        return torch.cat(parts)

    def _soft(self, batch: Batch) -> Float[Tensor, "rows hidden"] | None:
        """Soft embeddings of the canvases that have one; exactly zero elsewhere; None if nobody has."""
        lanes = [self.lanes[piece.number] if piece.canvas else None for piece in batch]
        given = [lane.canvas.soft if isinstance(lane, Lane) else None for lane in lanes]
        if all(soft is None for soft in given):
            return None
        nothing = torch.zeros(1, self.model.config.hidden_size, dtype=self.model.dtype, device=self.model.device)
        parts = []
        for piece, soft in zip(batch, given, strict=True):
            parts += [nothing.expand(piece.encode, -1), nothing.expand(piece.canvas, -1) if soft is None else soft]
        return torch.cat(parts)


@dataclass(frozen=True)
class _Alone:
    """A lane's model behind its prefix, as the denoise loop sees it."""

    model: DiffusionGemma
    lane: Lane

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def denoise(self, tokens: Tensor, soft: Tensor | None) -> Tensor:
        return self.lane.hold_back_end(self.model.denoise(tokens, soft, self.lane.prefix))

    def soften(self, probabilities: Tensor) -> Tensor:
        return self.model.soften(probabilities)


@torch.inference_mode()
def run_alone(model: DiffusionGemma, request: Request, noise: Noise, *, drafts: bool = True) -> Iterator[Event]:
    """The events of one request, computed the plainest way: the twin that every batch has to reproduce."""
    if request.causal:
        yield from _run_causal_alone(model, request, noise)
        return
    lane = open_lane(model, request, noise, drafts=drafts)
    for chunk in lane.prompt.split(PREFILL_CHUNK):
        model.encode(chunk, lane.prefix)
        lane.encoded(chunk.shape[0])
    while True:
        if lane.commit is not None:
            model.encode(lane.commit, lane.prefix)
            lane.encoded(0)
        events = lane.stepped(next(settle(_Alone(model, lane), lane.canvas, request.policy, noise, lane.goal)))
        yield from events
        if events and isinstance(events[-1], Finished):
            return


def _run_causal_alone(model: DiffusionGemma, request: Request, noise: Noise) -> Iterator[Event]:
    lane = open_causal(model, request, noise)
    tokens = lane.prompt
    while True:
        for chunk in tokens.split(PREFILL_CHUNK):
            hidden = model.encode(chunk, lane.prefix)
            lane.encoded(chunk.shape[0])
            events = lane.advance(model, model.logits(hidden[-lane.wants_logits :])) if lane.wants_logits else []
            yield from events
        if isinstance(events[-1], Finished):
            return
        tokens = lane.to_encode(1)
