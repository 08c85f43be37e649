"""The denoising forward of one canvas as one graph: memory that stands still, and nothing for the host to decide.

    once a block     where the canvas stands ─► `seen`, cos and sin       (a few small copies to the device)
    every step       tokens, soft ─► static buffers ─► replay ─► hidden

A graph repeats launches with the addresses and sizes that they had. What moves from block to block is therefore a
number in memory: which part of a layer's buffers the canvas sees, and its own rows behind that part. On a processor the
same forward runs launch by launch; it is what the tests hold to `model/rows.py::Rows`.

Not covered: several canvases in one forward, forwards that encode, and what is read of the hidden states afterwards.
"""

from __future__ import annotations

import torch

from redraft.cache import Prefix
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import Attend, Standing
from redraft.model.rows import Mode, Rows, Span
from redraft.shapes import Float, Int, Tensor

_WARM_UPS = 2


class StandingRows(Rows):
    """The rows of one canvas behind one prefix, in buffers that stay where they are."""

    def __init__(self, model: DiffusionGemma, prefix: Prefix, width: int, standing: Standing | None) -> None:
        span = Span(prefix, width, Mode.DENOISE)
        super().__init__(model.config, [span], model.device, model.dtype)
        self.prefix, self.width, self.standing = prefix, width, standing
        self.parts: list[slice] = []
        self.seen: Int[Tensor, "layers 2"] = torch.zeros(len(prefix.layers), 2, dtype=torch.int64, device=model.device)
        self._behind = torch.arange(-width, 0, device=model.device)

    def stand(self) -> None:
        """Take the place behind the prefix as it is now."""
        start = self.prefix.length
        self.parts = [layer.claim(start, self.width) for layer in self.prefix.layers]
        self.seen.copy_(torch.tensor([(part.start, part.stop) for part in self.parts]))
        self.positions.copy_(torch.arange(start, start + self.width))
        kept, self._rotations = self._rotations, {}
        for layer in self.config.layers:
            fresh = self.rotation(layer)
            if (layer.rope, layer.head_dim) in kept:
                for place, value in zip(kept[layer.rope, layer.head_dim], fresh, strict=True):
                    place.copy_(value)
        self._rotations |= kept
        self.forget()

    def forget(self) -> None:
        """Drop what was worked out of the rotations, so that the next forward does it again."""
        self._scaled.clear()

    def attend(self, index: int, q: Tensor, k: Tensor, v: Tensor, kernel: Attend) -> Tensor:
        """Write the canvas's own keys behind the part that is seen, and read all of it."""
        layer = self.prefix.layers[index]
        own = self.seen[index, 1] + self._behind
        layer.keys.index_copy_(1, own, k.transpose(0, 1))
        layer.values.index_copy_(1, own, v.transpose(0, 1))
        if self.standing is not None:
            return self.standing(q, layer.keys, layer.values, self.seen[index])
        return kernel(q, layer.keys[:, self.parts[index]], layer.values[:, self.parts[index]], None)


class GraphedStep:
    """The forward of a canvas of one width behind one prefix. With `standing` on a GPU it is captured and replayed."""

    def __init__(self, model: DiffusionGemma, prefix: Prefix, width: int, standing: Standing | None = None) -> None:
        self.model, self.prefix, self.width = model, prefix, width
        self.rows = StandingRows(model, prefix, width, standing)
        self.tokens = torch.zeros(width, dtype=torch.int64, device=model.device)
        self.soft = torch.zeros(width, model.config.hidden_size, dtype=model.dtype, device=model.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._hidden: Tensor | None = None
        self._stands: list[int] = []
        self._places = self._addresses()

    def serves(self, prefix: Prefix, width: int) -> bool:
        """Whether it is made for this prefix, whose buffers have not moved, and canvases of this width."""
        return prefix is self.prefix and width == self.width and self._places == self._addresses()

    def __call__(
        self, tokens: Int[Tensor, "canvas"], soft: Float[Tensor, "canvas hidden"] | None
    ) -> Float[Tensor, "canvas hidden"]:
        """Normed hidden states, good until the next call. `soft` None is an exact zero, which changes nothing."""
        stands = [self.prefix.length, *(layer.origin for layer in self.prefix.layers)]
        if self._stands != stands:
            self.rows.stand()
            self._stands = [self.prefix.length, *(layer.origin for layer in self.prefix.layers)]
            if self._places != self._addresses():
                self._places, self._graph = self._addresses(), None
        self.tokens.copy_(tokens)
        if soft is None:
            self.soft.zero_()
        else:
            self.soft.copy_(soft)
        if self.rows.standing is None or self.model.device.type != "cuda":
            return self._forward()
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        self._graph.replay()
        assert self._hidden is not None
        return self._hidden

    def _forward(self) -> Tensor:
        hidden: Tensor = self.model(self.tokens, self.soft, self.rows)
        return hidden

    def _capture(self) -> None:
        """Record the launches; first some that are not recorded, in which kernels are compiled and tables made."""
        side = torch.cuda.Stream(self.model.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                self._forward()
        torch.cuda.current_stream().wait_stream(side)
        self.rows.forget()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._hidden = self._forward()
        self._graph = graph  # not one that a failure has left half recorded

    def _addresses(self) -> list[tuple[int, int]]:
        """Of each buffer its first byte and its rows: one that grew may come to lie where another was."""
        buffers = (buffer for layer in self.prefix.layers for buffer in (layer.keys, layer.values))
        return [(buffer.data_ptr(), buffer.shape[1]) for buffer in buffers]
