"""Writes stored numbers into a model's tensors: cast, converted to the packed layout, or packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from redraft.model.gemma import DiffusionGemma
from redraft.model.linear import PackedMatrix
from redraft.model.packed import Packed, pack
from redraft.shapes import Tensor
from redraft.weights.layouts import Matrix, StoredPiece, convert, matrices
from redraft.weights.names import Slot, slots
from redraft.weights.plan import PackingPlan, formats, make_room, packed_matrices, plain_tensors

_CHUNK_ROWS = 8192


@dataclass(frozen=True)
class Filler:
    """The model's tensors by name, plain and packed, and the ways to fill them."""

    plain: Mapping[str, Tensor]
    packed: Mapping[str, PackedMatrix]

    def place_slot(self, slot: Slot, tensor: Tensor | Packed) -> Tensor:
        """Cast into a plain tensor, or pack what is not. Returns the filled tensor, for checks."""
        if isinstance(tensor, Packed):
            parts = zip(self.packed[slot.target].packed.parts, tensor.parts, strict=True)
            placed = [place[slot.rows].copy_(part) for place, part in parts]
            return next(part for part in placed if part.is_floating_point())
        if slot.target not in self.packed:
            return self.plain[slot.target][slot.rows].copy_(tensor)
        if slot.target == "embed.weight":
            return self._place_table(slot, tensor)
        last = tensor
        for matrix in matrices(slot):  # one expert at a time: rounding needs several times the matrix in float32
            one = tensor if matrix.expert is None else tensor[matrix.expert, matrix.rows]
            last = self._place_packed(matrix, pack(one, self.packed[slot.target].format, matrix.prefix))
        return last

    def place_piece(self, piece: StoredPiece, tensor: Tensor) -> Tensor:
        """Fill with one tensor of a matrix that is stored separately. Returns the filled tensor."""
        matrix, kind = piece.matrix, piece.kind
        if kind != "plain":
            return self._at(getattr(self.packed[matrix.slot.target], kind), matrix).copy_(convert(piece, tensor))
        if matrix.slot.target in self.packed:
            return self._place_packed(matrix, pack(tensor, self.packed[matrix.slot.target].format, piece.stored))
        return self._at(self.plain[matrix.slot.target], matrix).copy_(tensor)

    def _place_table(self, slot: Slot, tensor: Tensor) -> Tensor:
        target = self.packed[slot.target]
        for start in range(0, len(tensor), _CHUNK_ROWS):
            rows = slice(start, start + _CHUNK_ROWS)
            packed = pack(tensor[rows], target.format, slot.stored)
            target.codes[rows].copy_(packed.codes)
            target.scale[rows].copy_(packed.scale)
        return target.scale

    def _place_packed(self, matrix: Matrix, packed: Packed) -> Tensor:
        target = self.packed[matrix.slot.target]
        self._at(target.codes, matrix).copy_(packed.codes)
        if target.top is not None and packed.top is not None:
            self._at(target.top, matrix).copy_(packed.top)
        return self._at(target.scale, matrix).copy_(packed.scale)

    def _at(self, whole: Tensor, matrix: Matrix) -> Tensor:
        return (whole if matrix.expert is None else whole[matrix.expert])[matrix.rows]


@torch.no_grad()
def pack_model(model: DiffusionGemma, plan: PackingPlan) -> DiffusionGemma:
    """Round a plain model's matrices to a plan, in place. Returns the model, without gradients."""
    plain = dict(model.state_dict())
    wanted = formats(model.config, plan)
    with model.device:
        filler = Filler(plain_tensors(model), packed_matrices(make_room(model, wanted)))
    for slot in slots(model.config):
        if slot.target in wanted:
            filler.place_slot(slot, plain[slot.target][slot.rows])
    return model.eval().requires_grad_(False)
