"""How the CPU's matrix library sums: what an answer's independence of its neighbours hangs on, and int8's exactness.

How many rows a product has depends on who else is in the batch; how each row is summed must not. But a library has
kernels of their own for few rows, and MKL, torch's on x86, cuts long sums among threads on Intel's processors. In its
strict mode (conditional numerical reproducibility) it does neither, if that is asked for before the first product. On
other makers' processors the mode may mean very old kernels: there rows are filled up to a number that serves.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from functools import cache
from itertools import compress
from pathlib import Path

import torch
from torch.nn import functional as F

_STRICT = 0x10000 | 2  # MKL_CBWR_STRICT and MKL_CBWR_AUTO: the best kernels that this processor has
_GROUPS = (1, 4, 8, 16, 32)
_LATE = """a matrix was multiplied before a model was loaded: on this processor the last bits of an answer may hang on
what else is asked meanwhile; load the model first, or start with MKL_CBWR=AUTO,STRICT in the environment"""


def keep_order() -> bool:
    """Ask MKL for that mode, for this process. Returns whether it holds; warns where it is too late for it.

    Nothing is asked where `MKL_CBWR` is set, MKL's own variable, or the processor is not Intel's.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        ours = "MKL_CBWR" not in os.environ and "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if ours and library.mkl_serv_cbwr_set(_STRICT):
            warnings.warn(_LATE, RuntimeWarning, stacklevel=2)
        return bool(library.mkl_serv_cbwr_get(-1) > 0xFFFF)
    except (OSError, AttributeError):  # no Linux, or a torch without MKL
        return False


IN_ORDER = keep_order()  # whether MKL was brought to sum every row in one order, however many there are


@cache
def row_group() -> int:
    """A float32 product of that many rows, or a multiple of it, sums each as among many: a short measurement.

    Without that mode it is 4 at least: with ten threads, rows beyond whole groups of four run another kernel.
    """
    numbers = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, 512, generator=numbers) for rows in (128, 128))
    many = F.linear(x, weight)
    sums = (all(torch.equal(F.linear(x[:n], weight), many[:n]) for n in range(g, 97, g)) for g in _GROUPS)
    return max(1 if IN_ORDER else 4, next(compress(_GROUPS, sums), _GROUPS[-1]))


@cache
def sums_in_32_bits() -> bool:
    """Whether this CPU sums int8 products in 32 bits. Without VNNI it adds pairs in 16 bits, and overflows."""
    most = torch.full((16, 64), 127, dtype=torch.int8)
    return torch.equal(torch._int_mm(most, most.T), torch.full((16, 16), 64 * 127**2, dtype=torch.int32))
