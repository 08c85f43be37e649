"""One forward for many requests: the rows that the scheduler chose, then one step for every canvas among them.

    PREFILL   a prompt chunk is encoded                             → prefix
    DENOISE   a canvas takes one step behind its prefix             → the next canvas, or a block
    COMMIT    a settled block is encoded, if another canvas follows → prefix

The last prompt chunk and every commit share the forward of the next canvas's first step, so they cost no forward of
their own. That is exact, because in each layer a canvas row needs only the keys that the encoded rows have placed in
the same layer just before. A block is emitted the moment it has settled; the last one is never committed.

`run_alone` is the plain twin: one request, the loop of `diffusion/denoise.py`, every encoding a forward of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from redraft.cache import Prefix
from redraft.diffusion.denoise import settle
from redraft.diffusion.noise import Noise
from redraft.diffusion.stats import Stats
from redraft.engine.causal import CausalSequence
from redraft.engine.events import Event, Finished
from redraft.engine.prefixes import Prefixes
from redraft.engine.reading import draws, parted, read_together, shares_reading, streams
from redraft.engine.request import ResolvedRequest
from redraft.engine.scheduler import Batch as BatchOf
from redraft.engine.scheduler import Piece as PieceOf
from redraft.engine.sequence import CanvasSequence, Sequence
from redraft.model.gemma import DiffusionGemma
from redraft.model.gpu.graph import Placed, Places
from redraft.model.rows import Mode, Rows, SoftTokens, Span
from redraft.shapes import Float, Int, Tensor

Batch = BatchOf[Sequence]
Piece = PieceOf[Sequence]


class Runner:
    """The forward that moves some sequences on.

    With `graphs` the first few sequences get prefixes in fixed buffers, which later ones use again. Canvases behind
    them step as one CUDA graph (`model/gpu/graph.py`), unless something is encoded in the same forward.
    """

    def __init__(self, model: DiffusionGemma, prefixes: Prefixes, *, graphs: bool = False) -> None:
        self.model, self.prefixes, self.places = model, prefixes, Places(model) if graphs else None
        self._rows: tuple[Batch, Rows] | None = None

    def open(self, sequence: Sequence, running: Iterable[Sequence] = ()) -> None:
        """Give a sequence its prefix, filled with what is known of its prompt; `running` ones keep theirs."""
        prefix = None
        if self.places is not None and not sequence.request.causal:
            used = [other.prefix for other in running if other.opened]
            prefix = self.places.prefix(sequence.room, used)
        sequence.open(self.model, prefix=prefix)
        if not sequence.request.read_prompt:  # that needs the logits of all of it, which no kept prefix has
            sequence.read = self.prefixes.load(sequence.chain, sequence.prefix)
        sequence.look()

    def share(self, giver: Sequence, taker: Sequence) -> None:
        """Give one sequence another's prefix, which must hold exactly the prompt that they have in common."""
        assert giver.prefix.length == len(taker.prompt), "a prompt is shared when it has just been encoded"
        taker.prefix.take(giver.prefix)
        taker.read, taker.soft = giver.read, {}

    def forget(self) -> None:
        """Let go of the last forward's context: a sequence in it has ended."""
        self._rows = None

    def run(self, batch: Batch) -> list[list[Event]]:
        """One forward over the pieces of a batch; returns the events of each."""
        with self._on_device():
            return self._run(batch)

    def cut_short(self, sequence: Sequence) -> list[Event]:
        """What is left to emit of a sequence at its deadline: its draft as the last block, if it has one."""
        with self._on_device():
            return self._safely(sequence, sequence.cut_short) if sequence.opened else []

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        device = self.model.device
        # Kernels of ours and graphs start on the GPU that the thread is at, wherever their tensors are.
        with torch.inference_mode(), torch.cuda.device(device if device.type == "cuda" else -1):
            yield

    def _run(self, batch: Batch) -> list[list[Event]]:
        if self.places is not None and (placed := self._placed(self.places, batch)):
            step = self.places.step(placed, reads=placed[0].draws is not None)
            hidden, reading = step(placed)
            places = [step.of(one) for one in placed]
            if reading is not None:
                canvases = [one for piece in batch if shares_reading(one := piece.sequence)]
                return self._advance(canvases, parted(self.model, reading, places))
            parts: Iterable[Tensor] = [hidden[rows] for rows in places]
        else:
            parts = self._forward(batch)
        for piece in batch:
            if piece.encode:
                self._encoded(piece)
        return self._step(batch, self._to_read(batch, parts))

    def _step(self, batch: Batch, parts: list[Float[Tensor, "_ hidden"]]) -> list[list[Event]]:
        """One step of every sequence, from the hidden states that it needs; none for one whose prompt goes on."""
        events: list[list[Event]] = [[] for _ in batch]
        needed = [i for i, part in enumerate(parts) if len(part)]
        shared = {i: one for i in needed if shares_reading(one := batch[i].sequence)}
        stats = read_together(self.model, list(shared.values()), [parts[i] for i in shared])
        for i, own in zip(shared, self._advance(list(shared.values()), stats), strict=True):
            events[i] = own
        if alone := [i for i in needed if i not in shared]:
            logits = self.model.logits(torch.cat([parts[i] for i in alone])).split([len(parts[i]) for i in alone])
            for i, rows in zip(alone, logits, strict=True):
                one = batch[i].sequence
                events[i] = self._safely(one, partial(one.advance, self.model, rows))
        return events

    def _advance(self, sequences: list[CanvasSequence], stats: list[Stats]) -> list[list[Event]]:
        """One step of sequences whose canvases were read together."""
        steps = zip(sequences, stats, strict=True)
        return [self._safely(one, partial(one.advance_from, own)) for one, own in steps]

    def _safely(self, sequence: Sequence, advance: Callable[[], list[Event]]) -> list[Event]:
        """The events of a step. A failure in it is that request's own; the forward was everybody's."""
        try:
            return advance()
        except Exception as error:  # a caller's rules and languages may fail in any way
            return [Finished("error", sequence.blocks, error)]

    def _forward(self, batch: Batch) -> Iterable[Float[Tensor, "piece hidden"]]:
        """Hidden states of each piece's rows; what was encoded has become prefix."""
        rows = self._context(batch)
        hidden: Tensor = self.model(self._tokens(batch), self._soft(batch), rows)
        rows.commit()
        return list(hidden.split([piece.rows for piece in batch]))

    def _placed(self, places: Places, batch: Batch) -> list[Placed]:
        """The canvases at their places in the graph, if all have one and nothing is encoded; else none."""
        canvases = [one for piece in batch if isinstance(one := piece.sequence, CanvasSequence) and not piece.encode]
        at = [place for one in canvases if (place := places.of(one.prefix, one.width)) is not None]
        if len(at) < len(batch):
            return []
        reads = streams(self.model) and all(map(shares_reading, canvases))
        return [
            Placed(place, one.canvas.tokens, one.canvas.soft, draws(one) if reads else None)
            for one, place in zip(canvases, at, strict=True)
        ]

    def _to_read(self, batch: Batch, parts: Iterable[Tensor]) -> list[Float[Tensor, "_ hidden"]]:
        """Per piece, the hidden states whose logits are needed: a canvas, a causal request's last row, a prompt that is
        read, or none."""
        both = zip(batch, parts, strict=True)
        return [part[piece.rows - (piece.canvas or piece.sequence.wants_logits) :] for piece, part in both]

    def _encoded(self, piece: Piece) -> None:
        one = piece.sequence
        prompt = one.commit is None
        one.encoded(piece.encode)
        if prompt:
            self.prefixes.keep(one.chain, one.prefix)

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
        return self.one.hold_back_end(self.model.denoise(tokens, soft, self.one.prefix))

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
