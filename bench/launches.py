"""What a step of the 26B model launches on a GPU, counted on tensors without numbers, and what that adds to its floor.

    python bench/launches.py --record bench/records/launches.json

Each launch takes at least as long as its bytes or its arithmetic at the card's full rate, and between two of them lie
two microseconds (assumed, for launches of a graph). The floor (`measure/roofline.py`) lets one launch read while
another multiplies, knows no activations that a cache is too small for, and reads the head's table once. So the quotient
is what this order of launches costs if every one of them is as good as can be: a bound from below, no measurement.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from triton import knobs
from triton.runtime import driver

from compiled import Driver
from redraft.config import ModelConfig, read_config
from redraft.measure.device import USUAL, random_weights, step_of
from redraft.measure.record import check_place, new_record, write_record
from redraft.measure.roofline import CARDS, TOUCHED, Card, step_work
from redraft.model.gemma import DiffusionGemma
from redraft.model.gpu.dense import multiply_kernel
from redraft.model.gpu.kernels import GPU
from redraft.model.gpu.norm import _norm
from redraft.model.packed import Packed
from redraft.weights.plan import PLANS, PackingPlan, formats

SHAPE = Path(__file__).resolve().parents[1] / "recipes/shapes/26b"
BETWEEN_SEC = 2e-6
CACHED = 2**25
"""Bytes of activations of one launch up to which they are still in a GPU's cache: those of one canvas are."""
PRODUCTS = {"linear": 0, "matmul": 0, "mm": 0, "bmm": 0, "addmm": 1}
"""Products, and which of their tensors is the left factor."""
LOOKED_UP = ("embedding", "index", "gather")
"""Operations that read a few rows of their first tensor."""


@dataclass(frozen=True)
class Launch:
    """One launch: bytes of weights and kept keys that it reads, bytes of activations that it reads and writes,
    operations, and whether these are of 8-bit floats."""

    name: str
    stored: int
    passing: int
    flops: int = 0
    eight: bool = False

    def seconds(self, card: Card) -> float:
        """At the card's full rate."""
        peak = card.fp8 if self.eight and card.fp8 is not None else card.bf16
        return max((self.stored + self.passing) / card.bandwidth, self.flops / peak)


