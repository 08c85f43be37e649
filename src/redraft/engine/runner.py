"""One request on one model, block by block.

    PREFILL   encode the prompt, in chunks                         → prefix
    DENOISE   settle a canvas behind the prefix (diffusion loop)   → block
    COMMIT    encode the block, only if another canvas follows     → prefix

No encoding costs a forward of its own where a canvas waits for it: the last prompt chunk and every commit ride in the
first denoising forward of the canvas behind them. That is exact, because a canvas row needs of layer l only the keys
that the encoded rows have placed in layer l just before it. A block is told the moment it has settled; the last one is
never committed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from redraft.cache import Prefix
from redraft.diffusion.canvas import Canvas, fresh
from redraft.diffusion.denoise import settle
from redraft.diffusion.noise import Noise
from redraft.engine.events import Block, Draft, Event, Finished
from redraft.engine.request import Request
from redraft.model.gemma import DiffusionGemma
from redraft.model.rows import Mode, Rows, Span
from redraft.shapes import Float, Int, Tensor

PREFILL_CHUNK = 512
"""Prompt tokens per forward: bounds the mask and the activations of a long prompt."""


class BehindPrefix:
    """A model behind a prefix, as the denoise loop sees it.

    `waiting` tokens are encoded in the first denoising forward. From then on the prefix stands still, and rotations
    are shared by all further steps.
    """

    def __init__(
        self, model: DiffusionGemma, prefix: Prefix, width: int, waiting: Int[Tensor, "rows"] | None = None
    ) -> None:
        self.model, self.prefix, self.width, self.waiting = model, prefix, width, waiting
        self._rows: Rows | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The parameter dtype."""
        return self.model.dtype

    def denoise(
        self, tokens: Int[Tensor, "canvas"], soft: Float[Tensor, "canvas hidden"] | None
    ) -> Float[Tensor, "canvas vocab"]:
        """Logits of every canvas position."""
        if self.waiting is not None:
            return self._encode_and_denoise(self.waiting, tokens)
        if self._rows is None:
            self._rows = self.model.rows([self._canvas()])
        return self.model.logits(self.model(tokens, soft, self._rows))

    def soften(self, probabilities: Float[Tensor, "canvas vocab"]) -> Float[Tensor, "canvas hidden"]:
        """Soft embedding of a distribution."""
        return self.model.soften(probabilities)

    def _encode_and_denoise(self, waiting: Tensor, tokens: Tensor) -> Tensor:
        encoded = waiting.shape[0]
        rows = self.model.rows([Span(self.prefix, encoded, Mode.ENCODE), self._canvas()])
        hidden = self.model(torch.cat([waiting, tokens]), None, rows)
        rows.commit()
        self.waiting = None
        return self.model.logits(hidden[encoded:])

    def _canvas(self) -> Span:
        return Span(self.prefix, self.width, Mode.DENOISE)


def run(model: DiffusionGemma, request: Request, noise: Noise, *, drafts: bool = True) -> Iterator[Event]:
    """Events of a request, in order; `drafts` False leaves out the per-step ones. Closing the iterator aborts."""
    prefix, waiting = prefill(model, request)
    left, block = request.max_tokens, 0
    while True:
        start = fresh(noise, block, request.width, model.config.vocab_size, device=model.device)
        behind = BehindPrefix(model, prefix, request.width, waiting)
        before = None
        for canvas in _settle(behind, start, request, noise):
            if drafts:
                yield _draft(canvas, before)
            before = canvas.draft
        tokens = canvas.draft.tolist()
        end = next((i for i, token in enumerate(tokens) if token in request.eos), len(tokens))
        kept = min(end, left)
        yield Block(block, tokens[:kept], _entropy(canvas)[:kept], canvas.step, canvas.settled)
        left -= kept
        ended = end < request.width and kept == end
        if ended or left == 0:
            yield Finished("stop" if ended else "length", commits=block)
            return
        waiting, block = canvas.draft, block + 1


@torch.inference_mode()
def prefill(model: DiffusionGemma, request: Request) -> tuple[Prefix, Int[Tensor, "rows"]]:
    """The prompt as prefix but for its last chunk, which waits for the first canvas. Room for the whole request."""
    room = len(request.prompt) + request.max_tokens + 2 * request.width
    prefix = Prefix(model.config.layers, room=room, dtype=model.dtype, device=model.device)
    *chunks, last = torch.tensor(request.prompt, device=model.device).split(PREFILL_CHUNK)
    for chunk in chunks:
        model.encode(chunk, prefix)
    return prefix, last


def _settle(behind: BehindPrefix, canvas: Canvas, request: Request, noise: Noise) -> Iterator[Canvas]:
    """The denoise loop, step by step outside of autograd even while the caller holds the iterator."""
    steps = settle(behind, canvas, request.policy, noise)
    while True:
        with torch.inference_mode():
            following = next(steps, None)
        if following is None:
            return
        yield following


def _draft(canvas: Canvas, before: Int[Tensor, "canvas"] | None) -> Draft:
    assert canvas.accepted is not None
    tokens = canvas.draft
    changed = [True] * canvas.width if before is None else (tokens != before).tolist()
    return Draft(canvas.block, canvas.step, tokens.tolist(), changed, canvas.accepted.tolist(), _entropy(canvas))


def _entropy(canvas: Canvas) -> list[float]:
    assert canvas.entropy is not None
    return [float(nats) for nats in canvas.entropy.tolist()]
