"""Quantized matrices: the number formats, rounding to them, and the meaning of their codes.

    name      a weight is                       scales                                     bits a weight
    int8      an integer of 8 bits              one a row                                  8
    int4      an integer of 4 bits              one for 32 inputs (or 64), bfloat16        4.5 (4.25)
    fp8       a float of 8 bits, e4m3           one a row                                  8
    nvfp4     a float of 4 bits, e2m1           one for 16 inputs, e4m3, and one a row     4.5

Files of others may have an int4 with a zero point for each scale (AWQ, GPTQ): (code - zero) * scale, not (code - 8).
GGUF files have integers of 8, 6 and 4 bits, some with scales of 6 or 8 bits of which a block of 256 inputs shares one
factor: code * (scale * factor) - zero * (another factor). `weights/blocks.py` has the kinds.

With int8 and fp8 the rows multiplied with the matrix are rounded to the same format, each row with its own scale
("dynamic per token"): a row's result still depends on that row alone. With the 4-bit formats rows are not rounded.

Bytes have the layout of `compressed-tensors` files: two 4-bit codes a byte, the first in the low half, so a stored
tensor is used as it was read. A row of 6-bit codes is one of 4 bits, then the upper 2 bits of all, four codes a byte.
`unpack` defines the codes and is the plain twin of every kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import torch

from redraft.errors import WeightsError
from redraft.shapes import Float, Int, Tensor

LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the eight positive e2m1 codes; codes 8 to 15 are the negative ones."""

LARGEST_FP8, _LARGEST_FP4, LARGEST_INT8 = 448.0, 6.0, 127.0
TINY = 1e-12
_CACHED = 2**17  # float32 numbers that stay in a processor's cache
# Shares of a group's largest value to try as the scale of 4-bit integers: clipping one value may make others exact.
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)


