"""The order in which the CPU's matrix library adds: it must not depend on the batch. And whether int8 sums are exact.

The number of rows of a product depends on the batch; the order of each row's sum must not. But libraries have special
kernels for few rows, and MKL, torch's library on x86, splits long sums among threads on Intel's processors. Its strict
mode (conditional numerical reproducibility) avoids both, if it is set before the first product. On processors of other
makers the mode may select very old kernels: there rows are padded to a number that has the same effect.
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
_LATE = """a matrix was multiplied before a model was loaded: on this processor the last bits of an answer may depend on
other requests of its batch; load the model first, or start with MKL_CBWR=AUTO,STRICT in the environment"""


def keep_order() -> bool:
    """Set MKL's strict mode for this process. Returns whether it is in effect; warns if it is too late for it.

    Nothing is set if `MKL_CBWR`, MKL's own variable, is set, or the processor is not Intel's.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        ours = "MKL_CBWR" not in os.environ and "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if ours and library.mkl_serv_cbwr_set(_STRICT):
            warnings.warn(_LATE, RuntimeWarning, stacklevel=2)
        return bool(library.mkl_serv_cbwr_get(-1) > 0xFFFF)
    except (OSError, AttributeError):  # no Linux, or a torch without MKL
        return False


IN_ORDER = keep_order()  # whether MKL sums every row in one order for any number of rows


@cache
def row_group() -> int:
    """Number of rows whose multiples give each row of a float32 product the sums that it has among many: measured.

    Without the strict mode it is at least 4: with ten threads, rows beyond whole groups of four run another kernel.
    """
    numbers = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, 512, generator=numbers) for rows in (128, 128))
    many = F.linear(x, weight)
    sums = (all(torch.equal(F.linear(x[:n], weight), many[:n]) for n in range(g, 97, g)) for g in _GROUPS)
    return max(1 if IN_ORDER else 4, next(compress(_GROUPS, sums), _GROUPS[-1]))


@cache
def multiplies_int8() -> bool:
    """Whether torch's int8 product is of use on this CPU: with VNNI, and in sums of 32 bits.

    Without the instructions it is a plain loop, thirty times slower than float32's product, or one that adds pairs in
    16 bits and overflows.
    """
    if not torch.cpu._is_vnni_supported():
        return False
    most = torch.full((16, 64), 127, dtype=torch.int8)
    return torch.equal(torch._int_mm(most, most.T), torch.full((16, 16), 64 * 127**2, dtype=torch.int32))