class Launches(TorchDispatchMode):
    """Notes what is launched while it is entered: operations of torch that compute or copy, no views, and no memory
    that is only taken; and our kernels. Of a layer's experts the share `touched` is read."""

    def __init__(self, config: ModelConfig, canvases: int, prefix: int, touched: float = 1.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.config, self.canvases, self.prefix, self.touched = config, canvases, prefix, touched
        self.found: list[Launch] = []
        self.weights: set[int] = set()

    def holds(self, model: DiffusionGemma) -> None:
        """These are the weights."""
        self.weights = {place_of(one) for one in (*model.parameters(), *model.buffers())}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        out = func(*args, **kwargs or {})
        tensors = [one for one in tree_flatten((args, kwargs, out))[0] if isinstance(one, Tensor) and one.is_meta]
        if tensors and not func.is_view and not name.startswith(("empty", "new_empty", "_unsafe_view")):
            self.note(name, tensors[name in LOOKED_UP :], flops_of(name, tensors))
        return out

    def note(
        self,
        name: str,
        tensors: Sequence[Tensor],
        flops: int = 0,
        *,
        stored: int = 0,
        read: float = 1.0,
        codes: Tensor | None = None,
    ) -> None:
        """A launch on tensors, each counted once. It reads `stored` bytes beside them, and a share of the weights.
        `codes` are those of a matrix."""
        sizes = {(place_of(one), one.shape): one.numel() * one.element_size() for one in tensors}
        kept = sum(size for (place, _), size in sizes.items() if place in self.weights)
        passing = sum(sizes.values()) - kept
        eight = codes is not None and codes.dtype == torch.float8_e4m3fn
        self.found.append(Launch(name, int(read * kept) + stored, passing if passing > CACHED else 0, flops, eight))

    def kernel(self, function: Any, *args: Any, **constants: Any) -> None:
        """A launch of a kernel of Triton, in place of which nothing runs."""
        name, tensors = function.fn.__name__, [one for one in args if isinstance(one, Tensor)]
        product = 2 * tensors[-1].shape[0] * constants.get("INNER", 0) * constants.get("OUTER", 0)
        match name:
            case "_gate_up" | "_down":
                self.note(
                    name, tensors, product * (2 if name == "_gate_up" else 1), read=self.touched, codes=tensors[6]
                )
            case "_dense":
                self.note(name, tensors, product, codes=tensors[2])
            case "_attend":
                layer = next(one for one in self.config.layers if one.head_dim == constants["DIM"])
                seen = self.prefix if layer.window is None else min(self.prefix, layer.window - 1)
                seen += self.config.canvas_length
                row = 2 * layer.num_kv_heads * layer.head_dim * tensors[0].element_size()
                self.note(name, tensors[:2], 4 * tensors[0].numel() * seen, stored=self.canvases * row * seen)
            case _:
                self.note(name, tensors)

    def product(self, x: Tensor, weight: Packed) -> Tensor:
        """x Wᵀ of a packed matrix. One of 8-bit floats, which the library multiplies on a GPU, is noted alone."""
        if weight.format.name != "fp8":
            return multiply_kernel(x, weight)
        out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
        codes = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
        self.note("_round", [x, codes])
        flops = 2 * x.numel() * weight.shape[0]
        self.note("scaled_mm", [codes, weight.codes, weight.scale, out], flops, codes=codes)
        return out


def place_of(tensor: Tensor) -> int:
    """Which memory a tensor is in."""
    place: int = tensor.untyped_storage()._cdata
    return place


def flops_of(name: str, tensors: Sequence[Tensor]) -> int:
    """Of an operation of torch, by what it was given and what came of it."""
    if name not in PRODUCTS:
        return 0
    left = tensors[PRODUCTS[name]]
    return 2 * tensors[-1].numel() * left.shape[-1]


def launches_of(config: ModelConfig, plan: PackingPlan | None, canvases: int, touched: float = 1.0) -> list[Launch]:
    """What a step in bfloat16 launches, behind USUAL tokens."""
    if not knobs.runtime.interpret:
        driver.set_active(Driver(90))
    noted = Launches(config, canvases, USUAL, touched)
    kernels = replace(GPU, product=noted.product)
    model = random_weights(config, torch.bfloat16, torch.device("meta"), formats(config, plan), kernels)
    noted.holds(model)
    step = step_of(model, canvases, USUAL)
    with (
        patch.object(type(_norm), "run", lambda self, *args, **constants: noted.kernel(self, *args, **constants)),
        torch.inference_mode(),
        noted,
    ):
        step()
    return noted.found


def computed(config: ModelConfig) -> Iterator[dict[str, Any]]:
    """A row for each plan, number of canvases and card: the floor, and the least time by the launches, in ms."""
    for name in ("bfloat16", *PLANS):
        plan = PLANS.get(name)
        for canvases, touched in ((1, TOUCHED / config.num_experts), (8, 1.0)):
            found, packed = launches_of(config, plan, canvases, touched), formats(config, plan)
            work = step_work(config, torch.bfloat16, packed, canvases=canvases, prefix=USUAL, touched=touched)
            assert sum(one.flops for one in found) == work.flops, "the floor counts other products"
            for card in CARDS:
                yield {
                    "plan": name,
                    "canvases": canvases,
                    "card": card.name,
                    "launches": len(found),
                    "floor_ms": round(1e3 * work.seconds(card), 3),
                    "full_rate_ms": round(1e3 * sum(one.seconds(card) for one in found), 3),
                    "least_ms": round(1e3 * least_seconds(found, card), 3),
                }


def least_seconds(launches: Sequence[Launch], card: Card) -> float:
    """One after the other, each at the card's full rate, with gaps."""
    return sum(one.seconds(card) for one in launches) + BETWEEN_SEC * len(launches)


def main() -> None:
    """Count and compute."""
    parser = argparse.ArgumentParser(description="What a step launches on a GPU, and what that adds to its floor.")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write a record")
    given = parser.parse_args()
    if given.record:
        check_place(given.record)
    rows, summary = [], []
    for row in computed(read_config(SHAPE).model):
        rows.append(row)
        what = f"{row['plan']}, {row['canvases']} canvases on {row['card']}"
        times = row["least_ms"] / row["floor_ms"]
        print(f"{what}: {row['launches']} launches, at least {row['least_ms']:.1f} ms, {times:.2f} times the floor")
        if row["card"].startswith("H100"):
            summary.append((f"launches at full rate: {what} (computed)", f"{times:.2f} times the floor"))
    if given.record:
        workload = {"model": SHAPE.name, "dtype": "bfloat16", "prefix": USUAL, "between_sec": BETWEEN_SEC}
        write_record(new_record("launches", workload=workload, figures={"rows": rows}, summary=summary), given.record)


if __name__ == "__main__":
    main()
