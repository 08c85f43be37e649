"""The tables of docs/scale.md: what a fleet for the 26B model would need, and what routing was simulated to give."""

from __future__ import annotations

from math import ceil
from pathlib import Path

import torch

from pages.claims import table
from redraft.config import ModelConfig, read_config
from redraft.measure.record import read_record
from redraft.measure.roofline import CARDS, Card, attention_flops, cache_bytes, linear_flops, step_work
from redraft.weights.memory import footprint
from redraft.weights.plan import PLANS, Formats, formats

PREFIX = 2048
STEPS, AT_ONCE = 16, 8
"""Steps of a block and canvases of a forward that the plan assumes."""

OF_FLOOR, OF_DAY = 0.5, 0.4
"""Share of the floor's speed that is reached, and of the day that the fleet is busy: assumed, not measured."""

DOLLARS = {"H200 SXM 141 GB": 3.5, "H100 SXM 80 GB": 2.5, "L40S 48 GB": 1.0}
"""Of an hour of a card: assumed; put your own in."""

NEEDS = ((10, 5_000_000), (100, 50_000_000), (1_000, 500_000_000), (10_000, 5_000_000_000))
"""Users, and tokens a day of all of them: half a million each."""

FORMATS = ("bfloat16", "fp8", "int4")
STREAMS = (1, 4, 16, 64, 256)


def plan(root: Path) -> str:
    """Users and tokens a day: replicas, and what a million tokens cost."""
    config, rows = _config(root), []
    for users, tokens in NEEDS:
        for card in (one for one in CARDS if one.name in DOLLARS):
            for name in FORMATS:
                packed = _packed(config, name)
                if not _fits(config, card, packed, AT_ONCE):
                    continue
                each = OF_FLOOR * _diffusion(config, card, name, AT_ONCE)
                replicas = max(1, ceil(tokens / (each * 86_400 * OF_DAY)))
                cost = replicas * DOLLARS[card.name] * 24 / (tokens / 1e6)
                rows.append(
                    (f"{users:,}", f"{tokens:,}", card.name, name, f"{each:,.0f}", f"{replicas:,}", f"{cost:.2f}")
                )
    heads = (
        "users",
        "tokens a day",
        "card",
        "format",
        "tokens/s of a replica",
        "replicas = cards",
        "dollars a million",
    )
    return table(heads, rows)


def crossover(root: Path) -> str:
    """Tokens a second by the floor, of this model and of one as large that writes a token a forward."""
    config, rows = _config(root), []
    for card in (one for one in CARDS if one.name in DOLLARS):
        for name in FORMATS:
            packed = _packed(config, name)
            if not _fits(config, card, packed, 1):
                continue
            ours = [
                f"{_diffusion(config, card, name, n):,.0f}" if _fits(config, card, packed, n) else "" for n in STREAMS
            ]
            theirs = [f"{_one_by_one(config, card, name, n):,.0f}" for n in STREAMS]
            cells = [f"{a} / {b}" if a else f" / {b}" for a, b in zip(ours, theirs, strict=True)]
            meet = next(
                (n for n in range(1, 1025) if _one_by_one(config, card, name, n) > _diffusion(config, card, name, n)),
                None,
            )
            rows.append((card.name, name, *cells, "beyond 1,024" if meet is None else f"{meet:,}"))
    return table(("card", "format", *(f"{n} at once" for n in STREAMS), "they are faster from"), rows)


def simulated(root: Path) -> str:
    """Routers of a thousand replicas."""
    record = read_record(root / "bench" / "records" / "fleet-simulation.json")
    rows = []
    for name in ("chance", "two choices", "prefix"):
        one = record.figures[name]
        times = one["latency_ms"]
        rows.append(
            (name, f"{one['hit_rate']:.1%}", f"{times['p50']:,.0f}", f"{times['p99']:,.0f}", one["longest_queue"])
        )
    return table(("where a request goes", "found in a cache", "median ms", "99% ms", "longest queue"), rows)


def _config(root: Path) -> ModelConfig:
    return read_config(root / "recipes" / "shapes" / "26b").model


def _packed(config: ModelConfig, name: str) -> Formats:
    return formats(config, PLANS.get(name))


def _fits(config: ModelConfig, card: Card, packed: Formats, canvases: int) -> bool:
    need = footprint(config, torch.bfloat16, packed)
    return sum(need.weights.values()) + canvases * cache_bytes(config, torch.bfloat16, PREFIX) < 0.9 * card.memory


def _diffusion(config: ModelConfig, card: Card, name: str, canvases: int) -> float:
    work = step_work(config, torch.bfloat16, _packed(config, name), canvases=canvases, prefix=PREFIX)
    return canvases * config.canvas_length / (STEPS * work.seconds(card))


def _one_by_one(config: ModelConfig, card: Card, name: str, streams: int) -> float:
    """A token for each stream a forward: of the experts those that so many tokens are sent to."""
    share = 1 - (1 - config.top_k_experts / config.num_experts) ** streams
    need = footprint(config, torch.bfloat16, _packed(config, name))
    weights = dict(need.weights) | {"experts": int(need.weights["experts"] * share)}
    read = sum(weights.values()) + streams * cache_bytes(config, torch.bfloat16, PREFIX)
    head = 2 * config.vocab_size * config.hidden_size
    flops = streams * (linear_flops(config) + head) + attention_flops(config, streams, PREFIX, 1)
    peak = card.fp8 if name == "fp8" and card.fp8 is not None else card.bf16
    return streams / max(read / card.bandwidth, flops / peak)
