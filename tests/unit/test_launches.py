"""How many operations a denoising step of the 26B model launches on a GPU, counted on tensors without numbers.

Between two launches a GPU waits for the host, wherever no graph repeats them: at 5 microseconds each, 600 are 3 ms of a
step whose floor is 15 (docs/devices.md).
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

pytest.importorskip("triton", reason=f"there is no triton for {sys.platform}")

from redraft.config import read_config
from redraft.measure.device import USUAL, random_weights, step_of
from redraft.model.gpu.kernels import GPU
from redraft.model.gpu.norm import _norm

SHAPE = Path(__file__).parents[2] / "recipes/shapes/26b"


class Launches(TorchDispatchMode):
    """Counts operations of torch that compute or copy: no views, and no memory that is only taken."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
        on_device = any(one.device.type == "meta" for one in tensors)
        if on_device and not func.is_view and not name.startswith(("empty", "new_empty", "_unsafe_view")):
            self.counts[name] += 1
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(("canvases", "most"), [(1, 600), (8, 800)])
def test_a_step_takes_few_launches(canvases: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_weights(read_config(SHAPE).model, torch.bfloat16, torch.device("meta"), {}, GPU)
    step = step_of(model, canvases, USUAL)
    kernels: Counter[str] = Counter()
    monkeypatch.setattr(type(_norm), "run", lambda self, *_, **__: kernels.update([self.fn.__name__]))
    with torch.inference_mode(), Launches() as counted:
        step()
    found = counted.counts + kernels
    assert kernels["_attend"] == 30, "every layer attends once, whatever the number of canvases"
    assert found.total() < most, repr(found.most_common())
