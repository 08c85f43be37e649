"""One forward for many requests: the rows that the scheduler chose, then one step for every canvas among them.

    PREFILL   a prompt chunk is encoded                             → prefix
    DENOISE   a canvas takes one step behind its prefix             → the next canvas, or a block
    COMMIT    a settled block is encoded, if another canvas follows → prefix

The last prompt chunk and every commit share the forward of the next canvas's first step, so they cost no forward of
their own. That is exact, because in each layer a canvas row needs only the keys that the encoded rows have placed in
the same layer just before. A block is emitted the moment it has settled; the last one is never committed.

Where memory runs out, prefixes and recorded steps are dropped and the work is done again in halves. A sequence for
which there is no memory alone is `starved`: it keeps what it has, and waits until another ends.

`run_alone` is the plain twin: one request, the loop of `diffusion/denoise.py`, every encoding a forward of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from redraft.cache import Prefix
from redraft.diffusion.denoise import settle
from redraft.diffusion.noise import Noise
from redraft.diffusion.stats import Stats
from redraft.engine.causal import CausalSequence
from redraft.engine.events import Event, Finished
from redraft.engine.memory import Demand, Ledger
from redraft.engine.prefixes import Prefixes
from redraft.engine.reading import NUMBERS, draws, may_read_alone, parted, read_together, shares_reading, streams
from redraft.engine.request import ResolvedRequest
from redraft.engine.scheduler import Batch, Piece
from redraft.engine.sequence import CanvasSequence, Sequence
from redraft.errors import RunError, ran_out
from redraft.model.gemma import DiffusionGemma
from redraft.model.gpu.graph import GraphPlaces, Placed
from redraft.model.rows import Mode, Rows, SoftTokens, Span
from redraft.shapes import Float, Int, Tensor

T = TypeVar("T")
R = TypeVar("R")

LESS = "shorten the request, give the engine fewer at a time (max_running), or load the model in fewer bits"
OUT = f"memory ran out while the request was running; {LESS}"


class Runner:
    """The forward that moves some sequences on.

    With `graphs` the first few sequences get prefixes in fixed buffers, which later ones use again. Canvases behind
    them step as one CUDA graph (`model/gpu/graph.py`), unless something is encoded in the same forward. `no_graphs`
    says why there are none. `shortages` counts how often memory ran out.
    """

    def __init__(self, model: DiffusionGemma, prefixes: Prefixes, *, graphs: bool = False) -> None:
        self.model, self.prefixes, self.places = model, prefixes, GraphPlaces(model) if graphs else None
        self.no_graphs, self.shortages = "", 0
        self._rows: tuple[Batch, Rows] | None = None
        self._has_graphs = True  # whether there is memory for them

    def demand(self, sequence: Sequence, ledger: Ledger, *, placed: bool) -> Demand:
        """What a sequence will take while it runs, with a prefix at a place of the graphs if that is to be."""
        request, room = sequence.request, sequence.room
        fixed = placed and self.places is not None and not request.causal
        logits = (request.logprobs is not None) + (request.language is not None) if request.width else 0
        # Below LONG they are small, and a deadline alone keeps them between steps.
        kept = logits * ledger.logits(request.width) if sequence.deadline is not None and streams(self.model) else 0
        rows = (request.width or self.model.config.canvas_length) if may_read_alone(request) else 0
        cache = ledger.cache(GraphPlaces.room_of(self.model, room) if fixed else room)
        return Demand(cache, kept, ledger.reading(rows))

    def open(self, sequence: Sequence, running: Iterable[Sequence] = ()) -> bool:
        """Give a sequence its prefix, filled with what is known of its prompt; `running` ones keep theirs. Returns
        whether there was memory for it."""
        used = [other.prefix for other in running if other.opened]
        with self._on_device():
            if self._has_memory(lambda: self._open(sequence, used)):
                return True
        sequence.give_back()  # what it has got may be another's place from now on
        return False

    def _open(self, sequence: Sequence, used: list[Prefix]) -> None:
        prefix = None
        if self.places is not None and sequence.placed and not sequence.request.causal:
            prefix = self.places.prefix(sequence.room, used)
        sequence.open(self.model, prefix=prefix)
        if not sequence.request.read_prompt:  # that needs the logits of all of it, which no kept prefix has
            sequence.read = sequence.cached = self.prefixes.load(sequence.chain, sequence.prefix)
        sequence.look()

    def share(self, giver: Sequence, taker: Sequence) -> RunError | None:
        """Give one sequence another's prefix, which must hold exactly the prompt that they have in common. Without
        memory for the copies in between, the taker encodes its prompt itself; the error if that has none for images."""
        assert giver.prefix.length == len(taker.prompt), "a prompt is shared when it has just been encoded"
        with self._on_device():
            if self._has_memory(lambda: taker.prefix.take(giver.prefix)):
                taker.read, taker.cached, taker.soft = giver.read, giver.cached, {}
                return None
            taker.prefix.restart(0)
            taker.read = taker.cached = 0
            return None if self._has_memory(taker.look) else RunError(OUT)

    def idle(self, running: Iterable[Sequence]) -> int:
        """Bytes of fixed buffers that none of the `running` sequences uses."""
        return 0 if self.places is None else self.places.idle([one.prefix for one in running if one.opened])

    def give_way(self, running: Iterable[Sequence]) -> None:
        """Drop the fixed buffers that none of the `running` sequences uses, and the graphs with them."""
        if self.places is not None:
            self.places.drop_idle([one.prefix for one in running if one.opened])

    def in_halves(self, work: Callable[[Items[T]], Iterable[R]], items: Items[T]) -> list[R | None]:
        """What some work makes of all items, one for one. Where memory runs out, prefixes and graphs are dropped and
        the halves are tried; None for an item for which there is none alone."""
        for _ in range(2 if len(items) == 1 else 1):
            try:
                return list(work(items))
            except Exception as error:
                if not ran_out(error):
                    raise
            self._release()  # here the tensors of the work that failed are gone with its frames
        if len(items) == 1:
            return [None]
        half = len(items) // 2
        return [*self.in_halves(work, items[:half]), *self.in_halves(work, items[half:])]

    def _within_memory(self, work: Callable[[], R]) -> R | None:
        """What some work for one sequence makes; None where there is no memory for it, not even without prefixes."""
        return self.in_halves(lambda _: [work()], [None])[0]

    def _has_memory(self, work: Callable[[], None]) -> bool:
        def done() -> bool:
            work()
            return True

        return self._within_memory(done) is not None

    def _release(self) -> None:
        self.shortages += 1
        self.prefixes.clear()
        self._rows = None
        if self.places is not None:
            self.places.drop_graphs()
        torch.cuda.empty_cache()  # nothing without a GPU

    def forget(self) -> None:
        """A sequence has ended: let go of the last forward's context, and try graphs again."""
        self._rows, self._has_graphs = None, True

    def run(self, batch: Batch) -> list[list[Event]]:
        """One forward over the pieces of a batch; returns the events of each."""
        with self._on_device():
            if self.places is not None and self._has_graphs and (placed := self._placed(self.places, batch)):
                replayed = self._replayed(self.places, batch, placed)
                if replayed is not None:
                    return replayed
            parts = self.in_halves(self._forward, batch)
            for piece, part in zip(batch, parts, strict=True):
                if part is None:
                    piece.sequence.starved = True
                elif piece.encode:
                    self._encoded(piece)
            return self._step(batch, self._to_read(batch, parts))

    def cut_short(self, sequence: Sequence) -> list[Event]:
        """What is left to emit of a sequence at its deadline: its draft as the last block, if it has one."""
        if not sequence.opened:
            return []
        with self._on_device():
            return self._within_memory(lambda: self._safely(sequence, sequence.cut_short)) or []

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        device = self.model.device
        # Kernels of ours and graphs start on the GPU that the thread is at, wherever their tensors are.
        with torch.inference_mode(), torch.cuda.device(device if device.type == "cuda" else -1):
            yield

    def _replayed(self, places: GraphPlaces, batch: Batch, placed: list[Placed]) -> list[list[Event]] | None:
        """A step from a graph; None if it failed, and then the step is still to be done. Without memory for it there
        are no graphs until a sequence has ended; any other failure ends the use of graphs."""
        try:
            step = places.step(placed, reads=placed[0].draws is not None)
            hidden, reading = step(placed)
            rows = [step.of(one) for one in placed]
            stats = None if reading is None else parted(self.model, reading, rows)
        except Exception as error:
            short = ran_out(error)
            if not short:
                self.places, self.no_graphs = None, f"{type(error).__name__}: {error}"
        else:
            if stats is None:
                return self._step(batch, [hidden[own] for own in rows])
            canvases = [one for piece in batch if shares_reading(one := piece.sequence)]
            return [self._moved(one, one.advance_from, own) for one, own in zip(canvases, stats, strict=True)]
        if short:  # here the tensors of the step that failed are gone with its frames
            self._has_graphs = False
            places.drop_graphs()
            torch.cuda.empty_cache()
        return None

    def _step(self, batch: Batch, parts: list[Float[Tensor, "_ hidden"]]) -> list[list[Event]]:
        """One step of every sequence, from the hidden states that it needs; none for one whose prompt goes on."""
        events: list[list[Event]] = [[] for _ in batch]
        needed = [i for i, part in enumerate(parts) if len(part)]
        canvases = {i: one for i in needed if shares_reading(one := batch[i].sequence)}
        # A stream keeps no logits.
        for few in [[*canvases]] if canvases and streams(self.model) else self._few([*canvases], parts):
            read = self.in_halves(lambda some: self._read(canvases, some, parts), few)
            for i, stats in zip(few, read, strict=True):
                events[i] = self._moved(canvases[i], canvases[i].advance_from, stats)
        rest = [i for i in needed if i not in canvases]
        for few in self._few(rest, parts):
            for i, own in zip(few, self.in_halves(lambda some: self._logits(some, parts), few), strict=True):
                alone = batch[i].sequence
                events[i] = self._moved(alone, partial(alone.advance, self.model), own)
        return events

    def _few(self, rest: list[int], parts: list[Tensor]) -> Iterator[list[int]]:
        """Canvases in runs whose logits may be in memory at once: of a long vocabulary one."""
        run: list[int] = []
        for i in rest:
            if run and sum(len(parts[j]) for j in (*run, i)) * self.model.config.vocab_size > NUMBERS:
                yield run
                run = []
            run.append(i)
        if run:
            yield run

    def _logits(self, some: Items[int], parts: list[Tensor]) -> list[Tensor]:
        return list(self.model.logits(torch.cat([parts[i] for i in some])).split([len(parts[i]) for i in some]))

    def _read(self, canvases: dict[int, CanvasSequence], some: Items[int], parts: list[Tensor]) -> list[Stats]:
        return read_together(self.model, [canvases[i] for i in some], [parts[i] for i in some])

    def _moved(self, sequence: Sequence, step: Callable[[T], list[Event]], read: T | None) -> list[Event]:
        """The events of a step from what was read for it; none where there is no memory. A causal one ends then: what
        it would draw from is gone, and its rows are encoded."""
        found = None if read is None else self._within_memory(lambda: self._safely(sequence, partial(step, read)))
        if found is None and not sequence.width:
            return [Finished("error", sequence.blocks, RunError(OUT))]
        sequence.starved = found is None
        return found or []

    def _safely(self, sequence: Sequence, advance: Callable[[], list[Event]]) -> list[Event]:
        """The events of a step. A failure in it is that request's own; the forward was everybody's. Where memory runs
        out, the step has not been taken: all that the sequence holds is as it was, for another try."""
        before = dict(vars(sequence))
        try:
            return advance()
        except Exception as error:  # a caller's rules and languages may fail in any way
            if ran_out(error):
                vars(sequence).update(before)
                raise
            return [Finished("error", sequence.blocks, error)]

    def _forward(self, batch: Items[Piece]) -> Iterable[Float[Tensor, "piece hidden"]]:
        """Hidden states of each piece's rows; what was encoded has become prefix."""
        batch = tuple(batch)
        rows = self._context(batch)
        hidden: Tensor = self.model(self._tokens(batch), self._soft(batch), rows)
        rows.commit()
        return list(hidden.split([piece.rows for piece in batch]))

    def _placed(self, places: GraphPlaces, batch: Batch) -> list[Placed]:
        """The canvases at their places in the graph, if all have one and nothing is encoded; else none."""
        canvases = [one for piece in batch if isinstance(one := piece.sequence, CanvasSequence) and not piece.encode]
        if len(canvases) < len(batch) or (at := places.of([one.prefix for one in canvases])) is None:
            return []
        reads = streams(self.model) and all(map(shares_reading, canvases))
        return [
            Placed(place, one.canvas.tokens, one.canvas.soft, draws(one) if reads else None)
            for one, place in zip(canvases, at, strict=True)
        ]

    def _to_read(self, batch: Batch, parts: Iterable[Tensor | None]) -> list[Float[Tensor, "_ hidden"]]:
        """Per piece, the hidden states whose logits are needed: a canvas, a causal request's last row, a prompt that is
        read, or none."""
        none = torch.empty(0)
        both = zip(batch, parts, strict=True)
        return [
            none if part is None else part[piece.rows - (piece.canvas or piece.sequence.wants_logits) :]
            for piece, part in both
        ]

    def _encoded(self, piece: Piece) -> None:
        one = piece.sequence
        prompt = one.commit is None
        one.encoded(piece.encode)
        if prompt:
            try:
                self.prefixes.keep(one.chain, one.prefix)
            except Exception as error:  # without memory for it, it is not kept
                if not ran_out(error):
                    raise

    def _context(self, batch: Batch) -> Rows:
        """The forward's context; that of the last one if the same canvases step once more behind the same prefixes."""
        still = not any(piece.encode for piece in batch)
        if still and self._rows is not None and self._rows[0] == batch:
            return self._rows[1]
        spans = []
        for piece in batch:
            prefix, images = piece.sequence.prefix, piece.sequence.images(piece.encode)
            spans += [Span(prefix, piece.encode, Mode.ENCODE, images=images)] if piece.encode else []
            spans += [Span(prefix, piece.canvas, Mode.DENOISE)] if piece.canvas else []
        rows = self.model.rows(spans)
        self._rows = (batch, rows) if still else None
        return rows

    def _tokens(self, batch: Batch) -> Int[Tensor, "rows"]:
        parts = []
        for piece in batch:
            one = piece.sequence
            parts += [one.to_encode(piece.encode)] if piece.encode else []
            parts += [one.canvas.tokens] if isinstance(one, CanvasSequence) and piece.canvas else []
        return torch.cat(parts)

    def _soft(self, batch: Batch) -> Float[Tensor, "rows hidden"] | None:
        """Soft embeddings of the canvases that have one; exactly zero elsewhere; None if nobody has."""
        sequences = [piece.sequence if piece.canvas else None for piece in batch]
        given = [one.canvas.soft if isinstance(one, CanvasSequence) else None for one in sequences]
        if all(soft is None for soft in given):
            return None
        nothing = torch.zeros(1, self.model.config.hidden_size, dtype=self.model.dtype, device=self.model.device)
        parts = []
        for piece, soft in zip(batch, given, strict=True):
            parts += [nothing.expand(piece.encode, -1), nothing.expand(piece.canvas, -1) if soft is None else soft]
        return torch.cat(parts)


