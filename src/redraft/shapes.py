"""The axis names used in tensor annotations, defined once.

Annotations are jaxtyping types such as ``Float[Tensor, "rows hidden"]``. The same name means the same size within one
call. They are checked when the test suite runs (one pytest option installs the import hook) and cost nothing otherwise.

    rows      token positions that go through one forward, of all sequences together
    canvas    positions denoised together; the last axis of per-position statistics
    hidden    width of the residual stream
    vocab     vocabulary
    heads     query heads            kv_heads   key/value heads
    head_dim  width of one head      keys       key positions a query may see
    experts   routed experts         top        experts chosen for a row
    ffn       inner width of a gated MLP
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["Bool", "Float", "Int", "Tensor"]
