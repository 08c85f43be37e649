"""Times the experts and the attention of one layer of the 26B model in several tiles, on a GPU.

    python bench/tiles.py --record OUT/tiles.json [--plans none,fp8,int4,nvfp4] [--canvases 1,8]

What comes out best belongs into `model/gpu/experts.py::experts_tiles` and `model/gpu/attention.py::attention_tile`.
Matrices are random and larger than any cache, rows go to random experts, and each case is written down as soon as it
has been timed. Experts are put beside reading their matrices once, attention beside the tile in use.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from statistics import median
from typing import Any

import torch
import triton

from redraft.cache import Prefix
from redraft.config import ModelConfig, read_config
from redraft.measure.device import USUAL, measure_card, time_runs
from redraft.measure.record import check_place, new_record, write_record
from redraft.model.gpu.attention import AttentionTile, attend_spans, attention_tile
from redraft.model.gpu.experts import experts_each, experts_tiles
from redraft.model.gpu.tiles import Tile
from redraft.model.linear import PackedMatrix
from redraft.model.moe import AnyExperts, Experts, PackedExperts
from redraft.model.packed import FORMATS
from redraft.model.rows import Mode, Rows, Span

SHAPE = Path(__file__).resolve().parents[1] / "recipes/shapes/26b"
DEVICE = torch.device("cuda")


def main() -> None:
    """Time, tell, write."""
    parser = argparse.ArgumentParser(description="Time the experts of a layer in several tiles.")
    parser.add_argument("--plans", default="int4,none,fp8,nvfp4", help="none for bfloat16 (default: %(default)s)")
    parser.add_argument("--canvases", default="1,8", help="canvases of 256 rows (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--record", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    check_place(arguments.record)
    card = measure_card(DEVICE, torch.bfloat16, 5)
    print(f"{card.name}: copies {card.bandwidth / 1e9:.0f} GB/s", flush=True)
    found = list[dict[str, Any]]()
    counts = [int(one) for one in arguments.canvases.split(",")]
    every = [attention_cases(counts, arguments.runs)]
    every += [cases(plan, counts, card.bandwidth, arguments.runs) for plan in arguments.plans.split(",") if plan]
    for case in chain(*every):
        print(
            " ".join(f"{value:.3f}" if isinstance(value, float) else str(value) for value in case.values()), flush=True
        )
        found.append(case)
        workload = {"model": SHAPE.name, "dtype": "bfloat16", "runs": arguments.runs, "plans": arguments.plans}
        summary = [("tiles of a layer timed", str(len(found))), *claims(found)]
        record = new_record("tiles", workload=workload, figures={"cases": found}, summary=summary)
        write_record(record, arguments.record)


def claims(found: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """For each part of a layer the fastest tile beside the one in use, which comes first."""
    parts: dict[str, list[float]] = {}
    for case in found:
        count, plan = case["canvases"], case["plan"].replace("none", "bfloat16")
        parts.setdefault(f"{case['part']}, {count} canvas{'es' * (count > 1)}, {plan}", []).append(1e3 * case["ms"])
    return [(part, f"{min(took):.0f} µs, {took[0]:.0f} µs in the tile in use") for part, took in parts.items()]


def attention_cases(canvases: Sequence[int], runs: int) -> Iterator[dict[str, Any]]:
    """Of a sliding and of a full layer: the tile in use, then others."""
    whole = read_config(SHAPE).model
    for layer, count in product(dict.fromkeys(whole.layers), canvases):
        config, width = replace(whole, layers=(layer,)), whole.canvas_length
        spans = [Span(a_prefix(config), width, Mode.DENOISE) for _ in range(count)]
        context = Rows(config, spans, DEVICE, torch.bfloat16)
        for span, start in zip(spans, context.starts, strict=True):
            own = torch.randn(2, width, layer.num_kv_heads, layer.head_dim, dtype=torch.bfloat16, device=DEVICE)
            span.prefix.layers[0].place(start, *own)
        q = torch.randn(count * width, whole.num_heads, layer.head_dim, dtype=torch.bfloat16, device=DEVICE)
        q *= layer.head_dim**-0.5
        usual, first = attention_tile(q), math.nan
        for tile in (usual, *(one for one in attention_candidates(layer.head_dim) if one != usual)):
            seconds = timing(partial(attend_spans, q, context.tables(0), 0, layer.num_kv_heads, tile), runs)
            first = seconds if tile == usual else first
            yield {
                "plan": "none",
                "canvases": count,
                "part": f"attention, heads of {layer.head_dim}",
                "ms": 1e3 * seconds,
                "times": seconds / first,
                "tile": asdict(tile),
            }


def a_prefix(config: ModelConfig) -> Prefix:
    """Keys and values of the usual length for its one layer."""
    found, (layer,) = Prefix(config.layers, room=2 * USUAL, dtype=torch.bfloat16, device=DEVICE), config.layers
    kept = USUAL if layer.window is None else layer.window - 1
    found.layers[0].restore(
        USUAL, *torch.randn(2, layer.num_kv_heads, kept, layer.head_dim, dtype=torch.bfloat16, device=DEVICE)
    )
    found.length = USUAL
    return found


def attention_candidates(dim: int) -> Iterator[AttentionTile]:
    """Tiles that matrix units of 64 rows take, and small ones."""
    if dim > 256:
        sizes = [(32, 32, 8, 2), (64, 32, 8, 2), (64, 16, 8, 3)]
    else:
        sizes = [(32, 32, 4, 3), (64, 32, 4, 3), (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 8, 2)]
        sizes += [(128, 32, 8, 3), (128, 64, 8, 2)]
    for (rows, keys, warps, stages), splits in product(sizes, (1, 2, 4)):
        yield AttentionTile(rows, keys, warps, stages, splits)


def cases(plan: str, canvases: Sequence[int], bandwidth: float, runs: int) -> Iterator[dict[str, Any]]:
    """The tiles of gate and up, then, with the best of them, those of down."""
    config = read_config(SHAPE).model
    experts, size = some_experts(plan, config.hidden_size, config.moe_intermediate_size, config.num_experts)
    for count in canvases:
        x = torch.randn(count * config.canvas_length, config.hidden_size, dtype=torch.bfloat16, device=DEVICE)
        chosen = torch.rand(len(x), config.num_experts, device=DEVICE).topk(config.top_k_experts).indices
        run = partial(experts_each, experts, x, chosen)
        best = list(experts_tiles(experts.gate_up, chosen.numel() / config.num_experts, x.dtype))
        for part, name in enumerate(("gate up", "down")):
            least, usual = math.inf, best[part]
            for tile in candidates(usual):
                tiles = (tile, best[1]) if part == 0 else (best[0], tile)
                seconds = timing(partial(run, tiles=tiles), runs)
                if seconds < least:
                    least, best[part] = seconds, tile
                times = seconds * bandwidth / size
                yield {
                    "plan": plan,
                    "canvases": count,
                    "part": name,
                    "ms": 1e3 * seconds,
                    "times": times,
                    "tile": asdict(tile),
                }


def some_experts(plan: str, hidden: int, ffn: int, count: int) -> tuple[AnyExperts, int]:
    """A layer's, of random numbers, and their bytes."""
    shapes = (count, 2 * ffn, hidden), (count, hidden, ffn)
    if plan == "none":
        with torch.device(DEVICE):
            made = Experts(hidden, ffn, count).to(torch.bfloat16).requires_grad_(False)
        for matrix in made.parameters():
            matrix.normal_(std=0.02)
        return made, sum(matrix.nbytes for matrix in made.parameters())
    with torch.device(DEVICE):
        parts = [PackedMatrix(FORMATS[plan], shape) for shape in shapes]
    for part in parts:
        part.codes.view(torch.uint8).random_(0, 120 if part.codes.dtype == torch.float8_e4m3fn else 256)
        part.scale.copy_(torch.tensor(2.0**-9 if part.top is None else 1.0))
        if part.top is not None:
            part.top.fill_(2.0**-9)
    return PackedExperts(*parts), sum(part.packed.num_bytes for part in parts)


def candidates(usual: Tile) -> Iterator[Tile]:
    """The usual one first, then others of as many rows."""
    yield usual
    narrow = [(64, 4, 3), (64, 4, 5), (128, 4, 3), (128, 4, 4)]
    for out, warps, stages in (*narrow, (128, 8, 3), (128, 8, 4), (256, 8, 3), (256, 8, 4)):
        tile = replace(usual, out=out, warps=warps, stages=stages)
        if tile != usual:
            yield tile


def timing(run: Callable[[], object], runs: int) -> float:
    """Seconds, replayed as a graph so that launches do not count; no number if it cannot be run."""
    try:
        with torch.inference_mode():
            run()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
    except (triton.TritonError, RuntimeError) as error:
        print(f"left out: {str(error).splitlines()[0]}", flush=True)
        return math.inf
    return median(time_runs(graph.replay, DEVICE, runs))


if __name__ == "__main__":
    main()
