"""Matrices and norms, the parts of every block. There are no biases (model spec 1.1, 1.2).

Every product of rows with a matrix goes through `multiply`, for a matrix in any format (`model/packed.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from torch import nn
from torch.nn import functional as F

from redraft.model.packed import Format, Packed, plain, round_rows, steps, unpack
from redraft.model.sums import multiplies_int8, row_group
from redraft.shapes import Float, Int, Tensor

LEAST_ON_GPU = 32
"""Least rows of a GPU's int8 matmul: torch refuses 16 and fewer."""
EXACT_IN_FLOAT = 1024
"""Products of int8 numbers that float32 sums exactly, in any order: 128 · 128 · 1024 is 2**24."""
TILED_ROWS, TILED_ROWS_AVX2, TILED_OUTER = 64, 16, 16
"""Rows that a product of tiles takes at a time, and what the other side's rows are a multiple of."""
OUTER_IN_FLOAT = 1024
"""Rows of such a matrix converted to floats at a time: 4 MiB, where a large vocabulary would take a gigabyte."""
RUN, LEAST_RUN = 2**20, 256
"""Numbers of a matrix that a processor unpacks or widens at a time, so that they stay in its cache; least rows."""


def multiply(
    x: Float[Tensor, "rows inner"], weight: Float[Tensor, "outer inner"] | Packed
) -> Float[Tensor, "rows outer"]:
    """x Wᵀ. The order of each row's sums does not depend on the other rows; if needed, rows of zeros are added.

    So an answer does not depend on its batch (`model/sums.py`). Compiled layers train: their rows are not padded.
    """
    if isinstance(weight, Packed):
        return multiply_packed(x, weight)
    if emulates(x):
        return multiply_by_runs(x, weight)
    rows = x.shape[0]
    if x.is_cuda or x.dtype != torch.float32 or torch.compiler.is_compiling() or rows % row_group() == 0:
        return F.linear(x, weight)
    return F.linear(F.pad(x, (0, 0, 0, -rows % row_group())), weight)[:rows]


@cache
def has_bfloat16() -> bool:
    """Whether torch's library multiplies bfloat16 on this processor. Under AVX2 alone it does not, and torch's own loop
    takes seven times as long as float32's product."""
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def computed_in(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The format that products of such numbers are taken in; they are rounded to their own once."""
    emulated = device.type == "cpu" and dtype == torch.bfloat16 and not has_bfloat16()
    return torch.float32 if emulated else dtype


def emulates(x: Tensor) -> bool:
    """Whether products of this tensor are taken in another format, for want of instructions. Compiled layers train."""
    return not torch.compiler.is_compiling() and computed_in(x.dtype, x.device) != x.dtype


def multiply_by_runs(x: Float[Tensor, "rows inner"], weight: Tensor | Packed) -> Float[Tensor, "rows outer"]:
    """x Wᵀ on a processor: rows of W are unpacked or widened, a run of them at a time. Each result is rounded once."""
    outer, inner = weight.shape
    wide = x.float() if emulates(x) else x
    few = max(LEAST_RUN, RUN // inner)
    runs = (plain(weight[i : i + few], wide.dtype).to(wide.dtype) for i in range(0, outer, few))
    parts = [multiply(wide, run).to(x.dtype) for run in runs]  # rounded one by one: logits of all tokens are large
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def multiply_packed(x: Float[Tensor, "rows inner"], weight: Packed) -> Float[Tensor, "rows outer"]:
    """x Wᵀ of a packed matrix: 8-bit numbers by the library's matmuls, everything else unpacked first.

    Integer sums are exact, so they are the same in any order and in any batch.
    """
    if weight.format.name == "int8":
        codes, scale = round_rows(x, weight.format)
        return int_matmul(codes, weight.codes).float().mul_(scale).mul_(weight.scale.float().T).to(x.dtype)
    if weight.format.name == "fp8" and in_float8(x, weight):
        return float8_matmul(*round_rows(x, weight.format), weight)
    if weight.tiled:
        return multiply_tiled(x, weight)
    return multiply_unpacked(x, weight)


def can_tile(form: Format, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether torch multiplies such a matrix on this processor without unpacking it: 4-bit integers in bfloat16."""
    there = hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu")
    four = form.bits == 4 and not form.is_float
    wide = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return four and there and wide and dtype == torch.bfloat16 and device.type == "cpu"


def tile(weight: Packed) -> Packed:
    """A matrix, or a stack, with its codes in the order of torch's product on a CPU; in the same memory.

    16 rows an expert, as a canvas has, take less time to multiply than to unpack, so they must not be unpacked.
    """
    for one in weight.codes.view(-1, *weight.codes.shape[-2:]):
        codes = torch.stack([one & 15, one >> 4], -1).flatten(-2).int()
        one.copy_(torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1))
    return replace(weight, tiled=True)