@dataclass(frozen=True)
class Format:
    """One number format. `group` inputs share a scale, 0 means a whole row; `dtype` is the type of stored codes.

    With `round_rows` the rows that are multiplied with the matrix are also rounded to the format. With `zeros` every
    scale has a zero point, and codes are not symmetric. Scales with a `top_dtype` have a factor of that type, shared by
    `block` inputs (0: a whole row); zero points of a block have another one, by which they are subtracted.
    """

    name: str
    bits: int
    group: int
    dtype: torch.dtype
    scale_dtype: torch.dtype
    is_float: bool = False
    round_rows: bool = False
    zeros: bool = False
    top_dtype: torch.dtype | None = None
    block: int = 0

    def check(self, what: str, inner: int) -> None:
        """Raise WeightsError unless rows of `inner` numbers fit this format."""
        if inner % (self.block or self.group or 8 // self.bits):
            raise WeightsError(
                f"{what} has rows of {inner} numbers, which groups of {self.block or self.group} do not divide;"
                " use a plan with smaller groups"
            )

    def num_bytes(self, outer: int, inner: int) -> int:
        """Bytes of a matrix, scales included."""
        groups = inner // self.group if self.group else 1
        tops = self.tops(inner) * self.top_dtype.itemsize if self.top_dtype else 0
        return outer * (inner * self.bits // 8 + groups * (self.scale_dtype.itemsize + self.zeros) + tops)

    def tops(self, inner: int) -> int:
        """Factors of a row's scales and zero points."""
        if self.top_dtype is None:
            return 0
        return inner // self.block * (1 + self.zeros) if self.block else 1

    @property
    def middle(self) -> int:
        """The code that means 0 where it is the same for all; blocks with zero points count from 0."""
        return 0 if self.block and self.zeros else 1 << self.bits - 1


INT8 = Format("int8", 8, 0, torch.int8, torch.float32, round_rows=True)
INT4 = Format("int4", 4, 32, torch.uint8, torch.bfloat16)
INT4_G64 = replace(INT4, name="int4-g64", group=64)
FP8 = Format("fp8", 8, 0, torch.float8_e4m3fn, torch.float32, is_float=True, round_rows=True)
NVFP4 = Format("nvfp4", 4, 16, torch.uint8, torch.float8_e4m3fn, is_float=True, top_dtype=torch.float32)
TABLE8 = replace(INT8, name="int8-table", round_rows=False)
"""int8 for the embedding table, which is also the head: its rows are looked up, so the other factor is not rounded."""
FORMATS = {one.name: one for one in (INT8, INT4, INT4_G64, FP8, NVFP4)}
"""Formats that we write."""
INT8_G32 = Format("int8-g32", 8, 32, torch.int8, torch.float16)
INT6_G32 = Format("int6-g32", 6, 32, torch.uint8, torch.float16)
INT6_BLOCKS = Format("int6-blocks", 6, 16, torch.uint8, torch.int8, top_dtype=torch.float16, block=256)
INT4_BLOCKS = Format("int4-blocks", 4, 32, torch.uint8, torch.uint8, zeros=True, top_dtype=torch.float16, block=256)
"""Formats of GGUF files, which are read and not written."""
INT4_ASYM = replace(INT4, name="int4-asym", scale_dtype=torch.float16, zeros=True)
"""int4 with zero points, which is read from files of others, in groups of 32 and more."""


@dataclass(frozen=True, eq=False)
class Packed:
    """A matrix, or a stack of them, in a format.

    codes  [..., outer, inner], or [..., outer, inner/2] bytes of two    scale  [..., outer, groups]
    tiled  whether codes are in the order of torch's product on a CPU (`model/linear.py::tile`)
    top    [..., outer, 1] float32, nvfp4: its global scale, which multiplies the others
           [..., outer, blocks or 2·blocks]: the factors of scales, then those of zero points
    zero   [..., outer, groups] uint8, formats with zeros only: the code that means 0, or what is subtracted in steps
    """

    format: Format
    codes: Tensor
    scale: Tensor
    top: Tensor | None = None
    tiled: bool = False
    zero: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix, not of its codes."""
        return (*self.codes.shape[:-1], self.codes.shape[-1] * 8 // self.format.bits)

    @property
    def parts(self) -> list[Tensor]:
        """Its tensors."""
        return [part for part in (self.codes, self.scale, self.top, self.zero) if part is not None]

    @property
    def num_bytes(self) -> int:
        """Bytes in memory."""
        return sum(part.numel() * part.element_size() for part in self.parts)

    def each(self, change: Callable[[Tensor], Tensor]) -> Packed:
        """The same with each of its tensors changed."""
        return self.with_parts(map(change, self.parts))

    def with_parts(self, parts: Iterable[Tensor]) -> Packed:
        """The same with other tensors, in the order of `parts`."""
        names = [name for name in ("codes", "scale", "top", "zero") if getattr(self, name) is not None]
        held = dict(zip(names, parts, strict=True))
        return Packed(self.format, held["codes"], held["scale"], held.get("top"), self.tiled, held.get("zero"))

    def __getitem__(self, index: int | slice | Tensor) -> Packed:
        """Some matrices of a stack, or rows of a matrix."""
        return self.each(lambda part: part[index])


def pack(weight: Float[Tensor, "*stack outer inner"], form: Format, what: str = "the matrix") -> Packed:
    """Round a matrix to a format. Raises WeightsError, with the name `what`, if groups do not divide its rows."""
    assert form.bits != 6, "such numbers are read and not written"
    assert not form.block, "such numbers are read and not written"
    form.check(what, weight.shape[-1])
    groups = weight.float().unflatten(-1, (-1, form.group or weight.shape[-1]))
    largest = groups.abs().amax(-1)
    if form.bits == 8:
        scale = (largest / (LARGEST_FP8 if form.is_float else LARGEST_INT8)).clamp_(min=TINY)
        codes = (groups / scale.unsqueeze(-1)).flatten(-2)
        return Packed(form, codes.to(form.dtype) if form.is_float else codes.round_().to(form.dtype), scale)
    top = top_of(weight) if form.is_float else None
    scale = fit_scale(groups, form, top)
    codes = encode(groups, scale_step(scale, top), form)
    top = None if top is None else spread(top, largest.shape[-2])
    zero = torch.full_like(scale, 8, dtype=torch.uint8) if form.zeros else None
    return Packed(form, two_a_byte(codes.flatten(-2)), scale, top, zero=zero)


def unpack(packed: Packed, dtype: torch.dtype = torch.float32) -> Float[Tensor, "*stack outer inner"]:
    """The numbers of the codes, computed in float32 and rounded once to `dtype`."""
    assert not packed.tiled, "tiles are unpacked by a product (`model/linear.py`)"
    form, scale = packed.format, packed.scale
    # Of a bfloat16 scale and an integer the product is exact in float32 and rounded once, as it is in bfloat16.
    once = dtype if form.bits == 4 and not form.is_float and scale.dtype == dtype else torch.float32
    scale, least = _factors(packed) if packed.top is not None else (scale.to(once), None)
    if form.bits == 4:
        values = _unpack_pairs(packed.codes, form, once)
    else:
        values = packed.codes.float() if form.bits == 8 else _unpack_six(packed.codes)
    grouped: Tensor = values.unflatten(-1, (scale.shape[-1], -1))
    if packed.zero is not None and least is None:
        grouped.sub_((packed.zero.to(once) - 8).unsqueeze(-1))
    grouped.mul_(scale.unsqueeze(-1))
    if least is not None:
        grouped.sub_(least.unsqueeze(-1))
    return grouped.flatten(-2).to(dtype)


def steps(packed: Packed) -> tuple[Float[Tensor, "*stack groups"], Float[Tensor, "*stack groups"]]:
    """A step of each group, and the value of its middle code, of a format with zeros; in float32."""
    assert packed.zero is not None
    middle = 1 << packed.format.bits - 1
    scale, least = _factors(packed) if packed.top is not None else (packed.scale.float(), None)
    return scale, (middle - packed.zero.float()) * scale if least is None else middle * scale - least


def _factors(packed: Packed) -> tuple[Tensor, Tensor | None]:
    """Scales times their factors, and zero points times theirs where these are subtracted, in float32: both exact."""
    assert packed.top is not None

    def times(numbers: Tensor, factors: Tensor) -> Tensor:
        grouped: Tensor = numbers.float().unflatten(-1, (factors.shape[-1], -1))
        return (grouped * factors.float().unsqueeze(-1)).flatten(-2)

    if packed.zero is None:
        return times(packed.scale, packed.top), None
    return times(packed.scale, packed.top.chunk(2, -1)[0]), times(packed.zero, packed.top.chunk(2, -1)[1])


def _unpack_pairs(codes: Tensor, form: Format, dtype: torch.dtype) -> Tensor:
    """The values of bytes of two 4-bit codes, in steps: each byte is looked up as one number of twice the width."""
    wide = torch.int64 if dtype == torch.float32 else torch.int32
    found = _pairs(form, dtype, codes.device).index_select(0, codes.flatten().int())
    assert found.dtype == wide
    return found.view(dtype).view(*codes.shape[:-1], -1)


def _unpack_six(codes: Tensor) -> Tensor:
    """The values of 6-bit codes, in steps: bytes of lower and of upper bits are looked up as two and four int8."""
    parts = codes.split([codes.shape[-1] // 3 * 2, codes.shape[-1] // 3], -1)
    found = [
        table.index_select(0, part.flatten().int()).view(torch.int8).view(*codes.shape[:-1], -1)
        for table, part in zip(_sixes(codes.device), parts, strict=True)
    ]
    return found[0].add_(found[1]).float()


@lru_cache
def _pairs(form: Format, dtype: torch.dtype, device: torch.device) -> Tensor:
    """For each byte, the values of its two codes in one number."""
    with torch.inference_mode(False):
        byte = torch.arange(256, device=device)
        values = decode(torch.stack([byte & 15, byte >> 4], -1), form).to(dtype)
        return values.view(torch.int64 if dtype == torch.float32 else torch.int32).flatten()


@lru_cache
def _sixes(device: torch.device) -> tuple[Tensor, Tensor]:
    """For each byte, the lower bits of its two codes in one number; what the upper bits of its four add, in one."""
    with torch.inference_mode(False):
        byte = torch.arange(256, device=device)[:, None]
        lower = byte >> torch.arange(0, 8, 4, device=device) & 15
        upper = 16 * (byte >> torch.arange(0, 8, 2, device=device) & 3) - 32
        return lower.to(torch.int8).view(torch.int16).flatten(), upper.to(torch.int8).view(torch.int32).flatten()


def plain(matrix: Tensor | Packed, dtype: torch.dtype) -> Tensor:
    """A matrix unpacked, if it is packed."""
    return unpack(matrix, dtype) if isinstance(matrix, Packed) else matrix


def round_rows(
    x: Float[Tensor, "rows inner"], form: Format
) -> tuple[Float[Tensor, "rows inner"] | Int[Tensor, "rows inner"], Float[Tensor, "rows 1"]]:
    """Rows rounded to an 8-bit format: codes, and the scale of each row."""
    largest = LARGEST_FP8 if form.is_float else LARGEST_INT8
    peak = x.abs().amax(-1, keepdim=True).float()
    scale = (peak / torch.full_like(peak, largest)).clamp_(min=TINY)  # by a number, a GPU multiplies by its inverse
    codes = x.float() / scale
    return (codes if form.is_float else codes.round_()).to(form.dtype), scale


def error(weight: Float[Tensor, "*stack outer inner"], packed: Packed) -> tuple[float, float]:
    """Sums of squares of the rounding errors and of the matrix; the root of their quotient is the relative error."""
    exact = weight.float()
    return float((unpack(packed) - exact).square().sum()), float(exact.square().sum())


# -- four bits, in parts: a group's scale, its codes, and their values -------------------------------------------------


def fit_scale(
    groups: Float[Tensor, "*stack groups group"],
    form: Format,
    top: Tensor | None = None,
) -> Float[Tensor, "*stack groups"]:
    """The scale of each group, in the format's own numbers.

    Integers get the scale with the least squared error of several. Floats put the largest value on the largest code;
    their scales are relative to `top`.
    """
    if top is None and groups.numel() > _CACHED and len(groups) > 1:  # seven passes over what a cache holds
        few = max(1, len(groups) * _CACHED // groups.numel())
        return torch.cat([fit_scale(part, form) for part in groups.split(few)])
    largest = groups.abs().amax(-1)
    if top is not None:
        return (largest / _LARGEST_FP4 / top).clamp(max=LARGEST_FP8).to(form.scale_dtype)
    best, least = torch.empty_like(largest, dtype=form.scale_dtype), torch.full_like(largest, torch.inf)
    for shrink in _SHRINKS:
        scale = (largest * (shrink / 7.5)).clamp(min=TINY).to(form.scale_dtype)
        step = scale_step(scale, None)
        off = (groups / step).round_().clamp_(-8, 7).mul_(step).sub_(groups).square_().sum(-1)
        best, least = torch.where(off < least, scale, best), torch.minimum(off, least)
    return best


def scale_step(scale: Tensor, top: Tensor | None) -> Tensor:
    """The value of code 1 in each group, with an axis to broadcast over the group."""
    return (scale.float() if top is None else scale.float() * top).unsqueeze(-1)


def encode(values: Float[Tensor, "*shape"], step: Tensor, form: Format) -> Tensor:
    """The nearest 4-bit codes, a byte each. A group of zeros has a step of zero and codes of zero."""
    if not form.is_float:
        return (values / step).round_().clamp_(-8, 7).add_(8).to(torch.uint8)
    sized = torch.where(step > 0, values / step.clamp(min=TINY), 0.0)
    # Halves round to the even code, as in IEEE rounding; so every second boundary belongs to the code above.
    middles = torch.tensor([(a + b) / 2 for a, b in pairwise(LEVELS)], device=values.device)
    middles[1::2] = torch.nextafter(middles[1::2], middles.new_zeros(()))
    return (torch.bucketize(sized.abs().clamp(max=_LARGEST_FP4), middles) + 8 * (sized < 0)).to(torch.uint8)


def decode(codes: Tensor, form: Format) -> Tensor:
    """The values of 4-bit codes, a byte each, in steps."""
    if not form.is_float:
        return codes.float() - form.middle
    return torch.tensor([*LEVELS, *(-level for level in LEVELS)], device=codes.device).take(codes.long())


def two_a_byte(codes: Tensor) -> Tensor:
    """4-bit codes in the stored form: two a byte, the first in the low half."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def four_a_byte(codes: Tensor) -> Tensor:
    """2-bit codes in the stored form: four a byte, the first in the lowest bits."""
    return codes[..., ::4] | codes[..., 1::4] << 2 | codes[..., 2::4] << 4 | codes[..., 3::4] << 6


def spread(top: Tensor, rows: int) -> Tensor:
    """A matrix's top repeated for each of its rows, as in `Packed`."""
    return top.expand(*top.shape[:-2], rows, 1)


def top_of(weight: Float[Tensor, "*stack outer inner"]) -> Float[Tensor, "*stack 1 1"]:
    """The factor of nvfp4's scales: the matrix's largest value gets the largest scale, so that small groups have scales
    in the range of e4m3."""
    most = weight.float().abs().flatten(-2).amax(-1)[..., None, None].clamp(min=TINY)
    return most / (LARGEST_FP8 * _LARGEST_FP4)