@dataclass(frozen=True)
class _Alone:
    """A sequence's model behind its prefix, as the denoise loop sees it."""

    model: DiffusionGemma
    one: CanvasSequence

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def denoise(self, tokens: Tensor, soft: Tensor | None) -> Tensor:
        return self.one.as_read(self.model.denoise(tokens, soft, self.one.prefix))

    def soften(self, probabilities: Tensor) -> Tensor:
        return self.model.soften(probabilities)


@torch.inference_mode()
def run_alone(model: DiffusionGemma, request: ResolvedRequest, noise: Noise, *, drafts: bool = True) -> Iterator[Event]:
    """The events of one request, computed the plainest way: the twin that every batch has to reproduce."""
    if request.causal:
        yield from _run_causal_alone(model, request, noise)
        return
    one = CanvasSequence(request=request, drafts=drafts)
    one.open(model, noise)
    for hidden in encode_prompt(model, request, one.prefix):
        one.encoded(hidden.shape[0])
    while True:
        if one.commit is not None:
            model.encode(one.commit, one.prefix)
            one.encoded(0)
        events = one.stepped(next(settle(_Alone(model, one), one.canvas, request.policy, noise, one.goal)))
        yield from events
        if events and isinstance(events[-1], Finished):
            return


def _run_causal_alone(model: DiffusionGemma, request: ResolvedRequest, noise: Noise) -> Iterator[Event]:
    one = CausalSequence(request=request)
    one.open(model, noise)
    parts = encode_prompt(model, request, one.prefix)
    while True:
        for hidden in parts:
            one.encoded(hidden.shape[0])
            events = one.advance(model, model.logits(hidden[-one.wants_logits :])) if one.wants_logits else []
            yield from events
        if isinstance(events[-1], Finished):
            return
        parts = iter([model.encode(one.to_encode(1), one.prefix)])


def encode_prompt(
    model: DiffusionGemma, request: ResolvedRequest, prefix: Prefix
) -> Iterator[Float[Tensor, "chunk hidden"]]:
    """Encode a request's prompt into an empty prefix, in the chunks that the runner would have; yields their normed
    hidden states."""
    start = 0
    for end in dict.fromkeys((*request.cuts, len(request.prompt))):
        inside = [image for image in request.images if start <= image.run.start < end]
        images = tuple(SoftTokens(image.run.start - start, image.soft()) for image in inside)
        yield model.encode(torch.tensor(request.prompt[start:end]), prefix, images)
        start = end
