"""What tests of training share: the shape of a small model, and what is compared of two runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from redraft.tune.recipe import Recipe
from redraft.tune.train import LOG, train

SHAPE = """
[model]
hidden_size = 32
intermediate_size = 24
moe_intermediate_size = 16
num_heads = 4
num_kv_heads = 2
num_full_kv_heads = 1
head_dim = 8
full_head_dim = 16
num_experts = 4
top_k_experts = 2
layers = ["sliding", "full", "sliding", "full"]
window = 16
max_positions = 128
canvas_length = 24
"""


def stop_behind(last: int) -> Callable[[int, int, dict[str, float]], None]:
    """A run's report that interrupts it behind a step."""

    def interrupt(step: int, total: int, row: dict[str, float]) -> None:
        if step == last:
            raise KeyboardInterrupt

    return interrupt


def steps_of(recipe: Recipe, out: Path) -> list[int]:
    """The steps that a run still takes."""
    steps: list[int] = []
    train(recipe, out, lambda step, total, row: steps.append(step))
    return steps


def rows(folder: Path) -> list[dict[str, float]]:
    """The log of a run without what differs from run to run."""
    found = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in found]
