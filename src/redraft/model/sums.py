"""How the CPU's matrix library sums: what an answer's independence of its neighbours hangs on, and int8's exactness.

How many rows a forward or an expert gets depends on who else is in the batch. Two things make a row's sums depend on
it. A library has kernels of their own for few rows, which add in another order. And MKL, which torch brings on x86,
cuts long sums among its threads on processors of Intel's if the rows are too few to go round. It has a mode in which it
does neither, strict conditional numerical reproducibility, to be asked for before the process's first product. On other
makers' processors that mode may mean kernels of twenty years ago, so there rows are filled up to a number that serves.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import torch
from torch.nn import functional as F

_STRICT = 0x10000 | 2  # MKL_CBWR_STRICT and MKL_CBWR_AUTO: the best kernels that this processor has
_GROUPS = (4, 8, 16, 32)


def keep_order() -> bool:
    """Ask MKL for that mode, for this process. Returns whether it holds.

    Nothing is asked where `MKL_CBWR` is set, MKL's own variable, or the processor is not Intel's. Too late it is when
    the process has multiplied matrices before it imported this package.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        if "MKL_CBWR" not in os.environ and "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
            library.mkl_serv_cbwr_set(_STRICT)
        return bool(library.mkl_serv_cbwr_get(-1) & ~0xFFFF)
    except (OSError, AttributeError):  # no Linux, or a torch without MKL
        return False


IN_ORDER = keep_order()
"""Whether every product sums its rows in one order, however many there are."""


@cache
def row_group() -> int:
    """A float32 product of that many rows, or a multiple of it, sums each as among many: 1 in MKL's strict mode.

    Measured elsewhere. Rows beyond whole groups of four run another kernel at ten threads, so it is 4 at least.
    """
    if IN_ORDER:
        return 1
    numbers = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, 512, generator=numbers) for rows in (128, 128))
    many = F.linear(x, weight)
    good = (g for g in _GROUPS if all(torch.equal(F.linear(x[:n], weight), many[:n]) for n in range(g, 97, g)))
    return next(good, _GROUPS[-1])


@cache
def sums_in_32_bits() -> bool:
    """Whether this CPU sums int8 products in 32 bits. Without VNNI it adds pairs in 16 bits, and overflows."""
    most = torch.full((16, 64), 127, dtype=torch.int8)
    return torch.equal(torch._int_mm(most, most.T), torch.full((16, 16), 64 * 127**2, dtype=torch.int32))