def multiply_tiled(x: Float[Tensor, "rows inner"], weight: Packed) -> Float[Tensor, "rows outer"]:
    """x Wᵀ of a tiled matrix, few rows at a time: with more the product leaves the processor's cache.

    The library adds a number in bfloat16 for each group, here the value of its middle code.
    """
    group = weight.format.group
    if weight.zero is None:  # a stack would take half as long as the product of 16 rows
        scales = torch.zeros(*weight.scale.T.shape, 2, dtype=torch.bfloat16)
        scales[..., 0] = weight.scale.T
    else:
        scales = torch.stack([part.T for part in steps(weight)], -1).bfloat16()
    few = TILED_ROWS if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else TILED_ROWS_AVX2
    parts = [
        torch.ops.aten._weight_int4pack_mm_for_cpu(part.contiguous(), weight.codes, group, scales)
        for part in x.split(few)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def multiply_unpacked(x: Float[Tensor, "rows inner"], weight: Packed) -> Float[Tensor, "rows outer"]:
    """The plain twin: round the rows if the format says so, unpack, multiply."""
    if weight.format.round_rows:
        codes, scale = round_rows(x, weight.format)
        x = (codes.float() * scale).to(x.dtype)
    if x.device.type == "cpu":
        return multiply_by_runs(x, weight)
    return multiply(x, unpack(weight, x.dtype))


def int_matmul(x: Int[Tensor, "rows inner"], weight: Int[Tensor, "outer inner"]) -> Int[Tensor, "rows outer"]:
    """x Wᵀ of int8 numbers, summed in int32. On a GPU the library takes no fewer rows than LEAST_ON_GPU."""
    rows = x.shape[0]
    if not x.is_cuda and not multiplies_int8():
        return int_matmul_in_floats(x, weight)
    if x.is_cuda and rows < LEAST_ON_GPU:
        x = F.pad(x, (0, 0, 0, LEAST_ON_GPU - rows))
    return torch._int_mm(x, weight.T)[:rows]


def int_matmul_in_floats(x: Int[Tensor, "rows inner"], weight: Int[Tensor, "outer inner"]) -> Int[Tensor, "rows outer"]:
    """The plain twin: in float32, so many numbers at a time that their sum is exact, of OUTER_IN_FLOAT rows."""
    found = x.new_zeros(len(x), len(weight), dtype=torch.int32)
    for rows, sums in zip(weight.split(OUTER_IN_FLOAT), found.split(OUTER_IN_FLOAT, 1), strict=True):
        for a, b in zip(x.split(EXACT_IN_FLOAT, 1), rows.split(EXACT_IN_FLOAT, 1), strict=True):
            sums += (a.float() @ b.float().T).int()
    return found


def in_float8(x: Tensor, weight: Packed) -> bool:
    """Whether the library multiplies such rows with an fp8 matrix: on a GPU, in bfloat16, and in pieces of 16."""
    return x.is_cuda and x.dtype == torch.bfloat16 and not any(size % 16 for size in weight.shape[-2:])


def float8_matmul(
    codes: Float[Tensor, "rows inner"], scale: Float[Tensor, "rows 1"], weight: Packed
) -> Float[Tensor, "rows outer"]:
    """x Wᵀ with both sides in e4m3 and a scale for each of their rows, in bfloat16."""
    scales, by_row = weight.scale.float().T.contiguous(), F.ScalingType.RowWise
    found: Tensor = F.scaled_mm(codes, weight.codes.T, scale, by_row, scales, by_row, output_dtype=torch.bfloat16)
    return found


class Linear(nn.Module):
    """y = x Wᵀ."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))

    def forward(self, x: Float[Tensor, "rows inner"]) -> Float[Tensor, "rows outer"]:
        return multiply(x, self.weight)


class PackedMatrix(nn.Module):
    """A packed matrix, or a stack of them, as buffers, so that it is loaded, moved and counted with the model."""

    codes: Tensor
    scale: Tensor
    top: Tensor | None
    zero: Tensor | None

    def __init__(self, form: Format, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.format = form
        *stack, inner = shape
        groups = inner // form.group if form.group else 1
        self.register_buffer("codes", torch.empty(*stack, inner * form.bits // 8, dtype=form.dtype))
        self.register_buffer("scale", torch.empty(*stack, groups, dtype=form.scale_dtype))
        top = torch.empty(*stack, form.tops(inner), dtype=form.top_dtype) if form.top_dtype else None
        self.register_buffer("top", top)
        self.register_buffer("zero", torch.empty(*stack, groups, dtype=torch.uint8) if form.zeros else None)
        self.tiled = False

    @property
    def packed(self) -> Packed:
        """As one value."""
        return Packed(self.format, self.codes, self.scale, self.top, self.tiled, self.zero)

    def take(self, packed: Packed) -> None:
        """Replace the matrix by another one of the same format."""
        self.codes, self.scale, self.top, self.tiled = packed.codes, packed.scale, packed.top, packed.tiled
        self.zero = packed.zero


class PackedLinear(PackedMatrix):
    """y = x Wᵀ with a packed W."""

    def __init__(
        self, form: Format, shape: tuple[int, ...], product: Callable[[Tensor, Packed], Tensor] = multiply_packed
    ) -> None:
        super().__init__(form, shape)
        self.product = product

    def forward(self, x: Float[Tensor, "rows inner"]) -> Float[Tensor, "rows outer"]:
        return self.product(x, self.packed)


class PackedTable(PackedMatrix):
    """An embedding table with packed rows."""

    def forward(self, tokens: Int[Tensor, "rows"]) -> Float[Tensor, "rows hidden"]:
        return unpack(self.packed[tokens])


class NormScale(nn.Module):
    """The weight of an RMSNorm. Its arithmetic is a kernel (`model/kernels.py`); some norms have no weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))


class GatedMLP(nn.Module):
    """down(gelu_tanh(gate x) * up x). Gate rows come first in `gate_up`, so one matmul serves both."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate_up = Linear(hidden, 2 * ffn)
        self.down = Linear(ffn, hidden)

    def forward(self, x: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows hidden"]:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        y: Tensor = self.down(F.gelu(gate, approximate="tanh") * up)
        return y
