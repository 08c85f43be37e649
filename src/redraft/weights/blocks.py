"""Quantised blocks of GGUF files as packed matrices: the same numbers, their bits in another order.

    kind    a weight is                      scales                                           bits a weight: file, ours
    Q4_0    an integer of 4 bits             float16 for 32 inputs                            4.5    4.5
    Q5_0    an integer of 5 bits             float16 for 32 inputs                            5.5    6.5
    Q8_0    an integer of 8 bits             float16 for 32 inputs                            8.5    8.5
    Q4_K    an integer of 4 bits, and a      6 bits for 32 inputs, for scale and least        4.5    4.63
            least value that is subtracted   value; float16 factors of both for 256
    Q6_K    an integer of 6 bits             8 bits for 16 inputs; a float16 factor for 256   6.56   6.56

Each part of a block (codes, scales, factors) becomes a tensor of its own, scales of 6 bits a byte each, codes of 5 bits
six. A kind that is not in the table is unpacked as it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from redraft.model.packed import (
    INT4,
    INT4_BLOCKS,
    INT6_BLOCKS,
    INT6_G32,
    INT8_G32,
    Format,
    Packed,
    four_a_byte,
    two_a_byte,
)
from redraft.shapes import Int, Tensor

_NIBBLES, _QUARTERS = torch.tensor([[0], [4]], dtype=torch.uint8), torch.tensor([[0], [2], [4], [6]], dtype=torch.uint8)


@dataclass(frozen=True)
class Kind:
    """A kind of block: its format here, and what reads the blocks of a matrix."""

    format: Format
    read: Callable[[Format, Int[Tensor, "rows blocks bytes"]], Packed]


def _q4_0(form: Format, raw: Tensor) -> Packed:
    """A scale, then 16 bytes of two codes that are 16 inputs apart."""
    return Packed(form, two_a_byte(_halves(raw[..., 2:])).flatten(1), _float16(raw[..., :2]))


def _q5_0(form: Format, raw: Tensor) -> Packed:
    """A scale, a bit of each of 32 codes, then their other bits as in Q4_0. The middle code is 16, ours is 32."""
    upper = (raw[..., 2:6, None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(-2)
    codes = (_halves(raw[..., 6:]) | upper << 4) + 16
    return Packed(form, _six_bits(codes.flatten(1)), _float16(raw[..., :2]))


def _q8_0(form: Format, raw: Tensor) -> Packed:
    """A scale, then 32 codes."""
    return Packed(form, raw[..., 2:].contiguous().view(torch.int8).flatten(1), _float16(raw[..., :2]))


def _q4_k(form: Format, raw: Tensor) -> Packed:
    """Two factors; eight scales and eight least values in 12 bytes; then four times 32 bytes of two codes that are 32
    inputs apart. Of the first four scales and least values 6 bits of a byte; of the others 4 bits of a byte, and 2 that
    the first ones leave."""
    scales, least, lower = raw[..., 4:16].unflatten(-1, (3, 4)).unbind(-2)
    scale = torch.cat([scales & 63, lower & 15 | scales >> 2 & 48], -1)
    zero = torch.cat([least & 63, lower >> 4 | least >> 2 & 48], -1)
    top = torch.cat([_float16(raw[..., :2]), _float16(raw[..., 2:4])], -1)
    codes = two_a_byte(_halves(raw[..., 16:].unflatten(-1, (4, 32))))
    return Packed(form, codes.flatten(1), scale.flatten(1), top, zero=zero.flatten(1))


def _q6_k(form: Format, raw: Tensor) -> Packed:
    """The lower 4 bits of codes that are 64 inputs apart, for twice 128 inputs; the upper 2 bits of codes that are 32
    apart; 16 scales; a factor."""
    lower = _halves(raw[..., :128].unflatten(-1, (2, 64)))
    upper = (raw[..., 128:192].unflatten(-1, (2, 1, 32)) >> _QUARTERS & 3).flatten(-2)
    codes = _six_bits((lower | upper << 4).flatten(1))
    scale = raw[..., 192:208].contiguous().view(torch.int8).flatten(1)
    return Packed(form, codes, scale, _float16(raw[..., 208:]))


KINDS = {
    "Q4_0": Kind(replace(INT4, scale_dtype=torch.float16), _q4_0),
    "Q5_0": Kind(INT6_G32, _q5_0),
    "Q8_0": Kind(INT8_G32, _q8_0),
    "Q4_K": Kind(INT4_BLOCKS, _q4_k),
    "Q6_K": Kind(INT6_BLOCKS, _q6_k),
}
"""The kinds that are kept."""


def _halves(pairs: Tensor) -> Tensor:
    """The lower halves of all bytes, then the upper ones."""
    return (pairs.unsqueeze(-2) >> _NIBBLES & 15).flatten(-2)


def _six_bits(codes: Tensor) -> Tensor:
    """Rows of 6-bit codes, a byte each, in the stored form."""
    return torch.cat([two_a_byte(codes & 15), four_a_byte(codes >> 4)], -1)


def _float16(raw: Tensor) -> Tensor:
    """Two bytes of each block as a number."""
    return raw.contiguous().view(torch.float16).flatten(1)
